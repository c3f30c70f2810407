"""The environment of a judged command shows nothing of the server, and keeps git from running what settings name."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from defserve import Shell
from defserve.guard.shell import judge

pytestmark = pytest.mark.skipif(not shutil.which("git") or os.name == "nt", reason="git is needed")


def run(command: str, directory: Path) -> str:
    judged = Shell(mode="readonly").command(command)
    done = subprocess.run(judged.argv, env=judged.env, cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def change(command: str, directory: Path) -> None:
    judged = Shell().command(command)
    who = {f"GIT_{role}_{what}": "n@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(judged.argv, env={**judged.env, **who}, cwd=directory, check=True, capture_output=True)


def git(directory: Path, *words: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
    subprocess.run(["git", *who, *words], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose settings name a program wherever git takes one."""
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "a").write_text("one\n")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one")
    (tmp_path / "evil").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "evil").chmod(0o755)
    for setting in ("core.fsmonitor", "core.pager", "core.sshCommand", "core.askPass", "core.editor", "gpg.program"):
        git(tmp_path, "config", setting, str(tmp_path / "evil"))
    git(tmp_path, "config", "log.showSignature", "true")
    (tmp_path / "a").write_text("two\n")
    (tmp_path / "ran").unlink(missing_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    "command", ["git status", "git log -p", "git show HEAD", "git branch -a", "git grep one", "git blame a"]
)
def test_git_runs_nothing_that_a_repository_names(repository: Path, command: str) -> None:
    run(command, repository)
    assert not (repository / "ran").exists()


def test_without_it_git_runs_what_the_repository_names(repository: Path) -> None:
    """Else the test above could not fail."""
    subprocess.run(["git", "status"], cwd=repository, capture_output=True, check=False)
    assert (repository / "ran").exists()


def test_a_bare_repository_inside_another_is_not_entered(repository: Path) -> None:
    inner = repository / "docs"
    git(repository, "init", "-q", "--bare", "docs")
    git(inner, "config", "core.worktree", str(inner))
    assert "HEAD" in os.listdir(inner)
    assert "cannot use bare repository" in run("git status", inner)


def test_git_runs_no_hook_that_an_archive_brought(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    shutil.copy(repository / "evil", hook)
    change("git commit -am two", repository)
    assert not (repository / "ran").exists()


@pytest.mark.parametrize("setting", ["ssh.program", "ssh.defaultKeyCommand", "x509.program", "openpgp.program"])
@pytest.mark.parametrize("command", ["git commit -am two", "git tag -am two v2", "git merge --no-ff --no-edit side"])
def test_git_signs_with_no_program_that_a_repository_names(repository: Path, command: str, setting: str) -> None:
    git(repository, "checkout", "-qb", "side")
    git(repository, "commit", "-qm", "two", "--allow-empty")
    git(repository, "checkout", "-q", "-")
    if "Key" not in setting:
        git(repository, "config", "user.signingKey", str(repository / "a"))
    git(repository, "config", "gpg.format", setting.partition(".")[0])
    git(repository, "config", f"gpg.{setting}", str(repository / "evil"))
    for what in ("commit.gpgSign", "tag.gpgSign", "tag.forceSignAnnotated", "merge.verifySignatures"):
        git(repository, "config", what, "true")
    (repository / "ran").unlink(missing_ok=True)
    change(command, repository)
    assert not (repository / "ran").exists()


def test_git_runs_no_proxy_that_a_repository_names(repository: Path) -> None:
    git(repository, "config", "core.gitProxy", str(repository / "evil"))
    judged = Shell().command("git ls-remote git://93.184.216.34/a")
    apart = ["unshare", "--net", "--map-root-user"]  # nobody is asked at that address
    subprocess.run([*apart, *judged.argv], env=judged.env, cwd=repository, check=False, capture_output=True)
    assert not (repository / "ran").exists()


def test_git_adds_no_trailer_since_settings_name_programs_for_them() -> None:
    assert not judge("git commit -m x --trailer 'k: v'")


def test_it_holds_nothing_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "canary")
    assert "canary" not in str(Shell().command("ls").env)


def test_a_program_without_a_home_takes_no_settings_of_the_directory(tmp_path: Path) -> None:
    assert not Path(Shell(mode="readonly").command("ls").env["EXIFTOOL_HOME"]).is_dir()
    (tmp_path / ".ExifTool_config").write_text("open(my $file, '>', 'ran'); 1;")
    if shutil.which("exiftool"):
        run("exiftool -ver", tmp_path)
    assert not (tmp_path / "ran").exists()
