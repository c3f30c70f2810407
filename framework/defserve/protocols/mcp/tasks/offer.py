"""What a client that takes tasks offers, with every request (tasks extension: capability negotiation)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from defserve.protocols.mcp.lifecycle import PREFIX
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.wire.messages import Params

EXTENSION: Final = PREFIX + "tasks"
NEEDED: Final[Params] = {"extensions": {EXTENSION: {}}}


def takes_tasks(call: Call) -> bool:
    """Whether the client declared, with this request, that it takes tasks."""
    offer = call.terms.offer
    extensions = offer.capabilities.get("extensions") if offer is not None and offer.stateless else None
    return is_object(extensions) and is_object(extensions.get(EXTENSION))
