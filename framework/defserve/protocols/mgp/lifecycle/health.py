"""MGP §11.3: health. Whether it answers, how it is, and what the author's checks say of it.

`unhealthy`: it drains, a critical check fails, or every one of several does. `degraded`: some check fails.
Else `healthy`. A ping answers at once with what is known; `mgp/health/status` and `/readyz` ask the checks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.errors import UsageError
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mgp import instants
from defserve.wire.messages import Params

if TYPE_CHECKING:
    import asyncio

    from defserve.protocols.mgp.extension import MGP

Status: TypeAlias = Literal["healthy", "degraded", "unhealthy"]

TIMEOUT = 5.0
# For how long probes are answered with what was found before, and pings before they look again.
FRESH = 1.0
STALE = 10.0

_SANDBOX = "defserve.sandbox.layers"


class Finding(NamedTuple):
    """What a check found: what is wrong, or None."""

    problem: str | None
    critical: bool


class HealthCheck:
    """A function of the author's that says whether something the server needs is there; see `Server.health_check`.

    It is never run twice at the same time: one that hangs costs one thread, and fails until it comes back.
    """

    def __init__(self, function: Callable[[], Any], name: str, timeout: float, critical: bool) -> None:
        if name == "<lambda>":
            raise UsageError("a health check needs a name", fix='write a def, or @server.health_check(name="…")')
        if not callable(function) or _wants_arguments(function):
            raise UsageError(f"health check {name!r} has to be a function without parameters", fix="let it take none")
        if not timeout > 0:
            raise UsageError(f"health check {name!r}: timeout={timeout!r}", fix="give seconds, more than 0")
        self.function, self.name, self.timeout, self.critical = function, name, timeout, critical
        self._running: asyncio.Future[Any] | None = None

    async def run(self) -> Finding:
        """Never raises, and never takes longer than its time."""
        return Finding(await self._problem(), self.critical)

    async def _problem(self) -> str | None:
        import asyncio

        before = self._running
        if before is not None and not before.done() and before.get_loop() is asyncio.get_running_loop():
            return "still busy with the check before"
        self._running = running = self._begin()
        await asyncio.wait((running,), timeout=self.timeout)
        if not running.done():
            if isinstance(running, asyncio.Task):
                running.cancel()
            return f"no answer within {self.timeout:g} s"
        try:
            return _problem(running.result())
        except (Exception, asyncio.CancelledError) as error:
            import logging

            # Its text may hold what a client should not read.
            logging.getLogger("defserve").warning("health check %s failed", self.name, exc_info=error)
            return type(error).__name__

    def _begin(self) -> asyncio.Future[Any]:
        import asyncio
        from inspect import iscoroutinefunction

        if iscoroutinefunction(self.function) or iscoroutinefunction(type(self.function).__call__):
            return asyncio.ensure_future(self.function())
        return _in_thread_of_its_own(self.function, self.name)


class Health:
    """`mgp/health/*`, and what the probes of a web server say."""

    def __init__(self, mgp: MGP) -> None:
        self._mgp = mgp
        self.findings: Mapping[str, Finding] = {}
        self._found_at: float | None = None
        self._round: asyncio.Task[None] | None = None

    # -- methods -----------------------------------------------------------------------------------------

    def ping(self, call: Call, params: Params) -> Params:
        """Answered at once, so that it is answered whatever else runs."""
        composition = call.session.composition
        if self._mgp.all_checks() and call.engine.ready and not self._is_known(STALE):
            call.engine.spawn(self.look())
        return {
            "status": self.status_of(composition),
            "timestamp": instants.wire(instants.now()),
            "uptime_secs": _uptime(composition),
            "server_id": self._mgp.server_id,
        }

    async def status(self, call: Call, params: Params) -> Params:
        """How it is in detail; strangers learn the status and how many tools there are for them."""
        composition = call.session.composition
        await self.look()
        seen = sum(composition.visible(call, tool) for tool in self._mgp.tools)
        knows_caller = identity(call.session).kind != "anonymous"
        pending = [one for one in composition.calls() if one is not call and not one.endless]
        found: Params = {
            "status": self.status_of(composition),
            "uptime_secs": _uptime(composition),
            "tools_available": 0 if composition.draining else seen,
            "tools_total": len(self._mgp.tools) if knows_caller else seen,
            "pending_requests": len(pending),
        }
        return found | self._details(composition) if knows_caller else found

    def _details(self, composition: Composition) -> Params:
        resources: Params = {"open_connections": len(composition.sessions) + len(composition.short_sessions)}
        if (memory := _memory_bytes()) is not None:
            resources["memory_bytes"] = memory
        if _SANDBOX in sys.modules:  # else nothing here runs in one
            from defserve.sandbox.layers import probe

            resources["sandbox_layers"] = list(probe().names)
        problems = {name: found.problem for name, found in self.findings.items() if found.problem is not None}
        checks = {name: name not in problems for name in self.findings}
        details: Params = {"resources": resources, "checks": checks}
        return details | ({"problems": problems} if problems else {})

    # -- checks ------------------------------------------------------------------------------------------

    async def readiness(self, composition: Composition) -> Status:
        """For probes, which may come from anybody: the checks are asked once a second at most."""
        if not self._is_known(FRESH):
            await self.look()
        return self.status_of(composition)

    def status_of(self, composition: Composition) -> Status:
        """What follows from the findings there are."""
        return "unhealthy" if composition.draining else derived(self.findings.values())

    async def look(self) -> None:
        """Ask every check, all at once. Who comes while they are asked waits for the same answers."""
        import asyncio

        current = self._round
        if current is None or current.done() or current.get_loop() is not asyncio.get_running_loop():
            self._round = current = asyncio.ensure_future(self._look())
        await asyncio.shield(current)

    async def _look(self) -> None:
        import asyncio

        checks = self._mgp.all_checks()
        found = await asyncio.gather(*(check.run() for check in checks.values()))
        self.findings = dict(zip(checks, found, strict=True))
        self._found_at = monotonic()

    def _is_known(self, seconds: float) -> bool:
        return self._found_at is not None and monotonic() - self._found_at < seconds


def derived(findings: Iterable[Finding]) -> Status:
    """The status that follows from what checks found."""
    found = list(findings)
    failing = [finding for finding in found if finding.problem is not None]
    if not failing:
        return "healthy"
    is_all = len(failing) == len(found) > 1
    return "unhealthy" if is_all or any(finding.critical for finding in failing) else "degraded"


def _problem(result: object) -> str | None:
    """None and True are good news; False, and a text that says more, are bad."""
    if result is None or result is True:
        return None
    return result if isinstance(result, str) else f"it returned {result!r}"[:200]


def _wants_arguments(function: Callable[..., Any]) -> bool:
    from inspect import Parameter, signature

    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return any(
        parameter.default is Parameter.empty and parameter.kind not in variable
        for parameter in signature(function).parameters.values()
    )


def _in_thread_of_its_own(function: Callable[[], Any], name: str) -> asyncio.Future[Any]:
    """Not one of the worker threads: tools may hold all of those, and that is when one wants to know."""
    import asyncio
    from contextlib import suppress
    from contextvars import copy_context
    from threading import Thread

    loop, context = asyncio.get_running_loop(), copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            can_pass = isinstance(error, Exception) and not isinstance(error, StopIteration)
            future.set_exception(error if can_pass else RuntimeError(repr(error)))
            future.exception()  # one that comes too late is nobody's

    def run() -> None:
        try:
            result, error = context.run(function), None
        except BaseException as raised:
            result, error = None, raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    Thread(target=run, name=f"defserve-health-{name}", daemon=True).start()
    return future


def _uptime(composition: Composition) -> int:
    return int(monotonic() - composition.service.began)


def _memory_bytes() -> int | None:
    """What the process has in memory; at its peak, where the system tells no more than that."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            pages = int(statm.read().split()[1])
        import os

        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        return None
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
