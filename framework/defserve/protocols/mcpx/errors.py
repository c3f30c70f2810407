"""Errors between participants, beyond those between any two peers."""

from __future__ import annotations

from collections.abc import Iterable

from defserve.errors import Refused


class NotCapable(Refused):
    """The welcome did not list a capability for this kind. `data` says what was attempted and what is allowed."""

    error_type = "capability_violation"

    def __init__(self, kind: str, capabilities: Iterable[str]) -> None:
        data = {"attempted_kind": kind, "your_capabilities": [*capabilities]}
        super().__init__(f"no capability for {kind!r}", data=data)


class ProposalNotPending(Refused):
    """A proposal that was fulfilled, declined or has expired."""

    error_type = "proposal_not_pending"


class NotWelcome(Refused):
    """A message was sent before the gateway's welcome, or while the gateway is away."""

    error_type = "not_in_topic"
