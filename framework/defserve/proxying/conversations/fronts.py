"""Who is served: which calls may share one conversation with a backend."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.auth.authority import is_stranger
from defserve.protocols.mcp.apps.offer import OFFER, offers_apps
from defserve.protocols.mcp.authorization.authorization import identity

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import Session

OFFERED: Final = ("elicitation", "sampling", "roots")
"""What a front may offer to a backend, beside views. Everything else of its offer concerns us alone."""


class Front(NamedTuple):
    """One client, as a backend may know it. Calls with the same `key` share a conversation; None shares with nobody.

    `session` is its conversation with us, if it has one that lasts. `offers` is what it lets a backend ask of it.
    """

    key: Hashable | None
    session: Session | None
    offers: dict[str, Any]


def front_of(call: Call) -> Front:
    """The client behind a call: its session, else its verified principal, else nobody who comes again."""
    session, offer = call.session, call.terms.offer
    capabilities: Mapping[str, Any] = offer.capabilities if offer is not None else {}
    offers: dict[str, Any] = {}
    if capabilities:
        offers.update((name, capabilities[name]) for name in OFFERED if name in capabilities)
        if offers_apps(capabilities):
            offers |= OFFER
    if session not in session.composition.short_sessions:
        # The principal too: another credential may use the same session.
        return Front((session, call.principal), session, offers)
    caller = identity(call)
    if is_stranger(caller) or caller.is_shared_identity:
        return Front(None, None, offers)
    return Front(call.principal, None, offers)
