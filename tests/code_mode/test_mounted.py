"""Code that calls tools of other servers: their questions park the run as those of its own tools do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from defserve import Command, Server
from defserve.sandbox import monty
from tests.code_mode import backend
from tests.code_mode.peers import ASKS, run, value
from tests.forking.spawning import quick_arguments
from tests.raw import ERAS, STATELESS, Json, raw
from tests.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not monty.is_installed(), reason="pydantic-monty is not installed in the tested version"),
]


@pytest.mark.slow
@pytest.mark.parametrize("behind", ERAS)
async def test_a_question_of_a_mounted_tool_reaches_the_client_of_the_code(behind: str, tmp_path: Path):
    log, asked = tmp_path / "log", list[str]()
    server = Server("front", "1", code_mode=True)
    server.mount(Command(sys.executable, *quick_arguments(Path(backend.__file__)), version=behind), prefix="far")

    @server.tool
    def note(text: str) -> str:
        asked.append(text)
        return text

    def answering(message: str) -> Json:
        asked.append(message)
        return {"action": "accept", "content": {"value": "Ada"}}

    async with raw(server, STATELESS, ASKS) as peer:
        await until(lambda: server.mcp.tools.registry.get("far_greet") is not None)
        code = f"note('first')\nx = far_greet({str(log)!r})\nnote('last')\nx['hello']"
        result: Any = await run(peer, code, answering)
        assert value(result) == "Ada"
        assert "far_greet(log: str) -> " in (await peer.call("describe_tools"))["content"][0]["text"]
    assert asked == ["first", "Server 'far' asks: Who is ada?", "last"]
    assert log.read_text() == "greeted Ada\n"


ODD = """
import json, sys

ANSWERS = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd"}},
    "tools/list": {"tools": [{"name": "odd", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [1]},
}
for request in map(json.loads, sys.stdin):
    if "id" in request:
        answer = ANSWERS.get(request["method"])
        outcome = {"error": {"code": -32601, "message": "no"}} if answer is None else {"result": answer}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)
"""


@pytest.mark.slow
async def test_code_can_handle_a_result_of_a_mounted_tool_that_is_no_content(tmp_path: Path):
    path = tmp_path / "odd.py"
    path.write_text(ODD)
    server = Server("front", "1", code_mode=True)
    server.mount(Command(sys.executable, str(path)), prefix="far")
    async with raw(server, STATELESS, ASKS) as peer:
        await until(lambda: server.mcp.tools.registry.get("far_odd") is not None)
        code = "try:\n    x = far_odd()\nexcept RuntimeError as error:\n    x = str(error)\nx"
        assert "no list of blocks" in value(await run(peer, code, dict))


@pytest.mark.slow
async def test_code_can_handle_that_a_mounted_tool_does_not_say_what_it_takes(tmp_path: Path):
    path = tmp_path / "odd.py"
    path.write_text(ODD.replace('{"type": "object"}', '{"type": "object", "properties": 5}'))
    server = Server("front", "1", code_mode=True)
    server.mount(Command(sys.executable, str(path)), prefix="far")
    async with raw(server, STATELESS, ASKS) as peer:
        await until(lambda: server.mcp.tools.registry.get("far_odd") is not None)
        code = "try:\n    x = far_odd(1)\nexcept TypeError as error:\n    x = str(error)\nx"
        assert value(await run(peer, code, dict)) == "far_odd takes 0 arguments, and 1 were given"
