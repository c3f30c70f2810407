"""Events that a server pushes (MCPL §9), or keeps in an inbox for a host that polls.

An event counts once. If there is no room for it, the server is told, and may send it again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from pydantic_core import from_json

from defserve.base.peer_bounds import estimate_value_bytes, truncate_text
from defserve.base.redaction import get_logger
from defserve.client.answers import maybe_await
from defserve.client.audit import McplAuditTrail
from defserve.client.mcpl.feature_sets import FeatureSets
from defserve.client.replies import Json, UnreadItemQueue, object_or_empty, string_or_none
from defserve.core.json_values import is_array, is_object
from defserve.core.shapes import read_member
from defserve.errors import InvalidParams, PeerError
from defserve.protocols.mcpl.content import EVENT_ID_KIND, PushedEvent
from defserve.protocols.mcpl.vocabulary import McplRefusal

if TYPE_CHECKING:
    from defserve.client.client import Client
    from defserve.client.mcpl.channels import LiveChannels

PUSH_EVENT: Final = "push/event"
INBOX_FULL: Final = "the host's inbox is full"
"""The reason with which an item is declined that is to be delivered again."""


@dataclass(frozen=True, slots=True)
class EventAnswer:
    """What a host does with an event: accepts it, perhaps with an inference that it starts, or declines it."""

    accepted: bool = True
    inference_id: str | None = None
    reason: str | None = None

    def to_wire(self) -> Json:
        """The answer as JSON for the server (§9.3)."""
        return encode_delivery_answer(self.accepted, "inferenceId", self.inference_id, self.reason)


EventReply: TypeAlias = EventAnswer | bool | str | None
"""None and True accept, False declines, a text is the id of the inference that was started."""
OnEvent: TypeAlias = Callable[[PushedEvent], EventReply | Awaitable[EventReply]]


class PushReceiver:
    """Answers `push/event`: with the answer of `on_event`, or by keeping the event in `inbox`."""

    def __init__(self, on_event: OnEvent | None, seen: AnswerWindow, sets: FeatureSets, audit: McplAuditTrail) -> None:
        self.inbox: Inbox[PushedEvent] = Inbox()
        self._on_event, self._seen, self._sets, self._audit = on_event, seen, sets, audit

    async def receive_event(self, params: Json) -> Json:
        """Raises InvalidParams, FeatureDisabled or UnknownFeatureSet."""
        name, id = params.get("featureSet"), read_member(params, "eventId", EVENT_ID_KIND)
        with self._audit.record_outcome(PUSH_EVENT, feature_set=name, event_id=id) as record:
            self._sets.require(name, "pushEvents")
            event = PushedEvent.from_wire(params, server_id=self._audit.server_id)
            key = (self._audit.server_id, id)
            if key in self._seen:
                record["duplicate"] = True
            answer = await self._seen.answer(
                key, lambda: answer_delivered_item(event, self._on_event, self.inbox, EventAnswer)
            )
            record["inference_id"] = answer.get("inferenceId")
            if not answer["accepted"]:
                record |= {"outcome": "refused", "reason": answer["reason"]}
            return answer


# -- Fetches events and messages from a server that cannot push them (2026-07-28): they wait in `inbox://<set>`.


Take: TypeAlias = Callable[[Json], Awaitable[Json]]
"""Takes an item, and returns what a server that pushes would be answered."""

SCHEME: Final = "inbox://"

log = get_logger("client")


class InboxPoller:
    """Fetches new items, and hands each to `event` or `channels`, as if the server had sent it."""

    def __init__(self, client: Client, sets: FeatureSets, event: Take, channels: LiveChannels) -> None:
        self._client, self._sets, self._event, self._channels = client, sets, event, channels
        self._cursors: dict[str, int] = {}

    async def collect(self) -> int:
        """How many items there were. If a handler fails, or there is no room, they are fetched again the next time."""
        count = 0
        for resource in await self._client.resources():
            uri = resource.get("uri")
            if isinstance(uri, str) and uri.startswith(SCHEME) and self._sets.is_enabled(uri.removeprefix(SCHEME)):
                count += await self._fetch(uri)
        return count

    async def _fetch(self, uri: str) -> int:
        cursor = self._cursors.get(uri)
        text = await self._client.read_text(uri if cursor is None else f"{uri}?after={cursor}")
        try:
            found = object_or_empty(from_json(text))
        except ValueError:
            raise PeerError(f"{uri} is not the inbox of a feature set") from None
        if found.get("missed") is True and cursor is not None:
            log.warning("some events in %s were gone before they were fetched", uri)
        entries = found.get("events")
        waiting = [entry for entry in entries if is_object(entry)] if is_array(entries) else []
        left_out: list[str] = []
        is_refreshed = False
        for count, entry in enumerate(waiting):
            try:
                if "eventId" in entry:
                    answer = await self._event(entry)
                else:
                    if not is_refreshed and not self._channels.is_in_known_channel(entry):
                        is_refreshed = True  # once: what the server lists now is newer than all of these
                        await self._channels.refresh()
                    answer = await self._channels.receive_polled_message(entry)
                if answer.get("reason") == INBOX_FULL:
                    log.warning("%s: items of %s stay at the server", INBOX_FULL, uri)
                    return count
            except (InvalidParams, McplRefusal) as error:
                left_out.append(truncate_text(str(error)))
        if left_out:
            log.warning("left out %d items of %s: first %s", len(left_out), uri, left_out[0])
        if isinstance(latest := found.get("cursor"), int):
            self._cursors[uri] = latest
        return len(waiting)


# -- Events and messages that a server sent: given to the host's handler, or kept until somebody reads them.


T = TypeVar("T")


class Inbox(Generic[T]):
    """`async for item in inbox`. It ends when the client closes, and raises PeerGone if the server left."""

    def __init__(self, room: int = 1_000) -> None:
        self._items: UnreadItemQueue[T] = UnreadItemQueue(room)

    def put_item(self, item: T) -> bool:
        """Whether there was room for it."""
        return self._items.put_if_room(item, estimate_value_bytes(item))

    def end(self, reason: PeerError | None = None) -> None:
        """Take nothing more. Items that are there can still be read."""
        self._items.end(reason)

    def __aiter__(self) -> Inbox[T]:
        return self

    async def __anext__(self) -> T:
        return await self._items.get()


async def answer_delivered_item(
    item: T, handler: Callable[[T], Any] | None, inbox: Inbox[T], answer: type[Any]
) -> tuple[Json, bool]:
    """The answer to the server, and whether to remember it. `answer` is EventAnswer or MessageAnswer.

    A handler's False declines. A string accepts, and is the id of what the host started. Anything else accepts.
    """
    if handler is not None:
        reply = await maybe_await(handler(item))
        return (
            reply if isinstance(reply, answer) else answer(reply is not False, string_or_none(reply))
        ).to_wire(), True
    if inbox.put_item(item):
        return answer().to_wire(), True
    # Not remembered: the server may send it again once somebody reads.
    return answer(False, reason=INBOX_FULL).to_wire(), False


def encode_delivery_answer(accepted: bool, name: str, id: str | None, reason: str | None) -> Json:
    """An answer as JSON for the server (§9.3, §14)."""
    if not accepted:
        return {"accepted": False, "reason": reason or "declined"}
    return {"accepted": True} if id is None else {"accepted": True, name: id}


# -- Handles a repeated question only once: it gets the first answer, even if that is still being found.


MAX_REMEMBERED_ANSWERS: Final = 10_000

Answer: TypeAlias = dict[str, Any]
Find: TypeAlias = Callable[[], Awaitable[tuple[Answer, bool]]]
"""Returns the answer, and whether to remember it."""


class AnswerWindow:
    """The last `size` answers, by key. A failure is not remembered, so it may be tried again."""

    def __init__(self, size: int = MAX_REMEMBERED_ANSWERS) -> None:
        self.size = size
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._under_way: dict[Hashable, asyncio.Future[None]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._answers

    async def answer(self, key: Hashable, find: Find) -> Answer:
        """The earlier answer, or else the one that `find` returns."""
        while (first := self._under_way.get(key)) is not None:
            await asyncio.wait((first,))
        if key in self._answers:
            return self._answers[key]
        done = self._under_way[key] = asyncio.get_running_loop().create_future()
        try:
            answer, remember = await find()
            if remember:
                self._answers[key] = answer
                if len(self._answers) > self.size:
                    self._answers.popitem(last=False)
            return answer
        finally:
            del self._under_way[key]
            done.set_result(None)

    def clear_answers(self) -> None:
        """Forget every answer. Searches that are running continue."""
        self._answers.clear()
