"""What several processes on one socket cost and bring: calls a second, and the processor time of all of them a call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from .contenders import SERVERS, HttpContender
from .http_measure import CONNECTIONS
from .http_process import HttpServer
from .http_traffic import Connection, call, connected, drive
from .measure import ADDENDS, Run, in_turn, percentile
from .processes import cpu_seconds_of
from .targets import SUBJECT

COUNTS = (1, 2)
SCRIPTS = {"bare": SERVERS / "bare_http.py", SUBJECT: SERVERS / "defserve_http.py"}


def measure_workers(run: Run) -> None:
    """The same calls to one process and to two, of a bare ASGI app and of defserve. Stateless, so any may answer.

    Two have twice as many connections: a process that finds fewer requests at a time takes longer for each.
    """
    with ExitStack() as stack:
        drivers = [_ready(stack, name, count, run) for name in SCRIPTS for count in COUNTS]
        for turn in range(run.plan.http_rounds):
            run.say(f"workers {turn + 1}/{run.plan.http_rounds}")
            for server, connections, name, count in in_turn(drivers, turn):
                _one_round(run, server, connections, f"{count} process{'es' if count > 1 else ''}", name)


WORKERS: dict[str, Callable[[Run], None]] = {"workers": measure_workers}


def _ready(stack: ExitStack, name: str, count: int, run: Run) -> tuple[HttpServer, list[Connection], str, int]:
    arguments = (str(count),) if count > 1 else ()
    server = stack.enter_context(HttpServer(HttpContender(name, SCRIPTS[name], arguments), run.launch))
    connections = stack.enter_context(connected(server, CONNECTIONS * count))
    for connection in connections:
        connection.request = call(server, "add", ADDENDS, None)
    drive(server, connections, run.plan.burst)
    return server, connections, name, count


def _one_round(run: Run, server: HttpServer, connections: list[Connection], what: str, name: str) -> None:
    before = _cpu_of_all(server.pid)
    timing = drive(server, connections, run.plan.http_burst)
    run.results.add(f"workers/{what}", name, timing.per_second)
    run.results.add(f"workers-cpu/{what}", name, (_cpu_of_all(server.pid) - before) / len(timing.latencies) * 1e6)
    run.results.add(f"workers-p50/{what}", name, percentile(timing, 50))
    run.results.add(f"workers-p99/{what}", name, percentile(timing, 99))


def _cpu_of_all(process: int) -> float:
    """The processor time of a process and of those that it has started."""
    tasks = [task / "children" for task in Path(f"/proc/{process}/task").iterdir()]
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    return cpu_seconds_of(process) + sum(map(_cpu_of_all, children))
