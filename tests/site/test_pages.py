"""The site has every page, in the right place, with links that lead to pages of the site."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

import pytest

from defserve.base.version import VERSION

from .html import problems
from .markdown import anchor, headings, title, with_links, with_plain_pipes, with_since, with_tabs
from .models import full, short
from .pages import Pages
from .places import DOCS
from .questions import SETS
from .reference import parts
from .settings import places, settings


@pytest.fixture(scope="module")
def pages() -> Pages:
    return Pages()


def nav(pages: Pages) -> dict[str, list[str]]:
    groups = tomllib.loads(settings(pages))["project"]["nav"]
    return {name: list(places(listed)) for group in groups for name, listed in group.items()}


def test_every_page_is_in_one_group_of_the_navigation(pages: Pages):
    listed = [place for group in nav(pages).values() for place in group]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(pages.texts)
    assert {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"reference.md"} <= set(listed)


def test_the_groups_are_those_that_a_reader_looks_for(pages: Pages):
    groups = ["Learn", "Guides", "Cookbook", "Reference", "Protocols", "Project", "Decisions"]
    assert list(nav(pages)) == groups


def test_guides_and_recipes_are_grouped_as_the_pages_that_lead_to_them_group_them(pages: Pages):
    listed = {
        name: entries for group in tomllib.loads(settings(pages))["project"]["nav"] for name, entries in group.items()
    }
    for subject in listed["Guides"]:
        ((name, guides),) = subject.items()
        row = re.search(rf"^\| {name} \|(.*)$", pages.texts["index.md"], re.MULTILINE)
        assert row and re.findall(r"\]\(([\w-]+\.md)\)", row[1]) == list(places(guides)), name
    first, *recipes, more = listed["Cookbook"]
    assert (first, more) == ("cookbook/index.md", "examples/index.md")
    subjects = [heading for level, heading, _ in headings(pages.texts["cookbook/index.md"]) if level == 2]
    assert [name for subject in recipes for name in subject] == subjects and len(subjects) > 3
    assert all(inside for subject in recipes for inside in subject.values())


def test_the_navigation_has_the_short_names_of_pages(pages: Pages):
    assert title(pages.texts["security.md"]) == "Security: guards for shell, code, URLs and paths; audit log"
    assert str({"Security": "security.md"}) in str(tomllib.loads(settings(pages))["project"]["nav"])


def test_no_link_leaves_the_site(pages: Pages):
    lost: list[tuple[str, str]] = []
    for place, text in pages.texts.items():

        def look(link: str, place: str = place) -> str:
            path = link.partition("#")[0]
            target = posixpath.normpath(posixpath.join(posixpath.dirname(place), path)) if path else place
            if target not in {*pages.texts, "llms.txt"} and not (DOCS / target).is_file():
                lost.append((place, link))
            return link

        with_links(text, look)
    assert lost == []


def test_the_reference_is_in_parts_and_nothing_of_it_is_lost():
    whole = (DOCS / "reference.md").read_text("utf-8")
    found = parts(whole)
    assert len({part.name for part in found}) == len(found) > 20
    assert max(part.text.count("\n") for part in found) < whole.count("\n") / 3
    names = [heading for level, heading, _ in headings(whole) if level == 4]
    shown = [heading for part in found for level, heading, _ in headings(part.text) if level == 2]
    assert shown == names
    assert all(f"defserve {VERSION}" in part.text for part in found)


def test_a_link_into_the_reference_leads_to_its_part(pages: Pages):
    assert pages.place("docs/reference.md", "server") == "reference/a-server.md"
    assert pages.place("docs/reference.md", anchor("defserve.auth")) == "reference/defserve-auth.md"
    assert pages.place("docs/reference.md") == "reference/index.md"


def test_links_in_code_are_left_alone():
    text = "[a](b.md) `[a](b.md)`\n```\n[a](b.md)\n```\n"
    assert with_links(text, str.upper) == "[a](B.MD) `[a](b.md)`\n```\n[a](b.md)\n```\n"


def test_pipes_in_code_in_tables_need_no_escape():
    table = "| a | `x \\| y` \\| z |\n`x \\| y`\n"
    assert with_plain_pipes(table) == "| a | `x | y` \\| z |\n`x \\| y`\n"


def test_blocks_between_marks_become_tabs():
    text = "<!-- tabs -->\npip:\n\n```sh\npip x\n```\n\nuv:\n\n```sh\nuv x\n```\n<!-- /tabs -->\n\nMore.\n"
    pip, uv = '=== "pip"\n\n    ```sh\n    pip x\n    ```\n', '=== "uv"\n\n    ```sh\n    uv x\n    ```\n'
    assert with_tabs(text) == f"{pip}\n{uv}\nMore.\n"


def test_since_when_something_is_there_is_marked_outside_code():
    assert with_since("a *since 0.2*, `*since 0.2*` *soon*\n```\n*since 0.2*\n```\n") == (
        'a <span class="since">since 0.2</span>, `*since 0.2*` *soon*\n```\n*since 0.2*\n```\n'
    )


def test_a_picture_is_shown_in_the_scheme_of_the_reader(pages: Pages):
    shown = re.findall(r"inspector-tools-\w+\.png#only-\w+", pages.texts["inspector.md"])
    assert shown == ["inspector-tools-light.png#only-light", "inspector-tools-dark.png#only-dark"]


def test_no_page_wants_a_diagram_drawn_in_the_browser():
    drawn = [path.name for path in DOCS.rglob("*.md") if "```mermaid" in path.read_text("utf-8")]
    assert drawn == [], "the site loads no script for diagrams: add it to docs/diagrams"


def test_a_model_gets_a_list_of_pages_and_one_text_with_all(pages: Pages):
    brief = short(pages)
    assert brief.startswith("# defserve\n\n> ")
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", brief, re.MULTILINE)
    assert "tools.html.md" in links and "reference/a-server.html.md" in links
    addresses = {f"{place.removesuffix('.md')}.html.md" for place in pages.texts}
    assert [link for link in links if link not in addresses] == []
    assert "[A server](reference/a-server.html.md): Server, Limits, " in brief
    assert [line for line in brief.splitlines() if line.startswith("## ")][-1] == "## Optional"
    whole = full(pages, brief)
    assert all(f"\n{pages.texts[place].splitlines()[0]}\n" in whole for place in ("tools.md", "reference/a-server.md"))


def test_what_a_browser_would_load_from_elsewhere_is_found(tmp_path: Path):
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="https://a/x.css"><link rel="canonical" href="https://b/">'
        '<script src="//c/x.js"></script><a href="https://d/">d</a><style>@import "https://f/";</style>'
    )
    (tmp_path / "b.css").write_text('@font-face { src: url("https://g/font.woff2"), url(h.woff2) }')
    assert problems(tmp_path) == [
        "a.html: https://a/x.css",
        "a.html: //c/x.js",
        "a.html: https://f/",
        "b.css: https://g/font.woff2",
    ]


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here"></a><a href="b.html#there"></a><a href="c.html"></a>'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#here"></a><a href="https://elsewhere/"></a><img src="gone.png">')
    assert problems(tmp_path) == ["a.html: b.html#there", "a.html: c.html", "b.html: gone.png"]


def test_the_pages_that_questions_lead_to_are_there(pages: Pages):
    answers = {page for each in SETS for found in each.questions.values() for page in found}
    assert {f"{page}.md" for page in answers} <= set(pages.texts)


def test_no_question_that_is_held_out_is_worked_with():
    held_out = {question for each in SETS if each.held_out for question in each.questions}
    assert held_out and all(held_out.isdisjoint(each.questions) for each in SETS if not each.held_out)
