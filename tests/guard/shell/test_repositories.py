"""With a root, git is refused where the settings of the repository name a program that git would run."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from defserve import Shell
from defserve.errors import Rejected
from defserve.guard import shell
from defserve.guard.shell import repositories
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
        '[filter "x"]\n\tprocess = "git-lfs filter-process; evil"\n',
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


LISTS: list[Any] = [None, {"git": ["diff", "push", "rebase", "status"]}, {"git": None}, {"git", "git diff"}]


def is_refused(root: Path, command: str = "git diff") -> bool:
    """Whether a command is refused, whatever the author lists, by the judge and by the type of a parameter."""
    verdicts = [shell.judge(command, root=str(root), allowed=allowed) for allowed in LISTS]
    for allowed, verdict in zip(LISTS, verdicts, strict=True):
        try:
            Shell(root=str(root), allowed=allowed).command(command)
            assert verdict.allowed, "the judge and the type say the same"
        except Rejected:
            assert not verdict.allowed, "the judge and the type say the same"
    assert len({verdict.allowed for verdict in verdicts}) == 1, "a list changes nothing about the repository"
    return not verdicts[0].allowed


@for_each_row(
    "settings",
    [
        '[diff "x"]\n\ttextconv = evil\n',
        '[diff "x"]\n\tcommand = evil\n',
        '[filter "y"]\n\tclean = evil\n',
        "[include]\n\tpath = more\n",
        '[user]\n\tname = a ; b \\\n[diff "x"]\n\ttextconv = evil\n',
        '[trailer "x"]\n\tcmd = evil\n',
        "[core]\n\tfsmonitor = evil\n",
        "[core]\n\tsshCommand = evil\n",
        "[core]\n\tpager = evil\n",
        "[pager]\n\tdiff = evil\n",
        "[credential]\n\thelper = evil\n",
        "[gpg]\n\tprogram = evil\n",
        "[alias]\n\tlg = !evil\n",
        "[core]\n\tworktree = /etc\n",
        '[core]\n\tworktree = "../../.."\n',
        "[core]\n\tworktree = \\\n/etc\n",
        "[format]\n\tsignatureFile = /etc/passwd\n",
        "[blame]\n\tignoreRevsFile = ~/.netrc\n",
    ],
)
def test_a_list_of_commands_does_not_switch_off_the_check_of_the_repository(settings: str, tmp_path: Path) -> None:
    for name in ("config", "config.worktree"):
        root = tmp_path / "project"
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        assert not is_refused(root)
        add_settings(root, settings, name)
        assert is_refused(root)
        assert Shell(root=str(root), trust_repository=True).command("git diff").argv


def test_everyday_settings_pass(repository: Path) -> None:
    add_settings(
        repository,
        '[remote "origin"]\n\turl = git@example.com:a/b.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
        '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n[core]\n\tfsmonitor = true\n'
        "\thooksPath = .husky/_\n[user]\n\tname = A. Person\n\temail = a@example.com\n[pull]\n\trebase = true\n",
    )
    assert not is_refused(repository)
    assert not is_refused(repository, "git push origin main")


def test_a_repository_that_lies_outside_the_root_stops_git(repository: Path, tmp_path: Path) -> None:
    (inside := repository / "src").mkdir()
    assert is_refused(inside), "git takes the repository above"
    (other := tmp_path / "other").mkdir()
    assert not is_refused(other), "there is no repository"
    (other / ".git").write_text(f"gitdir: {repository}/.git\n")
    assert is_refused(other)
    (other / ".git").unlink()
    (other / ".git").symlink_to(repository / ".git")
    assert is_refused(other)


@for_each_row(
    "name, text", [("commondir", "../../other/.git"), ("objects/info/alternates", "../../../other/objects\n")]
)
def test_objects_and_settings_from_elsewhere_stop_git(name: str, text: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / ".git" / name).write_text(text)
    assert is_refused(root)


def test_alternates_that_name_each_other_many_times_are_not_followed_without_an_end(repository: Path) -> None:
    git = repository / ".git"
    for level in range(4):
        (git / f"l{level}/info").mkdir(parents=True)
        (git / f"l{level}/info/alternates").write_text(f"../l{level + 1}\n" * 20)
    (git / "objects/info/alternates").write_text("../l0\n" * 20)
    with pytest.raises(Rejected, match="more than 1000 alternates"):
        judge(repository)


def test_a_long_list_of_alternates_is_not_read_to_its_end(repository: Path) -> None:
    (repository / ".git/objects/info/alternates").write_text("#\n" * 1_001)
    with pytest.raises(Rejected, match="more than 1000 alternates"):
        judge(repository)


@for_each_row(
    "link, file, text",
    [
        ("\flnk", ".git", "gitdir: \flnk\n"),
        (" lnk", ".git", "gitdir:  lnk\n"),
        (".git/\nlnk/x", ".git/commondir", "\nlnk/x\n"),
        ("lnk\f", ".git/objects/info/alternates", "../../lnk\f/objects\n"),
        ("lnk\rx", ".git/objects/info/alternates", "../../lnk\rx/objects\n"),
        ("objects/\r", ".git/objects/info/alternates", "../../objects\n"),
    ],
)
def test_names_of_other_places_are_read_as_git_reads_them(link: str, file: str, text: str, tmp_path: Path) -> None:
    """A name without the odd character would lead to a place inside."""
    other, root = tmp_path / "other", tmp_path / "project"
    for folder in (other, root):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for inside in ("lnk", ".git/lnk/x", "objects"):
        shutil.copytree(other / ".git", root / inside)
    if file == ".git":
        shutil.rmtree(root / ".git")
    (root / "objects/info").mkdir(exist_ok=True)
    (root / "objects/info/alternates").write_text("\r\n")
    (root / link).parent.mkdir(exist_ok=True)
    assert not is_refused(root) or file == ".git"
    (root / link).symlink_to(other / ".git")
    (root / file).write_text(text)
    assert is_refused(root)


@for_each_row(
    "link, value",
    [
        ("lnk ", '"../lnk "'),
        ("lnk\f", "../lnk\f"),
        ("lnk\N{IDEOGRAPHIC SPACE}", "../lnk\N{IDEOGRAPHIC SPACE}"),
        ("l\bnk", "../l\\bnk"),
        ("lnk\rx", "../lnk\rx"),
        ("l nk", "../l\tnk"),
        ("lnk", "../lnk\t # where it is"),
    ],
)
def test_a_value_of_a_setting_is_read_as_git_reads_it(link: str, value: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / link).symlink_to(tmp_path)
    with (root / ".git/config").open("a", newline="") as stream:
        stream.write(f"[core]\n\tworktree = {value}\n")
    assert is_refused(root)


def test_the_settings_of_a_submodule_stop_git(repository: Path) -> None:
    subprocess.run(["git", "init", "-q", "deep/inner"], cwd=repository, check=True)
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *who, "commit", "-qm", "x", "--allow-empty"], cwd=repository / "deep/inner", check=True)
    for version in ("2", "4"):
        subprocess.run(["git", "update-index", "--index-version", version], cwd=repository, check=True)
        subprocess.run(["git", "add", "a.txt", "deep/inner"], cwd=repository, check=True, capture_output=True)
        settings = repository / "deep/inner/.git/config"
        honest = settings.read_text()
        assert not is_refused(repository)
        settings.write_text(honest + '[filter "x"]\n\tclean = evil\n')
        assert is_refused(repository)
        settings.write_text(honest)


def test_nothing_is_pushed_to_a_repository_on_this_machine_since_its_hooks_would_run(repository: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", "inner"], cwd=repository, check=True)
    assert is_refused(repository, "git push inner main")
    assert not is_refused(repository, "git push origin main")
    add_settings(repository, '[remote "origin"]\n\turl = ./inner\n')
    assert is_refused(repository, "git push origin main")
    assert not is_refused(repository, "git status")


def test_a_rebase_does_not_go_on_with_steps_that_run_programs(repository: Path) -> None:
    (repository / ".git/rebase-merge").mkdir()
    steps = repository / ".git/rebase-merge/git-rebase-todo"
    steps.write_text("pick 1234567 exec\n")
    assert not is_refused(repository, "git rebase --continue")
    steps.write_text("exec evil\n")
    assert is_refused(repository, "git rebase --continue")


def test_git_under_another_name_is_checked_all_the_same(repository: Path) -> None:
    add_settings(repository, '[diff "x"]\n\ttextconv = evil\n')
    assert not shell.judge("/usr/bin/git diff", root=str(repository), allowed={"/usr/bin/git": None})
    assert not shell.judge("timeout 5 git diff", root=str(repository), allowed={"timeout 5 git diff"})


def test_settings_that_cannot_be_read_stop_git(repository: Path) -> None:
    (repository / ".git/config").unlink()
    (repository / ".git/config").symlink_to("config")
    judge(repository)  # git itself reads nothing there
    shutil.rmtree(repository / ".git")
    (repository / ".git").write_bytes(b"gitdir: \xff\xfe")
    with pytest.raises(Rejected, match="cannot be read"):
        judge(repository)


def make_database(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for name in ("edit", "readfile"):
            connection.create_function(name, -1, lambda *_: "x")
        connection.executescript(";".join(["CREATE TABLE t (x)", *statements]))


@for_each_row(
    "statement",
    [
        "CREATE VIEW v AS SELECT edit('x', 'touch ran; true') FROM t",
        "CREATE VIEW v AS SELECT \"EDIT\" /* * */ ('x', 'touch ran; true') FROM t",
        "CREATE VIEW v AS SELECT * FROM t JOIN t AS u ON [edit] -- so\n('x', 'touch ran; true')",
        "CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT edit('x', 'touch ran; true'); END",
        "CREATE VIEW v AS SELECT readfile('/etc/hostname')",
    ],
)
def test_a_data_base_whose_view_or_trigger_runs_a_program_is_refused(tmp_path: Path, statement: str) -> None:
    place = tmp_path / f"{abs(hash(statement))}.db"
    make_database(place, statement)
    with pytest.raises(Rejected, match="add -safe"):
        Shell(root=str(tmp_path)).command(f"sqlite3 -readonly {place.name} 'select * from t'")
    Shell(root=str(tmp_path)).command(f"sqlite3 -safe {place.name} 'select * from t'")


def test_comments_behind_a_name_take_no_time_without_a_bound(tmp_path: Path) -> None:
    make_database(tmp_path / "a.db", f"CREATE TABLE u (a {'--edit' * 100_000}\n)")
    make_database(tmp_path / "b.db", f"CREATE TABLE u (a {'/*edit' * 100_000}*/)")
    for name in ("a.db", "b.db"):
        with pytest.raises(Rejected, match="add -safe"):
            Shell(root=str(tmp_path)).command(f"sqlite3 -readonly {name} 'select * from t'")


def test_what_sqlite3_opens_and_the_library_does_not_is_refused(tmp_path: Path) -> None:
    make_database(tmp_path / "inner.db", "CREATE VIEW v AS SELECT edit('x', 'y') FROM t")
    (tmp_path / "a.db").write_bytes(b"#" * 4096 + (tmp_path / "inner.db").read_bytes())
    with pytest.raises(Rejected, match="cannot be read"):
        Shell(root=str(tmp_path)).command("sqlite3 a.db 'select * from t'")


def test_a_usual_data_base_is_asked(tmp_path: Path) -> None:
    make_database(
        tmp_path / "a.db",
        "CREATE TABLE edit (id INTEGER PRIMARY KEY, may_edit INTEGER, zipfile TEXT)",
        "CREATE TABLE größe (x REFERENCES edit(id), CHECK (x > 0))",
        "CREATE VIEW v AS SELECT upper(zipfile) AS edit FROM edit WHERE id IN (1, 2)",
        "CREATE TRIGGER r AFTER INSERT ON t BEGIN INSERT INTO edit(id) VALUES (1); END",
    )
    (tmp_path / "new.db").touch()
    for command in ("sqlite3 -readonly a.db .tables", "sqlite3 new.db 'select 1'", "sqlite3 none.db 'select 1'"):
        Shell(root=str(tmp_path)).command(command)


@for_each_row("module", ["json.py", "argparse.py", "pip/__init__.py", "re/__init__.py"])
def test_a_python_that_takes_modules_of_the_directory_is_refused_where_it_has_one(tmp_path: Path, module: str) -> None:
    root, programs = tmp_path / module.replace("/", "-"), tmp_path / "programs"
    (root / module).parent.mkdir(parents=True)
    (root / "test").mkdir()
    programs.mkdir(exist_ok=True)
    for minor in (10, 11):
        (programs / f"python3.{minor}").touch(mode=0o755)
    (programs / "python3").unlink(missing_ok=True)
    (programs / "python3").symlink_to("python3.10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repositories, "SEARCH_PATH", str(programs))
        for command in ("python3 -m json.tool a", "python3 -m pip list", "timeout 5 python3 -m tokenize a"):
            judge(root, command)
        (root / module).touch()
        for command in ("python3 -m json.tool a", "python3 -m pip list", "timeout 5 python3 -m tokenize a"):
            with pytest.raises(Rejected, match="of the working directory"):
                judge(root, command)
        (programs / "python3").unlink()
        (programs / "python3").symlink_to("python3.11")
        judge(root, "python3 -m json.tool a")


@for_each_row(
    ("name", "text"),
    [
        ("ruff.toml", 'extend = "/etc/passwd"'),
        (".ruff.toml", "extend = '~/.netrc'"),
        ("ruff.toml", 'extend = "${HOME}/x"'),
        ("src/ruff.toml", '"ext\\u0065nd" = "../../x"'),
        ("pyproject.toml", '[tool.ruff]\ncache-dir = "/elsewhere"'),
        ("src/pyproject.toml", 'tool = {ruff = {extend = "/etc/passwd"}}'),
        # Settings of another name, which lead on, and settings without an end.
        ("ruff.toml", 'extend = "leading.txt"'),
        ("src/ruff.toml", 'extend = "ruff.toml"'),
    ],
)
def test_settings_of_ruff_that_lead_out_are_refused(tmp_path: Path, name: str, text: str) -> None:
    root = tmp_path / f"{abs(hash(text))}"
    (root / "src").mkdir(parents=True)
    (root / "leading.txt").write_text('extend = "/etc/passwd"')
    (root / name).write_text(text)
    with pytest.raises(Rejected, match="add --isolated"):
        judge(root, "ruff check -n src")
    judge(root, "ruff check -n --isolated src")


def test_usual_settings_of_ruff_pass(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.ruff]\nline-length = 100\ncache-dir = ".cache"\n[tool.ruff.lint]\n')
    (tmp_path / "src/ruff.toml").write_text('extend = "../pyproject.toml"')
    (tmp_path / "src/pyproject.toml").write_text("[tool]\nruff = 5\n")
    (tmp_path / "ruff.toml").write_text("not = [toml")
    judge(tmp_path, "ruff check -n .")


@for_each_row(
    ("name", "command"),
    [
        (".yamllint", "yamllint a.yaml"),
        (".yamllint.yml", "timeout 5 yamllint -s ."),
        ("other", "yamllint -c other ."),
        ("other", "yamllint -sc other ."),
        ("other", "yamllint -cother ."),
        ("other", "yamllint --config-file other ."),
        ("other", "yamllint --config-file=other ."),
    ],
)
def test_settings_of_yamllint_that_lead_out_are_refused(tmp_path: Path, name: str, command: str) -> None:
    root = tmp_path / f"{abs(hash(command))}"
    root.mkdir()
    (root / name).write_text("extends: default\nrules: {line-length: disable}\n")
    judge(root, command)
    (root / name).write_text("rules: {}\nextends: /etc/passwd\n")
    with pytest.raises(Rejected, match="settings of yamllint"):
        judge(root, command)
