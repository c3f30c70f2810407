"""The measurements of proxies: what a call costs more, what a client opens, and what many servers weigh."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any, Final

from defserve.auth.api_keys import ApiKeys
from tests.bench.contenders import HttpContender
from tests.bench.http_measure import ERAS
from tests.bench.http_process import HttpServer
from tests.bench.http_traffic import Connection, call, connected, drive, exchange, open_session
from tests.bench.measure import ADDENDS, Run, in_turn, percentile
from tests.bench.processes import ServerFailed, cpu_seconds_of, list_children
from tests.bench.targets import SUBJECT
from tests.waiting import wait_until

from .roads import DIRECT, HERE, KINDS, PATIENCE, PLAIN, Place, Road, roads, url_entry, url_of, wait_connected

AT_ONCE: Final = (1, 8)
CALLS_OF_A_CLIENT: Final = 20
MANY: Final = 50
SERVERS: Final = 10
CALLS_OF_A_SERVER: Final = 10
SPARES: Final = 4
CALLS_AT_ONCE: Final = 40
PAUSE_SECONDS: Final = 1.0
"""In which the rate of a key lets as many calls through again."""
MEGABYTE: Final = 2**20 / 1e6


def measure_calls(run: Run) -> None:
    """Median and processor time of a call on every road, and the conversations that one client causes behind it."""
    with _place(run) as place, ExitStack() as stack:
        drivers = [_Driver(road) for road in roads(stack, place)]
        for driver in drivers:
            for era in driver.road.tools:
                driver.warm_up(era, run.plan.http_burst / 2)
        for turn in range(run.plan.service_rounds):
            for kind in KINDS:
                for era in ERAS:
                    run.say(f"proxy to {kind}, {era}, {turn + 1}/{run.plan.service_rounds}")
                    able = [each for each in drivers if each.road.kind == kind and era in each.road.tools]
                    for window in AT_ONCE:
                        _one_round(run, in_turn(able, turn), era, window)
        for driver in drivers:
            if driver.road.name != DIRECT:
                run.say(f"proxy to {driver.road.kind}: conversations of {driver.road.name}")
                before = place.conversations()
                driver.one_client()
                grown = place.conversations() - before
                run.results.add(f"proxy-opened/to {driver.road.kind}", driver.road.name, grown)


def measure_many(run: Run) -> None:
    """What 50 connected servers weigh in a kernel, and what they cost a tool of the server's own."""
    with _place(run) as place, HttpServer(place.backend(), run.launch) as backend:
        run.say(f"proxy beside {MANY} servers: memory")
        entries = [url_entry(f"s{number}", url_of(backend)) for number in range(MANY)]
        with HttpServer(place.kernel("many", *entries), run.launch) as kernel:
            wait_connected(place.config("many"), MANY)
            run.results.add(f"proxy-memory/{MANY} servers at addresses", SUBJECT, kernel.resident() * MEGABYTE)
        with ExitStack() as stack:
            local = [_mounting(stack, run, count, url_of(backend)) for count in (0, MANY)]
            for turn in range(run.plan.service_rounds):
                run.say(f"proxy beside {MANY} servers {turn + 1}/{run.plan.service_rounds}")
                for count, driver in in_turn(local, turn):
                    cpu, _ = driver.burst("session", 1, run.plan.http_burst)
                    run.results.add(f"proxy-local/{count} servers", SUBJECT, cpu)


def measure_hanging(run: Run) -> None:
    """90 calls at once to nine servers, while ten more calls hang in a tenth, and while they do not."""
    with _place(run) as place, HttpServer(place.backend(), run.launch) as backend, ExitStack() as stack:
        names = [f"s{number}" for number in range(SERVERS)]
        kernel = place.kernel("hanging", *(url_entry(name, url_of(backend)) for name in names))
        server = stack.enter_context(HttpServer(kernel, run.launch))
        wait_connected(place.config("hanging"), SERVERS)
        others = stack.enter_context(connected(server, (SERVERS - 1) * CALLS_OF_A_SERVER))
        for number, connection in enumerate(others):
            connection.request = call(server, f"{names[1 + number % (SERVERS - 1)]}_add", ADDENDS, None)
        drive(server, others, run.plan.http_burst)
        for turn in range(run.plan.service_rounds):
            run.say(f"proxy beside a server that hangs {turn + 1}/{run.plan.service_rounds}")
            alone = drive(server, others, run.plan.http_burst)
            with connected(server, CALLS_OF_A_SERVER) as hanging:
                for number, connection in enumerate(hanging):
                    request = call(server, f"{names[0]}_hang", {}, None)
                    connection.socket.sendall(request.numbered(2_000_000 + number))
                beside = drive(server, others, run.plan.http_burst)
            run.results.add("proxy-hanging/none hangs", SUBJECT, percentile(alone, 99))
            run.results.add("proxy-hanging/one hangs", SUBJECT, percentile(beside, 99))


def measure_callers(run: Run) -> None:
    """Stateless calls by who calls: with a key, at a server that all share, and without a key, with spares and without.

    A caller without a key gets a process that nobody has used. Calls that come together, as many as there are spares,
    are timed up to the last; then the spares are there again before the next round.
    """
    pepper = {**run.launch.environment, "DEFSERVE_KEYS_PEPPER": "a pepper that is long enough"}
    with _place(run) as place, ExitStack() as stack:
        place = place._replace(launch=run.launch._replace(environment=pepper))
        token = asyncio.run(_make_key(place.folder / "keys.json", pepper["DEFSERVE_KEYS_PEPPER"]))
        own, shared = place.child_entry("own"), place.child_entry("shared", 'per = "shared"')
        keyed_kernel = place.kernel("keyed", '[kernel]\nkeys = "keys.json"\n', own, shared)
        keyed = stack.enter_context(HttpServer(keyed_kernel, place.launch))
        direct = stack.enter_context(HttpServer(place.backend(), place.launch))
        wait_connected(place.config("keyed"), 2)
        bearer = {"Authorization": f"Bearer {token}"}
        calls = {
            "with a key": (keyed, call(keyed, "own_add", ADDENDS, None, bearer)),
            "shared": (keyed, call(keyed, "shared_add", ADDENDS, None, bearer)),
            "direct": (direct, call(direct, "add", ADDENDS, None)),
        }
        open_ = {name: (server, stack.enter_context(connected(server, 1))) for name, (server, _) in calls.items()}
        for name, (_, connections) in open_.items():
            connections[0].request = calls[name][1]
        for turn in range(run.plan.service_rounds):
            run.say(f"proxy by caller {turn + 1}/{run.plan.service_rounds}")
            sleep(PAUSE_SECONDS)
            medians = {name: _time_calls(*each) for name, each in open_.items()}
            for name in ("with a key", "shared"):
                run.results.add(f"proxy-callers/{name}", SUBJECT, (medians[name] - medians["direct"]) / 1000)
        for spares in (0, SPARES):
            name = f"spare{spares}"
            kernel = place.kernel(name, place.child_entry("own", f"spares = {spares}"))
            server = stack.enter_context(HttpServer(kernel, place.launch))
            wait_connected(place.config(name), 1)
            for turn in range(run.plan.service_rounds):
                run.say(f"proxy without a key, {spares} spares {turn + 1}/{run.plan.service_rounds}")
                _wait_for_children(server, 1 + spares)
                with connected(server, SPARES) as connections:
                    for connection in connections:
                        connection.request = call(server, "own_add", ADDENDS, None)
                    slowest = percentile(drive(server, connections, 0), 100)
                measure = "with a spare each" if spares else "without spares"
                run.results.add(f"proxy-strangers/{measure}", SUBJECT, slowest / 1000)


PROXY: dict[str, Callable[[Run], None]] = {
    "proxy-calls": measure_calls,
    "proxy-many": measure_many,
    "proxy-hanging": measure_hanging,
    "proxy-callers": measure_callers,
}


class _Driver:
    """A road, and one client on it. Each burst has its own connections: some servers close those that idle."""

    def __init__(self, road: Road) -> None:
        self.road = road
        with connected(road.server, 1) as (connection,):
            self._session = open_session(road.server, connection)

    def warm_up(self, era: str, seconds: float) -> None:
        """Wait until the server behind answers, then call it for a while."""
        wait_until(lambda: self._answers(era), PATIENCE)
        self.burst(era, max(AT_ONCE), seconds)

    def burst(self, era: str, window: int, seconds: float) -> tuple[float, float]:
        """The processor time of a call and its median, both in µs."""
        server = self.road.server
        with connected(server, window) as connections:
            self._use(era, connections)
            drive(server, connections, 0)
            before = server.cpu_seconds()
            timing = drive(server, connections, seconds)
            cpu = (server.cpu_seconds() - before) / len(timing.latencies)
        return cpu * 1e6, percentile(timing, 50)

    def one_client(self) -> None:
        """A client comes, calls a few times, and stays."""
        server = self.road.server
        with connected(server, 1) as (connection,):
            request = call(server, self.road.tools["session"], ADDENDS, open_session(server, connection))
            for number in range(CALLS_OF_A_CLIENT):
                exchange(server, connection, request.numbered(3_000_000 + number))

    def ask(self, tool: str) -> Any:
        """The value of a tool without arguments."""
        server = self.road.server
        with connected(server, 1) as (connection,):
            reply = exchange(server, connection, call(server, tool, {}, None).numbered(4_000_000))
        return json.loads(json.loads(reply.partition(b"\r\n\r\n")[2])["result"]["content"][0]["text"])

    def _answers(self, era: str) -> bool:
        try:
            with connected(self.road.server, 1) as connections:
                self._use(era, connections)
                drive(self.road.server, connections, 0)
        except ServerFailed:
            return False
        return True

    def _use(self, era: str, connections: Sequence[Connection]) -> None:
        session = self._session if era == "session" else None
        for connection in connections:
            connection.request = call(self.road.server, self.road.tools[era], ADDENDS, session)


def _one_round(run: Run, drivers: Sequence[_Driver], era: str, window: int) -> None:
    medians: dict[str, float] = {}
    for driver in drivers:
        name = f"to {driver.road.kind}, {era}/{window}"
        cpu, median = driver.burst(era, window, run.plan.http_burst)
        medians[driver.road.name] = median
        run.results.add(f"proxy-cpu/{name}", driver.road.name, cpu)
        run.results.add(f"proxy-p50/{name}", driver.road.name, median)
    for driver in drivers:
        if driver.road.name != DIRECT:
            name = f"to {driver.road.kind}, {era}/{window}"
            run.results.add(f"proxy-added/{name}", driver.road.name, medians[driver.road.name] - medians[DIRECT])


def _time_calls(server: HttpServer, connections: list[Connection]) -> float:
    """The median of calls one after another: no more than a caller with a key may send at once."""
    return median(percentile(drive(server, connections, 0), 50) for _ in range(CALLS_AT_ONCE))


async def _make_key(file: Path, pepper: str) -> str:
    keys = ApiKeys(file, pepper=pepper)
    made = await keys.create("ann", permissions=["ToolInvoke(*)", "ToolsListAll"])
    await keys.close()
    return made.token


def _wait_for_children(server: HttpServer, count: int) -> None:
    """Wait until a kernel has so many processes below it, and all of them are done with starting."""

    def read_state() -> tuple[int, float]:
        children = list_children(server.pid)
        return len(children), sum(cpu_seconds_of(pid) for pid in children)

    def has_started() -> bool:
        before = read_state()
        sleep(0.3)
        return before[0] >= count and before == read_state()

    wait_until(has_started, PATIENCE)


def _mounting(stack: ExitStack, run: Run, count: int, url: str) -> tuple[int, _Driver]:
    script = HttpContender(SUBJECT, HERE / "mounting_server.py", (str(count), url))
    server = stack.enter_context(HttpServer(script, run.launch))
    driver = _Driver(Road(SUBJECT, "http", server, PLAIN))
    wait_until(lambda: driver.ask("connected") == count, PATIENCE)
    driver.warm_up("session", run.plan.http_burst)
    return count, driver


@contextmanager
def _place(run: Run) -> Generator[Place]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        yield Place(Path(folder), run.launch, Path(folder) / "opened")
