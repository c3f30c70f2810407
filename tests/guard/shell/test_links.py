"""With a root, a command whose words lead out of it through a symbolic link is refused before it runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from defserve import Shell
from defserve.errors import Rejected
from defserve.guard.shell import judge, places
from tests.rows import for_each_row

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("links")
    (base / "outside").mkdir()
    (base / "outside/secret").write_text("secret")
    root = base / "project"
    (root / "src").mkdir(parents=True)
    (root / "src/a").write_text("a")
    (root / "key").symlink_to(base / "outside/secret")
    (root / "out").symlink_to(base / "outside")
    (root / "inner").symlink_to("src")
    (root / "loop").symlink_to("loop")
    (base / "alias").symlink_to(root)
    return root


OUT = [
    "zip -r a.zip src .",
    "zip -qr9 a.zip .",
    "diff -r src .",
    "diff -ruN . src",
    "timeout 5 diff --recursive . src",
    "cat key",
    "ls out/",
    "cat out/secret",
    "head -n 1 ./key",
    "grep -r x out/",
    "grep --file=key x src/a",
    "grep -fkey x src/a",
    "diff src/a key",
    "tar tf out/secret",
    "tee out/new",
    "cp src/a out/new",
    "sort -o out/new src/a",
    "touch out/deep/new",
    "sqlite3 -readonly out/secret .tables",
    "python3 -m json.tool key",
    "timeout 5 cat key",
]


@for_each_row("command", OUT)
def test_what_leads_out_through_a_link_is_refused(project: Path, command: str) -> None:
    assert judge(command), "else the link is not what is refused"
    with pytest.raises(Rejected, match="by a link"):
        Shell(root=str(project)).command(command)
    with pytest.raises(Rejected, match="by a link"):
        Shell(root=str(project.parent / "alias")).command(command)


@for_each_row(
    "command",
    [
        "cat src/a",
        "cat inner/a",
        "grep -rn word .",
        "grep /etc/passwd src/a",
        "echo ../x",
        "ls loop",
        "ls /usr",
        "mkdir -p a/b",
        "zip -r a.zip src",
        "zip -ry a.zip .",
        "diff -r src inner",
        "diff -r --no-dereference . src",
        "grep -r zip .",
        "grep -r diff src/a",
    ],
)
def test_what_stays_inside_passes(project: Path, command: str) -> None:
    assert Shell(root=str(project)).command(command).argv
    assert Shell(root=str(project.parent / "alias")).command(command).argv


def test_an_absolute_path_below_the_root_is_looked_at_as_well(project: Path) -> None:
    assert Shell(root=str(project)).command(f"cat {project}/src/a").argv
    with pytest.raises(Rejected):
        Shell(root=str(project)).command(f"cat {project}/key")


def test_a_root_that_cannot_be_looked_at_refuses_and_does_not_fail() -> None:
    with pytest.raises(Rejected):
        Shell(root="/a\0b").command("cat x")


def test_a_directory_that_is_named_many_times_is_walked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}").write_text("")
    monkeypatch.setattr(places, "MAX_WALKED", 10)
    assert Shell(root=str(tmp_path)).command("zip -r a.zip " + ". " * 500).argv
    for number in range(8, 12):
        (tmp_path / f"{number}").write_text("")
    with pytest.raises(Rejected, match="more than 10 files"):
        Shell(root=str(tmp_path)).command("zip -r a.zip .")
