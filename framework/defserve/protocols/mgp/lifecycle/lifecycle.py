"""MGP §11.2, §11.4: lifecycle. The seven states, who is told of a change, and a shutdown that lets calls finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from defserve.auth.authority import is_local
from defserve.auth.principals import LOCAL, Principal
from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.identity import SENDER
from defserve.core.service.phases import Phase, Service
from defserve.core.session import Session
from defserve.errors import DefserveError, InvalidParams
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.errors import AccessDenied
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mgp.access.policy import AccessPolicy
    from defserve.protocols.mgp.audit.trail import AuditTrail

CHANGED = "notifications/mgp.lifecycle"
REFUSED = "dev.defserve.shutdown_refused"

LifecycleState: TypeAlias = Literal[
    "registered", "connecting", "connected", "draining", "disconnected", "error", "restarting"
]

# §11.2: the edges of the diagram; `error` is also where a running or restarting server goes when it fails (§11.5).
TRANSITIONS: Mapping[LifecycleState, frozenset[LifecycleState]] = {
    "registered": frozenset({"connecting"}),
    "connecting": frozenset({"connected", "error"}),
    "connected": frozenset({"draining", "error"}),
    "draining": frozenset({"disconnected", "restarting"}),
    "disconnected": frozenset(),
    "error": frozenset({"restarting"}),
    "restarting": frozenset({"connected", "error"}),
}

# The phases of a server in the words of §11.2. Restarting is up to its kernel.
STATES: Mapping[Phase, LifecycleState] = {
    "idle": "registered",
    "starting": "connecting",
    "serving": "connected",
    "draining": "draining",
    "stopped": "disconnected",
    "failed": "error",
}

REASONS = ("operator_request", "configuration_change", "resource_limit", "idle_timeout", "kernel_shutdown")
# The reason that is given when no request asked for the shutdown: a signal came, or the input ended.
DEFAULT_REASON = REASONS[0]


class IllegalTransition(DefserveError):
    """A server cannot go from the one state to the other."""


def check_transition(previous: LifecycleState, new: LifecycleState) -> None:
    """Raises IllegalTransition for a step that §11.2 does not have."""
    if new not in TRANSITIONS[previous]:
        raise IllegalTransition(f"a server that is {previous} cannot become {new}")


class LifecycleSection:
    """`mgp/lifecycle/shutdown` and `notifications/mgp.lifecycle`. `clock` is the wall clock."""

    def __init__(
        self,
        server_id: str,
        access: AccessPolicy | None,
        audit: Callable[[], AuditTrail],
    ) -> None:
        self._server_id, self._access, self._audit, self.clock = server_id, access, audit, instants.now

    def phase_changed(self, service: Service, previous: Phase, listeners: Iterable[Session]) -> None:
        """Tell the peers that negotiated it that the state has changed."""
        params = self._change(STATES[previous], STATES[service.phase], service.reason)
        for session in listeners:
            tell(session, params)

    def connected(self, session: Session) -> None:
        """Tell a peer that its handshake is over. It could not be told of the states before."""
        if session.composition.service.phase == "serving":
            tell(session, self._change("connecting", "connected", ""))

    def told(self, session: Session, params: Params) -> None:
        """A kernel tells this server to drain, in the form of §11.4. Whoever may not ask for a shutdown is ignored."""
        if params.get("new_state") != "draining" or params.get("server_id", self._server_id) != self._server_id:
            return
        sender, composition = SENDER.get(), session.composition
        caller = sender if isinstance(sender, Principal) else LOCAL
        if not self._may_stop(caller):
            import logging

            logging.getLogger("defserve").warning("%s may not shut this server down: %s ignored", caller.id, CHANGED)
        elif composition.service.phase == "serving":
            composition.service.stop(composition.limits.drain, reason_of(params))

    def _change(self, before: LifecycleState, after: LifecycleState, reason: str) -> Params:
        check_transition(before, after)
        return {
            "server_id": self._server_id,
            "previous_state": before,
            "new_state": after,
            "reason": reason or DEFAULT_REASON,
            "timestamp": instants.wire(self.clock()),
        }

    def shutdown(self, call: Call, params: Params) -> Params:
        """Drain and end. Raises AccessDenied for a caller who may not ask for it, InvalidParams for bad params.

        Answered at once, whatever else runs: it must reach a server that is stuck.
        """
        self._check(call)
        composition = call.session.composition
        reason, seconds = reason_of(params), _seconds(params, composition)
        pending = [one for one in composition.calls() if one is not call and not one.endless]
        if composition.service.phase == "serving":
            self._audit().report(call, "SERVER_DISCONNECTED", details={"reason": reason})
            composition.service.stop(seconds, reason)
        # Calls that are not done in time are ended, so no call can make the drain longer.
        options = [getattr(one.subject, "options", None) for one in pending]
        longest = max((getattr(each, "timeout", None) or composition.limits.tool for each in options), default=0.0)
        return {
            "accepted": True,
            "pending_requests": len(pending),
            "estimated_drain_ms": int(min(longest, seconds) * 1000),
        }

    def _check(self, call: Call) -> None:
        caller = identity(call)
        if self._may_stop(caller):
            return
        self._audit().report(call, REFUSED, result="BLOCKED", details={"method": call.method})
        raise AccessDenied(f"{caller.id} may not shut this server down", details={"agent_id": caller.id})

    def _may_stop(self, caller: Principal) -> bool:
        return is_local(caller) or (self._access is not None and self._access.is_admin(caller))


def tell(session: Session, params: Params) -> None:
    """Send a change of state to a peer, from whatever thread."""
    if session.engine.on_loop():
        session.notify(CHANGED, params)
    else:
        session.engine.post(lambda: session.notify(CHANGED, params))


def reason_of(params: Params) -> str:
    """Why a server is asked to end. Raises InvalidParams for a reason that MGP does not know."""
    reason = params.get("reason", DEFAULT_REASON)
    if reason not in REASONS:
        raise InvalidParams(f"Invalid params: reason must be one of {', '.join(REASONS)}")
    return reason


def _seconds(params: Params, composition: Composition) -> float:
    """How long calls may take to finish, at most as long as the limits allow."""
    limits = composition.limits
    given: Any = params.get("timeout_ms", limits.drain * 1000)
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise InvalidParams("Invalid params: timeout_ms must be a number of milliseconds, 0 or more")
    return min(given / 1000, limits.tool_max)
