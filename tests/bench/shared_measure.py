"""What it costs that workers share sessions through a Redis: processor time, scripts in Redis, latency of a call."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from tests.stores.redis_server import RedisServer

from .contenders import HttpContender
from .http_measure import CONNECTIONS
from .http_process import HttpServer
from .http_traffic import FIRST_ID, Connection, HttpRequest, call, connected, drive, exchange, open_session
from .measure import ADDENDS, Run, in_turn, percentile
from .processes import HANDSHAKE_VERSION
from .targets import SUBJECT
from .workers_measure import SCRIPTS, cpu_of_all, wait_until_idle

ALONE = "kept in the process"
IDLE = 3_000
EVENT_ID = re.compile(rb"id: (\S+)")
RESUMING = (
    "GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\nMcp-Session-Id: {session}\r\n"
    "MCP-Protocol-Version: {version}\r\nLast-Event-ID: {last}\r\nX-Number: "
)


class Driven(NamedTuple):
    """A server, many connections to it with a session each, and the Redis of its workers, if they share one."""

    what: str
    server: HttpServer
    connections: list[Connection]
    sessions: list[str]
    redis: RedisServer | None


def _tool(name: str) -> Callable[[Driven, int], HttpRequest]:
    return lambda driven, place: call(driven.server, name, ADDENDS, driven.sessions[place])


def _stateless(driven: Driven, place: int) -> HttpRequest:
    return call(driven.server, "add", ADDENDS, None)


def _resumed(driven: Driven, place: int) -> HttpRequest:
    """The rest of a stream that is over: its client has only the first event."""
    reply = exchange(driven.server, driven.connections[place], _tool("add_and_say")(driven, place).numbered(FIRST_ID))
    found = EVENT_ID.search(reply)
    if found is None:
        raise driven.server.failed(f"a call that says something is no stream: {reply[:500]!r}")
    session, last = driven.sessions[place], found[1].decode()
    head = RESUMING.format(port=driven.server.port, session=session, version=HANDSHAKE_VERSION, last=last)
    return HttpRequest(head.encode(), b"\r\n\r\n")


CALLS: dict[str, Callable[[Driven, int], HttpRequest]] = {
    "plain": _tool("add"),
    "tells all": _tool("add_and_tell"),
    "a stream": _tool("add_and_say"),
    "resumed stream": _resumed,
    "stateless": _stateless,
}


def measure_shared_calls(run: Run) -> None:
    """The same calls to a process that shares nothing, and to one and two workers that share a Redis.

    Each session is known to the worker that its connection leads to. Processor time is measured under load, latency
    with one call at a time.
    """
    if shutil.which("redis-server") is None:
        run.say("workers-shared: there is no redis-server")
        return
    with ExitStack() as stack:
        driven = [_ready(stack, run, count) for count in (0, 1, 2)]
        for turn in range(run.plan.service_rounds):
            run.say(f"workers-shared {turn + 1}/{run.plan.service_rounds}")
            for each in in_turn(driven, turn):
                for name, request in CALLS.items():
                    _one_round(run, each, name, request)
        run.say(f"workers-shared beside {IDLE:,} sessions")
        for each in driven:
            for _ in range(IDLE):
                open_session(each.server, each.connections[0])
            _one_round(run, each, f"tells all, beside {IDLE:,} idle sessions", CALLS["tells all"])


SHARED: dict[str, Callable[[Run], None]] = {"workers-shared": measure_shared_calls}


def _ready(stack: ExitStack, run: Run, workers: int) -> Driven:
    redis = None
    if workers:
        redis = RedisServer().start()
        stack.callback(redis.remove)
    arguments = (str(workers), redis.address) if redis is not None else ()
    server = stack.enter_context(HttpServer(HttpContender(SUBJECT, SCRIPTS[SUBJECT], arguments), run.launch))
    wait_until_idle(server)
    connections = stack.enter_context(connected(server, CONNECTIONS * max(1, workers)))
    sessions = [open_session(server, connection) for connection in connections]
    what = f"{workers} worker{'s' if workers > 1 else ''}" if workers else ALONE
    return Driven(what, server, connections, sessions, redis)


def _one_round(run: Run, driven: Driven, name: str, request: Callable[[Driven, int], HttpRequest]) -> None:
    for place, connection in enumerate(driven.connections):
        connection.request = request(driven, place)
    measure = f"{name}, {driven.what}"
    drive(driven.server, driven.connections, run.plan.http_burst / 10)
    cpu, scripts = cpu_of_all(driven.server.pid), _scripts(driven.redis)
    calls = len(drive(driven.server, driven.connections, run.plan.http_burst).latencies)
    run.results.add(f"shared-cpu/{measure}", SUBJECT, (cpu_of_all(driven.server.pid) - cpu) / calls * 1e6)
    if driven.redis is not None:
        run.results.add(f"shared-scripts/{measure}", SUBJECT, (_scripts(driven.redis) - scripts) / calls)
    timing = drive(driven.server, driven.connections[:1], run.plan.http_burst)
    for percent in (50, 99):
        run.results.add(f"shared-p{percent}/{measure}", SUBJECT, percentile(timing, percent))


def _scripts(redis: RedisServer | None) -> int:
    """How many scripts a Redis has run. Everything that workers ask for is one."""
    if redis is None:
        return 0
    return sum(int(count) for count in re.findall(r"cmdstat_eval(?:sha)?:calls=(\d+)", redis.info("commandstats")))
