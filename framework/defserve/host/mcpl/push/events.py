"""MCPL §9 from the host's side: events that servers push, each taken once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.errors import InvalidParams
from defserve.host.answers import settled
from defserve.host.fields import object_of
from defserve.host.mcpl.audit import McplAuditTrail
from defserve.host.mcpl.feature_sets import FeatureSets
from defserve.host.mcpl.inbox import Inbox
from defserve.host.mcpl.once import Once, checked_id
from defserve.protocols.mcp.params import text
from defserve.protocols.mcpl.content import Content, read

Json: TypeAlias = dict[str, Any]

PUSH: Final = "push/event"


@dataclass(frozen=True, slots=True)
class PushedEvent:
    """Something that happened, as a server tells it."""

    server_id: str
    feature_set: str
    id: str
    timestamp: str
    content: list[Content]
    origin: Mapping[str, Any]
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventAnswer:
    """What a host does with an event: takes it, perhaps with an inference that it begins, or does not."""

    accepted: bool = True
    inference_id: str | None = None
    reason: str | None = None

    def wire(self) -> Json:
        """As the server is told (§9.3)."""
        more = {"inferenceId": self.inference_id} if self.accepted else {"reason": self.reason or "declined"}
        return {"accepted": self.accepted, **{name: value for name, value in more.items() if value is not None}}


Said: TypeAlias = EventAnswer | bool | str | None
"""None and True accept, False declines, a text is the id of the inference that was begun."""
OnEvent: TypeAlias = Callable[[PushedEvent], Said | Awaitable[Said]]


class PushReceiver:
    """Answers `push/event`: with what `on_event` says, or by keeping the event for `inbox`."""

    def __init__(self, on_event: OnEvent | None, seen: Once, sets: FeatureSets, audit: McplAuditTrail) -> None:
        self.inbox: Inbox[PushedEvent] = Inbox()
        self._on_event, self._seen, self._sets, self._audit = on_event, seen, sets, audit

    async def pushed(self, params: Json) -> Json:
        """Raises InvalidParams, FeatureDisabled or UnknownFeatureSet."""
        name, id = params.get("featureSet"), checked_id(params, "eventId")
        with self._audit.watching(PUSH, feature_set=name, event_id=id) as told:
            self._sets.require(name, "pushEvents")
            event = self._event(params)
            key = (self._audit.server_id, id)
            if key in self._seen:
                told["duplicate"] = True
            answer = await self._seen.answer(key, lambda: self._take(event))
            told["inference_id"] = answer.get("inferenceId")
            if not answer["accepted"]:
                told |= {"outcome": "refused", "reason": answer["reason"]}
            return answer

    async def _take(self, event: PushedEvent) -> tuple[Json, bool]:
        if self._on_event is not None:
            return _answer(await settled(self._on_event(event))).wire(), True
        if self.inbox.put(event):
            return EventAnswer().wire(), True
        # Not a word about this event: it may be sent again once somebody reads.
        return EventAnswer(False, reason="the host has no room for more events").wire(), False

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
        )


def _answer(said: Any) -> EventAnswer:
    if isinstance(said, EventAnswer):
        return said
    if isinstance(said, str):
        return EventAnswer(inference_id=said)
    return EventAnswer(accepted=said is not False)
