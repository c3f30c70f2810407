"""`notifications/claude/channel`: events for hosts that take these instead of `push/event`, if a set opts in.

The shape follows Claude Code's channels reference: `content` is text, `meta` holds texts under names that are
identifiers. A notification has no answer, so an event that is sent this way counts as accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from defserve.errors import NoBackChannel
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.extension import Offer
    from defserve.protocols.mcpl.feature import Feature
    from defserve.protocols.mcpl.peers import Peer

CAPABILITY = "claude/channel"
METHOD = "notifications/claude/channel"

# clientInfo.name of hosts that take the notification from servers that advertise it, without an offer of their own.
HOSTS = ("claude-code",)


def offered(offer: Offer) -> bool:
    """Whether a host takes these notifications."""
    experimental = offer.capabilities.get("experimental")
    named = is_object(experimental) and CAPABILITY in experimental
    return not offer.stateless and (named or offer.info.get("name") in HOSTS)


def replaces(peer: Peer, feature_set: Feature, problem: Exception | None) -> bool:
    """Whether the notification can be sent instead of a request, which `problem` prevents."""
    offer = peer.terms.offer if peer.terms is not None else None
    takes = peer.session.ready and not peer.session.closed and offer is not None and offered(offer)
    return takes and feature_set.claude_channel and isinstance(problem, NoBackChannel)


def tell(peer: Peer, event: Params) -> None:
    """Send an event, given as the params of `push/event`."""
    meta = {"event_id": event["eventId"], "feature_set": event["featureSet"], "timestamp": event["timestamp"]}
    origin: Mapping[str, Any] = event.get("origin", {})
    meta |= {name: str(value) for name, value in origin.items() if name.isidentifier() and isinstance(value, str | int)}
    text = "\n".join(_text(block) for block in event["payload"]["content"])
    audience = (peer.identity,) if peer.identity is not None else None
    peer.session.notify(METHOD, {"content": text, "meta": meta}, audience=audience)


def _text(block: Mapping[str, Any]) -> str:
    return block["text"] if block["type"] == "text" else f"[{block['type']}: {block.get('uri', block.get('mimeType'))}]"
