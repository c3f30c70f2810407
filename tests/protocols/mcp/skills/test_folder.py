"""A folder is read whole or refused, and nothing outside it is ever read."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from defserve import UsageError
from defserve.protocols.mcp.skill_files import SkillFolder, SkillMemoryBudget, read_skill_folder

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "skill" / "docs").mkdir(parents=True)
    (tmp_path / "skill" / "SKILL.md").write_bytes(b"---\r\n")
    (tmp_path / "skill" / "docs" / "a.md").write_bytes(b"a")
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "skill"


def paths(found: SkillFolder) -> list[str]:
    return [file.path for file in found.files]


def reasons(found: SkillFolder) -> dict[str, str]:
    return dict(found.left_out)


def test_every_file_is_read_with_its_bytes_and_digest(folder: Path) -> None:
    found = read_skill_folder(folder)
    assert [(file.path, file.data) for file in found.files] == [("SKILL.md", b"---\r\n"), ("docs/a.md", b"a")]
    assert found.files[1].digest == f"sha256:{hashlib.sha256(b'a').hexdigest()}"
    assert found.left_out == ()


def test_a_folder_inside_is_seen_from_there(folder: Path) -> None:
    below = read_skill_folder(folder).get_subfolder("docs")
    assert (below.root, paths(below)) == (folder / "docs", ["a.md"])
    assert paths(read_skill_folder(folder).get_subfolder("doc")) == []


def test_hidden_files_and_caches_are_left_out(folder: Path) -> None:
    for name in (".env", ".git/config", "__pycache__/x.pyc", "docs/.DS_Store", "node_modules/x.js"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    found = read_skill_folder(folder)
    assert paths(found) == ["SKILL.md", "docs/a.md"]
    assert reasons(found).keys() == {".env", ".git", "__pycache__", "docs/.DS_Store", "node_modules"}


@needs_links
@pytest.mark.parametrize(
    "target", ["../secret", "docs/../../secret", "/etc/passwd", "..", "/", "docs", ".hidden", "gone"]
)
def test_a_link_is_not_followed_out_of_the_folder_or_to_anything_but_a_file(folder: Path, target: str) -> None:
    (folder / ".hidden").write_text("x")
    (folder / "link").symlink_to(target)
    found = read_skill_folder(folder)
    assert paths(found) == ["SKILL.md", "docs/a.md"]
    assert "symbolic link" in reasons(found)["link"]


@needs_links
def test_a_link_over_a_linked_folder_or_in_a_circle_is_not_followed(folder: Path) -> None:
    (folder / "outside").symlink_to("..")
    (folder / "through").symlink_to("outside/secret")
    (folder / "circle").symlink_to("circle")
    found = read_skill_folder(folder)
    assert paths(found) == ["SKILL.md", "docs/a.md"]
    assert {"outside", "through", "circle"} <= reasons(found).keys()


@needs_links
def test_a_link_to_a_file_inside_is_a_file(folder: Path) -> None:
    (folder / "link.md").symlink_to("docs/a.md")
    assert {file.path: file.data for file in read_skill_folder(folder).files}["link.md"] == b"a"


@needs_links
def test_a_folder_that_is_itself_a_link_is_read(folder: Path) -> None:
    folder.with_name("linked").symlink_to("skill")
    assert paths(read_skill_folder(folder.with_name("linked"))) == ["SKILL.md", "docs/a.md"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_does_not_hold_up_the_start(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert reasons(read_skill_folder(folder)) == {"pipe": "it is not a plain file"}


@pytest.mark.skipif(sys.platform != "linux", reason="only there may names be any bytes")
def test_a_name_that_is_not_utf8_is_left_out(folder: Path) -> None:
    with open(os.fsencode(folder) + b"/\xff.md", "wb"):
        pass
    assert list(reasons(read_skill_folder(folder)).values()) == ["its name is not UTF-8"]


@pytest.mark.skipif(sys.platform == "win32", reason="such names cannot be made there")
@pytest.mark.parametrize("name", ["a\\..\\b", "C:x", "two\nlines"])
def test_a_name_that_means_something_else_elsewhere_is_left_out(folder: Path, name: str) -> None:
    (folder / name).touch()
    assert reasons(read_skill_folder(folder)) == {name: "its name means something else on other systems"}


def test_folders_are_not_followed_without_end(folder: Path) -> None:
    deep = folder.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    (deep / "x").touch()
    found = read_skill_folder(folder)
    assert paths(found) == ["SKILL.md", "docs/a.md"]
    assert "deeper than" in next(iter(reasons(found).values()))


def test_too_many_files_or_bytes_are_refused(folder: Path) -> None:
    assert len(read_skill_folder(folder, 2, 6).files) == 2
    with pytest.raises(UsageError, match="too large: more than 1 files"):
        read_skill_folder(folder, 1, 6)
    with pytest.raises(UsageError, match="too large: more than 5 bytes"):
        read_skill_folder(folder, 2, 5)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        read_skill_folder(tmp_path / "nothing")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "SKILL.md").chmod(0)
    with pytest.raises(UsageError, match="SKILL.md cannot be read: Permission denied"):
        read_skill_folder(folder)


def test_all_folders_together_have_a_bound(folder: Path) -> None:
    room, found = SkillMemoryBudget(files=3, size=100), read_skill_folder(folder)
    room.reserve_folder(found)
    with pytest.raises(UsageError, match="too large together"):
        room.reserve_folder(found)
