from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from websockets.asyncio.client import connect

from defserve import Limits, Server, UsageError
from defserve.auth.authority import normalize_ip_address
from defserve.serve.address import Address
from defserve.serve.http1 import connection as deadlines
from defserve.serve.http1 import websocket as websockets
from defserve.serve.network import Listener, NetworkOptions
from defserve.serve.sockets import ForwardedAddressMiddleware, bind_sockets
from tests.certificate import self_signed
from tests.listening import UPGRADE, Listening, listening, request
from tests.raw import PREFIX, STATELESS, until
from tests.rows import for_each_row
from tests.serve.processes import FRAMEWORK, ServerProcess

pytestmark = pytest.mark.anyio

ACCEPT = "accept: application/json, text/event-stream"


def shop(limits: Limits | None = None) -> Server:
    server = Server("shop", "1", limits=limits)

    @server.tool
    async def echo(text: str) -> str:
        return text

    return server


def a_call(tool: str = "echo", **arguments: Any) -> bytes:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def headers_for(tool: str = "echo") -> tuple[str, ...]:
    return ACCEPT, f"mcp-protocol-version: {STATELESS}", "mcp-method: tools/call", f"mcp-name: {tool}"


def status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def said(response: bytes) -> str:
    assert status(response) == 200, response
    return json.loads(response.partition(b"\r\n\r\n")[2])["result"]["content"][0]["text"]


async def works(where: Listening) -> None:
    assert said(await where.ask(*headers_for(), body=a_call(text="fine"))) == "fine"


# -- addresses -------------------------------------------------------------------------------------------


@for_each_row(
    "text", ["http://127.0.0.1:80/mcp", "https://h:443/", "ws://[::1]:8000/mcp", "wss://h:1/x", "unix:/s", "stdio:"]
)
def test_an_address_is_written_as_it_is_read(text: str):
    assert str(Address.parse(text)) == text


@for_each_row("text", ["ftp://h/", "ws:h", "ws://", "wss://u@h/", "ws://h:99999/", "unix:relative", "tcp"])
def test_an_address_that_is_none_is_refused_with_those_there_are(text: str):
    with pytest.raises(UsageError, match="cannot serve on"):
        Address.parse(text)


@for_each_row("port", ["80000", "65536", "9" * 5000])
def test_a_port_that_is_too_high_is_told_the_highest(port: str):
    with pytest.raises(UsageError, match="fix: use a port up to 65535$"):
        Address.parse(f"http://127.0.0.1:{port}/mcp")


@for_each_row(
    ("text", "whole"),
    [
        ("8000", "http://127.0.0.1:8000/mcp"),
        (":8000", "http://127.0.0.1:8000/mcp"),
        ("localhost:8000", "http://localhost:8000/mcp"),
    ],
)
def test_a_port_alone_is_told_how_to_be_written(text: str, whole: str):
    with pytest.raises(UsageError, match=f"fix: write the whole address: {whole}$"):
        Address.parse(text, "/mcp")


@for_each_row(
    ("text", "whole"),
    [
        ("sse://127.0.0.1:8000", "http://127.0.0.1:8000/mcp"),
        ("sse://127.0.0.1:8000/", "http://127.0.0.1:8000/mcp"),
        ("sse://127.0.0.1:8000/notes", "http://127.0.0.1:8000/notes"),
    ],
)
def test_an_address_of_the_older_transport_is_met_with_ours(text: str, whole: str):
    with pytest.raises(UsageError, match=f"fix: write the whole address: {whole}, with legacy_sse=True"):
        Address.parse(text, "/mcp")


def test_a_name_with_several_addresses_has_one_port():
    with bind_sockets(Address.parse("http://localhost:0/mcp")) as sockets:
        assert len({one.getsockname()[1] for one in sockets}) == 1


def test_an_address_of_another_machine_is_refused():
    with (
        pytest.raises(UsageError, match="cannot listen on http://192.0.2.1:1/: "),
        bind_sockets(Address.parse("http://192.0.2.1:1/")),
    ):
        pass


@for_each_row("host", ["127.0.0.1", "localhost"])
def test_an_address_is_taken_before_its_server_has_started(host: str):
    with bind_sockets(Address.parse(f"http://{host}:0/mcp")) as (first, *_):
        again = Address.parse(f"http://{host}:{first.getsockname()[1]}/mcp")
        with pytest.raises(UsageError, match="address already in use"), bind_sockets(again):
            pass
    with bind_sockets(again):
        pass


# -- unix sockets ----------------------------------------------------------------------------------------


async def test_a_unix_socket_is_served_for_its_owner_alone(tmp_path: Path):
    path = tmp_path / "s"
    async with listening(shop(), f"unix:{path}") as where:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        await works(where)
    assert not path.exists()


async def test_websockets_work_over_a_unix_socket(tmp_path: Path):
    async with listening(shop(), f"unix:{tmp_path}/s") as where:
        reader, writer = await where.connect()
        writer.write(request(*UPGRADE, verb="GET"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
        writer.close()


def test_the_file_of_a_server_that_died_is_replaced(tmp_path: Path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with bind_sockets(Address.parse(f"unix:{path}")):
        with (
            pytest.raises(UsageError, match="another server listens there"),
            bind_sockets(Address.parse(f"unix:{path}")),
        ):
            pass
        assert path.exists()


def test_a_server_that_starts_while_another_replaces_the_file_of_a_dead_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, unlink, second = tmp_path / "s", os.unlink, list[str]()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    def start_second() -> None:
        try:
            with bind_sockets(Address.parse(f"unix:{path}")):
                second.append("listens")
        except UsageError as refused:
            second.append(refused.problem)

    beside = Thread(target=start_second)

    def replace_slowly(name: str) -> None:
        monkeypatch.undo()
        beside.start()
        beside.join(0.3)
        unlink(name)

    monkeypatch.setattr("defserve.serve.sockets.os.unlink", replace_slowly)
    with bind_sockets(Address.parse(f"unix:{path}")):
        beside.join()
    assert second == [f"cannot listen on unix:{path}: another server listens there"]


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path):
    path = tmp_path / "notes"
    path.write_text("dear diary")
    with pytest.raises(UsageError, match="not a socket"), bind_sockets(Address.parse(f"unix:{path}")):
        pass
    assert path.read_text() == "dear diary"


def test_a_name_that_another_server_took_over_stays(tmp_path: Path):
    path = tmp_path / "s"
    with bind_sockets(Address.parse(f"unix:{path}")):
        path.rename(tmp_path / "away")
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(path))
    assert path.exists()
    other.close()


# -- TLS -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A self-signed certificate for 127.0.0.1."""
    path = str(self_signed(tmp_path_factory.mktemp("tls"), "127.0.0.1"))
    return {"certfile": path, "keyfile": path}


async def test_https_and_wss_are_served_with_a_certificate(certificate: dict[str, str]):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    async with listening(shop(), "https://127.0.0.1:0/mcp", **certificate) as where:
        reader, writer = await asyncio.open_connection(where.address.host, where.address.port, ssl=trusting)
        writer.write(request(*headers_for(), "connection: close", body=a_call(text="sealed")))
        assert said(await reader.read()) == "sealed"
        writer.close()
        url = f"wss://{where.authority}/mcp"
        async with connect(url, ssl=trusting, subprotocols=["mcp"], proxy=None) as over:  # type: ignore[list-item]
            await over.send(a_call(text="sealed").decode())
            assert "sealed" in str(await over.recv())


@asynccontextmanager
async def listener_of_nothing(
    certificate: dict[str, str], limits: Limits, seconds: float = 0
) -> AsyncGenerator[tuple[Listener, tuple[str, int]]]:
    """A listener and its address. At the end of the block it has so many seconds to end."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})

    started, address = asyncio.Event(), Address.parse("https://127.0.0.1:0/mcp")
    options = NetworkOptions(**certificate, started=lambda _: started.set())
    with bind_sockets(address) as sockets:
        listener = Listener(app, address, options, limits, lambda: None)
        serving = asyncio.create_task(listener.serve(sockets))
        await started.wait()
        yield listener, sockets[0].getsockname()
        listener.leave(seconds)
        assert await serving == 0


async def test_who_does_not_shake_hands_is_hung_up_on_as_soon_as_who_sends_no_head(certificate: dict[str, str]):
    async with listener_of_nothing(certificate, Limits(header=0.2)) as (listener, place):
        async with asyncio.timeout(20):  # by itself, asyncio waits for a minute
            reader, writer = await asyncio.open_connection(*place)
            assert await reader.read() == b""
            writer.close()
        assert not listener.state.connections


@pytest.mark.parametrize("shakes_hands", [False, True])
async def test_who_never_reads_does_not_hold_the_end_of_a_tls_server(certificate: dict[str, str], shakes_hands: bool):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    async with listener_of_nothing(certificate, Limits(), 30) as (listener, place):
        one = await asyncio.to_thread(socket.create_connection, place)
        if shakes_hands:  # as a client that keeps its connection for later
            one = await asyncio.to_thread(trusting.wrap_socket, one, server_hostname=place[0])
        await until(lambda: len(listener.state.connections) == 1)
        began = time.monotonic()
    assert time.monotonic() - began < 15
    one.close()


async def test_tls_handshakes_that_are_not_finished_are_counted_and_give_way(certificate: dict[str, str]):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    limits = Limits(connections=20)
    async with listening(shop(limits), "https://127.0.0.1:0/mcp", **certificate) as where:
        flood = [await where.connect() for _ in range(100)]
        for number, (_, writer) in enumerate(flood):
            if number % 2:
                writer.write(b"\x16\x03\x01")  # the beginning of a hello
        await until(lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in flood) >= 80)
        assert where.connections == 20
        reader, writer = await asyncio.open_connection(where.address.host, where.address.port, ssl=trusting)
        writer.write(request(*headers_for(), "connection: close", body=a_call(text="fine")))
        assert said(await reader.read()) == "fine"
        for _, each in flood:
            each.transport.abort()
        writer.close()
        await until(lambda: where.connections == 0)


async def test_a_request_that_comes_with_the_end_of_the_tls_handshake_is_answered(certificate: dict[str, str]):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    async with listening(shop(), "https://127.0.0.1:0/mcp", **certificate) as where:
        reader, writer = await where.connect()
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        tls.write(request(*headers_for(), body=a_call(text="at once")))
        writer.write(outgoing.read())
        response = b""
        while b'"at once"' not in response:
            incoming.write(await reader.read(65536))
            with suppress(ssl.SSLWantReadError):  # a ticket is no data
                response += tls.read()
        assert said(response) == "at once"
        writer.transport.abort()


@for_each_row("scheme", ["https", "wss"])
def test_a_secure_address_needs_a_certificate(scheme: str):
    with pytest.raises(UsageError, match=rf"{scheme}:// needs a certificate.*\n.*certfile"):
        shop().run(f"{scheme}://127.0.0.1:0/mcp")


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path):
    broken = tmp_path / "cert.pem"
    for certfile in (tmp_path / "missing.pem", broken):
        broken.write_text("nonsense")
        with pytest.raises(UsageError, match=f"cannot use the certificate {certfile}"):
            shop().run("https://127.0.0.1:0/mcp", certfile=str(certfile))


# -- slow and greedy peers -------------------------------------------------------------------------------

SLOW = Limits(header=0.1, body=0.1)
# For who must be in time: a tenth of a second is short on a busy machine.
FAIR, LONGER = Limits(header=0.5, body=0.5), 0.6

HEADS = {
    "nothing": b"",
    "half a request line": b"POST /mc",
    "half the headers": b"POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-more: ",
}


async def closed_after(reader: asyncio.StreamReader) -> tuple[bytes, float]:
    """What comes until the server hangs up, and how long that takes."""
    began = time.monotonic()
    async with asyncio.timeout(20):
        try:
            response = await reader.read()
        except ConnectionResetError:  # it was still talking
            response = b""
    return response, time.monotonic() - began


@for_each_row("head", HEADS)
async def test_headers_that_do_not_come_are_not_waited_for(head: str):
    async with listening(shop(SLOW)) as where:
        reader, writer = await where.connect()
        writer.write(HEADS[head])
        response, seconds = await closed_after(reader)
        assert (status(response), 0.05 < seconds < 15) == (408, True)
        writer.close()
        await until(lambda: where.connections == 0)


async def test_headers_that_trickle_in_gain_no_time():
    async with listening(shop(SLOW)) as where:
        reader, writer = await where.connect()
        writer.write(b"GET /mcp HTTP/1.1\r\nx: ")

        async def trickle() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.01)

        task = asyncio.create_task(trickle())
        _, seconds = await closed_after(reader)
        task.cancel()
        assert seconds < 15
        writer.close()


@pytest.mark.slow
async def test_a_connection_that_is_kept_waits_for_its_next_request_but_not_for_half_of_it():
    async with listening(shop(FAIR)) as where:
        reader, writer = await where.connect()
        for _ in range(2):
            writer.write(request(*headers_for(), body=a_call(text="again")))
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"again")
            await asyncio.sleep(LONGER)  # longer than headers may take: between requests nobody hurries
        await reader.read(1000)
        writer.write(b"POST /mcp HTTP/1.1\r\n")
        response, seconds = await closed_after(reader)
        assert (status(response), seconds < 15) == (408, True)
        writer.close()


async def test_blank_lines_do_not_keep_a_connection_for_ever():
    async with listening(shop(FAIR)) as where:
        reader, writer = await where.connect()
        writer.write(request(verb="GET", path="/nothing"))
        await reader.readuntil(b"Not found")
        writer.write(b"\r\n")
        assert (await closed_after(reader))[1] < 15
        writer.close()


async def test_a_call_may_take_longer_than_its_headers():
    server = shop(FAIR)

    @server.tool
    async def ponder() -> str:
        await asyncio.sleep(LONGER)
        return "42"

    async with listening(server) as where:
        assert said(await where.ask(*headers_for("ponder"), body=a_call("ponder"))) == "42"


async def test_a_socket_that_was_upgraded_has_its_headers_behind_it():
    async with listening(shop(FAIR)) as where:
        async with connect(f"ws://{where.authority}/mcp", proxy=None) as over:
            await asyncio.sleep(LONGER)  # longer than headers may take
            await over.send(a_call(text="still here").decode())
            assert "still here" in str(await over.recv())


async def test_a_body_that_does_not_come_is_not_waited_for():
    async with listening(shop(SLOW)) as where:
        reader, writer = await where.connect()
        writer.write(request(*headers_for(), "content-length: 100", body=b"{"))
        response, seconds = await closed_after(reader)
        assert (status(response), seconds < 15) == (408, True)
        writer.close()


async def test_headers_without_end_are_refused():
    async with listening(shop()) as where:
        reader, writer = await where.connect()
        more = (b"x-more: " + b"x" * 1000 + b"\r\n") * 20
        await where.write(writer, b"GET /mcp HTTP/1.1\r\n", more, more)
        assert status((await closed_after(reader))[0]) == 431
        writer.close()


@pytest.mark.slow
async def test_a_connection_too_many_is_turned_away_and_one_that_left_makes_room():
    server = shop(Limits(connections=2))

    @server.tool
    async def ponder() -> str:
        await asyncio.sleep(60)
        return "42"

    async with listening(server) as where:
        kept = [await where.connect() for _ in range(2)]
        for _, writer in kept:
            writer.write(request(*headers_for("ponder"), body=a_call("ponder")))  # an idle one would give way
        await until(lambda: len(where.listener.state.tasks) == 2)
        assert status(await where.ask(*headers_for(), body=a_call(text="x"))) == 503
        reader, writer = await where.connect()
        writer.write(request(*UPGRADE, verb="GET"))
        assert status(await reader.read()) == 503
        writer.close()
        for number, (_, writer) in enumerate(kept):
            writer.transport.abort()
            writer.close()
            await until(lambda number=number: where.connections == 1 - number)
            await works(where)


async def test_idle_connections_give_way_to_new_ones_oldest_first():
    async with listening(shop(Limits(connections=3))) as where:
        silent = [await where.connect()]
        await until(lambda: where.connections == 1)
        half = await where.connect()
        half[1].write(b"POST /mcp HT")
        used = await where.connect()
        used[1].write(request(*headers_for(), body=a_call(text="x")))
        await used[0].readuntil(b'"x"')
        for one in (*silent, half, used):
            await works(where)  # needs a place
            silent.append(await where.connect())
            await until(lambda: where.connections == 3)
            with suppress(ConnectionError):
                while await one[0].read(1000):
                    pass
        for _, writer in (*silent, half, used):
            writer.close()


async def test_a_flood_of_connections_keeps_nobody_out():
    async with listening(shop(Limits(connections=20))) as where:
        flood = list[asyncio.StreamWriter]()
        for _ in range(10):
            flood += [(await where.connect())[1] for _ in range(20)]
            await works(where)
        assert where.connections <= 20
        for writer in flood:
            writer.transport.abort()


async def test_a_websocket_whose_client_does_not_answer_the_close_gives_way_too(monkeypatch: pytest.MonkeyPatch):
    """Sessions gave way to newer ones, so each place is held by a socket that only waits for the client's close."""
    monkeypatch.setattr(websockets, "CLOSE_SECONDS", 60.0)
    async with listening(shop(Limits(connections=6, sessions_per_address=2))) as where:
        flood = list[asyncio.StreamWriter]()
        for _ in range(10):
            reader, writer = await where.connect()
            flood.append(writer)
            writer.write(request(*UPGRADE, verb="GET"))
            assert status(await reader.readuntil(b"\r\n\r\n")) == 101
            await works(where)
        assert where.connections <= 6 and len(where.app.sockets.open) == 2
        for writer in flood:
            writer.transport.abort()
        await until(lambda: where.connections == 0)


def flooding() -> tuple[Server, list[bool]]:
    """A server with a tool that says more than any buffer holds, and whether it was called."""
    server, called = shop(), list[bool]()

    @server.tool
    async def flood() -> str:
        called.append(True)
        return "x" * 7_000_000

    return server, called


async def narrow(where: Listening) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose own end holds little."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    one.setblocking(False)
    await asyncio.get_running_loop().sock_connect(one, (where.address.host, where.address.port))
    return await asyncio.open_connection(sock=one)


@pytest.mark.parametrize("kind", ["http", "ws"])
async def test_who_stops_reading_is_cut_off(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadlines, "MAX_STALL_SECONDS", 0.05)
    server, called = flooding()
    async with listening(server) as where:
        _, writer = await narrow(where)
        body = a_call("flood")
        if kind == "http":
            writer.write(request(*headers_for("flood"), body=body))
        else:
            writer.write(request(*UPGRADE, verb="GET"))
            await until(lambda: len(where.app.sockets.open) == 1)
            # A mask of zeros leaves the text as it is.
            writer.write(bytes([0x81, 0x80 | 126]) + len(body).to_bytes(2, "big") + bytes(4) + body)
        await until(lambda: bool(called))
        await until(lambda: where.connections == 0)
        writer.transport.abort()


async def test_a_reader_that_is_slow_but_reads_is_let_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadlines, "MAX_STALL_SECONDS", 1)
    server, _ = flooding()
    async with listening(server) as where:
        reader, writer = await narrow(where)
        writer.write(request(*headers_for("flood"), "connection: close", body=a_call("flood")))
        size = 0
        while data := await reader.read(100_000):
            size += len(data)
            await asyncio.sleep(0.015)  # the whole of it takes longer than a stall may
        assert size > 7_000_000
        writer.close()


# -- a process, from its start to its exit code ----------------------------------------------------------

SERVED = """
server = Server("served", "1")

@server.tool
async def slow() -> str:
    tell("began")
    await asyncio.sleep(0.3)
    return "finished"

@server.tool
async def stuck() -> str:
    tell("began")
    await asyncio.sleep(60)

server.main(["--on", {on!r}])
sys.exit()
"""


class Served(ServerProcess):
    """A process that serves on the network; `port` is where."""

    def __init__(self, folder: Path, on: str = "http://127.0.0.1:0/mcp") -> None:
        super().__init__(folder, SERVED.replace("{on!r}", repr(on)))

    def port(self) -> int:
        line = self.line(2)
        assert line is not None and line.startswith(b"serving on "), line
        return int(line.rpartition(b":")[2].partition(b"/")[0])

    def begin(self, port: int, tool: str) -> socket.socket:
        """Call a tool, which says when it runs."""
        one = socket.create_connection(("127.0.0.1", port))
        one.settimeout(10)
        one.sendall(request(*headers_for(tool), body=a_call(tool)))
        self.wait_for("began")
        return one


def read_all(one: socket.socket) -> bytes:
    with one, one.makefile("rb") as stream:
        return stream.read()


def wait_until_draining(port: int) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(request("connection: close", verb="GET", path="/readyz"))
        if b" 503 " in read_all(one):
            return
        time.sleep(0.01)
    raise TimeoutError


def test_after_sigterm_what_runs_is_answered_nothing_new_is_taken_and_the_exit_is_clean(tmp_path: Path):
    with Served(tmp_path) as served:
        port = served.port()
        running = served.begin(port, "slow")
        served.signal(signal.SIGTERM)
        assert said(read_all(running)) == "finished"
        assert served.exit_code() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_after_sigterm_a_socket_gets_its_answer_and_a_farewell(tmp_path: Path):
    async def converse(port: int) -> tuple[str, int | None]:
        async with connect(f"ws://127.0.0.1:{port}/mcp", proxy=None) as over:
            await over.send(a_call("slow").decode())
            await asyncio.to_thread(served.wait_for, "began")
            served.signal(signal.SIGTERM)
            answer = str(await over.recv())
            await over.wait_closed()
            return answer, over.close_code

    with Served(tmp_path, "ws://127.0.0.1:0/mcp") as served:
        answer, code = asyncio.run(converse(served.port()))
        assert "finished" in answer and code == 1012
        assert served.exit_code() == 0


def test_ctrl_c_ends_with_130(tmp_path: Path):
    with Served(tmp_path) as served:
        served.port()
        served.signal(signal.SIGINT)
        assert served.exit_code() == 130


def test_a_second_signal_does_not_wait_for_what_runs(tmp_path: Path):
    with Served(tmp_path) as served:
        port = served.port()
        running = served.begin(port, "stuck")
        served.signal(signal.SIGTERM)
        wait_until_draining(port)
        served.signal(signal.SIGTERM)
        assert served.seconds_to_exit() < 10
        assert served.exit_code() == 0
        running.close()


@pytest.mark.slow
def test_a_unix_socket_goes_with_its_server(tmp_path: Path):
    path = tmp_path / "s"
    with Served(tmp_path, f"unix:{path}") as served:
        assert served.line(2) == f"serving on unix:{path}".encode()
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
    assert not path.exists()


def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        with Served(tmp_path, address) as served:
            first, second = served.rest(2)
            assert first == f"error: cannot listen on {address}: address already in use".encode()
            assert b"fix: stop what listens there, or choose another address" in second
            assert served.exit_code() == 1


BREAKING = """
def reach(step):
    if step == STEP:
        raise ConnectionError("no database")

@asynccontextmanager
async def life(server):
    reach("start")
    yield
    reach("stop as it should")

server = Server("shop", lifespan=life)
server.run("http://127.0.0.1:0/mcp")
"""


@for_each_row("step", ["start", "stop as it should"])
def test_a_lifespan_that_fails_is_told_with_the_author_s_line_and_ends_the_process_with_1(step: str, tmp_path: Path):
    with ServerProcess(tmp_path, f"STEP = {step!r}\n" + BREAKING) as served:
        if step != "start":
            served.wait_for("serving on")
            served.signal(signal.SIGTERM)
        first, *_, fix = served.rest(2)
        assert f"server 'shop' did not {step}: ConnectionError: no database" in first.decode() and b"  fix: " in fix
        assert served.exit_code() == 1


STARTING = """
@asynccontextmanager
async def patient(server):
    tell("starting")
    await asyncio.to_thread(sys.stdin.read, 1)
    yield

server = Server("served", "1", lifespan=patient)

@server.tool
def echo(text: str) -> str:
    return text

server.run("unix:PATH")
"""


def test_a_client_that_comes_while_a_server_starts_is_served_by_it(tmp_path: Path):
    path = tmp_path / "s"
    with ServerProcess(tmp_path, STARTING.replace("PATH", str(path))) as served:
        served.wait_for("starting")
        with socket.socket(socket.AF_UNIX) as early:
            early.settimeout(10)
            early.connect(str(path))
            early.sendall(request(*headers_for(), "connection: close", body=a_call(text="early")))
            with (
                pytest.raises(UsageError, match="another server listens there"),
                bind_sockets(Address.parse(f"unix:{path}")),
            ):
                pass
            served.write(b"x")
            assert said(read_all(early)) == "early"


@pytest.mark.slow
def test_what_is_not_installed_is_named_with_the_line_that_installs_it():
    code = """
        import sys
        sys.modules["websockets"] = None
        from defserve import Server
        Server("s", "1").main(["--on", "ws://127.0.0.1:0/mcp"])
    """
    environment = {**os.environ, "PYTHONPATH": str(FRAMEWORK)}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, timeout=20
    )
    assert ended.returncode == 1
    assert 'pip install "defserve[http]"' in ended.stderr and "Traceback" not in ended.stderr


def test_only_a_trusted_proxy_may_say_where_a_request_comes_from():
    for trusted in (None, normalize_ip_address):
        app, address = shop().asgi(), Address.parse("http://127.0.0.1:0/mcp")
        listener: Any = Listener(app, address, NetworkOptions(forwarded=trusted), Limits(), app.drain)
        assert isinstance(listener.state.app, ForwardedAddressMiddleware) is (trusted is not None)


def test_there_are_no_more_connections_than_open_files(tmp_path: Path):
    source = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
    server = Server("served", "1")
    server.main(["--on", "http://127.0.0.1:0/mcp"])
    sys.exit()
    """
    with ServerProcess(tmp_path, textwrap.dedent(source)) as served:
        line = served.line(2)
        assert line is not None and line.startswith(b"serving on "), line
        port = int(line.rpartition(b":")[2].partition(b"/")[0])
        flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        one = socket.create_connection(("127.0.0.1", port))
        one.settimeout(10)
        one.sendall(request("connection: close", verb="GET", path="/healthz"))
        assert b" 200 " in read_all(one)
        for each in flood:
            each.close()
