"""A reply that cannot be decoded fails the request that it was meant for, at once."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Remote
from defserve.client.client import Client
from defserve.client.replies import KEPT_HEAD_BYTES, UnreadableLine
from defserve.errors import PeerError
from tests.client.pretend import SILENCE, PretendServer
from tests.effort import cpu_within
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

DEEP = b'{"a":' * 302 + b"1" + b"}" * 302
BROKEN = {
    "too deep": b'{"jsonrpc":"2.0","id":%b,"result":' + DEEP + b"}",
    "too deep, id last": b'{"result":' + DEEP + b',"jsonrpc":"2.0","id":%b}',
    "id last of a long line": b'{"jsonrpc":"2.0","result":"' + b"x" * 2 * KEPT_HEAD_BYTES + b'\xff","id":%b}',
    "bad UTF-8": b'{"jsonrpc":"2.0","id":%b,"result":{"content":"\xff\xfe"}}',
    "bad JSON": b'{"jsonrpc": "2.0", "id": %b, "result": {nope}}',
    "cut off": b'{"jsonrpc":"2.0","id":%b,"result":{"content":[',
    "an id inside": b'{"jsonrpc":"2.0","result":{"id":77,"a":nope},"id":%b}',
}


@for_each_row("line", BROKEN.values(), ids=BROKEN.keys())
async def test_the_request_is_found_by_its_id_and_the_other_waits_on(line: bytes) -> None:
    server = PretendServer({"tools/call": SILENCE, "ping": SILENCE})
    async with asyncio.timeout(30), Client(server, version="2025-11-25") as client:
        other = asyncio.create_task(client.ping())
        call = asyncio.create_task(client.call_raw("x"))
        ids = {method: await id_of(server, method) for method in ("ping", "tools/call")}
        server.say(line.replace(b"%b", str(ids["tools/call"]).encode()))
        with pytest.raises(PeerError, match="the peer's reply is unreadable: Parse error"):
            await call
        assert not other.done()
        server.say({"id": ids["ping"], "result": {}})
        await other


async def test_without_an_id_the_only_request_is_failed_and_printed_text_fails_none() -> None:
    server = PretendServer({"tools/call": SILENCE})
    async with asyncio.timeout(30), Client(server, version="2025-11-25") as client:
        call = asyncio.create_task(client.call_raw("x"))
        id = await id_of(server, "tools/call")
        for printed in (b"Listening on port 8000", b"{'a': 1}", b"[INFO] ready", b'{"level": info}', b"\xff"):
            server.say(printed)
        server.say(b'{"jsonrpc":"2.0","id":%d,"method":"ping","params":{nope}}' % id)
        server.say({"id": "after", "method": "ping"})
        await server.told(lambda message: message.get("id") == "after")
        assert not call.done()
        server.say(b'{"jsonrpc":"2.0","result":{nope}}')
        with pytest.raises(PeerError, match="unreadable"):
            await call


OPEN: set[asyncio.StreamWriter] = set()


def framed(body: bytes, kind: bytes = b"application/json") -> bytes:
    # A stream stays open: nothing but the event itself says that there is no answer.
    length = b"" if b"event" in kind else b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\n" + length + b"\r\n" + body


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    OPEN.add(writer)
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = re.search(rb"content-length: *(\d+)", head)
            said: dict[str, Any] = json.loads(await reader.readexactly(int(size[1]))) if size and int(size[1]) else {}
            if "id" not in said:
                status = b"202 Accepted" if said else b"405 Method Not Allowed"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
            elif said["method"] == "initialize":
                about: dict[str, Any] = {"capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}}
                result: dict[str, Any] = {"protocolVersion": "2025-11-25", **about}
                writer.write(framed(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}).encode()))
            else:
                broken = BROKEN["too deep"].replace(b"%b", str(said["id"]).encode())
                is_stream = said["params"]["name"] == "stream"
                body = b"data: " + broken + b"\n\n" if is_stream else broken
                writer.write(framed(body, b"text/event-stream" if is_stream else b"application/json"))
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    OPEN.discard(writer)


@for_each_row("tool", ["body", "stream"])
async def test_over_http_the_request_is_failed_by_a_body_and_on_an_open_stream(tool: str) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with asyncio.timeout(30), Remote(url).connect("handshake") as client:
        with pytest.raises(PeerError, match="the peer's reply is unreadable: Parse error"):
            await client.call_raw(tool)
    server.close()
    await until(lambda: not OPEN)


async def id_of(server: PretendServer, method: str) -> Any:
    return (await server.told(lambda message: message.get("method") == method))["id"]


@given(st.binary(max_size=300) | st.text('{}[]":,\\ id1jsonrpc', max_size=200).map(str.encode))
def test_any_line_is_scanned(data: bytes) -> None:
    line = UnreadableLine(data)
    assert line.id is None or line.is_reply


@given(st.integers(-(10**17), 10**17) | st.text(max_size=30), st.booleans())
def test_any_id_is_found(id: int | str, is_last: bool) -> None:
    given: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "result": {"id": 5, "method": "x"}}
    if is_last:
        given["id"] = given.pop("id")
    assert UnreadableLine(json.dumps(given).encode()).id == id


def test_a_hostile_line_is_scanned_in_bounded_work() -> None:
    for part in (b'"\\', b'\\"', b'"id":', b"{", b'"', b" "):
        line = b'{"jsonrpc":' + part * 1_000_000
        assert cpu_within(5, lambda line=line: UnreadableLine(line))
