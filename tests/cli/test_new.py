from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from defserve.cli.commands.project import ask
from defserve.errors import UsageError
from defserve.tooling.project_template import load_template_questions
from tests.cli.running import Run


def test_a_name_is_all_it_takes(defserve: Run, folder: Path):
    code, out, err = defserve("new", "Weather MCP", "--yes")
    assert (code, err) == (0, "")
    assert (folder / "weather-mcp" / "src" / "weather_mcp" / "server.py").is_file()
    assert "cd weather-mcp\n" in out and "pip install -e" in out and "pytest\n" in out and "defserve list -m" in out


def test_what_the_report_says_to_type_works(defserve: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    defserve("new", "greeter", "--yes")
    monkeypatch.chdir(folder / "greeter" / "src")
    assert "greet(name: string)" in defserve("list", "-m", "greeter").out
    assert defserve("call", "-m", "greeter", "greet", "name=Ada").out == "Hello, Ada!\n"


def test_flags_answer_the_questions(defserve: Run, folder: Path):
    argv = ("--name", "Notes", "--template", "stateful", "--author", "Ada", "--licence", "Apache-2.0")
    more = (
        "--description",
        "Keeps notes",
        "--github-user",
        "ada",
        "--package",
        "my_notes",
        "--output",
        "code",
        "--yes",
    )
    assert defserve("new", *argv, *more).code == 0
    made = folder / "code" / "notes"
    card = json.loads((made / "server.json").read_text())
    assert (card["name"], card["description"]) == ("io.github.ada/notes", "Keeps notes")
    assert "Notebook" in (made / "src" / "my_notes" / "server.py").read_text()
    assert "Apache License" in (made / "LICENSE").read_text()


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["x", "--template", "no"], "--template cannot be 'no'"),
        (["x", "--licence", "GPL"], "cannot be 'GPL'"),
        (["x", "--name", "y"], "the name is given twice"),
        (["json", "--yes"], "the name 'json' cannot be used: 'json' is taken by another module"),
        (["9x", "--yes"], "the name '9x' cannot be used: '9x' is not valid"),
        (["Bad Name!", "--yes"], "the name 'Bad Name!' cannot be used: 'bad-name!' is not valid"),
        (["x", "--package", "9x", "--yes"], "package_name: '9x' is not valid"),
        (["x", "--author", 'a"b', "--yes"], "author: 'a\"b' is not valid"),
        (["taken", "--yes"], "taken already exists"),
        ([], "no name is given"),
    ],
)
def test_wrong_answers_are_explained(
    defserve: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], complaint: str
):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (folder / "taken").mkdir()
    code, out, err = defserve("new", *argv)
    assert (code, out) == (1, "")
    assert complaint in err and "fix: " in err
    assert [path.name for path in folder.iterdir()] == ["taken"]


def test_a_folder_that_cannot_be_written_is_told_with_a_fix(defserve: Run, folder: Path):
    (folder / "file").touch()
    code, out, err = defserve("new", "shop", "--output", "file", "--yes")
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot write file/shop") and "fix: add --output DIR" in err


def test_help_lists_the_templates(defserve: Run):
    out = defserve("new", "--help").out
    assert all(f"  {about}\n" in out for about in load_template_questions().choices("body").values())


def test_a_person_is_asked_what_was_not_said(capsys: pytest.CaptureFixture[str]):
    typed = iter(['The "best"\n', "json\n", "Best of all\n", "2\n", "\n", "Ada\n", "ada\n", "BSD-3-Clause\n"])
    answers = ask(load_template_questions(), {}, read=lambda: next(typed))
    assert answers == {
        "project_name": "Best of all",
        "body": "tools",
        "description": load_template_questions().settings["_descriptions"]["tools"],
        "author": "Ada",
        "github_user": "ada",
        "licence": "BSD-3-Clause",
    }
    asked = capsys.readouterr().err
    assert "no quotes" in asked and "'json' is taken by another module" in asked
    assert "  2. tools: " in asked and "Name of the project? [My Server] " in asked


def test_what_was_said_is_not_asked_and_checked_at_once():
    given = {"project_name": "x", "body": "tools", "description": "d", "author": "a", "github_user": "g"}
    answered = {**given, "licence": "MIT"}
    assert ask(load_template_questions(), answered, read=lambda: pytest.fail("asked")) == answered
    with pytest.raises(UsageError, match="github_user"):
        ask(load_template_questions(), {**given, "licence": "MIT", "github_user": "-"}, read=lambda: "\n")


def test_a_template_that_is_not_there_is_answered_with_those_that_are(capsys: pytest.CaptureFixture[str]):
    typed = iter(["x\n", "wrong\n", "tools\n", *["\n"] * 4])
    assert ask(load_template_questions(), {}, read=lambda: next(typed))["body"] == "tools"
    assert "there is no template 'wrong'\n  fix: use one of minimal, tools, " in capsys.readouterr().err


def test_nobody_answers():
    with pytest.raises(UsageError, match="not answered"):
        ask(load_template_questions(), {}, read=lambda: "")


def test_a_project_imports_little_and_costs_little_of_a_process(tmp_path: Path):
    code = (
        "import sys, time; from defserve.cli import main; main(['new', 'x', '--yes']); "
        "assert time.process_time() < 3, time.process_time(); "
        "assert not {'pydantic', 'jinja2', 'cookiecutter', 'anyio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)


def test_what_was_made_up_is_named(defserve: Run, folder: Path):
    out = defserve("new", "one", "--author", "Ada", "--yes").out
    assert (
        "These are defaults" in out
        and "--github-user your-name" in out
        and "--licence MIT" in out
        and "--author" not in out
    )
    all_said = ("--author", "Ada", "--github-user", "ada", "--description", "Greets", "--licence", "MIT")
    assert "These are defaults" not in defserve("new", "two", *all_said, "--yes").out
