"""Whatever a server sends, our client reads on, and still answers and calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings

from defserve.client import Mcpl, Mgp
from defserve.client.client import Client
from defserve.errors import DefserveError
from tests.client.pretend import PretendServer
from tests.effort import examples
from tests.rows import for_each_row
from tests.strange_messages import ODD_IDS, Json, messages
from tests.waiting import until

ABOUT: Json = {"progressToken": 1, "progress": 1, "total": 2, "message": "half"}
REAL: list[Json] = [
    {"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "no"}},
    {"method": "notifications/progress", "params": ABOUT},
    {"method": "notifications/message", "params": {"level": "info", "logger": "x", "data": "text"}},
    {"method": "notifications/tools/list_changed", "params": {}},
    {"method": "notifications/resources/updated", "params": {"uri": "a:b"}},
    {"method": "notifications/mgp.stream.chunk", "params": {"request_id": 1, "index": 0, "content": {}, "done": False}},
    {"method": "notifications/mgp.audit", "params": {"event": "x", "timestamp": "y", "details": {}}},
    {"method": "notifications/mgp.callback.request", "params": {"callback_id": "c", "type": "confirmation"}},
    {"method": "featureSets/changed", "params": {"added": {"a": {"description": "d", "uses": ["tools"]}}}},
    {"method": "channels/changed", "params": {"added": [{"id": "c", "type": "t"}], "removed": [], "updated": []}},
    {"id": 1, "method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}},
    {"id": 2, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}},
    {"id": 3, "method": "roots/list", "params": {}},
    {"id": 4, "method": "push/event", "params": {"featureSet": "a", "eventId": "e", "payload": {"content": []}}},
    {"id": 1, "result": {"content": []}},
    {"id": 1, "error": {"code": 1, "message": "no", "data": {"_mgp": {"code": 1000}}}},
]


MGP: Json = {"version": "0.6.0", "extensions": ["streaming", "audit", "callbacks", "events", "health_monitoring"]}


async def outlives(lines: list[bytes]) -> None:
    """A client hears the lines, then a ping, and makes a call."""
    block = {"version": "0.4", "pushEvents": True, "channels": {"register": True}, "featureSets": {}}
    opening = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "experimental": {"mcpl": block}, "mgp": MGP},
        "serverInfo": {"name": "strange", "version": "1"},
    }
    called = {"content": [{"type": "text", "text": "fine"}]}
    # A tool that is not listed would need a yes.
    listed = {"tools": [{"name": "fine", "inputSchema": {"type": "object"}}]}
    server = PretendServer({"initialize": opening, "tools/list": listed, "tools/call": called})
    heard: list[Any] = []
    options: dict[str, Any] = {"on_progress": lambda *about: heard.append(about), "on_log": heard.append}
    async with Client(server, version="2025-11-25", mgp=Mgp(audit=[]), mcpl=Mcpl(), **options) as client:
        assert client.mgp is not None and client.mcpl is not None
        for line in lines:
            server.say(line)
        server.say({"id": "the ping", "method": "ping"})
        async with asyncio.timeout(30):
            await until(lambda: any(sent.get("id") == "the ping" for sent in server.sent))
            for _ in range(3):  # a strange reply may have been meant for one of our requests
                try:
                    assert await client.call("fine") == "fine"
                except DefserveError:
                    continue
                break
            else:
                raise AssertionError("the client does not call any more")


@given(messages(REAL))
@settings(max_examples=examples(20), deadline=None)
def test_whatever_a_server_sends_the_client_goes_on(line: bytes):
    asyncio.run(outlives([line]))


@for_each_row("odd", ODD_IDS, ids=lambda odd: f"{odd!r:.20}")
@for_each_row(
    "message",
    [
        lambda odd: {"method": "notifications/cancelled", "params": {"requestId": odd}},
        lambda odd: {"method": "notifications/progress", "params": {**ABOUT, "progressToken": odd}},
        lambda odd: {"method": "notifications/mgp.stream.chunk", "params": {"request_id": odd}},
        lambda odd: {"id": odd, "result": {}},
        lambda odd: {"id": odd, "error": {"code": odd, "message": odd}},
        lambda odd: {"id": odd, "method": "ping"},
        lambda odd: {"method": "notifications/message", "params": odd},
        lambda odd: {"method": odd, "params": odd},
    ],
)
def test_a_value_of_the_wrong_type_does_not_end_the_client(message: Any, odd: Any):
    asyncio.run(outlives([json.dumps({"jsonrpc": "2.0", **message(odd)}).encode()]))


def test_true_and_a_fraction_name_no_request():
    async def cancel() -> None:
        server, begun, answered = PretendServer(), asyncio.Event(), asyncio.Event()

        async def slow(params: Any) -> Json:
            begun.set()
            await answered.wait()
            return {}

        async with Client(server, methods={"slow": slow}):
            server.say({"id": 1, "method": "slow"})
            await begun.wait()
            for odd in (True, 1.0, "1"):
                server.say({"method": "notifications/cancelled", "params": {"requestId": odd}})
            server.say({"id": 2, "method": "ping"})
            await until(lambda: any(sent.get("id") == 2 for sent in server.sent))
            answered.set()
            await until(lambda: any(sent.get("id") == 1 and "result" in sent for sent in server.sent))

    asyncio.run(asyncio.wait_for(cancel(), 30))
