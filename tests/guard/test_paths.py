"""A path from outside stays below its root: by its text, by its links, and while it is opened."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import Refused
from defserve.guard.paths import judge, open_within, resolve
from tests.effort import cpu_within
from tests.rows import for_each_row

ROOT = "/srv/data"


@for_each_row(
    "path",
    [
        "a.txt", "a/b/c.txt", "./a", "a//b", "a/", ".", ".hidden", "a..b", "..a", "a..", "file~", "a/~b", "x y.txt",
        "grüße/日本語.txt", "HEAD~1", "100%", "a%20b", "console.log", "null", "comet", "com10", "lpt",
        "2024-01-01T10:00.log", "ab:c", "…",
    ],
)  # fmt: skip
def test_an_ordinary_relative_path_is_allowed(path: str) -> None:
    assert judge(path, ROOT).violations == ()


@for_each_row(
    ("path", "rule"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("/etc/passwd", "absolute"),
        ("//host/share", "absolute"),
        ("\\\\host\\share", "backslash"),
        ("\\\\?\\C:\\x", "backslash"),
        ("a\\b", "backslash"),
        ("..\\x", "parent"),
        ("C:\\x", "drive"),
        ("c:/x", "drive"),
        ("C:x", "drive"),
        ("..", "parent"),
        ("../x", "parent"),
        ("a/../b", "parent"),
        ("a/..", "parent"),
        (".../x", "parent"),
        (".. /x", "parent"),
        (". ./x", "parent"),
        ("~", "home"),
        ("~/x", "home"),
        ("~root/x", "home"),
        ("a\x00.txt", "hidden-text"),
        ("a\nb", "hidden-text"),
        ("a\u202etxt.exe", "hidden-text"),
        ("a\u200b", "hidden-text"),
        ("\ud800", "hidden-text"),
        ("%2e%2e%2fx", "encoded"),
        ("..%2Fx", "encoded"),
        ("%252e%252e/x", "encoded"),
        ("a%00", "encoded"),
        ("..%c0%afx", "encoded"),
        ("%C0%AE%C0%AE/x", "encoded"),
        ("．．/x", "lookalike"),
        ("‥/x", "lookalike"),
        ("a／..／b", "lookalike"),
        ("a＼b", "lookalike"),
        ("con", "reserved"),
        ("NUL", "reserved"),
        ("a/aux.txt", "reserved"),
        ("COM1", "reserved"),
        ("lpt9.log", "reserved"),
        ("com¹", "reserved"),
        ("nul .txt", "reserved"),
        ("a" * 5000, "length"),
        ("é" * 130, "length"),
    ],
)
def test_a_path_that_could_mean_another_place_is_refused(path: str, rule: str) -> None:
    assert rule in {found.rule for found in judge(path, ROOT).violations}


def test_an_absolute_path_below_the_root_is_refused_with_its_relative_form() -> None:
    assert judge("/srv/data/a/b.txt", ROOT).hints["path"] == "a/b.txt"
    assert "path" not in judge("/srv/data/../x", ROOT).hints
    assert "path" not in judge("/srv/database", ROOT).hints


@given(st.text() | st.text(alphabet="./\\~:%2eCa \x00．"))
def test_any_text_is_judged_and_what_passes_stays_below_the_root(path: str) -> None:
    if judge(path, ROOT):
        assert os.path.normpath(f"{ROOT}/{path}").startswith(ROOT)


@for_each_row("value", [b"a", None, 3])
def test_what_is_not_text_is_refused(value: object) -> None:
    assert [found.rule for found in judge(cast(Any, value), ROOT).violations] == ["text"]


def test_hostile_text_is_judged_in_no_time() -> None:
    for path in ("../" * 3300, "%25" * 1300, "．" * 1300, "a/" * 2000, "a" * 10_000):
        assert cpu_within(1, partial(judge, path, ROOT))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file inside, a secret outside, and links that stay, lead out, lead nowhere or lead to themselves."""
    top = tmp_path / "root"
    (top / "a").mkdir(parents=True)
    (top / "a" / "b.txt").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (tmp_path / "root-sibling").mkdir()
    (top / "inward").symlink_to("a")
    (top / "outward").symlink_to("../outside")
    (top / "file-out").symlink_to("../outside/secret")
    (top / "sideways").symlink_to("../root-sibling")
    (top / "absolute").symlink_to(tmp_path / "outside")
    (top / "dangling").symlink_to("../outside/new")
    (top / "loop").symlink_to("loop")
    return top


@pytest.mark.parametrize("path", ["a/b.txt", "a", ".", "new.txt", "new/deep/er.txt", "inward/b.txt", "a/new"])
def test_a_path_below_the_root_resolves_to_its_real_place(root: Path, path: str) -> None:
    assert resolve(path, root) == (root / path).resolve()


OUT = ["outward", "outward/secret", "outward/new", "file-out", "sideways/x", "absolute/secret", "dangling"]


@pytest.mark.parametrize("path", OUT)
def test_a_link_that_leads_out_is_refused(root: Path, path: str) -> None:
    with pytest.raises(Refused) as caught:
        resolve(path, root)
    assert caught.value.data["violations"] == ["Blocked path: a link in it leads out of the root"]


def test_a_refusal_carries_status_reason_and_violations(root: Path) -> None:
    with pytest.raises(Refused) as caught:
        resolve("/../x", root)
    assert caught.value.data["status"] == "rejected"
    assert caught.value.data["reason"] == "Path refused"
    assert caught.value.data["violations"] == ["Blocked absolute path", "Blocked '..' in a path"]
    assert str(root) not in str(caught.value.data)


def test_a_root_that_is_a_link_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("root")
    assert resolve("a/b.txt", tmp_path / "alias") == root.resolve() / "a" / "b.txt"
    assert read(open_within("a/b.txt", tmp_path / "alias")) == b"inside"


def test_the_root_of_the_system_may_be_a_root() -> None:
    assert resolve("tmp", "/") == Path("/tmp").resolve()


def read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_file_below_the_root_is_opened(root: Path) -> None:
    assert read(open_within("a/b.txt", root)) == b"inside"
    assert read(open_within("./a//b.txt", str(root))) == b"inside"


def test_a_new_file_is_made_with_the_flags_of_its_caller(root: Path) -> None:
    with os.fdopen(open_within("a/new", root, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(b"new")
    assert (root / "a" / "new").read_bytes() == b"new"
    assert (root / "a" / "new").stat().st_mode & 0o777 == 0o600


def test_a_directory_and_the_root_itself_can_be_opened(root: Path) -> None:
    for path in ("a", "."):
        descriptor = open_within(path, root)
        assert os.listdir(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize("path", [*OUT, "inward/b.txt", "inward", "loop"])
def test_opening_follows_no_link_and_leaks_no_descriptor(root: Path, path: str) -> None:
    before = descriptors()
    with pytest.raises(Refused, match="Blocked link"):
        open_within(path, root)
    with pytest.raises(Refused, match="Blocked link"):
        open_within(path, root, os.O_WRONLY | os.O_CREAT)
    assert descriptors() == before
    assert not (root.parent / "outside" / "new").exists()


def test_a_pipe_is_refused_without_waiting_for_its_other_end(root: Path) -> None:
    os.mkfifo(root / "pipe")
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with pytest.raises(Refused, match="pipe"):
            open_within("pipe", root, flags)


def test_a_socket_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(Refused, match="socket"):
            open_within("s", root)


def test_a_file_that_is_not_there_is_an_ordinary_error(root: Path) -> None:
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        open_within("a/none", root)
    with pytest.raises(NotADirectoryError):
        open_within("a/b.txt/c", root)
    assert descriptors() == before
