"""Whose a task is: over real HTTP, where tokens say who is calling."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from defserve import Server
from defserve.auth import Auth, StaticTokens
from defserve.client import Client
from defserve.errors import PeerError
from defserve.server import AccessPolicy, Entry
from tests.listening import listening
from tests.protocols.mcp.tasks.peers import TAKES, YES, Job, callers, shop
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

TOKENS = StaticTokens(
    {
        "alice": {"principal": "alice", "scopes": ["use", "write"]},
        "alice-again": {"principal": "alice", "scopes": ["use", "write", "more"]},
        "alice-less": {"principal": "alice", "scopes": ["use"]},
        "bob": {"principal": "bob", "scopes": ["use", "write", "more"]},
    }
)


def guarded(**options: Any) -> tuple[Server, Job]:
    return shop(auth=Auth(TOKENS, scopes=["use"]), **options)


async def refusal(client: Client, method: str, id: str) -> tuple[int, str]:
    with pytest.raises(PeerError) as refused:
        await client.request(method, {"taskId": id, "inputResponses": {"a": YES}})
    return refused.value.code, refused.value.message


@pytest.mark.req("MCP-8")
@for_each_row("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_foreign_task_is_unknown(method: str):
    server, job = guarded()
    async with callers(server, "alice", "bob", "alice-less", "alice-again") as (alice, bob, less, again):
        id = (await alice.call_raw("wait"))["taskId"]
        never = await refusal(alice, method, "A" * 32)
        assert await refusal(bob, method, id) == never
        assert await refusal(less, method, id) == never
        assert (await alice.request("tasks/get", {"taskId": id}))["status"] == "working"
        assert (await again.request("tasks/get", {"taskId": id}))["status"] == "working"
        job.go_on.set()


async def test_a_foreign_task_is_not_listened_to():
    server, job = guarded()
    async with callers(server, "alice", "bob") as (alice, bob):
        id = (await alice.call_raw("wait"))["taskId"]
        for client, honoured in ((alice, [id]), (bob, [])):
            heard: list[Any] = []
            client._on_notification = lambda method, params, heard=heard: heard.append((method, params))  # pyright: ignore
            wanted = {"notifications": {"taskIds": [id]}}
            waiting = asyncio.create_task(client.request("subscriptions/listen", wanted, timeout=30))
            await until(lambda heard=heard: bool(heard))
            assert heard[0][1]["notifications"] == {"taskIds": honoured}
            waiting.cancel()
            await asyncio.wait((waiting,))
            assert all(params.get("taskId") in (None, *honoured) for _, params in heard)
        job.go_on.set()


async def test_the_task_of_a_stranger_is_for_whoever_has_its_id():
    server, job = shop()
    async with callers(server, None, None) as (one, other):
        id = (await one.call_raw("wait"))["taskId"]
        assert (await other.request("tasks/get", {"taskId": id}))["status"] == "working"
        await other.request("tasks/cancel", {"taskId": id})
        assert (await one.request("tasks/get", {"taskId": id}))["status"] == "cancelled"
        job.go_on.set()


async def test_a_message_over_http_names_its_task_in_a_header():
    server, job = shop()
    job.go_on.set()
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": TAKES,
    }
    async with listening(server) as there:

        async def status(method: str, name: str | None, params: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
            lines = ["accept: application/json, text/event-stream", "mcp-protocol-version: 2026-07-28"]
            lines += [f"mcp-method: {method}", *([f"mcp-name: {name}"] if name is not None else [])]
            answer = await there.ask(*lines, body=json.dumps(message).encode())
            head, _, body = answer.partition(b"\r\n\r\n")
            return head.split()[1], json.loads(body)

        _, made = await status("tools/call", "wait", {"name": "wait"})
        id = made["result"]["taskId"]
        assert (await status("tasks/get", id, {"taskId": id}))[0] == b"200"
        for wrong in ("another", None):
            code, said = await status("tasks/get", wrong, {"taskId": id})
            assert (code, said["error"]["code"]) == (b"400", -32020)
        meta["io.modelcontextprotocol/clientCapabilities"] = {}
        code, said = await status("tasks/get", id, {"taskId": id})
        assert (code, said["error"]["code"]) == (b"400", -32021)
        assert (await status("tasks/list", None, {}))[0] == b"404"


async def test_who_may_no_longer_use_a_tool_may_only_cancel_its_task():
    policy, waiting = AccessPolicy("opt-out"), asyncio.Event()
    server = Server("shop", auth=Auth(TOKENS), access=policy)

    @server.tool(task="optional")
    async def wait() -> str:
        await waiting.wait()
        return "secret"

    async with callers(server, "alice") as (alice,):
        id = (await alice.call_raw("wait"))["taskId"]
        policy.grant(Entry("tool_grant", "alice", "wait", "deny"))
        never = await refusal(alice, "tasks/get", "A" * 32)
        for method in ("tasks/get", "tasks/update"):
            assert await refusal(alice, method, id) == never
        await alice.request("tasks/cancel", {"taskId": id})
