"""The command `make load`: thousands of connections on loopback, and what a healthy caller notices of them.

Each scenario starts a server of its own. It exits with 1 if a goal is missed. The goals of time want a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from tests.bench.contenders import HttpContender
from tests.bench.http_process import HttpServer
from tests.bench.http_traffic import FIRST_ID, Connection, HttpRequest, call, connected, drive, exchange, open_session
from tests.bench.processes import HANDSHAKE_VERSION, STATELESS_META, STATELESS_VERSION, Launch

HERE = Path(__file__).parent
LAUNCH = Launch(Path(sys.executable), {**os.environ, "PYTHONPATH": str(HERE.parents[1])})
DEFSERVE = HttpContender("defserve", HERE / "server.py")
BARE = HttpContender("bare", HERE / "bare_server.py")
ADDENDS = {"a": 40, "b": 2}
ERAS = ("session", "stateless")
# Behind these, a connection's reader is slow: little fits into its window.
SLOW_WINDOW_BYTES, LONG_TEXT = 4_096, 400_000
HALF_HEAD = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


class Goal(NamedTuple):
    """A figure, and what it must not exceed."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        word = "held" if self.is_met else "MISSED"
        return f"{self.name:46} {self.value:8.2f} {self.unit:3} (at most {self.limit:g}) {word}"


# -- many idle streams -----------------------------------------------------------------------------------------


def measure_idle_streams(count: int, _: float) -> list[Goal]:
    """Memory of an idle stream, above that of a connection to a bare protocol."""
    bare = _weigh_bare_connections(count)
    found = [Goal("bare connection", bare, 1e9, "kB")]
    for era in ERAS:
        with HttpServer(DEFSERVE, LAUNCH) as server, connected(server, 1) as (connection,):
            requests = [_make_listening(server, connection, era) for _ in range(count)]
            grown = _weigh(server, connection, requests)
            found.append(Goal(f"idle stream, {era}, above it", grown - bare, 3.0, "kB"))
    return found


def _weigh_bare_connections(count: int) -> float:
    with HttpServer(BARE, LAUNCH) as server:
        return _weigh(server, None, [b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"] * count)


def _weigh(server: HttpServer, calls: Connection | None, requests: list[bytes]) -> float:
    """How many kB the process grows by for each request that is answered by a stream that stays open."""

    def weigh_memory() -> float:
        if calls is not None:
            exchange(server, calls, call(server, "collect_garbage", {}, None).numbered(FIRST_ID))
        return server.resident()

    warm_up = min(500, len(requests) // 10)
    with _opened_streams(server, requests[:warm_up]):
        before = weigh_memory()
        with _opened_streams(server, requests[warm_up:]):
            return (weigh_memory() - before) * 1024 / (len(requests) - warm_up)


def _make_listening(server: HttpServer, connection: Connection, era: str) -> bytes:
    if era == "session":
        session = open_session(server, connection)
        return (
            f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAccept: text/event-stream\r\n"
            f"MCP-Protocol-Version: {HANDSHAKE_VERSION}\r\nMcp-Session-Id: {session}\r\n\r\n"
        ).encode()
    params = {"notifications": {"toolsListChanged": True}, "_meta": STATELESS_META}
    headers = {"MCP-Protocol-Version": STATELESS_VERSION, "Mcp-Method": "subscriptions/listen"}
    return HttpRequest.of(server.port, {"method": "subscriptions/listen", "params": params}, headers).numbered(FIRST_ID)


@contextmanager
def _opened_streams(server: HttpServer, requests: list[bytes]) -> Generator[list[socket.socket]]:
    streams: list[socket.socket] = []
    try:
        for request in requests:
            stream = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            streams.append(stream)
            stream.sendall(request)
            head = stream.recv(4096)
            if not head.startswith(b"HTTP/1.1 200"):
                raise server.failed(f"a stream was answered with {head[:300]!r}")
        yield streams
    finally:
        for stream in streams:
            stream.close()


# -- a healthy caller beside a crowd ---------------------------------------------------------------------------


def measure_slow_readers(count: int, seconds: float) -> list[Goal]:
    """The healthy caller's p99 beside readers that take a kilobyte now and then."""
    with HttpServer(DEFSERVE, LAUNCH) as server:
        request = call(server, "write_text", {"length": LONG_TEXT}, None).numbered(FIRST_ID)
        return [_call_beside(server, "beside slow readers", _Crowd(server, count, request, _read_little), seconds)]


def measure_half_heads(count: int, seconds: float) -> list[Goal]:
    """The healthy caller's p99 beside clients that never finish their head, and come back when they are cut off."""
    with HttpServer(DEFSERVE, LAUNCH) as server:
        return [_call_beside(server, "beside half-sent heads", _Crowd(server, count, HALF_HEAD, _send_little), seconds)]


def _read_little(crowded: socket.socket) -> bool:
    return bool(crowded.recv(1024))


def _send_little(crowded: socket.socket) -> bool:
    crowded.send(b"x")
    refused = select.poll()  # `select.select` takes no descriptor above 1,023
    refused.register(crowded, select.POLLIN)
    return not refused.poll(0)  # what can be read is the refusal


class _Crowd(threading.Thread):
    """Connections that are a burden, kept up by a thread: those that end are opened again."""

    def __init__(self, server: HttpServer, count: int, opening: bytes, touch: Callable[[socket.socket], bool]) -> None:
        super().__init__(daemon=True)
        self._server, self._opening, self._touch = server, opening, touch
        self.cut_off, self._ending = 0, threading.Event()
        self._crowd = [self._open() for _ in range(count)]

    def run(self) -> None:
        while not self._ending.is_set():
            began = monotonic()
            for at, crowded in enumerate(self._crowd):
                if self._ending.is_set():
                    break
                try:
                    is_alive = self._touch(crowded)
                except BlockingIOError:
                    is_alive = True
                except OSError:
                    is_alive = False
                if not is_alive:
                    self.cut_off += 1
                    crowded.close()
                    self._crowd[at] = self._open()
            self._ending.wait(max(0.0, 2.0 - (monotonic() - began)))

    def end(self) -> None:
        self._ending.set()
        self.join()
        for crowded in self._crowd:
            crowded.close()

    def _open(self) -> socket.socket:
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_WINDOW_BYTES)
        opened.settimeout(20)
        opened.connect(("127.0.0.1", self._server.port))
        opened.sendall(self._opening)
        opened.setblocking(False)
        return opened


def _call_beside(server: HttpServer, name: str, crowd: _Crowd, seconds: float) -> Goal:
    crowd.start()
    try:
        with connected(server, 1) as connections:
            connections[0].request = call(server, "add", ADDENDS, None)
            latencies = drive(server, connections, seconds).latencies
    finally:
        crowd.end()
    print(
        f"  {len(latencies)} calls {name}; {crowd.cut_off} of those were cut off; {server.peak():.0f} MiB at the peak"
    )
    return Goal(f"p99 {name}", _percentile(latencies, 99), 50, "ms")


# -- many callers ----------------------------------------------------------------------------------------------


def measure_many_callers(count: int, seconds: float) -> list[Goal]:
    """p99 of 256 connections that call without a pause, in ten rounds of each era."""
    found: list[Goal] = []
    for era in ERAS:
        with HttpServer(DEFSERVE, LAUNCH) as server, connected(server, count) as connections:
            for connection in connections:
                session = open_session(server, connection) if era == "session" else None
                connection.request = call(server, "add", ADDENDS, session)
            drive(server, connections, 0.5)
            for turn in range(10):
                value = _percentile(drive(server, connections, seconds / 10).latencies, 99)
                found.append(Goal(f"p99 of {count} connections, {era}, round {turn + 1}", value, 60, "ms"))
    return found


def _percentile(seconds: list[float], percent: int) -> float:
    """In milliseconds."""
    return sorted(seconds)[min(len(seconds) * percent // 100, len(seconds) - 1)] * 1000


# -- the command -----------------------------------------------------------------------------------------------


class Scenario(NamedTuple):
    measure: Callable[[int, float], list[Goal]]
    connections: int


SCENARIOS = {
    "idle-streams": Scenario(measure_idle_streams, 10_000),
    "slow-readers": Scenario(measure_slow_readers, 5_000),
    "half-heads": Scenario(measure_half_heads, 5_000),
    "callers": Scenario(measure_many_callers, 256),
}


def main(arguments: list[str]) -> int:
    options = _make_parser().parse_args(arguments)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    goals: list[Goal] = []
    for name in options.only or SCENARIOS:
        scenario = SCENARIOS[name]
        count = max(16, int(scenario.connections * options.scale))
        print(f"== {name}: {count} connections", flush=True)
        for goal in scenario.measure(count, options.seconds):
            goals.append(goal)
            print(f"  {goal}", flush=True)
    if options.json:
        rows: list[dict[str, Any]] = [{**goal._asdict(), "held": goal.is_met} for goal in goals]
        Path(options.json).write_text(json.dumps(rows, indent=2), encoding="utf-8")
    missed = [goal for goal in goals if not goal.is_met]
    print(f"{len(missed)} of {len(goals)} goals missed" if missed else "all goals held")
    return 1 if missed else 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--only", action="append", choices=tuple(SCENARIOS), help="repeatable")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each scenario with calls (default 30)")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the connections")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
