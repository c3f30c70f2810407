"""Calls of the timeline as a test: it passes as it is, and fails when a tool gives something else."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.protocol import BadMessage
from defserve.serve.lifespans import connect_in_memory
from defserve.tooling.loading import load_without_serving
from tests.inspector.conftest import Run
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked")]

ERAS = ("handshake", "stateless")
SERVER = """
import time
import uuid
from datetime import UTC, datetime

from defserve import Context, Image, Server, ToolError, safe

server = Server("shop", "1")
BASKET: list[str] = []


@server.tool
def add(item: str, api_key: str = "") -> list[str]:
    BASKET.append(item)
    return BASKET


@server.tool
def order() -> dict[str, object]:
    return {"id": str(uuid.uuid4()), "at": datetime.now(UTC).isoformat(), "unix": time.time(), "items": BASKET}


@server.tool
def receipt() -> str:
    return f"Printed at {datetime.now(UTC).isoformat()}: 3 items"


@server.tool
def long() -> list[int]:
    return list(range(2_000))


@server.tool
def picture() -> Image:
    return Image(b"\\x89PNG\\r\\n\\x1a\\n")


@server.tool
def fail(item: str) -> str:
    raise ToolError(f"there is no {item}")


@server.tool
async def ask(ctx: Context) -> str:
    return "yes" if await ctx.confirm("Really?") else "no"
"""
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"item": "tea"}),
    ("add", {"item": "milk"}),
    ("order", {}),
    ("receipt", {}),
    ("long", {}),
    ("picture", {}),
    ("fail", {"item": "sugar"}),
]
CHANGES = {
    "a value in a list": ("BASKET.append(item)", "BASKET.append(item.upper())"),
    "a text beside a time": (": 3 items", ": 4 items"),
    "a value beside an id": ('"items": BASKET', '"items": []'),
    "a long result": ("range(2_000)", "range(2_001)"),
    "a picture": ("\\x1a\\n", "\\x1a\\r"),
    "an error": ("there is no {item}", "{item} is out of stock"),
}


def load(folder: Path, text: str = SERVER) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "server.py").write_text(text, encoding="utf-8")
    return load_without_serving(str(folder / "server.py"))


def target_of(server: Any, era: str, words: tuple[str, ...] = ("server.py",)) -> InspectionTarget:
    return InspectionTarget("server.py", words, lambda: connect_in_memory(server.composition), era)


def find_calls(inspection: Inspection) -> list[int]:
    recorder = inspection.recorder
    return [
        each.seq
        for each in recorder.get_messages(0, recorder.count)
        if (each.kind, each.method) == ("request", "tools/call")
    ]


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


async def make_calls(do: Run, inspection: Inspection, calls: list[tuple[str, dict[str, Any]]]) -> Any:
    for tool, arguments in calls:
        await do(inspection, "tools.call", tool=tool, arguments=arguments)
    return await do(inspection, "session.test", seqs=find_calls(inspection))


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_the_file_passes_in_a_fresh_project_and_fails_when_a_result_is_changed(do: Run, tmp_path: Path, era: str):
    async with Inspection(target_of(load(tmp_path / "inspected"), era)) as inspection:
        made = await make_calls(do, inspection, CALLS)
    assert made["left"] == 0
    project = tmp_path / "project"
    project.mkdir()
    (project / made["name"]).write_text(made["text"], encoding="utf-8")
    (project / "server.py").write_text(SERVER, encoding="utf-8")
    done = run_pytest(project)
    assert "1 passed" in done.stdout, done.stdout + made["text"]
    for name, (before, after) in CHANGES.items():
        assert before in SERVER, name
        (project / "server.py").write_text(SERVER.replace(before, after), encoding="utf-8")
        assert "1 failed" in (done := run_pytest(project)).stdout, (name, done.stdout)


async def test_what_changes_at_every_run_is_not_compared(do: Run, tmp_path: Path):
    async with Inspection(target_of(load(tmp_path), "stateless")) as inspection:
        text = (await make_calls(do, inspection, [("order", {}), ("receipt", {})]))["text"]
    assert "{'id': ANY, 'at': ANY, 'unix': ANY, 'items': []}" in text
    assert "Like('Printed\\\\ at\\\\ .+:\\\\ 3\\\\ items')" in text
    assert "# ANY and Like stand for what changes at every run" in text


async def test_secrets_are_to_be_filled_in(do: Run, tmp_path: Path):
    async with Inspection(target_of(load(tmp_path), "stateless")) as inspection:
        text = (await make_calls(do, inspection, [("add", {"item": "tea", "api_key": "hunter2-hunter2"})]))["text"]
    assert "hunter2" not in text and "<fill in api_key>" in text and "# Secrets are not saved" in text


async def test_only_calls_that_were_answered_become_a_test(do: Run, tmp_path: Path):
    async with Inspection(target_of(load(tmp_path), "stateless")) as inspection:
        await do(inspection, "tools.list")
        with pytest.raises(BadMessage, match="none of these"):
            await do(inspection, "session.test", seqs=[0, 1, 2])
        for wrong in ([], ["1"], [True], "1", None, list(range(1_000))):
            with pytest.raises(BadMessage, match="seqs"):
                await do(inspection, "session.test", seqs=wrong)
        await do(inspection, "tools.call", tool="long", arguments={})
        made = await do(inspection, "session.test", seqs=[0, *find_calls(inspection)])
        assert (made["name"], made["left"]) == ("test_long.py", 1)


async def test_a_server_that_is_a_command_is_started_by_the_test(do: Run, tmp_path: Path):
    server = load(tmp_path)
    words = ("--", sys.executable, "server.py")
    async with Inspection(target_of(server, "handshake", words)) as inspection:
        made = await make_calls(do, inspection, [("add", {"item": "tea"}), ("long", {})])
    ast.parse(made["text"])
    (tmp_path / "server.py").write_text(SERVER + "\nif __name__ == '__main__':\n    server.main()\n", encoding="utf-8")
    (tmp_path / made["name"]).write_text(made["text"], encoding="utf-8")
    changed = (tmp_path / "server.py").read_text(encoding="utf-8").replace("append(item)", "append(item * 2)")
    (tmp_path / "changed.py").write_text(changed, encoding="utf-8")
    (tmp_path / "test_changed.py").write_text(made["text"].replace("server.py", "changed.py"), encoding="utf-8")
    done = run_pytest(tmp_path)
    assert "1 failed, 1 passed" in done.stdout and "FAILED test_changed.py" in done.stdout, done.stdout


async def test_answers_to_questions_are_given_again(do: Run, tmp_path: Path):
    server = load(tmp_path)
    for era in ERAS:
        async with Inspection(target_of(server, era)) as inspection:
            await inspection.client()
            calling = asyncio.ensure_future(do(inspection, "tools.call", tool="ask", arguments={}))
            await until(lambda: bool(inspection.questions.waiting))
            question = inspection.questions.waiting[0]
            field = next(iter(question["schema"]["properties"]))
            inspection.questions.answer_question(question["id"], {"action": "accept", "content": {field: True}})
            await calling
            made = await do(inspection, "session.test", seqs=find_calls(inspection))
        assert "client.will_answer(" in made["text"]
        (tmp_path / f"test_{era}.py").write_text(made["text"], encoding="utf-8")
    done = run_pytest(tmp_path)
    assert "2 passed" in done.stdout, done.stdout
