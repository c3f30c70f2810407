from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from tests.cli.running import Run
from tests.tooling.scaffold.packages import ROOT, run

PARTS = (("tool", "look_up"), ("resource", "opening_hours"), ("prompt", "summarise"), ("feature-set", "shop.alerts"))


@pytest.fixture
def project(defserve: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    defserve("new", "shop", "--yes")
    monkeypatch.chdir(folder / "shop")
    return folder / "shop"


def source(project: Path) -> Path:
    return project / "src" / "shop" / "server.py"


@pytest.mark.slow
def test_every_kind_of_part_comes_with_a_test_that_passes(defserve: Run, project: Path):
    for part in PARTS:
        code, out, err = defserve("add", *part)
        assert (code, err) == (0, "")
        assert "Changed src/shop/server.py\nChanged tests/test_server.py\n" in out
    env = {**os.environ, "PYTHONPATH": str(ROOT / "framework")}
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=project)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=project)
    told = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project, env=env)
    assert "13 passed" in told


def test_the_rest_of_the_file_stays_as_it_is(defserve: Run, project: Path):
    before = source(project).read_text()
    defserve("add", "tool", "look_up", "--description", "Look something up.")
    after = source(project).read_text()
    body, main = before.split('if __name__ == "__main__":')
    assert after.startswith(body) and after.endswith('\n\n\nif __name__ == "__main__":' + main)
    assert '"""Look something up.\n' in after


def test_line_ends_are_kept(defserve: Run, project: Path):
    source(project).write_bytes(source(project).read_bytes().replace(b"\n", b"\r\n"))
    defserve("add", "tool", "look_up")
    text = source(project).read_bytes()
    assert b"def look_up" in text and text.count(b"\n") == text.count(b"\r\n")


def test_a_comment_above_the_end_stays_with_it(defserve: Run, project: Path):
    text = source(project).read_text().replace("if __name__", "# For those who run the file.\nif __name__")
    source(project).write_text(text)
    defserve("add", "tool", "look_up")
    assert source(project).read_text().endswith(text.partition("# For")[1] + text.partition("# For")[2])


def test_parameters_of_a_resource_come_from_its_uri(defserve: Run, project: Path):
    defserve("add", "resource", "day", "--uri", "shop://hours/{year}/{month}")
    assert (
        '@server.resource("shop://hours/{year}/{month}")\ndef day(year: str, month: str)' in source(project).read_text()
    )
    assert 'read_text("shop://hours/1/1")' in (project / "tests" / "test_server.py").read_text()


def test_a_dry_run_shows_the_change_and_makes_none(defserve: Run, project: Path):
    before = source(project).read_bytes()
    code, out, _ = defserve("add", "tool", "look_up", "--dry-run")
    assert code == 0
    assert "+++ src/shop/server.py" in out and "+def look_up(text: str) -> str:" in out
    assert source(project).read_bytes() == before


def test_it_works_from_a_folder_below(defserve: Run, project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project / "tests")
    assert "Changed ../src/shop/server.py" in defserve("add", "tool", "look_up").out


def test_tests_that_cannot_take_it_are_left_alone(defserve: Run, project: Path):
    (project / "tests" / "test_server.py").write_text("def test_nothing():\n    pass\n")
    assert "Created tests/test_look_up.py" in defserve("add", "tool", "look_up").out
    made = (project / "tests" / "test_look_up.py").read_text()
    assert 'pytestmark = pytest.mark.serves("shop.server:server")\n\n\ndef test_look_up(' in made


def test_a_file_without_a_project_is_named(defserve: Run, folder: Path):
    (folder / "calc.py").write_text("import defserve\n\ncalc = defserve.Server('calc')\n")
    code, out, _ = defserve("add", "tool", "look_up", "--server", "calc.py")
    assert code == 0 and "Created tests/test_look_up.py" in out
    assert "\n\n\n@calc.tool\ndef look_up(" in (folder / "calc.py").read_text()
    assert 'serves("calc.py:calc")' in (folder / "tests" / "test_look_up.py").read_text()


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["tool", "greet"], "already defines 'greet'"),
        (["tool", "Server"], "'Server' cannot be the name of a function"),
        (["tool", "look-up"], "fix: defserve add tool look_up"),
        (["tool", "class"], "fix: defserve add tool my_tool"),
        (["tool", "list"], "'list' is a builtin"),
        (["tool", "told"], "already serves 'told'"),
        (["resource", "all", "--uri", "shop://all"], "'all' is a builtin"),
        (["resource", "everything", "--uri", "shop://all"], "already serves 'shop://all'"),
        (["resource", "day", "--uri", "shop://{?day}"], "not a URI for a resource"),
        (["tool", "x", "--uri", "shop://all"], "only a resource has a --uri"),
        (["feature-set", "shop.rules"], "already serves 'shop.rules'"),
        (["feature-set", "a b"], "not a name for a feature set"),
        (["tool", "x", "--description", 'the "best"'], "the description is not valid"),
        (["gadget", "x"], "KIND cannot be 'gadget'"),
        (["tool", "tested"], "test_server.py already has a test_tested"),
        (["tool", "x", "--server", "nowhere.py"], "there is no file"),
        (["tool", "x", "--server", "src/shop/server.py:other"], "has no server 'other'"),
    ],
)
def test_clashes_and_mistakes_change_nothing(defserve: Run, project: Path, argv: list[str], complaint: str):
    with source(project).open("a") as file:
        file.write('\n@server.tool(name="told")\ndef tell() -> str:\n    return ""\n')
        file.write('\n@server.resource("shop://all")\ndef whole() -> str:\n    return ""\n')
        file.write('\nrules = server.feature_set("shop.rules", "Rules")\n')
    with (project / "tests" / "test_server.py").open("a") as file:
        file.write("\ndef test_tested() -> None: ...\n")
    before = source(project).read_bytes()
    code, out, err = defserve("add", *argv)
    assert (code, out) == (1, "")
    assert complaint in err and "fix: " in err
    assert source(project).read_bytes() == before


@pytest.mark.parametrize(
    ("pyproject", "complaint"),
    [
        (None, "there is no pyproject.toml"),
        ("", "names no server"),
        ("[project]\nname = 'x'\nscripts = { x = 'x:main' }", "names no server"),
        ("[project", "pyproject.toml: "),
        ("project = 3", "project is not a table"),
        ("[project]\nentry-points = [1]", "project.entry-points is not a table"),
        ("[project]\nscripts = { x = 3 }", "names no server"),
        ("# \udcff", "pyproject.toml: "),
        ("[project.scripts]\na = 'x:one.main'\nb = 'x:two.main'", "several servers: x:one, x:two"),
    ],
)
def test_a_server_that_cannot_be_found_is_asked_for(defserve: Run, folder: Path, pyproject: str | None, complaint: str):
    (folder / "x.py").write_text(
        "from defserve import Server\none = Server('1')\ntwo: Server = Server('2')\nmain = 1\n"
    )
    if pyproject is not None:
        (folder / "pyproject.toml").write_bytes(pyproject.encode(errors="surrogateescape"))
    code, _, err = defserve("add", "tool", "look_up")
    assert code == 1
    assert complaint in err and "fix: " in err


def test_a_project_that_cannot_be_written_is_told_with_a_fix(
    defserve: Run, project: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, _: bytes) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    code, out, err = defserve("add", "tool", "look_up")
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot write ") and "Permission denied" in err and "fix: check the permissions" in err


def test_a_file_that_does_not_parse_is_told_with_its_line(defserve: Run, project: Path):
    source(project).write_text("x = (\n")
    code, _, err = defserve("add", "tool", "look_up")
    assert code == 1
    assert "server.py:1: " in err
