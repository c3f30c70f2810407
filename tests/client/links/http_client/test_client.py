"""The client against real sockets: what it keeps, repeats, bounds and refuses."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve.base import http_connection as connection_module
from defserve.base.http_connection import BrokenHttpConnection
from defserve.client.links import http_client as client_module
from defserve.client.links.http_client import OriginHttpClient, RequestAddress
from tests.certificate import self_signed
from tests.client.links.http_client.script import OK, Script, Wire, script
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

MOST = 1 << 20


@asynccontextmanager
async def client(url: str, **headers: str) -> AsyncGenerator[OriginHttpClient]:
    made = OriginHttpClient(RequestAddress(url), headers)
    try:
        yield made
    finally:
        await made.aclose()


async def post(http: OriginHttpClient, content: bytes = b"{}", **more: Any) -> bytes:
    response = await http.send("POST", "/mcp", {}, content, **more)
    try:
        return await response.read_body_start(MOST)
    finally:
        await response.aclose()


async def answering(wire: Wire, told: Script) -> None:
    while True:
        told.requests.append(await wire.request())
        await wire.say(OK)


# Connections.


async def test_one_connection_carries_requests_one_after_the_other():
    async with script(answering) as server, client(server.url) as http:
        for _ in range(20):
            assert await post(http) == b"ok"
        assert (server.connections, len(server.requests)) == (1, 20)


async def test_requests_at_the_same_time_have_a_connection_each():
    together = asyncio.Barrier(5)

    async def serve(wire: Wire, told: Script) -> None:
        while True:
            await wire.request()
            await together.wait()
            await wire.say(OK)

    async with script(serve) as server, client(server.url) as http:
        for _ in range(2):
            assert await asyncio.gather(*(post(http) for _ in range(5))) == [b"ok"] * 5
        assert server.connections == 5


@for_each_row(
    "response",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" + OK.replace(b"ok", b"no"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + OK.replace(b"ok", b"no"),
    ],
)
async def test_what_follows_a_response_is_never_the_answer_to_the_next_request(response: bytes):
    async def serve(wire: Wire, told: Script) -> None:
        await wire.request()
        await wire.say(response)
        await wire.closed()

    async with script(serve) as server, client(server.url) as http:
        for _ in range(3):
            assert await post(http) == b"ok"
        assert server.connections == 3


async def test_what_an_idle_connection_says_unasked_is_never_an_answer():
    said = asyncio.Event()

    async def serve(wire: Wire, told: Script) -> None:
        await wire.request()
        await wire.say(OK)
        await said.wait()
        await wire.say(OK.replace(b"ok", b"no"))
        await wire.closed()

    async with script(serve) as server, client(server.url) as http:
        assert await post(http) == b"ok"
        said.set()
        await until(lambda: not http._idle or not http._idle[0].is_usable)
        assert await post(http) == b"ok"
        assert server.connections == 2


async def test_an_idle_connection_that_the_server_closed_is_not_used():
    async def serve(wire: Wire, told: Script) -> None:
        told.requests.append(await wire.request())
        await wire.say(OK)

    async with script(serve) as server, client(server.url) as http:
        for number in range(1, 6):
            assert await post(http) == b"ok"
            await until(lambda: not http._idle or not http._idle[0].is_usable)
            assert (server.connections, len(server.requests)) == (number, number)


async def test_a_connection_that_ended_while_the_loop_was_busy_is_not_used():
    closed, served = threading.Event(), 0

    def serve() -> None:
        nonlocal served
        while served < 2:
            wire, _ = listener.accept()
            with wire:
                wire.recv(65536)
                served += 1
                wire.sendall(OK)
            closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        async with client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp") as http:
            assert await post(http) == b"ok"
            assert closed.wait(20)  # on the loop, which learns nothing meanwhile
            assert await post(http) == b"ok"
        thread.join(20)
    assert served == 2


async def test_a_connection_that_was_idle_for_long_is_closed(monkeypatch: pytest.MonkeyPatch):
    async with script(answering) as server, client(server.url) as http:
        await asyncio.gather(post(http), post(http))
        assert len(http._open) == 2
        monkeypatch.setattr(client_module, "IDLE_SECONDS", -1)
        await post(http)
        assert server.connections == 3
        await until(lambda: len(http._open) == 1)


async def test_only_some_idle_connections_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_module, "MAX_IDLE_CONNECTIONS", 2)
    async with script(answering) as server, client(server.url) as http:
        await asyncio.gather(*(post(http) for _ in range(6)))
        await until(lambda: len(http._open) == 2)


# Repeating. Whether a server has read what was sent to it when the connection ends, nobody can tell.


@for_each_row("ending", ["close", "reset"])
@for_each_row("repeatable", [False, True])
async def test_a_request_on_a_kept_connection_that_ends_is_repeated_only_if_it_may_be(ending: str, repeatable: bool):
    async def serve(wire: Wire, told: Script) -> None:
        first = told.connections == 1
        while True:
            told.requests.append(await wire.request())
            if first and len(told.requests) == 2:
                if ending == "reset":
                    wire.reset()
                return
            await wire.say(OK)

    async with script(serve) as server, client(server.url) as http:
        await post(http, b"one")
        if repeatable:
            assert await post(http, b"two", repeatable=True) == b"ok"
        else:
            with pytest.raises(BrokenHttpConnection):
                await post(http, b"two")
        bodies = [request.rpartition(b"\r\n")[2] for request in server.requests]
        assert bodies == [b"one", b"two", b"two"] if repeatable else [b"one", b"two"]


async def test_a_request_is_repeated_once_and_never_after_a_byte_of_the_answer_or_on_a_new_connection():
    async def serve(wire: Wire, told: Script) -> None:
        while True:
            request = await wire.request()
            told.requests.append(request)
            if request.endswith(b"fine"):
                await wire.say(OK)
            elif request.endswith(b"half"):
                await wire.say(b"H")
                return
            else:
                return

    async with script(serve) as server, client(server.url) as http:
        with pytest.raises(BrokenHttpConnection):
            await post(http, b"new", repeatable=True)
        assert len(server.requests) == 1
        await post(http, b"fine")
        with pytest.raises(BrokenHttpConnection):
            await post(http, b"half", repeatable=True)
        assert len(server.requests) == 3
        await post(http, b"fine")
        with pytest.raises(BrokenHttpConnection):
            await post(http, b"dead", repeatable=True)
        assert len(server.requests) == 6


# What is bounded.


async def test_a_body_that_nobody_reads_makes_the_server_wait():
    sent, more = 0, asyncio.Event()

    async def serve(wire: Wire, told: Script) -> None:
        nonlocal sent
        wire.writer.transport.set_write_buffer_limits(0)
        await wire.request()
        await wire.say(b"HTTP/1.1 200 OK\r\ncontent-length: 200000000\r\n\r\n")
        for _ in range(2000):
            await wire.say(b"x" * 100_000)
            sent += 100_000

    async with script(serve) as server, client(server.url) as http:
        response = await http.send("POST", "/mcp", {}, b"{}")
        before = -1
        while before != sent:  # until the server is stuck
            before = sent
            for _ in range(50):
                await asyncio.sleep(0.001)
        assert sent < 60_000_000
        assert response._unread <= connection_module.MAX_UNREAD_BYTES + (1 << 20)
        total = 0
        async for part in response.iter_parts():
            total += len(part)
            if total > sent + 1_000_000:
                break
        await response.aclose()
        more.set()
        await until(lambda: not http._open)


@pytest.mark.slow
@for_each_row("coding", ["gzip", "deflate", "bare"])
async def test_a_packed_body_is_unpacked_and_bounded_by_what_is_unpacked(coding: str):
    bomb = b"\0" * (16 << 20)
    packers = {"gzip": gzip.compress, "deflate": zlib.compress, "bare": lambda data: zlib.compress(data)[2:-4]}
    packed = {b"small": packers[coding](b"hello" * 1000), b"large": packers[coding](bomb)}
    name = b"gzip" if coding == "gzip" else b"deflate"

    async def serve(wire: Wire, told: Script) -> None:
        while True:
            body = packed[(await wire.request()).rpartition(b"\r\n")[2]]
            head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (name, len(body))
            await wire.say(head, body)

    async with script(serve) as server, client(server.url) as http:
        assert await post(http, b"small") == b"hello" * 1000
        assert MOST < len(await post(http, b"large")) < MOST + (1 << 17)


async def test_a_coding_that_was_not_asked_for_is_refused():
    async def serve(wire: Wire, told: Script) -> None:
        await wire.request()
        await wire.say(b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nok")

    async with script(serve) as server, client(server.url) as http:
        with pytest.raises(BrokenHttpConnection, match="not asked for"):
            await post(http)


async def test_a_server_that_takes_nothing_of_a_request_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "WRITE_TIMEOUT_SECONDS", 0.05)

    async def serve(wire: Wire, told: Script) -> None:
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with script(serve) as server, client(server.url) as http:
        with pytest.raises(BrokenHttpConnection, match="took nothing of a request"):
            await post(http, b"x" * 50_000_000)


async def test_an_answer_may_come_before_the_request_is_taken():
    async def serve(wire: Wire, told: Script) -> None:
        await wire.reader.readuntil(b"\r\n\r\n")
        await wire.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await wire.closed()

    async with script(serve) as server, client(server.url) as http:
        response = await http.send("POST", "/mcp", {}, b"x" * 20_000_000)
        assert (response.status, await response.read_body_start(MOST)) == (413, b"no")
        await response.aclose()
        await until(lambda: not http._open)


# Leaving.


async def test_cancelling_closes_the_connection():
    came, closed = asyncio.Event(), asyncio.Event()

    async def serve(wire: Wire, told: Script) -> None:
        await wire.request()
        came.set()
        await wire.closed()
        closed.set()

    async with script(serve) as server, client(server.url) as http:
        task = asyncio.create_task(post(http))
        await came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(20):
            await closed.wait()


async def test_a_response_that_is_left_early_closes_the_connection():
    closed = asyncio.Event()

    async def serve(wire: Wire, told: Script) -> None:
        await wire.request()
        await wire.say(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await wire.closed()
        closed.set()

    async with script(serve) as server, client(server.url) as http:
        response = await http.send("GET", "/mcp", {})
        await response.aclose()
        async with asyncio.timeout(20):
            await closed.wait()


async def test_closing_the_client_ends_what_is_under_way():
    came = asyncio.Event()

    async def serve(wire: Wire, told: Script) -> None:
        await wire.request()
        came.set()
        await wire.closed()

    async with script(serve) as server:
        async with client(server.url) as http:
            task = asyncio.create_task(post(http))
            await came.wait()
        with pytest.raises(BrokenHttpConnection):
            await task


# What is sent.


async def test_a_request_says_where_it_goes_and_what_it_has():
    async with script(answering) as server, client(server.url + "?a=b c", **{"X-Team": "blue"}) as http:
        await post(http, b"{}")
        await (await http.send("GET", RequestAddress(server.url + "/ü?a=b c").target, {"x": "y"})).aclose()
        head = server.requests[0].split(b"\r\n")
        assert head[0] == b"POST /mcp HTTP/1.1"
        assert {f"host: {server.url.split('/')[2]}".encode(), b"content-length: 2", b"x-team: blue"} <= set(head)
        assert server.requests[1].startswith(b"GET /mcp/%C3%BC?a=b%20c HTTP/1.1\r\n")
        assert b"content-length" not in server.requests[1]


async def test_each_request_has_its_own_head_though_most_are_alike():
    async with script(answering) as server, client(server.url, **{"Content-Length": "7"}) as http:
        asked = [
            ("POST", "/a", {"x": "1"}, b"12"),
            ("POST", "/a", {"x": "1"}, b"123"),
            ("POST", "/a", {"x": "2"}, b"1"),
        ]
        asked += [("POST", "/b", {"x": "2"}, b"1"), ("GET", "/b", {"x": "2"}, None), ("POST", "/b", {"x": "2"}, b"")]
        for method, target, headers, content in asked:
            await (await http.send(method, target, headers, content)).aclose()
            headers["x"] = "changed later"
        await (await http.send("POST", "/b", {"x": "2"}, b"1")).aclose()
        lines = [request.partition(b"\r\n\r\n")[0].split(b"\r\n") for request in server.requests]
        found = [(first, *(line for line in rest if line.startswith((b"x:", b"content-l")))) for first, *rest in lines]
        assert found == [
            (b"POST /a HTTP/1.1", b"x: 1", b"content-length: 2"),
            (b"POST /a HTTP/1.1", b"x: 1", b"content-length: 3"),
            (b"POST /a HTTP/1.1", b"x: 2", b"content-length: 1"),
            (b"POST /b HTTP/1.1", b"x: 2", b"content-length: 1"),
            (b"GET /b HTTP/1.1", b"x: 2"),
            (b"POST /b HTTP/1.1", b"x: 2", b"content-length: 0"),
            (b"POST /b HTTP/1.1", b"x: 2", b"content-length: 1"),
        ]


async def test_each_response_has_its_own_head_though_most_are_alike():
    heads = [b"x: 1", b"x: 1", b"x: 2", b"x: 1", b"y: 1"]

    async def serve(wire: Wire, told: Script) -> None:
        for head in heads:
            told.requests.append(await wire.request())
            await wire.say(b"HTTP/1.1 200 OK\r\n" + head + b"\r\ncontent-length: 2\r\n\r\nok")

    async with script(serve) as server, client(server.url) as http:
        found: list[bytes] = []
        for _ in heads:
            response = await http.send("GET", "/", {})
            found += [f"{name}: {value}".encode() for name, value in response.headers.items() if name in "xy"]
            await response.aclose()
        assert (found, server.connections) == (heads, 1)


@for_each_row("value", ["a\r\nevil: 1", "a\nb", "a\rb", "a\0b", "ü", "\x1b[2J"])
async def test_a_header_cannot_become_two(value: str):
    with pytest.raises(ValueError, match="'x-team' has characters"):
        OriginHttpClient(RequestAddress("http://127.0.0.1/"), {"X-Team": value})
    async with script(answering) as server, client(server.url) as http:
        with pytest.raises(BrokenHttpConnection, match="has characters"):
            await http.send("GET", "/", {"x": value})
        with pytest.raises(BrokenHttpConnection, match="has characters"):
            await http.send("GET", "/", {f"x: 1\r\n{value}": "1"})
        assert server.connections == 0


async def test_cookies_go_back_to_who_set_them():
    async def serve(wire: Wire, told: Script) -> None:
        for cookies in (
            b"set-cookie: a=1; Path=/; Expires=Wed, 1 Jan 2098\r\nset-cookie: b=2\r\n",
            b"",
            b"set-cookie: a=; Max-Age=0\r\n",
        ):
            told.requests.append(await wire.request())
            await wire.say(b"HTTP/1.1 200 OK\r\n" + cookies + b"content-length: 2\r\n\r\nok")
        await answering(wire, told)

    async with script(serve) as server, client(server.url) as http:
        for _ in range(4):
            await post(http)
        found = [[line for line in request.split(b"\r\n") if line.startswith(b"cookie")] for request in server.requests]
        assert found == [[], [b"cookie: a=1; b=2"], [b"cookie: a=1; b=2"], [b"cookie: b=2"]]


async def test_cookies_are_bounded():
    async def serve(wire: Wire, told: Script) -> None:
        for number in range(100):
            told.requests.append(await wire.request())
            cookies = b"set-cookie: a%d=%b\r\nset-cookie: b%d=1\r\n" % (number, b"x" * 5000, number)
            await wire.say(b"HTTP/1.1 200 OK\r\n" + cookies + b"content-length: 2\r\n\r\nok")

    async with script(serve) as server, client(server.url) as http:
        for _ in range(100):
            await post(http)
        assert len(server.requests[-1]) < 1000


async def test_the_user_of_an_address_is_told_to_the_server_alone():
    async with script(answering) as server:
        address = RequestAddress(server.url.replace("://", "://me:p%40ss@"))
        http = OriginHttpClient(address, {})
        await post(http)
        assert b"authorization: Basic bWU6cEBzcw==\r\n" in server.requests[0]
        assert "p@ss" not in str(address)
        assert "p%40ss" not in str(address)
        await http.aclose()


async def test_a_server_of_ipv6_is_reached():
    try:
        async with script(answering, "::1") as server, client(server.url) as http:
            assert await post(http) == b"ok"
            assert b"host: [::1]:" in server.requests[0]
    except OSError:
        pytest.skip("no IPv6 here")


async def test_nobody_there_is_broken():
    async with script(answering) as server:
        url = server.url
    async with client(url) as http:
        with pytest.raises(BrokenHttpConnection):
            await post(http)


# Encryption.


async def test_a_server_is_trusted_for_its_certificate_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    certificate = self_signed(tmp_path, "127.0.0.1")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    async with script(answering, ssl=serving) as server:
        async with client(server.url) as http:
            with pytest.raises(BrokenHttpConnection, match="(?i)certificate"):
                await post(http)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with client(server.url) as http:
            assert [await post(http) for _ in range(5)] == [b"ok"] * 5
            assert len(http._open) == 1
        async with client(server.url.replace("127.0.0.1", "localhost")) as http:
            with pytest.raises(BrokenHttpConnection, match="(?i)certificate|hostname"):
                await post(http)
        assert len(server.requests) == 5
