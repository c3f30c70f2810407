"""The scenarios: each does one thing to a server again and again, for as long as it is told to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from defserve.client import Client, Mcpl
from defserve.client.targets import connect_url
from defserve.errors import DefserveError, PeerGone
from tests.bench import http_traffic, traffic
from tests.faults.rolling import Connection
from tests.soak import frames
from tests.soak.sampling import family
from tests.soak.stage import ROOT, SERVER, START_SECONDS, Stage
from tests.waiting import until

HTTP = "http://127.0.0.1:0/mcp"
HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
WINDOW = 64
SETTLE_SECONDS = 60.0
QUIET_SECONDS = 3.0
"""After which a server has told its tasks several times."""
KEPT_SECONDS = 5.0
"""For how long `job` keeps its task."""


def calls_over_pipes(stage: Stage) -> None:
    """Calls of `add`, as many on their way at a time as one client may have."""
    process = stage.spawn([sys.executable, str(SERVER)], pipes=True)
    assert process.stdin is not None and process.stdout is not None
    server = _Pipes(process.stdin.fileno(), process.stdout.fileno())
    request = traffic.Request.call("add", {"a": 40, "b": 2}, stateless=True)
    traffic.drive(server, request, window=1, seconds=0.01)  # type: ignore[arg-type]
    stage.begin()
    while stage.is_going:
        _took(stage, traffic.drive(server, request, window=WINDOW, seconds=1))  # type: ignore[arg-type]
        stage.sample()


class _Pipes:
    """As much of a server process as `traffic.drive` needs."""

    def __init__(self, input: int, output: int) -> None:
        self.input, self.output, self._next = input, output, 1

    def take_ids(self, count: int) -> int:
        self._next += count
        return self._next - count

    def read(self) -> bytes:
        data = os.read(self.output, 1 << 18)
        if not data:
            raise RuntimeError("the server ended")
        return data

    def failed(self, reason: str) -> RuntimeError:
        return RuntimeError(reason)


def calls_over_http(stage: Stage) -> None:
    """Calls of `add` on 8 connections, half of them in sessions."""
    port = _port(stage.serve(HTTP))

    def dial() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=20)

    _over_sockets(stage, port, dial)


def calls_over_unix(stage: Stage) -> None:
    """The same over a unix socket."""
    path = str(stage.folder / "socket")
    stage.serve(f"unix:{path}")

    def dial() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(20)
        made.connect(path)
        return made

    _over_sockets(stage, 80, dial)


def _over_sockets(stage: Stage, port: int, dial: Callable[[], socket.socket]) -> None:
    server: Any = SimpleNamespace(port=port, failed=lambda reason: RuntimeError(reason))
    connections = [http_traffic.Connection(dial()) for _ in range(8)]
    session = http_traffic.open_session(server, connections[0])
    for number, connection in enumerate(connections):
        of = session if number % 2 else None
        connection.request = http_traffic.call(server, "add", {"a": 40, "b": 2}, of)
    while stage.is_going:
        _took(stage, http_traffic.drive(server, connections, 1))
        stage.sample()
    for connection in connections:
        connection.socket.close()


def _took(stage: Stage, timing: traffic.Timing) -> None:
    for seconds in timing.latencies:
        stage.counter.done(seconds)


def calls_over_websocket(stage: Stage) -> None:
    """Calls of `add` on 4 connections, 16 at a time on each, half of them in sessions."""
    port = _port(stage.serve("ws://127.0.0.1:0/mcp"))
    connections = [frames.Connection(port, in_session=bool(number % 2)) for number in range(4)]
    while stage.is_going:
        _took(stage, frames.drive(connections, WINDOW // len(connections), 1))
        stage.sample()
    for connection in connections:
        connection.socket.close()


def _calling(stage: Stage, client: Client) -> Callable[[], Any]:
    async def call() -> None:
        began = time.perf_counter()
        if await client.call("add", a=40, b=2) != 42:
            stage.counter.wrong("the sum was wrong")
        stage.counter.done(time.perf_counter() - began)

    return call


def sessions_left(stage: Stage) -> None:
    """Sessions are opened, used once and left. After 5 s without a word the server forgets them."""

    async def main() -> None:
        port = _port(stage.serve(HTTP, SOAK_IDLE="5"))

        async def open_and_leave() -> None:
            began = time.perf_counter()
            connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
            try:
                for _ in range(20):
                    await connection.open_session()
                    stage.counter.done(time.perf_counter() - began)
                    began = time.perf_counter()
            finally:
                connection.close()
            # 10,000 sessions may be open at a time: about 1,000 are left each second.
            await asyncio.sleep(0.06)

        await stage.run(*[open_and_leave] * 3)

    asyncio.run(main())


def _port(url: str) -> int:
    return int(url.split(":")[2].partition("/")[0])


def reconnects(stage: Stage) -> None:
    """Connections that come and go at once: some in the middle of a request, some of a WebSocket, some by a reset."""

    async def main() -> None:
        port = _port(stage.serve(HTTP))
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        head = (
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"accept: application/json, text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        upgrade = (
            b"GET /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        )

        async def storm() -> None:
            began = time.perf_counter()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            said = stage.random.choice((head + body, upgrade))
            cut = stage.random.choice((len(said), stage.random.randrange(len(said))))
            writer.write(said[:cut])
            if cut == len(said):
                await asyncio.wait_for(reader.read(1), 10)
            if stage.random.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()
            stage.counter.done(time.perf_counter() - began)

        await stage.run(*[storm] * 8)

    asyncio.run(main())


def slow_readers(stage: Stage) -> None:
    """Streams of progress that are read slowly, or not to their end; beside them calls that must not wait."""

    async def main() -> None:
        port = _port(url := stage.serve(HTTP))

        async def read_slowly() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            meta = {**http_traffic.STATELESS_META, "progressToken": "p"}
            params = {"name": "count", "arguments": {"n": 2000}, "_meta": meta}
            headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "count"}
            request = http_traffic.HttpRequest.of(port, {"method": "tools/call", "params": params}, headers)
            writer.write(request.numbered(http_traffic.FIRST_ID))
            try:
                for _ in range(stage.random.randrange(40)):
                    if not await asyncio.wait_for(reader.read(2000), 10):
                        break
                    await asyncio.sleep(0.02)
            finally:
                writer.transport.abort()

        client = Client(await connect_url(url), version=STATELESS)
        async with client:
            await stage.run(*[read_slowly] * 8, _calling(stage, client))

    asyncio.run(main())


def cancels(stage: Stage) -> None:
    """Calls that are cancelled a moment after they began, over HTTP and WebSocket, in both eras."""

    async def main() -> None:
        url = stage.serve(HTTP)
        clients = [
            Client(await connect_url(address), version=era)
            for address in (url, url.replace("http", "ws"))
            for era in (HANDSHAKE, STATELESS)
        ]
        for client in clients:
            await client.__aenter__()

        def cancelling(client: Client) -> Callable[[], Any]:
            async def cancel() -> None:
                began = time.perf_counter()
                with suppress(TimeoutError):
                    async with asyncio.timeout(stage.random.random() * 0.01):
                        await client.call("slow", seconds=30)
                stage.counter.done(time.perf_counter() - began)
                # A client that never waits may be faster than its server: what is open would only say by how much.
                await _calling(stage, client)()

            return cancel

        for client in clients:
            await _calling(stage, client)()
        await asyncio.sleep(QUIET_SECONDS)
        quiet = stage.tasks  # what four clients that are connected and ask nothing keep busy
        stage.begin()
        await stage.run(*(cancelling(client) for client in clients for _ in range(4)))
        await asyncio.sleep(QUIET_SECONDS)
        # In a session over HTTP a cancellation may arrive on its connection before the call does on another. Then
        # it is of nothing, and the call goes on to its end, but not longer.
        stage.facts["overtaken"] = stage.tasks - quiet
        with suppress(TimeoutError):
            await until(lambda: stage.tasks <= quiet, SETTLE_SECONDS)
        if stage.tasks > quiet:
            stage.counter.wrong(f"{stage.tasks - quiet:.0f} tasks of cancelled calls were left")
        for client in clients:
            await client.__aexit__()

    asyncio.run(main())


def reloads(stage: Stage) -> None:
    """Two workers that are replaced every second, amid calls."""

    async def main() -> None:
        url = stage.serve(HTTP, "--workers", "2", "--stateless", SOAK_STORE=f"sqlite:///{stage.folder / 'tasks.db'}")
        supervisor = stage.watched[0]

        async def reload() -> None:
            before = stage.log.count("reloaded: ")
            os.kill(supervisor, signal.SIGHUP)
            await until(lambda: stage.log.count("reloaded: ") > before, START_SECONDS)
            stage.facts["reloads"] = stage.facts.get("reloads", 0) + 1
            await asyncio.sleep(1)

        async def call() -> None:
            async with Client(await connect_url(url), version=STATELESS) as client:
                for _ in range(20):
                    await _calling(stage, client)()

        await stage.run(reload, call, call)

    asyncio.run(main())


def dev_reloads(stage: Stage) -> None:
    """`defserve dev`: the file changes every half second, and its client calls on."""

    async def main() -> None:
        from defserve.client import ProcessLink

        file = stage.folder / "edited.py"
        text = SERVER.read_text()
        file.write_text(text)
        command = ["-m", "defserve", "dev", str(file)]
        link = await ProcessLink.spawn(sys.executable, command, env=stage.environment)
        stage.watched.append(link.pid)
        async with Client(link, version=HANDSHAKE, timeout=START_SECONDS) as client:
            stage.begin()

            async def edit() -> None:
                file.write_text(f"{text}\n# {stage.random.random()}\n")
                stage.facts["edits"] = stage.facts.get("edits", 0) + 1
                await asyncio.sleep(0.5)

            await stage.run(edit, _calling(stage, client))

    asyncio.run(main())


def kernel(stage: Stage) -> None:
    """A kernel with three servers, one of which is killed every half second."""

    async def main() -> None:
        config = stage.folder / "mgp.toml"
        config.write_text("\n".join(_entry(stage, id) for id in ("a", "b", "c")))
        url = stage.serve(HTTP, "--local-token", command=("kernel", "--config", str(config)))
        top = stage.watched[0]

        async def kill() -> None:
            await asyncio.sleep(0.5)
            servers = [pid for pid in family(top)[1:] if SERVER.name in _command(pid)]
            if servers:
                with suppress(ProcessLookupError):
                    os.kill(stage.random.choice(servers), signal.SIGKILL)
                stage.facts["kills"] = stage.facts.get("kills", 0) + 1

        def call(client: Client) -> Callable[[], Any]:
            async def once() -> None:
                began = time.perf_counter()
                try:
                    await client.call(f"{stage.random.choice('abc')}_add", a=40, b=2)
                except PeerGone:
                    raise
                except DefserveError:
                    # The server behind was killed under the call. It is told so.
                    stage.facts["told"] = stage.facts.get("told", 0) + 1
                    await asyncio.sleep(0.01)
                else:
                    stage.counter.done(time.perf_counter() - began)

            return once

        async with (
            Client(await connect_url(url), version=HANDSHAKE) as one,
            Client(await connect_url(url), version=STATELESS) as two,
        ):
            for id in "abc":
                while not await _answers(one, f"{id}_add"):  # noqa: ASYNC110 - a server of its own sets no event
                    await asyncio.sleep(0.5)
            stage.begin()
            await stage.run(kill, call(one), call(one), call(two), call(two))

    asyncio.run(main())


async def _answers(client: Client, tool: str) -> bool:
    try:
        return await client.call(tool, a=40, b=2) == 42
    except PeerGone:
        raise
    except DefserveError:
        return False


def _entry(stage: Stage, id: str) -> str:
    env = f'PYTHONPATH = "{ROOT / "framework"}"\nSOAK_VITALS = "{stage.folder / id}"'
    return (
        f'[[servers]]\nid = "{id}"\nprefix = "{id}"\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\n'
        f'per = "shared"\n[servers.env]\n{env}\n[servers.mgp]\n'
        'restart_policy = "on_failure"\nmax_restarts = 1000\nrestart_window_secs = 1\n'
        "backoff_base_ms = 5\nbackoff_max_ms = 50\n"
    )


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def tasks(stage: Stage) -> None:
    """Tasks that are begun, asked for, and forgotten by the server after 5 s; in SQLite."""

    async def main() -> None:
        url = stage.serve(HTTP, SOAK_STORE=f"sqlite:///{stage.folder / 'tasks.db'}")
        async with Client(await connect_url(url), version=STATELESS) as client:

            async def begin() -> None:
                began = time.perf_counter()
                call = await client.start("job", seconds=0.05 * stage.random.random())
                stage.counter.done(time.perf_counter() - began)
                await asyncio.sleep(0.1 * stage.random.random())
                try:
                    await (call.cancel() if stage.random.random() < 0.3 else call.refresh())
                except DefserveError:
                    # On a machine that is slow enough, the task is no longer kept.
                    if time.perf_counter() - began < KEPT_SECONDS:
                        raise

            await stage.run(*[begin] * 4)

    asyncio.run(main())


def pushes(stage: Stage) -> None:
    """Events pushed to a host of MCPL, and receipts back."""

    async def main() -> None:
        url = stage.serve("ws://127.0.0.1:0/mcp")
        heard = 0

        def hear(event: object) -> None:
            nonlocal heard
            heard += 1

        async with Client(await connect_url(url), version=HANDSHAKE, mcpl=Mcpl(on_event=hear)) as client:
            await client.tools()

            async def push() -> None:
                began = time.perf_counter()
                before = heard
                await client.call("tick", n=50)
                if heard - before != 50:
                    stage.counter.wrong(f"{heard - before} of 50 events came")
                for _ in range(50):
                    stage.counter.done((time.perf_counter() - began) / 50)

            await stage.run(push)

    asyncio.run(main())


SCENARIOS: dict[str, Callable[[Stage], None]] = {
    "calls-stdio": calls_over_pipes,
    "calls-http": calls_over_http,
    "calls-unix": calls_over_unix,
    "calls-websocket": calls_over_websocket,
    "sessions": sessions_left,
    "reconnects": reconnects,
    "slow-readers": slow_readers,
    "cancels": cancels,
    "reloads": reloads,
    "dev-reloads": dev_reloads,
    "kernel": kernel,
    "tasks": tasks,
    "pushes": pushes,
}
