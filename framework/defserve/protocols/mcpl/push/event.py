"""MCPL §9.2–9.3: push events and receipts, as authors see them and on the wire."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from defserve.errors import PeerError, UsageError
from defserve.protocols.mcpl import content
from defserve.protocols.mcpl.instants import instant_of
from defserve.protocols.mcpl.push.tags import checked, closure
from defserve.wire.jsonvalue import is_mapping, is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.session import Session

METHOD = "push/event"


@dataclass(frozen=True, slots=True)
class Event:
    """What an event source yields. With an `id`, an event that is yielded again counts once.

    `tags` say what kind of event it is: `chat:mention`, `acme:priority=high`. Hosts below 0.5 are not sent them. In a
    source that runs for everyone, `to` names the one principal who gets the event.
    """

    content: Any
    id: str | None = None
    origin: Mapping[str, Any] | None = None
    timestamp: datetime | str | None = None
    to: str | None = None
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one host did with an event: whether it accepted it, the inference it began, or why it refused.

    `inbox` is the URI of the resource where the event waits, if it could not be sent.
    """

    event_id: str
    accepted: bool
    inference_id: str | None = None
    reason: str | None = None
    session: Session | None = None
    inbox: str | None = None

    @classmethod
    def read(cls, event_id: str, answer: Any, session: Session) -> Receipt:
        """A host's answer to `push/event`. Raises PeerError for one that is not an object."""
        if not is_object(answer):
            raise PeerError(f"the host's answer to {METHOD} has the wrong shape", code=0)
        inference_id, reason = answer.get("inferenceId"), answer.get("reason")
        return cls(
            event_id,
            answer.get("accepted") is True,
            inference_id if isinstance(inference_id, str) else None,
            reason if isinstance(reason, str) else None,
            session,
        )


def written(receipt: Receipt) -> str:
    """A receipt as JSON, for another process."""
    return json.dumps([receipt.event_id, receipt.accepted, receipt.inference_id, receipt.reason])


def remembered(text: str, session: Session) -> Receipt:
    """The receipt that was `written`."""
    return Receipt(*json.loads(text), session=session)


def event_wire(name: str, event: Event) -> Params:
    """The params of `push/event` (§9.2), for a feature set's name. Raises UsageError for a broken event."""
    id: Any = event.id if event.id is not None else new_event_id()
    if not isinstance(id, str) or not id:
        raise UsageError(f"push: id={id!r} is not a text", fix='give the event a stable name: id="evt_1"')
    wire: Params = {"featureSet": name, "eventId": id, "timestamp": instant_of(event.timestamp)}
    if event.origin is not None:
        if not is_mapping(event.origin):
            raise UsageError(f"push: origin={event.origin!r} is not a mapping", fix='origin={"memoryId": "m1"}')
        wire["origin"] = dict(event.origin)
    if event.tags:
        wire["tags"] = closure(checked(event.tags))
    wire["payload"] = {"content": content.blocks(event.content)}
    return wire


_HEX = frozenset("0123456789abcdef")


def new_event_id() -> str:
    import secrets

    return f"evt_{secrets.token_hex(12)}"


def is_new_id(id: str) -> bool:
    """Whether an id has the form of those that are made here: no event has it twice."""
    return len(id) == 28 and id.startswith("evt_") and not set(id[4:]) - _HEX
