"""Errors between participants, beyond those between any two peers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from defserve.errors import PeerGone, Refused

MOST_NAMES: Final = 20


class NotCapable(Refused):
    """The welcome did not list a capability for this kind. `data` says what was attempted and what is allowed."""

    error_type = "capability_violation"

    def __init__(self, kind: str, capabilities: Iterable[str]) -> None:
        data = {"attempted_kind": kind, "your_capabilities": [*capabilities]}
        super().__init__(f"no capability for {kind!r}", data=data)


class ProposalNotPending(Refused):
    """A proposal that was fulfilled, declined, withdrawn or has expired."""

    error_type = "proposal_not_pending"


class NotPresent(PeerGone):
    """The participant is not in the topic. `data` says who is."""

    def __init__(self, participant: str, present: Iterable[str]) -> None:
        here = sorted(present)
        super().__init__(f"{participant!r} is not in the topic; {_listed(here)}", data={"participants": here})


class NotWelcome(Refused):
    """A message was sent before the gateway's welcome, or while the gateway is away."""

    error_type = "not_in_topic"


def _listed(here: list[str]) -> str:
    if not here:
        return "nobody else is here"
    more = f" and {len(here) - MOST_NAMES} more" if len(here) > MOST_NAMES else ""
    return f"here are: {', '.join(here[:MOST_NAMES])}{more}"
