"""With a root, git is refused where the settings of the repository name a program that git would run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from defserve import Shell
from defserve.errors import Rejected
from tests.rows import for_each_row

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "a.txt").write_text("a\n")
    return root


def judge(root: Path, command: str = "git diff") -> None:
    Shell(mode="readonly", root=str(root)).command(command)


def add_settings(root: Path, text: str, name: str = "config") -> None:
    with (root / ".git" / name).open("a") as stream:
        stream.write(text)


def test_a_repository_as_git_makes_it_passes(repository: Path) -> None:
    judge(repository)


@for_each_row(
    "settings",
    [
        '[diff "x"]\n\ttextconv = evil\n',
        '[diff "x"] command = evil\n',
        '[diff "a]b"] textconv = evil\n',
        '[a] [diff "x"] TextConv=evil\n',
        "[diff.x]\r\ttextconv = evil\r",
        "[diff]\n  external = evil\n",
        '[filter "x"]\n\tclean = evil\n',
        '[filter "x"]\n\tprocess = git-lfs filter-process; evil\n',
        '[filter "x"]\n\tsmudge = evil git-lfs smudge\n',
        '[merge "x"]\n\tdriver = evil\n',
        '[hook "x"]\n\tcommand = evil\n',
        '[remote "origin"]\n\tuploadpack = evil\n',
        '[submodule "x"]\n\tupdate = !evil\n',
        "[include]\n\tpath = /elsewhere/settings\n",
        '[diff "x"]\n' + "# long\n" * 200_000 + "textconv = evil\n",
    ],
)
def test_settings_that_name_a_program_stop_git_and_say_which(settings: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    add_settings(root, settings)
    for command in ("git diff", "git log -p", "timeout 5 git status"):
        with pytest.raises(Rejected, match="settings"):
            judge(root, command)
    judge(root, "ls")
    judge(root, "grep git a.txt")


def test_settings_of_git_lfs_and_comments_pass(repository: Path) -> None:
    add_settings(
        repository,
        '[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\tprocess = git-lfs filter-process\n'
        '# textconv = evil\n[submodule "x"]\n\tupdate = none\n[user]\n\tname = textconv\n',
    )
    judge(repository)


def test_a_worktree_has_the_settings_of_its_repository(repository: Path, tmp_path: Path) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *who, "commit", "-q", "--allow-empty", "-m", "x"], cwd=repository, check=True)
    subprocess.run(["git", "worktree", "add", "-q", str(tmp_path / "other")], cwd=repository, check=True)
    judge(tmp_path / "other")
    add_settings(repository, '[diff "x"]\n\ttextconv = evil\n')
    with pytest.raises(Rejected, match="textconv"):
        judge(tmp_path / "other")


def test_what_the_author_listed_runs_all_the_same(repository: Path) -> None:
    add_settings(repository, '[diff "x"]\n\ttextconv = evil\n')
    assert Shell(allowed={"git": ["diff"]}, root=str(repository)).command("git diff").argv == ("git", "diff")


def test_settings_that_cannot_be_read_stop_git(repository: Path) -> None:
    (repository / ".git/config").unlink()
    (repository / ".git/config").symlink_to("config")
    judge(repository)  # git itself reads nothing there
    shutil.rmtree(repository / ".git")
    (repository / ".git").write_bytes(b"gitdir: \xff\xfe")
    with pytest.raises(Rejected, match="cannot be read"):
        judge(repository)
