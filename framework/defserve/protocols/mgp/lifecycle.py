"""MGP §11: lifecycle and health. The states of a server, its checks, and a shutdown that lets calls finish.

A ping and a shutdown are answered at once, whatever else runs. A check never raises and never takes longer than its
timeout.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from defserve.auth.authority import is_local_user, is_stranger
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.base.concurrency import wait_for_shared
from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import Extension, Handler, Listener
from defserve.core.messages import Params
from defserve.core.peer import CURRENT_SENDER
from defserve.core.service import Phase
from defserve.core.session import Session
from defserve.core.shapes import MemberKind, is_number, make_checked_kind, one_of, read_member
from defserve.errors import DefserveError, UsageError
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.errors import AccessDenied
from defserve.protocols.mgp.terms import get_agreed_sections

if TYPE_CHECKING:
    import asyncio

    from defserve.core.registry import Registry
    from defserve.protocols.mcp.tools import Tool
    from defserve.protocols.mgp.access import AccessPolicy
    from defserve.protocols.mgp.audit import AuditTrail


LIFECYCLE_METHOD = "notifications/mgp.lifecycle"
REFUSED = "dev.defserve.shutdown_refused"

LifecycleState: TypeAlias = Literal[
    "registered", "connecting", "connected", "draining", "disconnected", "error", "restarting"
]

# §11.2: the edges of the diagram; `error` is also where a running or restarting server goes when it fails (§11.5).
LIFECYCLE_TRANSITIONS: Mapping[LifecycleState, frozenset[LifecycleState]] = {
    "registered": frozenset({"connecting"}),
    "connecting": frozenset({"connected", "error"}),
    "connected": frozenset({"draining", "error"}),
    "draining": frozenset({"disconnected", "restarting"}),
    "disconnected": frozenset(),
    "error": frozenset({"restarting"}),
    "restarting": frozenset({"connected", "error"}),
}

# The phases of a server in the words of §11.2. Restarting is up to its kernel.
LIFECYCLE_STATE_BY_PHASE: Mapping[Phase, LifecycleState] = {
    "idle": "registered",
    "starting": "connecting",
    "serving": "connected",
    "draining": "draining",
    "stopped": "disconnected",
    "failed": "error",
}

SHUTDOWN_REASONS = ("operator_request", "configuration_change", "resource_limit", "idle_timeout", "kernel_shutdown")

# The reason that is given when no request asked for the shutdown: a signal came, or the input ended.
DEFAULT_SHUTDOWN_REASON = SHUTDOWN_REASONS[0]

MILLISECONDS: MemberKind[float] = make_checked_kind(
    "a number of milliseconds, 0 or more", lambda value: is_number(value) and value >= 0
)


class IllegalTransition(DefserveError):
    """A server cannot go from the one state to the other."""


def check_transition(previous: LifecycleState, new: LifecycleState) -> None:
    """Raises IllegalTransition for a step that §11.2 does not have."""
    if new not in LIFECYCLE_TRANSITIONS[previous]:
        raise IllegalTransition(f"a server that is {previous} cannot become {new}")


class LifecycleSection(Extension):
    """`mgp/lifecycle/shutdown` and `notifications/mgp.lifecycle`. `clock` is the wall clock."""

    def __init__(
        self,
        server_id: str,
        access: AccessPolicy | None,
        audit: Callable[[], AuditTrail],
        health: HealthSection,
    ) -> None:
        self._server_id, self._access, self._audit, self.clock = server_id, access, audit, vocabulary.utc_now
        self._health = health

    def methods(self) -> Mapping[str, Handler]:
        return {"mgp/lifecycle/shutdown": self.shutdown}

    def notifications(self) -> Mapping[str, Listener]:
        return {"notifications/initialized": self.on_initialized, LIFECYCLE_METHOD: self.on_state_notification}

    def phase_changed(self, composition: Composition, previous: Phase) -> None:
        """Tell the peers that negotiated it that the state has changed."""
        service = composition.service
        params = self._change(
            LIFECYCLE_STATE_BY_PHASE[previous], LIFECYCLE_STATE_BY_PHASE[service.phase], service.reason
        )
        for session in composition.sessions:
            if "lifecycle" in get_agreed_sections(session.terms):
                notify_lifecycle_state(session, params)

    def on_initialized(self, session: Session, params: Params) -> None:
        """Tell a peer that its handshake is over. It could not be told of the states before."""
        if "lifecycle" not in get_agreed_sections(session.terms):
            return
        if session.composition.service.phase == "serving":
            notify_lifecycle_state(session, self._change("connecting", "connected", ""))
        self._health.run_checks_soon(session)

    def on_state_notification(self, session: Session, params: Params) -> None:
        """A kernel tells this server to drain, in the form of §11.4. Whoever may not ask for a shutdown is ignored."""
        is_ours = params.get("server_id", self._server_id) == self._server_id
        if (
            params.get("new_state") != "draining"
            or not is_ours
            or "lifecycle" not in get_agreed_sections(session.terms)
        ):
            return
        sender, composition = CURRENT_SENDER.get(), session.composition
        caller = sender if isinstance(sender, Principal) else LOCAL_PRINCIPAL
        if not self._may_stop(caller):
            from defserve.base.redaction import get_logger

            get_logger().warning("%s may not shut this server down: %s ignored", caller.id, LIFECYCLE_METHOD)
        elif composition.service.phase == "serving":
            composition.service.stop(composition.limits.drain, read_shutdown_reason(params))

    def _change(self, before: LifecycleState, after: LifecycleState, reason: str) -> Params:
        check_transition(before, after)
        return {
            "server_id": self._server_id,
            "previous_state": before,
            "new_state": after,
            "reason": reason or DEFAULT_SHUTDOWN_REASON,
            "timestamp": vocabulary.format_instant(self.clock()),
        }

    def shutdown(self, call: Call, params: Params) -> Params:
        """Drain and end. Raises AccessDenied for a caller who may not ask for it, InvalidParams for bad params.

        Answered at once, whatever else runs: it must reach a server that is stuck.
        """
        caller, composition = identify_caller(call), call.session.composition
        if not self._may_stop(caller):
            self._audit().report_call_event(call, REFUSED, result="BLOCKED", details={"method": call.method})
            raise AccessDenied(f"{caller.id} may not shut this server down", details={"agent_id": caller.id})
        reason, limits = read_shutdown_reason(params), composition.limits
        milliseconds = read_member(params, "timeout_ms", MILLISECONDS, limits.drain * 1000, nullable=False)
        seconds = min(milliseconds / 1000, limits.tool_max)
        pending = [one for one in composition.list_calls() if one is not call and not one.endless]
        if composition.service.phase == "serving":
            self._audit().report_call_event(call, "SERVER_DISCONNECTED", details={"reason": reason})
            composition.service.stop(seconds, reason)
        # Calls that are not done in time are ended, so no call can make the drain longer.
        options = [getattr(one.subject, "options", None) for one in pending]
        longest = max((getattr(each, "timeout", None) or limits.tool for each in options), default=0.0)
        return {
            "accepted": True,
            "pending_requests": len(pending),
            "estimated_drain_ms": int(min(longest, seconds) * 1000),
        }

    def _may_stop(self, caller: Principal) -> bool:
        return is_local_user(caller) or (self._access is not None and self._access.is_admin(caller))


def notify_lifecycle_state(session: Session, params: Params) -> None:
    """Send a change of state to a peer, from whatever thread."""
    if session.engine.is_on_loop():
        session.notify(LIFECYCLE_METHOD, params)
    else:
        session.engine.post_to_loop(lambda: session.notify(LIFECYCLE_METHOD, params))


def read_shutdown_reason(params: Params) -> str:
    """Why a server is asked to end. Raises InvalidParams for a reason that MGP does not know."""
    return read_member(params, "reason", one_of(*SHUTDOWN_REASONS), DEFAULT_SHUTDOWN_REASON, nullable=False)


# -- MGP §11.3: health. Whether the server answers, its status, and what the author's checks say.
#
# `unhealthy`: the server drains, a critical check fails, or all of several checks fail. `degraded`: some check fails.
# Otherwise `healthy`. A ping answers at once with what is known, which is `degraded` until the checks have run once.
# `mgp/health/status` and `/readyz` run the checks.


HealthStatus: TypeAlias = Literal["healthy", "degraded", "unhealthy"]

# Seconds for which a probe, or a ping, is answered with the latest results before the checks run again.
FRESH = 1.0
STALE = 10.0

_SANDBOX = "defserve.sandbox.confinement"


class HealthSection(Extension):
    """`mgp/health/*`, and what the probes of a web server say."""

    def __init__(self, server_id: str, tools: Registry[Tool], checks: Callable[[], Mapping[str, HealthCheck]]) -> None:
        self._server_id, self._tools, self._checks = server_id, tools, checks
        self.results: Mapping[str, CheckResult] = {}
        self._found_at: float | None = None
        self._round: asyncio.Task[None] | None = None

    # -- methods -----------------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        return {"mgp/health/status": self.status, "mgp/health/ping": self.ping}

    def ping(self, call: Call, params: Params) -> Params:
        """Answered at once, whatever else runs."""
        composition = call.session.composition
        if not self._is_known(STALE):
            self.run_checks_soon(call.session)
        return {
            "status": self.status_of(composition),
            "timestamp": vocabulary.format_instant(vocabulary.utc_now()),
            "uptime_secs": int(monotonic() - composition.service.began),
            "server_id": self._server_id,
        }

    async def status(self, call: Call, params: Params) -> Params:
        """The health in detail. An anonymous caller is told the status, and how many tools it sees."""
        composition = call.session.composition
        await self.run_checks()
        seen = sum(composition.visible(call, tool) for tool in self._tools)
        knows_caller = not is_stranger(identify_caller(call))
        pending = [one for one in composition.list_calls() if one is not call and not one.endless]
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
        if (memory := measure_memory_bytes()) is not None:
            resources["memory_bytes"] = memory
        if _SANDBOX in sys.modules:  # if it is not imported, nothing here runs in a sandbox
            from defserve.sandbox.confinement import probe

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

    def run_checks_soon(self, session: Session) -> None:
        """Run the checks in the background, if there are any."""
        if self._checks() and session.engine.ready:
            session.engine.spawn(self.run_checks())

    async def run_checks(self) -> None:
        """Run every check, all at once. Whoever asks while they run waits for the same results."""
        import asyncio

        current = self._round
        if current is None or current.done() or current.get_loop() is not asyncio.get_running_loop():
            self._round = current = asyncio.ensure_future(self._run_checks())
        await wait_for_shared(current)

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


def measure_memory_bytes() -> int | None:
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


# -- MGP §11.3: one health check. It can neither block nor crash its caller.


class CheckResult(NamedTuple):
    """What a check found: what is wrong, or None."""

    problem: str | None
    critical: bool


class HealthCheck:
    """An author's function that says whether something the server needs is there; see `Server.health_check`.

    It never runs twice at the same time. A check that hangs holds one thread, and counts as failed until it returns.
    """

    def __init__(self, function: Callable[[], Any], name: str, timeout: float, critical: bool) -> None:
        if name == "<lambda>":
            raise UsageError("a health check needs a name", fix='write a def, or @server.health_check(name="…")')
        try:
            inspect.signature(function).bind()
        except TypeError:  # it is not callable, or needs arguments
            raise UsageError(
                f"health check {name!r} must be a function without parameters", fix="remove its parameters"
            ) from None
        if not timeout > 0:
            raise UsageError(f"health check {name!r} cannot have timeout={timeout!r}", fix="give seconds, more than 0")
        self.function, self.name, self.timeout, self.critical = function, name, timeout, critical
        self._running: asyncio.Future[Any] | None = None

    async def run(self) -> CheckResult:
        """Never raises, and never takes longer than `timeout`."""
        return CheckResult(await self._problem(), self.critical)

    async def _problem(self) -> str | None:
        import asyncio

        before = self._running
        if before is not None and not before.done() and before.get_loop() is asyncio.get_running_loop():
            return "the previous check is still running"
        self._running = running = self._begin()
        await asyncio.wait((running,), timeout=self.timeout)
        if not running.done():
            if isinstance(running, asyncio.Task):
                running.cancel()
            return f"no answer within {self.timeout:g} s"
        try:
            return _problem(running.result())
        except (Exception, asyncio.CancelledError) as error:
            from defserve.base.redaction import get_logger

            # The client reads only the type: the text may hold what it should not see.
            get_logger().warning("health check %s failed", self.name, exc_info=error)
            return type(error).__name__

    def _begin(self) -> asyncio.Future[Any]:
        import asyncio
        from inspect import iscoroutinefunction

        if iscoroutinefunction(self.function) or iscoroutinefunction(type(self.function).__call__):
            return asyncio.ensure_future(self.function())
        return _in_thread_of_its_own(self.function, self.name)


def _problem(result: object) -> str | None:
    """What a check's result says is wrong. None and True mean that all is well."""
    if result is None or result is True:
        return None
    return result if isinstance(result, str) else f"it returned {result!r}"[:200]


def _in_thread_of_its_own(function: Callable[[], Any], name: str) -> asyncio.Future[Any]:
    """Run it in a new thread. Tools may hold all worker threads, and just then a check matters most."""
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
            future.exception()  # marks it as seen, because nobody reads an error that comes too late

    def run() -> None:
        try:
            result, error = context.run(function), None
        except BaseException as raised:
            result, error = None, raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    Thread(target=run, name=f"defserve-health-{name}", daemon=True).start()
    return future
