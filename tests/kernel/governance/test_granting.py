"""Permissions of servers that speak MGP behind a kernel: the kernel decides, and they are told (§3)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve import Server, moderate
from defserve.auth import StaticTokens
from defserve.kernel.governance.access import PermissionDecision
from tests.kernel.running import Running, running, url_entry
from tests.listening import listening
from tests.protocols.mgp.callers import BOB, STRANGER, code_of, speaking
from tests.raw import ERAS, HANDSHAKE, Json, Raw
from tests.waiting import is_running, until

pytestmark = pytest.mark.anyio

CAMERA = "camera"

# Does what it was granted, and nothing else. It keeps what it is told, and asks on request.
CAREFUL = """
import json, os, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

grants, waiting = {}, None
tool = {"name": "look", "inputSchema": {"type": "object"}, "security": {
    "risk_level": "moderate", "permissions_required": ["camera"]}}
for line in sys.stdin:
    said = json.loads(line)
    method, id, params = said.get("method"), said.get("id"), said.get("params", {})
    if method == "initialize":
        mgp = {"version": "0.3.0", "extensions": [EXTENSION], "permissions_required": ["camera", "no permission"]}
        capabilities = {"tools": {}, **({"mgp": mgp} if "mgp" in params["capabilities"] else {})}
        info = {"name": "careful", "version": "1"}
        say(id=id, result={"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info})
    elif method == "tools/list":
        say(id=id, result={"tools": [tool]})
    elif method == METHOD:
        with open(sys.argv[1], "a") as file:
            print(json.dumps({"pid": os.getpid(), **params["grants"]}), file=file)
        if not SILENT:
            grants.update(params["grants"])
            say(id=id, result={"request_id": params["request_id"], "grants": grants})
    elif method == "tools/call" and params["arguments"].get("ask"):
        waiting = id
        asked = {"request_id": "r", "permissions": ["camera", "shell", "nonsense"]}
        say(id="q", method="mgp/permission/request", params=asked)
    elif method == "tools/call":
        say(id=id, result={"content": [{"type": "text", "text": grants.get("camera", "nobody said")}]})
    elif said.get("id") == "q":
        say(id=waiting, result={"content": [{"type": "text", "text": json.dumps(said)}]})
    elif id is not None:
        say(id=id, error={"code": -32601, "message": "no"})
"""


def careful(
    folder: Path, *, extension: str = "permissions", method: str = "mgp/permission/grant", silent: bool = False
) -> str:
    program = folder / "careful.py"
    head = f"EXTENSION, METHOD, SILENT = {extension!r}, {method!r}, {silent}"
    program.write_text(f"{head}\n{CAREFUL}")
    words = ", ".join(f'"{word}"' for word in ("-I", "-S", program, folder / "heard.jsonl"))
    return f'[[servers]]\nid = "c"\nprefix = "c"\ncommand = "{sys.executable}"\nargs = [{words}]\n'


def heard(folder: Path) -> list[Json]:
    file = folder / "heard.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def look(peer: Raw, **arguments: Any) -> Any:
    reply = await peer.ask("tools/call", {"name": "c_look", "arguments": arguments})
    return code_of(reply) or reply["result"]["content"][0]["text"]


async def decide(here: Running, decision: PermissionDecision) -> None:
    await here.kernel.permissions.decide_permission(decision, "c", CAMERA)


@pytest.mark.req("MGP-3.6")
@pytest.mark.parametrize(
    ("extension", "method"), [("permissions", "mgp/permission/grant"), ("security", "mgp/permission/response")]
)
async def test_a_server_is_told_what_its_caller_may_use(tmp_path: Path, extension: str, method: str) -> None:
    async with running(tmp_path, careful(tmp_path, extension=extension, method=method)) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=BOB) as peer:
            assert await look(peer) == "approved"
            assert await look(peer) == "approved"
        # In the kernel's own conversation, and once in that of the client.
        assert [one[CAMERA] for one in heard(tmp_path)] == ["approved", "approved"]


async def test_an_operator_s_decision_is_told_at_once_and_before_the_first_call(tmp_path: Path) -> None:
    async with running(tmp_path, f'[kernel]\npermissions = "interactive"\n{careful(tmp_path)}') as here:
        assert [one[CAMERA] for one in heard(tmp_path)] == ["deferred"]
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=BOB) as peer:
            assert await look(peer) == "permission_denied"
            await decide(here, "approved")
            assert await look(peer) == "approved"
            await decide(here, "denied")
            assert await look(peer) == "permission_denied"
            found = heard(tmp_path)
            assert {one["pid"] for one in found if one[CAMERA] == "denied"} == {one["pid"] for one in found}
            await decide(here, "approved")
            assert await look(peer) == "approved"


@pytest.mark.req("MGP-3.6g")
async def test_what_a_client_gives_up_is_passed_on_and_only_in_its_own_conversation(tmp_path: Path) -> None:
    async with running(tmp_path, careful(tmp_path)) as here:
        server = here.kernel.server
        async with (
            speaking(server, HANDSHAKE[-1], ["permissions"], who=BOB) as one,
            speaking(server, HANDSHAKE[-1], who=BOB) as other,
        ):
            assert [await look(one), await look(other)] == ["approved", "approved"]
            await one.ask("mgp/permission/grant", {"grants": {CAMERA: "denied"}})
            await until(lambda: heard(tmp_path)[-1][CAMERA] == "denied")
            assert [line[CAMERA] for line in heard(tmp_path)].count("denied") == 1
            assert await look(other) == "approved"
            await one.ask("mgp/permission/grant", {"grants": {CAMERA: "approved"}})
            assert await look(one) == "approved"


async def test_a_server_that_asks_itself_is_answered_by_the_policy(tmp_path: Path) -> None:
    async with running(tmp_path, careful(tmp_path)) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=BOB) as peer:
            result = json.loads(await look(peer, ask=True))["result"]
            assert (result["request_id"], result["grants"][CAMERA]) == ("r", "approved")
            assert result["grants"]["shell.execute"] == "approved"
            assert result["grants"]["nonsense"] == "denied"


@pytest.mark.parametrize("version", ERAS)
async def test_the_grants_of_the_kernel_open_a_server_that_waits_for_them(tmp_path: Path, version: str) -> None:
    server = Server("wiki", "1", permissions="config_only", auth=StaticTokens({"the-kernel-s-own-token": "kernel"}))

    @server.tool
    @moderate("network.outbound")
    def fetch(page: int) -> str:
        return f"page {page}"

    async with listening(server) as where:
        url = f"http://{where.authority}/mcp"
        entry = url_entry("wiki", url, f'auth_token = "the-kernel-s-own-token"\nversion = "{version}"')
        async with running(tmp_path, f"[kernel]\n{entry}") as here:
            for front in ERAS:
                async with speaking(here.kernel.server, front, who=BOB) as peer:
                    reply = await peer.ask("tools/call", {"name": "wiki_fetch", "arguments": {"page": 1}})
                    assert reply["result"]["content"][0]["text"] == "page 1"
                    # What is wrong is told as it is without MGP: in a result that a model reads.
                    reply = await peer.ask("tools/call", {"name": "wiki_fetch", "arguments": {"page": [1]}})
                    assert code_of(reply) == "invalid_arguments"
                    assert "page" in reply["result"]["content"][0]["text"]
                async with speaking(here.kernel.server, front, who=STRANGER) as peer:
                    reply = await peer.ask("tools/call", {"name": "wiki_fetch", "arguments": {"page": 1}})
                    assert code_of(reply) == "permission_denied"


async def test_a_server_that_does_not_take_decisions_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defserve.proxying.conversations.TELL_SECONDS", 0.2)
    async with running(tmp_path, careful(tmp_path, silent=True)) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=BOB) as peer:
            assert await look(peer) == "nobody said"
            await asyncio.wait_for(decide(here, "denied"), 30)
            assert await look(peer) == "permission_denied"


async def test_a_server_that_is_stopped_while_it_is_told_leaves_no_process(tmp_path: Path) -> None:
    async with running(tmp_path, careful(tmp_path, silent=True), wait=False) as here:
        await until(lambda: bool(heard(tmp_path)))
        await here.kernel.stop("c")
        assert not is_running(heard(tmp_path)[0]["pid"])
