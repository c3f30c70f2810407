"""MGP §11.3: health. Whether the server answers, its status, and what the author's checks say.

`unhealthy`: the server drains, a critical check fails, or all of several checks fail. `degraded`: some check fails.
Otherwise `healthy`. A ping answers at once with what is known, which is `degraded` until the checks have run once.
`mgp/health/status` and `/readyz` run the checks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias

from defserve.auth.authority import is_stranger
from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mgp import instants
from defserve.wire.messages import Params

if TYPE_CHECKING:
    import asyncio

    from defserve.core.registry import Registry
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.lifecycle.checks import CheckResult, HealthCheck

HealthStatus: TypeAlias = Literal["healthy", "degraded", "unhealthy"]

# Seconds for which a probe, or a ping, is answered with the latest results before the checks run again.
FRESH = 1.0
STALE = 10.0

_SANDBOX = "defserve.sandbox.layers"


class HealthSection:
    """`mgp/health/*`, and what the probes of a web server say."""

    def __init__(self, server_id: str, tools: Registry[Tool], checks: Callable[[], Mapping[str, HealthCheck]]) -> None:
        self._server_id, self._tools, self._checks = server_id, tools, checks
        self.results: Mapping[str, CheckResult] = {}
        self._found_at: float | None = None
        self._round: asyncio.Task[None] | None = None

    # -- methods -----------------------------------------------------------------------------------------

    def ping(self, call: Call, params: Params) -> Params:
        """Answered at once, whatever else runs."""
        composition = call.session.composition
        if self._checks() and call.engine.ready and not self._is_known(STALE):
            call.engine.spawn(self.run_checks())
        return {
            "status": self.status_of(composition),
            "timestamp": instants.wire(instants.now()),
            "uptime_secs": int(monotonic() - composition.service.began),
            "server_id": self._server_id,
        }

    async def status(self, call: Call, params: Params) -> Params:
        """The health in detail. An anonymous caller is told the status, and how many tools it sees."""
        composition = call.session.composition
        await self.run_checks()
        seen = sum(composition.visible(call, tool) for tool in self._tools)
        knows_caller = not is_stranger(identity(call))
        pending = [one for one in composition.calls() if one is not call and not one.endless]
        found: Params = {
            "status": self.status_of(composition),
            "uptime_secs": int(monotonic() - composition.service.began),
            "tools_available": 0 if composition.draining else seen,
            "tools_total": len(self._tools) if knows_caller else seen,
            "pending_requests": len(pending),
        }
        return found | self._details(composition) if knows_caller else found

    def _details(self, composition: Composition) -> Params:
        resources: Params = {"open_connections": len(composition.sessions) + len(composition.short_sessions)}
        if (memory := memory_bytes()) is not None:
            resources["memory_bytes"] = memory
        if _SANDBOX in sys.modules:  # if it is not imported, nothing here runs in a sandbox
            from defserve.sandbox.layers import probe

            resources["sandbox_layers"] = list(probe().names)
        problems = {name: found.problem for name, found in self.results.items() if found.problem is not None}
        details: Params = {"resources": resources, "checks": {name: name not in problems for name in self.results}}
        return details | ({"problems": problems} if problems else {})

    # -- checks ------------------------------------------------------------------------------------------

    async def readiness(self, composition: Composition) -> HealthStatus:
        """For probes, which may come from anybody: the checks run once a second at most."""
        if not self._is_known(FRESH):
            await self.run_checks()
        return self.status_of(composition)

    def status_of(self, composition: Composition) -> HealthStatus:
        """What follows from the latest results."""
        if composition.draining:
            return "unhealthy"
        if self._found_at is None and self._checks():
            return "degraded"
        return status_from(self.results.values())

    async def run_checks(self) -> None:
        """Run every check, all at once. Whoever asks while they run waits for the same results."""
        import asyncio

        current = self._round
        if current is None or current.done() or current.get_loop() is not asyncio.get_running_loop():
            self._round = current = asyncio.ensure_future(self._run_checks())
        await asyncio.shield(current)

    async def _run_checks(self) -> None:
        import asyncio

        checks = self._checks()
        found = await asyncio.gather(*(check.run() for check in checks.values()))
        self.results, self._found_at = dict(zip(checks, found, strict=True)), monotonic()

    def _is_known(self, seconds: float) -> bool:
        return self._found_at is not None and monotonic() - self._found_at < seconds


def status_from(results: Iterable[CheckResult]) -> HealthStatus:
    """The status that follows from the results of checks."""
    found = list(results)
    failing = [result for result in found if result.problem is not None]
    if not failing:
        return "healthy"
    is_all = len(failing) == len(found) > 1
    return "unhealthy" if is_all or any(result.critical for result in failing) else "degraded"


def memory_bytes() -> int | None:
    """The memory of the process; its peak, on systems that tell only that."""
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
