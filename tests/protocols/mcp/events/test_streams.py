"""Streams across processes and transports: they hear of one another, end with their keys, and hold up nobody."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from defserve.auth import ApiKeys, live_credentials
from tests.asgi import Web
from tests.listening import listening
from tests.protocols.mcp.events.repositories import SEP, SUBSCRIPTION, Push, make_server, open_stream, poll
from tests.raw import PREFIX, STATELESS, raw, until

pytestmark = pytest.mark.anyio


async def test_an_event_of_one_process_reaches_a_stream_of_another(address: str):
    one, other = make_server(address), make_server(address)
    async with raw(one) as here, raw(other) as elsewhere:
        await open_stream(elsewhere)
        await here.call("push", {"repository": "x", "commits": 7})
        async with asyncio.timeout(30):
            assert (await elsewhere.hear())["params"]["data"] == {"commits": 7}


async def test_a_cursor_of_one_process_is_good_in_another_and_after_a_restart(address: str):
    async with raw(make_server(address)) as here:
        cursor = (await poll(here, None))["cursor"]
        await here.call("push", {"repository": "x"})
    async with raw(make_server(address)) as again:
        page = await poll(again, cursor)
        assert (len(page["events"]), page["truncated"]) == (1, False)


async def test_a_server_of_another_name_has_events_of_its_own(address: str):
    from defserve import Server

    async with raw(make_server(address)) as here:
        cursor = (await poll(here, None))["cursor"]
        await here.call("push", {"repository": "x"})
    other = Server("other", "1", store=address, experimental=["events"])

    @other.event
    def pushed(repository: str) -> Push: ...

    async with raw(other) as peer:
        reply = await peer.ask("events/poll", {"name": "pushed", "arguments": {"repository": "x"}, "cursor": cursor})
        assert reply["error"]["code"] == -32602


def body(method: str, params: dict[str, Any], id: int = 1) -> bytes:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": SEP}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}).encode()


def head(method: str, length: int, *more: str) -> bytes:
    lines = (
        "POST /mcp HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"mcp-protocol-version: {STATELESS}",
        f"mcp-method: {method}",
        f"content-length: {length}",
        *more,
    )
    return "\r\n".join([*lines, "", ""]).encode()


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message of a stream of events."""
    while not (line := await reader.readline()).startswith(b"data:"):
        assert line, "the stream has ended"
    return json.loads(line.removeprefix(b"data:"))


async def test_a_stream_over_http_ends_when_its_client_leaves():
    server = make_server()
    async with listening(server) as where:
        reader, writer = await where.connect()
        asked = body("events/stream", {"name": "pushed", "arguments": {"repository": "x"}})
        writer.write(head("events/stream", len(asked)) + asked)
        assert (await read_message(reader))["method"] == "notifications/events/active"
        await server.emit_event("pushed", Push(commits=3), repository="x")
        assert (await read_message(reader))["params"]["data"] == {"commits": 3}
        (events,) = [cast(Any, one) for one in server.extensions if one.name == "events"]
        assert sum(events._streams.values()) == 1
        writer.close()
        await until(lambda: not events._streams)


async def test_a_stream_ends_with_the_key_it_was_opened_with(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_credentials.LiveCredentials.__init__, "__defaults__", (0.02,))
    keys = ApiKeys("memory:")
    made = await keys.create("ci", permissions=["ToolsListAll"])
    server = make_server(auth=keys)
    async with listening(server) as where:
        reader, writer = await where.connect()
        asked = body("events/stream", {"name": "pushed", "arguments": {"repository": "x"}})
        writer.write(head("events/stream", len(asked), f"authorization: Bearer {made.token}") + asked)
        assert (await read_message(reader))["method"] == "notifications/events/active"
        await keys.revoke(made.key.id)
        ended = await read_message(reader)
        assert ended["error"]["data"]["error_type"] == "credential_ended"
        writer.close()


async def test_a_slow_reader_holds_up_nobody_and_loses_nothing():
    server = make_server()
    async with listening(server) as where:
        slow_reader, slow_writer = await where.connect()
        asked = body("events/stream", {"name": "pushed", "arguments": {"repository": "x"}})
        slow_writer.write(head("events/stream", len(asked)) + asked)
        assert (await read_message(slow_reader))["method"] == "notifications/events/active"
        async with raw(server) as quick:
            await open_stream(quick)
            for number in range(300):
                await server.emit_event("pushed", Push(commits=number), repository="x", branch="b" * 1000)
            for number in range(300):
                assert (await quick.hear())["params"]["data"] == {"commits": number}
        for number in range(300):
            assert (await read_message(slow_reader))["params"]["data"] == {"commits": number}
        slow_writer.close()


PIPE = """
from tests.protocols.mcp.events.repositories import make_server
make_server().run()
"""


async def test_a_stream_on_a_pipe_ends_when_it_is_cancelled():
    command = (sys.executable, "-c", PIPE)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[4]
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def hear() -> Any:
        assert process.stdout is not None
        return json.loads(await process.stdout.readline())

    about = {"name": "pushed", "arguments": {"repository": "x"}}
    push = {"name": "push", "arguments": {"repository": "x", "commits": 6}}
    process.stdin.write(body("events/stream", about, 1) + b"\n")
    assert (await hear())["method"] == "notifications/events/active"
    process.stdin.write(body("tools/call", push, 2) + b"\n")
    heard = [await hear(), await hear()]
    (event,) = [message for message in heard if message.get("method") == "notifications/events/event"]
    assert (event["params"]["data"], event["params"]["_meta"]) == ({"commits": 6}, {SUBSCRIPTION: 1})
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    process.stdin.write(json.dumps(cancelled).encode() + b"\n" + body("tools/call", push, 3) + b"\n")
    assert (await hear())["id"] == 3
    process.stdin.close()
    assert await process.wait() == 0


async def test_a_stream_of_an_asgi_app_waits_for_its_reader_and_ends_with_it():
    server = make_server()
    app = server.asgi()
    headers = {"mcp-protocol-version": STATELESS, "mcp-method": "events/stream"}
    stream = Web(app).post(body("events/stream", {"name": "pushed", "arguments": {"repository": "x"}}), headers)
    assert (await stream.next())["method"] == "notifications/events/active"
    stream.stall()
    for number in range(50):
        await server.emit_event("pushed", Push(commits=number), repository="x")
    stream.read_on()
    assert [(await stream.next())["params"]["data"]["commits"] for _ in range(50)] == list(range(50))
    (events,) = [cast(Any, one) for one in server.extensions if one.name == "events"]
    stream.leave()
    await until(lambda: not events._streams)
    await app.provider.stop()
