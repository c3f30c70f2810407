"""What a child of `defserve dev` tells its parent: what it serves, why it does not, and which tool was called last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.errors import UsageError
from defserve.tooling.devserver.child import MAX_CALL_BYTES, LastCallRecorder, describe_problem, summarize_server
from defserve.tooling.devserver.handover import DevChildReport, ServerSummary, StartProblem
from defserve.tooling.loading import load_without_serving
from tests.rows import for_each_row

SOURCE = """from defserve import Server

server = Server("calc", version="1.2.0")


@server.tool
def add(a: int, b: int) -> int:
    return a + b


@server.resource("note://a")
def note() -> str:
    return "a"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def summarize(source: str) -> ServerSummary:
    found: dict[str, Any] = {}
    exec(compile(source, "calc.py", "exec"), found)
    summary = summarize_server(found["server"])
    assert summary is not None
    return summary


def test_a_summary_names_the_server_its_items_and_their_cost():
    summary = summarize(SOURCE)
    assert summary[:3] == ("calc", "1.2.0", 1) and summary.tokens > 10
    assert list(summary.items) == ["add", "resource note"]


@for_each_row(
    ("old", "new", "changed"),
    [
        ("a + b", "b + a", ["add"]),
        ("a: int,", "a: float,", ["add"]),
        ('return "a"', 'return "b"', ["resource note"]),
        ("from defserve", "\n\n# moved\nfrom defserve", []),
        ('return "a"', 'return "a" if "a" in {"b", "c", "a"} else ""', ["resource note"]),
    ],
)
def test_an_item_is_another_one_if_its_definition_or_its_code_is(old: str, new: str, changed: list[str]):
    before, after = summarize(SOURCE).items, summarize(SOURCE.replace(old, new)).items
    assert [name for name in after if before[name] != after[name]] == changed


@for_each_row(
    ("source", "where", "text", "lines"),
    [
        (
            "x = 1\ndef broken(:\n",
            "calc_broken.py:2",
            "SyntaxError: invalid syntax",
            ["def broken(:", "           ^"],
        ),
        (
            "def load():\n    return undefined\nload()\n",
            "calc_broken.py:2",
            "NameError: name 'undefined' is not defined",
            ["calc_broken.py:3  load()", "calc_broken.py:2  return undefined"],
        ),
    ],
)
def test_a_problem_names_its_place_and_the_lines_that_led_there(
    folder: Path, source: str, where: str, text: str, lines: list[str]
):
    (folder / "calc_broken.py").write_text(source)
    with pytest.raises(UsageError) as caught:
        load_without_serving("calc_broken.py")
    assert describe_problem(caught.value) == StartProblem(where, text, lines)


def test_a_problem_of_ours_has_its_fix():
    problem = describe_problem(UsageError("there is no such tool", where="calc.py:3", fix="name another"))
    assert problem == StartProblem("calc.py:3", "there is no such tool", ["fix: name another"])


def test_a_report_is_read_as_it_was_written(tmp_path: Path):
    report = DevChildReport(
        ["a.py"], [], ServerSummary("calc", "1", 1, 20, {"add": "1"}), StartProblem("a.py:1", "no", [])
    )
    report.write_file(str(tmp_path / "report"))
    assert DevChildReport.read_file(tmp_path / "report") == report
    assert DevChildReport.read_file(tmp_path / "none") == DevChildReport()


@pytest.mark.anyio
async def test_the_last_call_is_kept_for_its_user_alone_unless_it_is_too_long(tmp_path: Path):
    file = tmp_path / "last-call"
    server = Server("calc", extensions=[LastCallRecorder(file)])

    @server.tool
    def echo(text: str) -> str:
        return text

    async with server.connect() as client:
        await client.tools()
        assert not file.exists()
        await client.call("echo", text="hello")
        await client.call("echo", text="x" * MAX_CALL_BYTES)
    assert json.loads(file.read_text()) == {"name": "echo", "arguments": {"text": "hello"}}
    assert file.stat().st_mode & 0o777 == 0o600
