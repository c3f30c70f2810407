"""What several processes on one socket cost and bring: calls a second, and the processor time of all of them a call."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import sleep

from tests.stores.redis_server import RedisServer

from .contenders import SERVERS, HttpContender
from .http_measure import CONNECTIONS, SESSIONS, WARM_UP_SESSIONS
from .http_process import HttpServer
from .http_traffic import FIRST_ID, Connection, call, connected, drive, exchange, open_session
from .measure import ADDENDS, Run, in_turn, percentile
from .processes import cpu_seconds_of, memory_of
from .targets import SUBJECT

COUNTS = (1, 2)
PER_CONNECTION = 20
IDLE_SECONDS = 0.5
STARTING_SECONDS = 0.05
SCRIPTS = {"bare": SERVERS / "bare_http.py", SUBJECT: SERVERS / "defserve_http.py"}


def measure_workers(run: Run) -> None:
    """The same calls to one process and to two, of a bare ASGI app and of defserve. Stateless, so any may answer.

    Two have twice as many connections: a process that finds fewer requests at a time takes longer for each.
    """
    with ExitStack() as stack:
        drivers = [_ready(stack, name, count, run) for name in SCRIPTS for count in COUNTS]
        for turn in range(run.plan.service_rounds):
            run.say(f"workers {turn + 1}/{run.plan.service_rounds}")
            for server, connections, name, count in in_turn(drivers, turn):
                _one_round(run, server, connections, f"{count} process{'es' if count > 1 else ''}", name)


def measure_shared_sessions(run: Run) -> None:
    """What 10,000 idle sessions over four workers weigh: in the workers together, and in Redis."""
    if shutil.which("redis-server") is None:
        run.say("workers-sessions: there is no redis-server")
        return
    run.say("workers-sessions")
    redis = RedisServer().start()
    try:
        contender = HttpContender(SUBJECT, SCRIPTS[SUBJECT], ("4", redis.address))
        with HttpServer(contender, run.launch) as server:
            _open_sessions(server, WARM_UP_SESSIONS)
            before, kept = _resident_of_all(server), redis.used_memory()
            _open_sessions(server, SESSIONS)
            grown = (_resident_of_all(server) - before) * 2**20
            run.results.add("workers-memory/in the workers", SUBJECT, grown / SESSIONS)
            run.results.add("workers-memory/in Redis", SUBJECT, (redis.used_memory() - kept) / SESSIONS)
    finally:
        redis.remove()


WORKERS: dict[str, Callable[[Run], None]] = {
    "workers-calls": measure_workers,
    "workers-sessions": measure_shared_sessions,
}


def _open_sessions(server: HttpServer, count: int) -> None:
    """Open sessions on many connections, so that each worker gets some."""
    for start in range(0, count, PER_CONNECTION):
        with connected(server, 1) as (connection,):
            for _ in range(min(PER_CONNECTION, count - start)):
                open_session(server, connection)


def _resident_of_all(server: HttpServer) -> float:
    """The memory of all processes, in MiB, when the garbage of most of them is collected."""
    for _ in range(CONNECTIONS):
        with connected(server, 1) as (connection,):
            exchange(server, connection, call(server, "collect_garbage", {}, None).numbered(FIRST_ID))
    return sum(memory_of(process)[0] for process in _with_children(server.pid))


def _ready(stack: ExitStack, name: str, count: int, run: Run) -> tuple[HttpServer, list[Connection], str, int]:
    arguments = (str(count),) if count > 1 else ()
    server = stack.enter_context(HttpServer(HttpContender(name, SCRIPTS[name], arguments), run.launch))
    wait_until_idle(server)
    connections = stack.enter_context(connected(server, CONNECTIONS * count))
    for connection in connections:
        connection.request = call(server, "add", ADDENDS, None)
    drive(server, connections, run.plan.burst)
    return server, connections, name, count


def wait_until_idle(server: HttpServer) -> None:
    """Wait until no process starts up any more: the first one that listens would take all connections."""
    before, now = -1.0, cpu_of_all(server.pid)
    while now - before > STARTING_SECONDS:
        sleep(IDLE_SECONDS)
        before, now = now, cpu_of_all(server.pid)


def _one_round(run: Run, server: HttpServer, connections: list[Connection], what: str, name: str) -> None:
    before = cpu_of_all(server.pid)
    timing = drive(server, connections, run.plan.http_burst)
    run.results.add(f"workers/{what}", name, timing.per_second)
    run.results.add(f"workers-cpu/{what}", name, (cpu_of_all(server.pid) - before) / len(timing.latencies) * 1e6)
    run.results.add(f"workers-p50/{what}", name, percentile(timing, 50))
    run.results.add(f"workers-p99/{what}", name, percentile(timing, 99))


def cpu_of_all(process: int) -> float:
    return sum(map(cpu_seconds_of, _with_children(process)))


def _with_children(process: int) -> list[int]:
    """A process and those that it has started."""
    tasks = [task / "children" for task in Path(f"/proc/{process}/task").iterdir()]
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [process, *(each for child in children for each in _with_children(child))]
