"""`server.asgi()`: a plain ASGI app, alone on a socket or mounted in another; its lifespan needs no wiring."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from defserve import Context, Server
from tests.asgi import BOTH, Peer, Web, living, peer, request
from tests.raw import ERAS, HANDSHAKE, STATELESS, soon, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

LATEST = HANDSHAKE[-1]
OPENING = request("initialize", {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "t"}})
HEADERS = {"content-type": "application/json", "accept": BOTH, "host": "localhost"}


class Life:
    """A server whose lifespan keeps a diary."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.server = Server("mounted", "1", lifespan=self.lifespan)
        self.server.tool(self.add)
        self.server.tool(self.hang)
        self.server.tool(self.chat)

    @asynccontextmanager
    async def lifespan(self, server: Server) -> AsyncGenerator[str]:
        # A task group insists on being left by the task that entered it.
        async with anyio.create_task_group():
            self.diary.append("in")
            try:
                yield "alive"
            finally:
                self.diary.append("out")

    async def add(self, a: int, b: int, ctx: Context) -> int:
        assert ctx.lifespan == "alive"
        return a + b

    async def hang(self) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            self.diary.append("hung up")
        return "never"

    async def chat(self, ctx: Context) -> str:
        ctx.log.info("hello")
        await asyncio.sleep(0.05)
        return "chatted"


@pytest.fixture
def life() -> Life:
    return Life()


# Alone.


async def test_the_lifespan_is_entered_once_and_left_at_the_end(life: Life):
    async with living(life.server.asgi()) as app:
        assert life.diary == ["in"]
        for version in ERAS:
            client = await Peer(app, version).open()
            assert await client.call("add", {"a": 1, "b": 2}) == "3"
        assert life.diary == ["in"]
    assert life.diary == ["in", "out"]


async def test_calls_are_over_before_the_lifespan_is_left(life: Life):
    async with living(life.server.asgi()) as app:
        exchange = (await Peer(app).open()).begin_call("hang")
        await turns()
    assert life.diary == ["in", "hung up", "out"]
    await exchange.ended()


async def test_a_server_that_was_drained_can_be_served_again(life: Life):
    for _ in range(2):
        async with living(life.server.asgi()) as app:
            assert await Peer(app, STATELESS).call("add", {"a": 1, "b": 2}) == "3"
            app.drain()
            assert "shutting down" in await Peer(app, STATELESS).call("add", {"a": 1, "b": 2})


async def test_a_lifespan_that_fails_is_reported(life: Life):
    @asynccontextmanager
    async def broken(server: Server) -> AsyncGenerator[None]:
        raise RuntimeError("no database")
        yield

    said: list[Any] = []

    async def say(message: Any) -> None:
        said.append(message)

    async def hear() -> Any:
        return {"type": "lifespan.startup"}

    with pytest.raises(RuntimeError, match="no database"):
        await Server("broken", "1", lifespan=broken).asgi()({"type": "lifespan"}, hear, say)
    assert said[0]["type"] == "lifespan.startup.failed" and "no database" in said[0]["message"]


async def test_without_a_lifespan_the_first_request_begins_it_and_the_loop_ends_it(life: Life):
    def session() -> None:
        async def main() -> None:
            app = life.server.asgi()
            clients = await asyncio.gather(*(Peer(app).open() for _ in range(5)))
            assert life.diary == ["in"]
            assert await clients[0].call("add", {"a": 1, "b": 2}) == "3"

        asyncio.run(main())

    await asyncio.to_thread(session)
    assert life.diary == ["in", "out"]


async def test_a_lifespan_that_fails_at_the_first_request_is_tried_again_at_the_next():
    tries: list[int] = []

    @asynccontextmanager
    async def shaky(server: Server) -> AsyncGenerator[None]:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("not yet")
        yield

    app = Server("shaky", "1", lifespan=shaky).asgi()
    with pytest.raises(RuntimeError, match="not yet"):
        await Web(app).post(OPENING).ended()
    assert (await Web(app).post(OPENING).ended()).status == 200


async def test_one_app_serves_on_a_loop_after_another(life: Life):
    app = life.server.asgi()

    async def once() -> str | None:
        client = await Peer(app).open()
        assert await client.call("add", {"a": 1, "b": 2}) == "3"
        return client.session

    ids = [await asyncio.to_thread(asyncio.run, once()) for _ in range(2)]
    assert life.diary == ["in", "out"] * 2
    assert ids[0] != ids[1] and len(app.streamable.sessions) == 0


async def test_two_apps_of_one_server_share_its_lifespan(life: Life):
    async with living(life.server.asgi()) as first:
        async with living(life.server.asgi()) as second:
            one, two = await Peer(first).open(), await Peer(second).open()
            assert await one.call("add", {"a": 1, "b": 2}) == await two.call("add", {"a": 1, "b": 2}) == "3"
            two.session = one.session
            assert (await two.begin_request("ping").ended()).status == 404
        assert life.diary == ["in"]
        assert await one.call("add", {"a": 1, "b": 2}) == "3"
    assert life.diary == ["in", "out"]


# Mounted.


def starlette(server: Server) -> Any:
    return Starlette(routes=[Mount("/mcp", server.asgi()), Route("/", lambda request: PlainTextResponse("home"))])


def starlette_route(server: Server) -> Any:
    return Starlette(routes=[Route("/mcp", server.asgi()), Route("/", lambda request: PlainTextResponse("home"))])


def fastapi(server: Server) -> Any:
    app = FastAPI()
    app.mount("/mcp", server.asgi())

    @app.get("/", response_class=PlainTextResponse)
    def home() -> str:
        return "home"

    return app


def nested(server: Server) -> Any:
    inner = fastapi(server)
    return Starlette(routes=[Mount("/api", inner), Route("/", lambda request: PlainTextResponse("home"))])


MOUNTS = {"starlette": starlette, "route": starlette_route, "fastapi": fastapi}


@pytest.mark.parametrize("lifespan", [True, False], ids=["lifespan", "no lifespan"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
@pytest.mark.parametrize("mount", MOUNTS)
async def test_a_server_is_mounted_by_one_line(life: Life, mount: str, path: str, lifespan: bool):
    outer = MOUNTS[mount](life.server)
    transport = httpx2.ASGITransport(outer)
    async with living(outer) if lifespan else anyio.create_task_group():
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", headers=HEADERS, follow_redirects=True
        ) as web:
            assert (await web.get("/")).text == "home"
            opened = await web.post(path, json=OPENING)
            assert opened.status_code == 200
            web.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
            answer = await web.post(path, json=request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}))
            assert answer.json()["result"]["content"][0]["text"] == "3"
            assert (await web.delete(path)).status_code == 204
    assert life.diary == ["in"]


async def test_a_mount_within_a_mount_is_found(life: Life):
    app = nested(life.server)
    assert (await Web(app, "/api/mcp/").post(OPENING).ended()).status == 200
    assert (await Web(app, "/api/mcp/elsewhere").post(OPENING).ended()).status == 404


async def test_a_mount_of_its_own_path_needs_no_redirect(life: Life):
    app = Starlette(routes=[Route("/mcp", life.server.asgi())])
    for verb, status in (("POST", 200), ("GET", 400), ("DELETE", 400), ("PUT", 405)):
        body = json.dumps(OPENING).encode() if verb == "POST" else b""
        assert (await Web(app, "/mcp").begin(verb, body, HEADERS).ended()).status == status


async def test_two_mounts_of_one_server_share_its_lifespan_and_no_session(life: Life):
    app = Starlette(routes=[Mount("/one", life.server.asgi()), Mount("/two", life.server.asgi())])
    one, two = Peer(app, path="/one/"), Peer(app, path="/two/")
    await one.open()
    await two.open()
    assert await one.call("add", {"a": 1, "b": 2}) == await two.call("add", {"a": 1, "b": 2}) == "3"
    two.session = one.session
    assert (await two.begin_request("ping").ended()).status == 404
    assert life.diary == ["in"]


async def test_middleware_that_wraps_the_response_does_not_stop_the_stream(life: Life):
    async def passing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    app = Starlette(routes=[Mount("/mcp", life.server.asgi())])
    app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    client = await Peer(app, path="/mcp/").open()
    exchange = client.begin_call("chat")
    assert (await exchange.next())["method"] == "notifications/message"
    assert "result" in await exchange.next()
    await exchange.ended()
    hanging = Peer(app, STATELESS, path="/mcp/").begin_call("hang")
    await turns()
    hanging.leave()
    await hanging.ended()
    await turns()
    assert "hung up" in life.diary


def test_the_test_client_of_starlette_works_with_and_without_its_lifespan(life: Life):
    client = TestClient(starlette(life.server), base_url="http://localhost", headers=HEADERS)
    assert client.post("/mcp", json=OPENING).status_code == 200
    assert life.diary == ["in", "out"]  # each request had a loop of its own
    with client:
        session = client.post("/mcp", json=OPENING).headers["mcp-session-id"]
        listed = client.post("/mcp", json=request("tools/list", {}), headers={"mcp-session-id": session})
        assert len(listed.json()["result"]["tools"]) == 3
    assert life.diary == ["in", "out"] * 2


# On a socket.


@asynccontextmanager
async def listening(app: Any, parser: str) -> AsyncGenerator[int]:
    config = uvicorn.Config(app, port=0, http=parser, log_level="critical", lifespan="on")
    listener = uvicorn.Server(config)
    task = asyncio.ensure_future(listener._serve())
    async with asyncio.timeout(30):
        while not listener.started:  # noqa: ASYNC110 (uvicorn announces nothing)
            await asyncio.sleep(0.005)
    try:
        yield listener.servers[0].sockets[0].getsockname()[1]
    finally:
        listener.should_exit = True
        await task


async def raw_post(port: int, body: Any, headers: dict[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    given = {**HEADERS, **headers, "content-length": str(len(data))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    writer.write(f"POST / HTTP/1.1\r\n{lines}\r\n".encode() + data)
    await writer.drain()
    return reader, writer


PARSERS = pytest.mark.parametrize("parser", ["httptools", "h11"])


@PARSERS
@pytest.mark.parametrize("version", ERAS)
async def test_a_socket_carries_answers_and_streams(life: Life, parser: str, version: str):
    from defserve.client import Client, HttpLink

    async with listening(life.server.asgi(), parser) as port:
        async with Client(HttpLink(f"http://127.0.0.1:{port}/"), version=version, timeout=30) as client:
            assert await client.call("add", a=1, b=2) == 3
            assert await client.call("chat") == "chatted"
    assert life.diary == ["in", "out"]


@PARSERS
async def test_blanks_behind_a_header_do_not_matter(life: Life, parser: str):
    meta = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
    body = request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": meta})
    headers = {"mcp-protocol-version": f"{STATELESS} ", "mcp-method": " tools/call \t", "mcp-name": "add  "}
    async with listening(life.server.asgi(), parser) as port:
        reader, writer = await raw_post(port, body, {**headers, "connection": "close"})
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200") and b'"3"' in answer


@PARSERS
async def test_a_closed_socket_cancels_a_stateless_call_in_time(life: Life, parser: str):
    meta = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
    body = request("tools/call", {"name": "hang", "arguments": {}, "_meta": meta})
    headers = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "hang"}
    async with listening(life.server.asgi(), parser) as port:
        _, writer = await raw_post(port, body, headers)
        composition = life.server.composition
        async with asyncio.timeout(20):
            while not composition.running:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        writer.close()
        assert await soon(lambda: not composition.running)
        assert "hung up" in life.diary


@PARSERS
async def test_sockets_that_close_anywhere_leave_no_descriptor(life: Life, parser: str):
    async with listening(life.server.asgi(), parser) as port:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(100):
            reader, writer = await raw_post(port, OPENING, {})
            if number % 3:
                await reader.read(number)
            writer.transport.abort()
        async with asyncio.timeout(20):
            while len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.mark.slow
@PARSERS
async def test_a_socket_that_is_not_read_delays_no_other_of_its_session(parser: str):
    server = Server("loud", "1")

    @server.tool
    async def shout(ctx: Context) -> str:
        for _ in range(200):
            ctx.log.info("x" * 100_000)
            await asyncio.sleep(0)
        return "done"

    async with listening(server.asgi(), parser) as port:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS) as web:
            session = (await web.post("/", json=OPENING)).headers["mcp-session-id"]
            web.headers["mcp-session-id"] = session
            body = request("tools/call", {"name": "shout", "arguments": {}}, 2)
            reader, writer = await raw_post(port, body, {"mcp-session-id": session, "connection": "close"})
            async with asyncio.timeout(20):
                for number in range(20):
                    assert (await web.post("/", json=request("ping", {}, number + 3))).json()["result"] == {}
            received = await asyncio.wait_for(reader.read(), 10)
            writer.close()
    assert b'"text":"done"' in received


@for_each_row("version", ERAS)
async def test_the_offer_of_a_request_is_read_once(version: str):
    server, read = Server("s", "1"), list[str]()

    @server.tool
    async def greet() -> str:
        return "hi"

    composition = server.composition
    offer_in = composition.offer_in

    def counted(message: Any) -> Any:
        read.append(message.method)
        return offer_in(message)

    composition.offer_in = counted
    async with peer(server, version) as client:
        read.clear()
        assert await client.call("greet") == "hi"
    assert read == ["tools/call"]


async def test_a_server_without_sessions_says_which_version_to_use():
    server = Server("s", "1")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    async with living(server.asgi(stateless=True)) as app:
        refused = await Web(app).post(OPENING).ended()
        assert refused.status == 400 and refused.json["id"] == OPENING["id"]
        assert f"use protocol version {STATELESS}" in refused.json["error"]["message"]
        assert await Peer(app, STATELESS).call("add", {"a": 1, "b": 2}) == "3"
