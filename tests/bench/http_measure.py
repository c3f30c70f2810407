"""The measurements over HTTP: calls in both eras, and what a session weighs that nobody uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from .contenders import HttpContender
from .http_process import HttpServer
from .http_traffic import Connection, HttpRequest, call, connected, drive, exchange, open_session
from .measure import ADDENDS, Run, in_turn, percentile, with_fresh_processes
from .processes import Launch
from .targets import SUBJECT

CONNECTIONS = 32
SESSIONS = 10_000
WARM_UP_SESSIONS = 500


class Drivers(NamedTuple):
    """A server and the connections to it."""

    server: HttpServer
    connections: list[Connection]
    sessions: list[str]

    def use(self, era: str) -> None:
        """Put a call of this era on every connection. In the handshake era each has a session of its own."""
        for connection, session in zip(self.connections, self.sessions, strict=True):
            connection.request = call(self.server, "add", ADDENDS, session if era == "session" else None)


ERAS = ("session", "stateless")


@with_fresh_processes
def measure_http_calls(run: Run) -> None:
    """Rate and latency of a scalar async tool over 32 keep-alive connections, in both eras."""
    with ExitStack() as stack:
        drivers = [_ready(stack, contender, run) for contender in run.http_contenders]
        for driver in drivers:
            for era in ERAS:
                driver.use(era)
                drive(driver.server, driver.connections, run.plan.burst)
        for turn in range(run.plan.http_rounds):
            for era in ERAS:
                run.say(f"http {era} {turn + 1}/{run.plan.http_rounds}")
                _one_round(run, in_turn(drivers, turn), era)


def measure_http_sessions(run: Run) -> None:
    """Resident memory a session adds to defserve, once its client has shaken hands and gone quiet."""
    for contender in run.http_contenders:
        if contender.name != SUBJECT:
            continue
        run.say("http sessions")
        with HttpServer(contender, run.launch) as server, connected(server, 1) as (connection,):
            session = open_session(server, connection)
            collect = call(server, "collect_garbage", {}, session)
            _open_sessions(server, connection, WARM_UP_SESSIONS)
            before = _resident(server, connection, collect)
            _open_sessions(server, connection, SESSIONS)
            grown = _resident(server, connection, collect) - before
            run.results.add("http-memory/idle session", contender.name, grown * 2**20 / SESSIONS)


HTTP: dict[str, Callable[[Run], None]] = {
    "http-calls": measure_http_calls,
    "http-sessions": measure_http_sessions,
}


def try_http(contender: HttpContender, launch: Launch) -> None:
    """Start a server and call it once, which also compiles what it alone imports. Raises ServerFailed."""
    with HttpServer(contender, launch) as server, connected(server, 1) as connections:
        for session in (open_session(server, connections[0]), None):
            connections[0].request = call(server, "add", ADDENDS, session)
            drive(server, connections, 0)


def _ready(stack: ExitStack, contender: HttpContender, run: Run) -> Drivers:
    server = stack.enter_context(HttpServer(contender, run.launch))
    connections = stack.enter_context(connected(server, CONNECTIONS))
    return Drivers(server, connections, [open_session(server, connection) for connection in connections])


def _one_round(run: Run, drivers: Sequence[Drivers], era: str) -> None:
    for driver in drivers:
        driver.use(era)
        before = driver.server.cpu_seconds()
        timing = drive(driver.server, driver.connections, run.plan.http_burst)
        cpu = (driver.server.cpu_seconds() - before) / len(timing.latencies)
        name = driver.server.contender.name
        run.results.add(f"http-cpu/{era}", name, cpu * 1e6)
        run.results.add(f"http/{era}", name, timing.per_second)
        run.results.add(f"http-p50/{era}", name, percentile(timing, 50))
        run.results.add(f"http-p99/{era}", name, percentile(timing, 99))


def _open_sessions(server: HttpServer, connection: Connection, count: int) -> None:
    for _ in range(count):
        open_session(server, connection)


def _resident(server: HttpServer, connection: Connection, collect: HttpRequest) -> float:
    exchange(server, connection, collect.numbered(2_000_000))
    return server.resident()
