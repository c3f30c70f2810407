"""Tells peers and the audit trail how the servers of a kernel are (§11.4, §11.5)."""

from __future__ import annotations

from typing import Final

from defserve.kernel.members import Member
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.agreed import sections_of
from defserve.protocols.mgp.lifecycle.lifecycle import (
    DEFAULT_REASON,
    REASONS,
    TRANSITIONS,
    LifecycleState,
    tell,
)
from defserve.proxying.restarts import RefusalReason
from defserve.proxying.states import TOLD, Transition
from defserve.server.server import Server

# What a supervisor does besides the diagram of §11.2: an operator may stop a server in any state, and start it again.
STOPPED: Final[LifecycleState] = "disconnected"
STARTED: Final[tuple[LifecycleState, LifecycleState]] = ("registered", "connecting")
# The one of the five reasons of §11.4 that is nearest to too many restarts. `detail` says what really happened.
LIMIT_REASON: Final = "resource_limit"
# The events of §6.4 for the states that they are about.
EVENTS: Final = {"connected": "SERVER_CONNECTED", "disconnected": "SERVER_DISCONNECTED", "error": "SERVER_DISCONNECTED"}


class LifecycleNotices:
    """Sends `notifications/mgp.lifecycle` for each change of a server to the peers that negotiated it."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def tell(self, member: Member, change: Transition) -> None:
        """A server has changed its state."""
        previous, new = change.previous, change.new
        if new not in TRANSITIONS[previous] and new != STOPPED:
            # An operator started a server that had ended: to its peers that is a new one.
            previous = STARTED[0] if new == STARTED[1] else previous
        text = member.hidden(change.reason)
        is_limit = text.startswith(RefusalReason.LIMIT)
        params = {
            "server_id": member.id,
            "previous_state": previous,
            "new_state": new,
            "reason": change.reason if change.reason in REASONS else LIMIT_REASON if is_limit else DEFAULT_REASON,
            "detail": TOLD[new],
            "timestamp": instants.wire(instants.now()),
        }
        for session in self._server.composition.sessions:
            if session.terms is not None and "lifecycle" in sections_of(session.terms):
                tell(session, params)
        if (event := EVENTS.get(new)) is not None:
            details = {"previous_state": previous, "state": new, "reason": RefusalReason.LIMIT if is_limit else text}
            self._server.mgp.audit.record(event, member.id, "SUCCESS" if new == "connected" else "ERROR", details)
