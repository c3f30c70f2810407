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


def test_a_copy_of_many_directories_is_looked_at_so_far_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a/1", "a/2", "a/3", "d/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(places, "MAX_LOOKED_AT", 50)
    assert Shell(root=str(tmp_path)).command("cp -r" + " a" * 500 + " d").argv
    spelt = " ".join("a" + "/" * count for count in range(20))
    with pytest.raises(Rejected, match="too many files to copy"):
        Shell(root=str(tmp_path)).command(f"cp -r {spelt} d")


@pytest.fixture
def brought(tmp_path: Path) -> Path:
    """A directory whose links lead out, under names that a program writes to or reads by itself."""
    root = tmp_path / "brought"
    for folder in ("src/sub", "dst", "new", ".venv/bin", "../elsewhere/folder"):
        (root / folder).mkdir(parents=True)
    for name in ("src/a.txt", "src/sub/b", "../elsewhere/kept", "a.zip", "a.tar", "a.7z"):
        (root / name).write_text("kept\n")
    for name in ("dst/a.txt", "dst/b", "xaa", "xx00", "part01", "src/linked.py"):
        (root / name).symlink_to(tmp_path / "elsewhere/kept")
    (root / "dst/sub").symlink_to(tmp_path / "elsewhere/folder")
    (root / ".venv/bin/python").symlink_to("/usr/local/bin/python3.11")
    return root


@for_each_row(
    "command",
    [
        "cp src/a.txt dst",
        "cp src/a.txt ./dst/",
        "cp -t dst src/a.txt",
        "cp --target-directory=dst src/a.txt",
        "cp -r src/sub/. dst",
        "cp -r src/sub dst",
        "split src/a.txt",
        "split src/a.txt part",
        "csplit src/a.txt 1",
        "csplit -f part src/a.txt 1",
        "unzip a.zip",
        "unzip -o a.zip -d dst",
        "tar xf a.tar",
        "tar -xf a.tar -C dst",
        "tar --extract --file=a.tar --directory=dst",
        "7z x a.7z",
        "7z x -odst a.7z",
        "7z a b.7z src",
        "ruff format",
        "ruff format .",
        "ruff check --fix src",
        "black src",
        "isort .",
        "gofmt -w .",
        "shfmt -w src",
    ],
)
def test_what_a_program_writes_without_naming_it_stays_inside(brought: Path, command: str) -> None:
    with pytest.raises(Rejected, match="by a link"):
        Shell(root=str(brought)).command(command)


@for_each_row(
    "command",
    [
        "ruff check -n",
        "ruff check -n src",
        "yamllint src",
        "colordiff -r src new",
        "diff src/a.txt dst",
        "diff dst src",
        "sdiff src/a.txt dst/",
    ],
)
def test_what_a_program_shows_without_naming_it_stays_inside(brought: Path, command: str) -> None:
    with pytest.raises(Rejected, match="by a link"):
        Shell(mode="readonly", root=str(brought)).command(command)


@for_each_row(
    "command",
    [
        "cp src/a.txt new",
        "cp src/a.txt dst/c.txt",
        "cp -r src/sub new",
        "unzip a.zip -d new",
        "unzip -l a.zip",
        "tar tf a.tar",
        "tar xf a.tar -C new",
        "7z x -onew a.7z",
        "7z l a.7z",
        "diff --no-dereference dst src",
        "diff src/a.txt src/sub/b",
        "ruff format new .venv",
    ],
)
def test_where_no_link_leads_out_copies_are_made(brought: Path, command: str) -> None:
    Shell(root=str(brought)).command(command)


def test_a_virtual_environment_is_not_made_where_one_is(brought: Path) -> None:
    for command in ("python3 -m venv .venv", "python3 -m venv --upgrade ./.venv"):
        with pytest.raises(Rejected, match="its python would run"):
            Shell(root=str(brought)).command(command)
    for command in ("python3 -m venv other", "python3 -m venv new"):
        Shell(root=str(brought)).command(command)
