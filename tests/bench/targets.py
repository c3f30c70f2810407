"""The yardsticks that every release is held to: ratios of defserve to another in one run, and a few plain sizes."""

from __future__ import annotations

from typing import NamedTuple

from .results import Results

SUBJECT = "defserve"


class Target(NamedTuple):
    """defserve's `measure` over the base's must be at least, or at most, `bound`; without a base, the figure itself."""

    claim: str
    measure: str
    base_measure: str
    base: str
    at_least: bool
    bound: float
    unit: str = "×"

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}".rstrip()


class Verdict(NamedTuple):
    """A target as it came out; `met` is None if one side was not measured."""

    target: Target
    got: float | None
    met: bool | None


def _at_least(claim: str, measure: str, base: str, bound: float) -> Target:
    return Target(claim, measure, measure, base, True, bound)


def _at_most(claim: str, measure: str, base: str, bound: float) -> Target:
    return Target(claim, measure, measure, base, False, bound)


def _at_depth(what: str, depth: int) -> Target:
    """What costs the same in a small tree and a large one."""
    measure = f"state-{what}/depth"
    return Target(f"{what} at depth {depth:,}, to 10", f"{measure} {depth:,}", f"{measure} 10", SUBJECT, False, 2)


def _relayed(kind: str, microseconds: int) -> tuple[Target, ...]:
    """What a call through the kernel may cost, to a server of this kind."""
    found: list[Target] = []
    for era in ("session", "stateless"):
        case = f"to {kind}, {era}"
        found += [
            Target(f"kernel {case}: added median", f"proxy-added/{case}/1", "", "", False, microseconds, "µs"),
            _at_most(f"kernel {case}: processor time, to the direct call's", f"proxy-cpu/{case}/1", "direct", 4),
            _at_most(f"kernel {case}: processor time, to FastMCP's proxy", f"proxy-cpu/{case}/1", "fastmcp", 1 / 20),
        ]
    opened = f"proxy-opened/to {kind}"
    return (*found, Target(f"kernel to {kind}: conversations for one client", opened, "", "", False, 1, ""))


def _to_unshared(claim: str, measure: str, bound: float) -> Target:
    """What a call in a session that workers share may cost, to a plain one in a session that is kept in the process."""
    base = "shared-cpu/plain, kept in the process"
    return Target(f"{claim}, shared, processor time, to unshared", f"shared-cpu/{measure}", base, SUBJECT, False, bound)


def _scripts_of(call: str, bound: float) -> Target:
    """A worker renews its lease now and then, which is counted too."""
    measure = f"shared-scripts/{call}, 2 workers"
    return Target(f"scripts in Redis for a call: {call}", measure, "", "", False, bound, "")


CPU_OF = "workers-cpu/{}"
LOCAL, HANGING = "proxy-local/{} servers", "proxy-hanging/{} hangs"

TARGETS = (
    _at_most("start to first list, 3 tools, one of a model, to the floor", "start/model", "floor", 1.0),
    _at_most("start to first list, 3 scalar tools, to the floor", "start/scalar", "floor", 0.95),
    Target("the same, to a bare TypeAdapter process", "start/scalar", "start/typeadapter", "process", False, 1.0),
    _at_least("async calls, window 1, to the floor", "calls/add/1", "floor", 0.8),
    _at_most("async calls, window 1, processor time, to the floor", "cpu/add/1", "floor", 1.25),
    _at_least("async calls, window 32, to the floor", "calls/add/32", "floor", 0.5),
    _at_least("calls with a model, window 32, to the floor", "calls/price_order/32", "floor", 0.8),
    _at_least("async calls, window 1, to FastMCP", "calls/add/1", "fastmcp", 15),
    _at_least("async calls, window 1, to the SDK", "calls/add/1", "sdk", 10),
    _at_least("async calls, window 32, to FastMCP", "calls/add/32", "fastmcp", 80),
    _at_least("sync calls, window 1, to FastMCP", "calls/add_sync/1", "fastmcp", 12),
    _at_least("sync calls, window 32, to FastMCP", "calls/add_sync/32", "fastmcp", 20),
    Target("first list of 1,000 tools, to that of 3", "list/1000", "list/3", SUBJECT, False, 3),
    _at_most("memory after start, to the SDK", "memory/start", "sdk", 0.5),
    _at_most("memory after the calls, to the SDK", "memory/calls", "sdk", 0.5),
    _at_least("HTTP calls in a session, to a bare ASGI app", "http/session", "bare", 0.95),
    _at_least("HTTP calls, stateless, to a bare ASGI app", "http/stateless", "bare", 0.95),
    _at_most("HTTP calls in a session, processor time, to a bare ASGI app", "http-cpu/session", "bare", 0.75),
    _at_most("HTTP calls, stateless, processor time, to a bare ASGI app", "http-cpu/stateless", "bare", 0.75),
    _at_most("HTTP calls in a session, processor time, to a raw protocol", "http-cpu/session", "raw", 1.6),
    _at_most("HTTP calls, stateless, processor time, to a raw protocol", "http-cpu/stateless", "raw", 1.6),
    _at_least("HTTP calls in a session, to FastMCP", "http/session", "fastmcp", 20),
    _at_least("HTTP calls, stateless, to FastMCP", "http/stateless", "fastmcp", 20),
    Target("memory of an idle HTTP session, of 10,000", "http-memory/idle session", "", "", False, 4096, "bytes"),
    Target("health ping while 64 sync tools sleep, p99", "health-p99/64 sleeping sync tools", "", "", False, 100, "ms"),
    Target("HTTP calls beside a slow stream, p99", "stream-p99/add", "", "", False, 50, "ms"),
    Target("chunks that wait before an answer on a pipe", "stream-waiting/chunks", "", "", False, 65_536, "bytes"),
    _at_least("commits of 1 kB by 1 caller, to raw SQLite", "state-commits/1 kB, 1 callers", "sqlite", 0.5),
    _at_least("commits of 1 kB by 64 callers, to raw SQLite", "state-commits/1 kB, 64 callers", "sqlite", 0.5),
    _at_least("commits of 100 kB by 1 caller, to raw SQLite", "state-commits/100 kB, 1 callers", "sqlite", 0.5),
    _at_least("commits of 100 kB by 64 callers, to raw SQLite", "state-commits/100 kB, 64 callers", "sqlite", 0.5),
    _at_least("1 kB kept by the store alone, 1 caller, to raw SQLite", "state-writes/1 kB, 1 callers", "sqlite", 0.5),
    _at_least("1 kB kept by the store alone, 64 callers", "state-writes/1 kB, 64 callers", "sqlite", 0.5),
    _at_least("100 kB kept by the store alone, 1 caller", "state-writes/100 kB, 1 callers", "sqlite", 0.5),
    _at_least("100 kB kept by the store alone, 64 callers", "state-writes/100 kB, 64 callers", "sqlite", 0.5),
    _at_depth("read", 1_000),
    _at_depth("read", 100_000),
    _at_depth("rollback", 1_000),
    _at_depth("rollback", 100_000),
    Target("patch of one change to a 100 kB state", "state-bytes/patch", "state-bytes/data", SUBJECT, False, 0.01),
    Target("50 calls by code, over the same by the client", "code-over/one by one", "", "", False, 30, "ms"),
    Target(
        "processor time of a call, 2 workers to 1",
        CPU_OF.format("2 processes"),
        CPU_OF.format("1 process"),
        SUBJECT,
        False,
        1.05,
    ),
    Target("memory of an idle session over 4 workers", "workers-memory/in the workers", "", "", False, 8192, "bytes"),
    _to_unshared("a session call that shares nothing", "plain, 1 worker", 1.2),
    _to_unshared("a session call that tells all workers", "tells all, 1 worker", 5),
    _scripts_of("plain", 0.01),
    _scripts_of("stateless", 0.01),
    _scripts_of("tells all", 1.1),
    _at_least("HTTP calls, 2 workers, to a bare ASGI app with 2", "workers/2 processes", "bare", 0.8),
    _at_least("a topic of 2, to a bare broadcast", "gateway/2 participants", "bare", 0.6),
    _at_least("a topic of 50, to a bare broadcast", "gateway/50 participants", "bare", 0.6),
    _at_least("a topic of 500, to a bare broadcast", "gateway/500 participants", "bare", 0.6),
    *_relayed("stdio", 300),
    *_relayed("http", 600),
    *(
        Target(f"kernel over HTTP, {who}: added median", f"proxy-callers/{who}", "", "", False, 2, "ms")
        for who in ("with a key", "shared")
    ),
    Target(
        "the last of 4 calls at once without a key, with 4 spares, to without",
        "proxy-strangers/with a spare each",
        "proxy-strangers/without spares",
        SUBJECT,
        False,
        0.25,
    ),
    Target("kernel's memory with 50 servers", "proxy-memory/50 servers at addresses", "", "", False, 60, "MB"),
    Target("local tool beside 50 servers, to none", LOCAL.format(50), LOCAL.format(0), SUBJECT, False, 1.05),
    Target(
        "90 calls beside a server that hangs, p99", HANGING.format("one"), HANGING.format("none"), SUBJECT, False, 1.2
    ),
)


def judge(results: Results, targets: tuple[Target, ...] = TARGETS) -> list[Verdict]:
    return [_verdict(results, target) for target in targets]


def _verdict(results: Results, target: Target) -> Verdict:
    got = _got(results, target)
    if got is None:
        return Verdict(target, None, None)
    return Verdict(target, got, got >= target.bound if target.at_least else got <= target.bound)


def _got(results: Results, target: Target) -> float | None:
    if target.base:
        return results.ratio(target.measure, SUBJECT, target.base_measure, target.base)
    figure = results.figure(target.measure, SUBJECT)
    return figure.median if figure is not None else None
