"""MCPL §9: takes the events that a server pushes, each of them once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.errors import InvalidParams
from defserve.host.fields import Json, object_of
from defserve.host.mcpl.audit import McplAuditTrail
from defserve.host.mcpl.feature_sets import FeatureSets
from defserve.host.mcpl.inbox import Inbox, answer_wire, take
from defserve.host.mcpl.once import Once, checked_id
from defserve.protocols.mcp.params import text
from defserve.protocols.mcpl.content import Content, read
from defserve.protocols.mcpl.push import tags

PUSH: Final = "push/event"


@dataclass(frozen=True, slots=True)
class PushedEvent:
    """An event, as the server describes it."""

    server_id: str
    feature_set: str
    id: str
    timestamp: str
    content: list[Content]
    origin: Mapping[str, Any]
    raw: Mapping[str, Any]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventAnswer:
    """What a host does with an event: accepts it, perhaps with an inference that it starts, or declines it."""

    accepted: bool = True
    inference_id: str | None = None
    reason: str | None = None

    def wire(self) -> Json:
        """The answer as JSON for the server (§9.3)."""
        return answer_wire(self.accepted, "inferenceId", self.inference_id, self.reason)


EventReply: TypeAlias = EventAnswer | bool | str | None
"""None and True accept, False declines, a text is the id of the inference that was started."""
OnEvent: TypeAlias = Callable[[PushedEvent], EventReply | Awaitable[EventReply]]


class PushReceiver:
    """Answers `push/event`: with the answer of `on_event`, or by keeping the event in `inbox`."""

    def __init__(self, on_event: OnEvent | None, seen: Once, sets: FeatureSets, audit: McplAuditTrail) -> None:
        self.inbox: Inbox[PushedEvent] = Inbox()
        self._on_event, self._seen, self._sets, self._audit = on_event, seen, sets, audit

    async def pushed(self, params: Json) -> Json:
        """Raises InvalidParams, FeatureDisabled or UnknownFeatureSet."""
        name, id = params.get("featureSet"), checked_id(params, "eventId")
        with self._audit.watching(PUSH, feature_set=name, event_id=id) as record:
            self._sets.require(name, "pushEvents")
            event = self._event(params)
            key = (self._audit.server_id, id)
            if key in self._seen:
                record["duplicate"] = True
            answer = await self._seen.answer(key, lambda: take(event, self._on_event, self.inbox, EventAnswer))
            record["inference_id"] = answer.get("inferenceId")
            if not answer["accepted"]:
                record |= {"outcome": "refused", "reason": answer["reason"]}
            return answer

    def _event(self, params: Json) -> PushedEvent:
        content = object_of(params.get("payload")).get("content")
        if content is None:
            raise InvalidParams("Invalid params: payload.content is missing")
        return PushedEvent(
            server_id=self._audit.server_id,
            feature_set=params["featureSet"],
            id=params["eventId"],
            timestamp=text(params, "timestamp"),
            content=read(content),
            origin=object_of(params.get("origin")),
            raw=params,
            tags=tags.read(params.get("tags")),
        )
