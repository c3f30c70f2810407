from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from defserve import Context, Limits, Server
from defserve.auth import Auth
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.core.extension import OutgoingMessage
from defserve.serve.http import other_endpoints as websocket
from defserve.serve.http.exchange import MAX_UNREAD_MESSAGES
from defserve.serve.http.other_endpoints import WebSocket, WebSocketEndpoint, make_handshake_refusal_sender
from tests.attack.speaking.websocket import BINARY, CLOSE, PING, TEXT, frame
from tests.listening import UPGRADE, Listening, listening, request
from tests.raw import ERAS, HANDSHAKE, Raw, text_of, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def shop(limits: Limits | None = None) -> Server:
    server = Server("shop", "1", limits=limits)
    server.gates = {"open": asyncio.Event()}  # type: ignore[attr-defined]

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def wait(ctx: Context) -> str:
        ctx.progress(1, 2)
        await server.gates["open"].wait()  # type: ignore[attr-defined]
        return "done"

    @server.tool
    async def ask(ctx: Context) -> bool:
        return await ctx.ask("Sure?", bool)

    return server


class Link:
    """A socket as `Raw` wants it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, message: bytes) -> None:
        await self.socket.send(message, text=True)

    async def receive(self) -> bytes:
        async with asyncio.timeout(20):
            return await self.socket.recv(decode=False)


def url(where: Listening, path: str = "/mcp") -> str:
    return f"ws://{where.authority}{path}"


@asynccontextmanager
async def socket_to(where: Listening, **options: Any) -> AsyncIterator[ClientConnection]:
    options = {"subprotocols": ["mcp"], "proxy": None, **options}
    async with connect(options.pop("to", url(where)), **options) as socket:
        yield socket


@asynccontextmanager
async def peer_of(where: Listening, version: str = "2025-11-25", **capabilities: Any) -> AsyncIterator[Raw]:
    async with socket_to(where) as socket:
        peer = Raw(Link(socket), version, capabilities)
        await peer.open()
        yield peer


async def farewell_of(socket: ClientConnection) -> tuple[int, str]:
    """How the server closes it."""
    with pytest.raises(ConnectionClosed) as closed:
        async with asyncio.timeout(20):
            while True:
                await socket.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


# -- conversations ---------------------------------------------------------------------------------------


@for_each_row("version", [*HANDSHAKE, ERAS[-1]])
async def test_a_tool_is_called_in_every_version(version: str):
    async with listening(shop(), "ws://127.0.0.1:0/mcp") as where, peer_of(where, version) as peer:
        assert text_of(await peer.call("echo", {"text": "höhö"})) == "höhö"


async def test_an_http_address_takes_sockets_too_and_both_eras_share_one():
    async with listening(shop()) as where, peer_of(where) as old:
        new = Raw(old.link, ERAS[-1], {})
        new._last_id = 1000
        assert text_of(await new.call("echo", {"text": "new"})) == "new"
        assert text_of(await old.call("echo", {"text": "old"})) == "old"


async def test_the_server_asks_and_reports_on_the_same_socket():
    server = shop()
    async with listening(server) as where, peer_of(where, elicitation={}) as peer:
        id = await peer.begin("tools/call", {"name": "ask", "arguments": {}})
        question = json.loads(await peer.link.receive())
        answer = {
            "action": "accept",
            "content": dict.fromkeys(question["params"]["requestedSchema"]["properties"], True),
        }
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        assert text_of((await peer.reply_to(id))["result"]) == "true"
        server.gates["open"].set()  # type: ignore[attr-defined]
        await peer.ask("tools/call", {"name": "wait", "_meta": {"progressToken": 7}})
        assert [message["params"]["progressToken"] for message in peer.heard] == [7]


async def test_sockets_are_sessions_of_their_own():
    async with listening(shop()) as where, peer_of(where) as one, socket_to(where) as other:
        assert (await one.ask("ping"))["result"] == {}
        stranger = Raw(Link(other), "2025-11-25", {})
        assert "error" in await stranger.ask("tools/list")


@for_each_row("text", ["{", "", "[]", '{"id": 1}', "nonsense \N{SNOWMAN}"])
async def test_text_that_is_no_message_is_answered_and_the_socket_stays(text: str):
    async with listening(shop()) as where, peer_of(where) as peer:
        await peer.link.socket.send(text)
        assert json.loads(await peer.link.receive())["error"]["code"] in (-32700, -32600)
        assert (await peer.ask("ping"))["result"] == {}


# -- coming in -------------------------------------------------------------------------------------------


async def test_the_subprotocol_is_chosen_where_it_is_offered():
    async with listening(shop()) as where:
        async with socket_to(where, subprotocols=["other", "mcp"]) as socket:
            assert socket.subprotocol == "mcp"
        async with socket_to(where, subprotocols=None) as socket:
            assert socket.subprotocol is None


REFUSED: dict[str, tuple[dict[str, Any], int]] = {
    "another subprotocol": ({"subprotocols": ["graphql-ws"]}, 400),
    "an evil page": ({"origin": "http://evil.example"}, 403),
    "a page without an origin": ({"origin": "null"}, 403),
    "a rebound name": ({"to": "ws://evil.example/mcp"}, 421),
}


@pytest.mark.parametrize("who", REFUSED)
async def test_who_may_not_come_in_is_refused_before_the_socket_opens(who: str, capsys: pytest.CaptureFixture[str]):
    options, status = REFUSED[who]
    async with listening(shop()) as where:
        with pytest.raises(InvalidStatus) as refused:
            async with socket_to(where, **options, host=where.address.host, port=where.address.port):
                pass
        assert refused.value.response.status_code == status
        assert not where.app.sockets.open
    assert "ASGI callable" not in capsys.readouterr().err


async def test_our_own_pages_may_come_in():
    async with listening(shop()) as where, socket_to(where, origin=f"http://{where.authority}") as socket:
        assert socket.subprotocol == "mcp"


async def test_another_path_is_not_found():
    async with listening(shop(), legacy_sse=True) as where:
        for path in ("/", "/mcp/more", "/sse"):
            with pytest.raises(InvalidStatus) as refused:
                async with socket_to(where, to=url(where, path)):
                    pass
            assert refused.value.response.status_code == 404


async def test_a_server_that_cannot_respond_closes_instead():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    refuse = make_handshake_refusal_sender({"type": "websocket"}, send)
    await refuse({"type": "http.response.start", "status": 403, "headers": []})
    await refuse({"type": "http.response.body", "body": b"no"})
    assert sent == [{"type": "websocket.close", "code": 1008}]


# -- limits ----------------------------------------------------------------------------------------------


async def test_binary_frames_are_refused():
    async with listening(shop()) as where, socket_to(where) as socket:
        await socket.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        assert (await farewell_of(socket))[0] == 1003


@pytest.mark.parametrize("pieces", [1, 4])
async def test_a_message_past_the_limit_ends_the_socket_also_in_pieces(pieces: int):
    async with listening(shop(Limits(message=1000))) as where, socket_to(where) as socket:
        await socket.send("x" * 1001 if pieces == 1 else ["x" * 300] * pieces)
        assert (await farewell_of(socket))[0] == 1009


async def test_the_limit_counts_bytes_and_holds_under_any_server():
    arrived = iter([{"type": "websocket.receive", "text": "ä" * 501}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(arrived)

    async def send(message: Any) -> None:
        sent.append(message)

    await WebSocketEndpoint(PretendDesk(Limits(message=1000))).serve(LOCAL_PRINCIPAL, {}, receive, send)
    assert [message.get("code") for message in sent] == [None, 1009]


async def test_a_socket_too_many_is_refused_before_it_opens_and_one_that_left_makes_room():
    async with listening(shop(Limits(sessions=1))) as where:
        async with peer_of(where) as first:
            waiting = asyncio.create_task(first.ask("tools/call", {"name": "wait", "arguments": {}}))
            await until(lambda: any(each.conversation.in_flight for each in where.app.sockets.open))
            with pytest.raises(InvalidStatus) as refused:
                async with socket_to(where):
                    pass
            assert refused.value.response.status_code == 503
            assert b"too many sessions" in (refused.value.response.body or b"")
            waiting.cancel()
        await until(lambda: not where.app.sockets.open)
        async with peer_of(where) as third:
            assert (await third.ask("ping"))["result"] == {}


@pytest.mark.slow
async def test_an_idle_socket_of_a_stranger_gives_way_even_if_it_ignores_the_close():
    async with listening(shop(Limits(sessions=1))) as where:
        reader, writer = await where.connect()
        writer.write(request(*UPGRADE, verb="GET"))
        await reader.readuntil(b"\r\n\r\n")
        async with peer_of(where) as second:
            assert (await second.ask("ping"))["result"] == {}
            async with asyncio.timeout(20):
                assert struct.pack("!H", 1013) in await reader.read()  # to the end: the connection is closed
        writer.close()


async def test_text_that_is_not_utf_8_ends_the_socket_without_a_traceback(caplog: pytest.LogCaptureFixture):
    async with listening(shop()) as where, socket_to(where) as socket:
        await socket.send(b'"\xff"', text=True)
        assert (await farewell_of(socket))[0] == 1007
    assert not [record for record in caplog.records if record.exc_info or record.exc_text]


class SlowVerifier:
    """Everybody may come in, when the gate is open."""

    def __init__(self) -> None:
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def verify(self, token: str) -> Principal | None:
        self.asked.set()
        await self.gate.wait()
        return Principal(token)


@for_each_row(
    ("early", "reply"),
    [
        (frame(TEXT, b'{"jsonrpc":"2.0","id":5,"method":"ping"}'), b'"id":5'),
        (frame(PING, b"ping"), b"\x8a\x04ping"),
        (frame(CLOSE), b"\x88\x00"),
        (frame(TEXT, b"x", rsv=7), struct.pack("!H", 1002)),
        (frame(TEXT, b"x", masked=False), struct.pack("!H", 1002)),
        (frame(BINARY, bytes(3_000)), struct.pack("!H", 1009)),
    ],
)
async def test_frames_that_come_before_the_socket_is_open_wait_for_it(
    early: bytes, reply: bytes, caplog: pytest.LogCaptureFixture
):
    verifier = SlowVerifier()
    server = Server("shop", "1", auth=Auth(verifier), limits=Limits(message=2_000))
    async with listening(server) as where:
        reader, writer = await where.connect()
        writer.write(request(*UPGRADE, "authorization: Bearer ada", verb="GET"))
        await verifier.asked.wait()
        writer.write(early)
        await where.ask(verb="PUT")  # when this is answered, what came before it was read, or will not be
        verifier.gate.set()
        async with asyncio.timeout(20):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            got = b""
            while reply not in got:
                got += await reader.readexactly(1)
        writer.close()
    assert not [record for record in caplog.records if record.exc_info or record.exc_text]


@for_each_row(("size", "code"), [(0, 1009), (1, 1009), (1024, None)])
async def test_a_message_comes_in_many_fragments_but_not_in_many_small_ones(size: int, code: int | None):
    async with listening(shop()) as where, socket_to(where) as socket:

        async def fragments() -> AsyncIterator[str]:
            for _ in range(1500):
                yield " " * size
            yield "{"

        with suppress(ConnectionClosed):
            await socket.send(fragments())
        if code is None:
            assert "error" in json.loads(await socket.recv())
        else:
            assert (await farewell_of(socket))[0] == code


async def test_a_client_that_leaves_ends_its_calls_and_its_session():
    server, ended = shop(), asyncio.Event()

    @server.tool
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with listening(server) as where:
        async with peer_of(where) as peer:
            await peer.begin("tools/call", {"name": "hang"})
            await until(lambda: server.composition.running == 1)
        async with asyncio.timeout(20):
            await ended.wait()
        await until(lambda: not server.composition.sessions)
        assert not where.app.sockets.open


class PretendConversation:
    """Counts what it is told."""

    full = False

    def __init__(self) -> None:
        self.in_flight: dict[Any, Any] = {}
        self.heard: list[bytes | None] = []
        self.closed = False

    def feed_bytes(self, data: bytes | None, envelope: object | None = None) -> bool:
        self.heard.append(data)
        return True

    def feed_message(self, message: Any, envelope: object | None = None) -> bool:
        return True

    def cancel(self, id: Any) -> None: ...
    def close(self) -> None:
        self.closed = True


class PretendDesk:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    async def start(self, *ended: Any) -> None: ...
    async def stop(self) -> None: ...
    def drain(self) -> None: ...
    def open(self, outlet: Any, *, principal: Any, counted: bool) -> PretendConversation:
        return PretendConversation()


class Wire:
    """A client that says `{}` without end, and reads only while `reads` is set."""

    def __init__(self) -> None:
        self.reads, self.sent, self.asked = asyncio.Event(), [], 0

    async def receive(self) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        return {"type": "websocket.receive", "text": "{}"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent.append(message)


def socket_on(wire: Wire) -> WebSocket:
    socket = WebSocket({"type": "websocket"}, wire.receive, wire.send, 1000)
    socket.conversation = PretendConversation()
    return socket


async def test_who_does_not_read_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket, "MAX_STALL_SECONDS", 0.01)
    wire = Wire()
    socket = socket_on(wire)
    socket.push(OutgoingMessage(b"{}", None))
    async with asyncio.timeout(20):
        await socket.serve()
    assert socket.gone and wire.sent == []
    assert socket.conversation.closed


async def test_who_does_not_read_is_asked_nothing_more_until_it_does():
    wire = Wire()
    socket = socket_on(wire)
    for number in range(MAX_UNREAD_MESSAGES + 1):
        socket.push(OutgoingMessage(b"%d" % number, None, answers=True))
    serving = asyncio.create_task(socket.serve())
    await turns()
    assert wire.asked == 0
    wire.reads.set()
    await until(lambda: wire.asked > 0)
    assert [message["text"] for message in wire.sent][:3] == ["0", "1", "2"]
    serving.cancel()


async def test_answers_are_kept_while_the_rest_makes_room_and_progress_is_the_newest():
    socket = socket_on(Wire())
    for number in range(3):
        socket.push(OutgoingMessage(b"p%d" % number, None, replaces="token"))
    for number in range(MAX_UNREAD_MESSAGES):
        socket.push(OutgoingMessage(b"a%d" % number, None, answers=True))
    kept = [item.message.data for item in socket.unread]
    assert kept == [b"a%d" % number for number in range(MAX_UNREAD_MESSAGES)]


async def test_a_sender_is_told_when_its_message_was_written_or_left_out():
    wire = Wire()
    socket = socket_on(wire)
    gone: list[str] = []
    socket.push(OutgoingMessage(b"dropped", None, taken=lambda: gone.append("dropped")))
    for number in range(MAX_UNREAD_MESSAGES):
        socket.push(OutgoingMessage(b"%d" % number, None, answers=True))
    assert gone == ["dropped"]
    socket.unread.clear()
    socket.push(OutgoingMessage(b"written", None, taken=lambda: gone.append("written")))
    serving = asyncio.create_task(socket.serve())
    await asyncio.sleep(0)
    assert gone == ["dropped"]
    wire.reads.set()
    await until(lambda: gone == ["dropped", "written"])
    serving.cancel()


async def test_a_call_that_ends_without_an_answer_sends_nothing():
    socket = socket_on(Wire())
    socket.push(OutgoingMessage(b"", None, answers=True))
    assert not socket.unread


# -- stopping --------------------------------------------------------------------------------------------


async def test_a_stopping_server_answers_what_runs_then_closes():
    server = shop()
    async with listening(server) as where, peer_of(where) as busy, socket_to(where) as idle:
        id = await busy.begin("tools/call", {"name": "wait"})
        await until(lambda: server.composition.running == 1)
        where.app.drain()
        assert await farewell_of(idle) == (1012, "the server is stopping")
        server.gates["open"].set()  # type: ignore[attr-defined]
        assert text_of((await busy.reply_to(id))["result"]) == "done"
        assert (await farewell_of(busy.link.socket))[0] == 1012


async def test_a_stopping_server_ends_calls_that_never_would():
    server = shop()
    async with listening(server) as where, socket_to(where) as socket:
        peer = Raw(Link(socket), ERAS[-1], {})
        await peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await until(lambda: server.composition.idle == 1)
        where.app.drain()
        assert (await farewell_of(socket))[0] == 1012
