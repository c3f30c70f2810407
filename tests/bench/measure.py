"""The measurements, each a loop of interleaved rounds over the contenders."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import wraps
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from .contenders import TYPEADAPTER, Contender, HttpContender
from .processes import Launch, ServerProcess
from .results import Results
from .traffic import Request, Timing, drive

T = TypeVar("T")

WINDOWS = (1, 32)
CATALOGUES = (1, 3, 100, 1000)
ADDENDS: dict[str, Any] = {"a": 20, "b": 22}
ORDER: dict[str, Any] = {
    "order": {
        "customer": "c-1042",
        "currency": "EUR",
        "lines": [{"sku": f"part-{n:03}", "quantity": n + 1, "unit_price": 2.5} for n in range(20)],
    }
}


class TimedTool(NamedTuple):
    """A tool, how it runs, what it is given, and what its answer must hold."""

    kind: str
    arguments: dict[str, Any]
    answer: str


TOOLS = {
    "add": TimedTool("async", ADDENDS, "42"),
    "add_sync": TimedTool("sync", ADDENDS, "42"),
    "add_inline": TimedTool("inline", ADDENDS, "42"),
    "price_order": TimedTool("async", ORDER, "525.0"),
    "price_order_sync": TimedTool("sync", ORDER, "525.0"),
    "price_order_inline": TimedTool("inline", ORDER, "525.0"),
}


class Plan(NamedTuple):
    """How long a run takes: rounds of each section, tries of a start, the seconds of a burst of calls, the
    chunks of a stream, and the commits of a state. Rounds of calls are counted within each of `process_starts`."""

    process_starts: int
    start_rounds: int
    start_tries: int
    list_rounds: int
    call_rounds: int
    burst: float
    http_rounds: int
    http_burst: float
    service_rounds: int
    """Of proxies, gateways and workers, which start once."""
    stream_rounds: int
    chunks: int
    state_rounds: int
    commits: int


FULL = Plan(
    process_starts=6,
    start_rounds=6,
    start_tries=3,
    list_rounds=3,
    call_rounds=2,
    burst=0.25,
    http_rounds=2,
    http_burst=0.5,
    service_rounds=8,
    stream_rounds=3,
    chunks=100_000,
    state_rounds=5,
    commits=1_280,
)
QUICK = Plan(
    process_starts=1,
    start_rounds=3,
    start_tries=1,
    list_rounds=1,
    call_rounds=3,
    burst=0.1,
    http_rounds=3,
    http_burst=0.25,
    service_rounds=3,
    stream_rounds=1,
    chunks=5_000,
    state_rounds=1,
    commits=128,
)


class Run(NamedTuple):
    """What every measurement is given: who takes part, how to start them, how long, and where values go."""

    contenders: Sequence[Contender]
    http_contenders: Sequence[HttpContender]
    launch: Launch
    plan: Plan
    results: Results
    say: Callable[[str], None]


Measurement = Callable[[Run], None]


def with_fresh_processes(measure: Measurement) -> Measurement:
    """The measurement, once for each of the plan's starts: a process's memory layout moves its figures by a fifth."""

    @wraps(measure)
    def measure_each_start(run: Run) -> None:
        for _ in range(run.plan.process_starts):
            measure(run)

    return measure_each_start


def measure_start(run: Run) -> None:
    """Spawn to initialize to the first tools/list answered; and a process that only imports TypeAdapter.

    A round's value is the best of a few tries: what disturbs a start can only make it slower.
    """
    for turn in range(run.plan.start_rounds):
        run.say(f"start {turn + 1}/{run.plan.start_rounds}")
        best: dict[tuple[str, str], float] = {}
        for measure, contender, elapsed in _starts(run, turn):
            best[measure, contender] = min(elapsed, best.get((measure, contender), elapsed))
        for (measure, contender), elapsed in best.items():
            run.results.add(measure, contender, elapsed)


def _starts(run: Run, turn: int) -> Iterator[tuple[str, str, float]]:
    for _ in range(run.plan.start_tries):
        began = perf_counter()
        subprocess.run([run.launch.python, TYPEADAPTER], env=run.launch.environment, check=True)
        yield "start/typeadapter", "process", (perf_counter() - began) * 1e3
        for shape in ("scalar", "model"):
            for contender in in_turn(run.contenders, turn):
                with ServerProcess(contender, shape, run.launch) as server:
                    yield f"start/{shape}", contender.name, _first_list(server)


def measure_lists(run: Run) -> None:
    """The first tools/list of catalogues, from spawn, and how fast the same list is answered again."""
    for turn in range(run.plan.list_rounds):
        for count in CATALOGUES:
            run.say(f"list {count} tools {turn + 1}/{run.plan.list_rounds}")
            for contender in in_turn(run.contenders, turn):
                with ServerProcess(contender, str(count), run.launch) as server:
                    run.results.add(f"list/{count}", contender.name, _first_list(server))
                    run.results.add(f"relist/{count}", contender.name, _lists_per_second(server, count, run.plan.burst))


@with_fresh_processes
def measure_calls(run: Run) -> None:
    """Rate and latency of every tool at every window, and the memory of the servers before and after."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(each, "calls", run.launch)) for each in run.contenders]
        for server in servers:
            _first_list(server)
            run.results.add("memory/start", server.contender.name, server.memory()[0])
        _warm_up(servers, run.plan)
        for turn in range(run.plan.call_rounds):
            for name, tool in TOOLS.items():
                run.say(f"calls {name} {turn + 1}/{run.plan.call_rounds}")
                able = [server for server in servers if tool.kind in server.contender.kinds]
                _one_round(run, in_turn(able, turn), name, Request.call(name, tool.arguments))
        for server in servers:
            resident, peak = server.memory()
            run.results.add("memory/calls", server.contender.name, resident)
            run.results.add("memory/peak", server.contender.name, peak)


@with_fresh_processes
def measure_stateless(run: Run) -> None:
    """The scalar tool in the stateless era: no handshake, the version and capabilities in every request."""
    able = [contender for contender in run.contenders if not contender.handshake_only]
    request = Request.call("add", ADDENDS, stateless=True)
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(each, "calls", run.launch)) for each in able]
        for server in servers:
            drive(server, request, window=1, seconds=run.plan.burst)
        for turn in range(run.plan.call_rounds):
            run.say(f"stateless calls {turn + 1}/{run.plan.call_rounds}")
            _one_round(run, in_turn(servers, turn), "add (stateless)", request)


STDIO: dict[str, Callable[[Run], None]] = {
    "start": measure_start,
    "calls": measure_calls,
    "stateless": measure_stateless,
    "lists": measure_lists,
}


def _one_round(run: Run, servers: Sequence[ServerProcess], tool: str, request: Request) -> None:
    for window in WINDOWS:
        for server in servers:
            name = server.contender.name
            before = server.cpu_seconds()
            timing = drive(server, request, window=window, seconds=run.plan.burst)
            cpu = (server.cpu_seconds() - before) / len(timing.latencies)
            run.results.add(f"cpu/{tool}/{window}", name, cpu * 1e6)
            run.results.add(f"calls/{tool}/{window}", name, timing.per_second)
            run.results.add(f"p50/{tool}/{window}", name, percentile(timing, 50))
            run.results.add(f"p99/{tool}/{window}", name, percentile(timing, 99))


def in_turn(items: Sequence[T], turn: int) -> list[T]:
    """The items begun from another one each round, so that none always follows the same neighbour's load."""
    first = turn % len(items) if items else 0
    return [*items[first:], *items[:first]]


def percentile(timing: Timing, percent: int) -> float:
    """The latency, in µs, that `percent` of the calls did not exceed."""
    ordered = sorted(timing.latencies)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] * 1e6


def _warm_up(servers: Sequence[ServerProcess], plan: Plan) -> None:
    for server in servers:
        for name, tool in TOOLS.items():
            result = server.request("tools/call", {"name": name, "arguments": tool.arguments})
            if tool.answer not in result["content"][0]["text"]:
                raise server.failed(f"{name} answered {result}")
            drive(server, Request.call(name, tool.arguments), window=WINDOWS[-1], seconds=plan.burst / 4)


def _first_list(server: ServerProcess) -> float:
    server.initialize()
    server.list_tools()
    return (perf_counter() - server.spawned_at) * 1e3


def _lists_per_second(server: ServerProcess, count: int, seconds: float) -> float:
    """Whole lists a second, from the rate of first pages; raises ServerFailed if `count` tools are not listed."""
    pages = server.list_tools()
    listed = sum(len(page) for page in pages)
    if listed != count:
        raise server.failed(f"listed {listed} tools, not {count}")
    timing = drive(server, Request.of("tools/list", {}), window=1, seconds=seconds)
    return timing.per_second / len(pages)
