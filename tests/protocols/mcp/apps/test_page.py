"""The document that is sent: the author's HTML, with the bridge ahead of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcp.apps import BRIDGE, ViewNames, document
from tests.effort import cpu_within
from tests.rows import for_each_row

MARK = '<meta charset="utf-8">\n<script>'
END = "</script>"


def parts(html: str) -> tuple[str, str]:
    """What stands before and behind the bridge."""
    made = document(html, ViewNames())
    before, _, rest = made.partition(MARK)
    return before, rest.partition(END)[2]


def test_the_bridge_is_small_and_cannot_end_its_own_script():
    text = BRIDGE.read_text(encoding="utf-8")
    assert len(text.encode()) < 10_500
    assert "</script" not in text.lower() and "<!--" not in text


@for_each_row(
    ("html", "before"),
    [
        ("<!doctype html><html><head><title>x</title></head></html>", "<!doctype html><html><head>"),
        ('<!DOCTYPE html>\n<html lang="a>b">\n <head id=x >\n<p>', '<!DOCTYPE html>\n<html lang="a>b">\n <head id=x >'),
        ("<!-- <head> --><!doctype html><!-- <html> --><body>", "<!-- <head> --><!doctype html>"),
        ("<html><header>x</header>", "<!doctype html>\n<html>"),
        ("<body><script>1</script>", "<!doctype html>\n"),
        ("<p>no document", "<!doctype html>\n"),
        ("\ufeff<!doctype html><head><p>", "\ufeff<!doctype html><head>"),
        ("<!doctype html><title><head></title>", "<!doctype html>"),
    ],
)  # fmt: skip
def test_the_bridge_stands_first_in_the_head(html: str, before: str):
    found = parts(html)
    assert found[0] == before
    assert "".join(found).removeprefix("<!doctype html>\n") == html.removeprefix("<!doctype html>\n")


@given(
    st.lists(
        st.sampled_from(["<!doctype html>", "<html>", "<head>", "<!--", "-->", "<p", '"', "'", ">", " x", "<script>"])
    )
)
def test_nothing_of_the_author_is_lost(pieces: list[str]):
    html = "".join(pieces)
    before, behind = parts(html)
    assert (before + behind).endswith(html)
    assert before.lower().lstrip("\ufeff").lstrip().startswith(("<!doctype html>", "<!--"))


def test_html_with_its_own_bridge_is_left_alone_but_for_a_doctype():
    assert document("<html></html>", None) == "<!doctype html>\n<html></html>"
    assert document("<!doctype html><html></html>", None) == "<!doctype html><html></html>"


def test_the_names_of_a_mount_are_in_the_bridge():
    assert 'TOOLS = "a_b_", URIS = "a/b/"' in document("<p>", ViewNames("a_b_", "a/b/"))
    assert 'TOOLS = "", URIS = ""' in document("<p>", ViewNames())


def test_the_bridge_says_which_display_modes_the_view_is_made_for():
    assert 'MODES = "inline pip"' in document("<p>", ViewNames(), ["inline", "pip"])
    assert 'MODES = ""' in document("<p>", ViewNames())


def test_many_comments_ahead_of_the_head_take_no_time():
    page = "<!doctype html>" + "<!--x-->" * 5_000 + "<p>"
    assert parts(page)[0] == "<!doctype html>"
    assert cpu_within(2, lambda: parts(page))
