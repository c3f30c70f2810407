"""The events of one session's streams, kept so that a client that lost its connection can resume. No I/O, no clock.

The id of an event contains its place in its stream. So a client can resume after an event that was dropped meanwhile.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Hashable
from itertools import chain
from typing import Literal

from defserve.errors import Refused

StoredEventKind = Literal["result", "request", "message", "progress"]
"""`result` and `request` are kept, because somebody waits for them. `message`, `progress` and released requests are
dropped when room is needed."""

StoredEvent = tuple[str, bytes]
"""An event's id and its data."""

KEPT: frozenset[StoredEventKind] = frozenset(("result", "request"))

_ID = re.compile(r"([0-9a-f]+)-([0-9]{1,18})-([0-9]{1,18})")


class EventGap(Refused):
    """Events after the one asked for were dropped. `left` are those that are still kept, in order.

    `stream` is None if nothing of the stream is left, not even its name.
    """

    error_type = "gap"

    def __init__(self, stream: str | None, left: list[StoredEvent]) -> None:
        self.stream, self.left = stream, left
        super().__init__("some of the events after this one are no longer kept")


class MemoryEvents:
    """What one session has sent, by stream. Ids are unique in the session and name their stream. The events of another
    session do not know them.

    Each stream keeps up to `events` messages and progresses, of `size` bytes together; the oldest are dropped first.
    Results stay as long as their stream, requests until they are released. Streams are dropped, oldest first, if more
    than `finished` are finished or those hold more than `size` bytes, or if the session holds more than `held` bytes:
    finished ones before others, never the one just appended to. `budget` bounds all sessions together.
    """

    __slots__ = (
        "events", "size", "finished", "held", "bytes",
        "_budget", "_tag", "_streams", "_names", "_finished", "_finished_bytes", "_made", "_busy",
    )  # fmt: skip

    def __init__(
        self,
        *,
        events: int = 256,
        size: int = 1024 * 1024,
        finished: int = 64,
        held: int = 16 * 1024 * 1024,
        budget: EventBudget | None = None,
    ) -> None:
        self.events, self.size, self.finished, self.held = events, size, finished, held
        self._budget = budget
        self._tag = os.urandom(6).hex()
        self._streams: OrderedDict[int, _Stream] = OrderedDict()
        self._names: dict[str, int] = {}
        self._finished: OrderedDict[int, None] = OrderedDict()
        self._finished_bytes = 0
        self._made = self._busy = 0
        self.bytes = 0

    def append(
        self,
        stream: str,
        data: bytes,
        *,
        kind: StoredEventKind = "message",
        key: Hashable = None,
        audience: object = None,
    ) -> str:
        """Keep an event and return its id. A `progress` takes the place of an earlier one with its `key`."""
        opened = self._open(stream)
        held = opened.bytes
        opened.append(data, kind, key if kind == "progress" else None)
        if audience is not None:
            opened.audiences[opened.last] = audience
        opened.shrink(self.events, self.size)
        self._busy = opened.number
        self._adjust_size(opened.bytes - held)
        while self.bytes > self.held and self.evict_stream():
            pass
        self._busy = 0
        return self._id(opened.number, opened.last)

    def get_audience(self, event_id: str) -> object:
        """Who may read an event that is kept, in the words of whoever appended it."""
        stream, place = self._locate_event(event_id)
        return stream.audiences.get(place) if stream is not None else None

    def release_request(self, event_id: str) -> None:
        """Nobody waits for the answer to this `request` any more: it may be dropped like any message."""
        stream, place = self._locate_event(event_id)
        if stream is not None:
            held = stream.bytes
            stream.release(place)
            stream.shrink(self.events, self.size)
            self._adjust_size(stream.bytes - held)
            if stream.number in self._finished:
                self._finished_bytes += stream.bytes - held

    def _locate_event(self, event_id: str) -> tuple[_Stream | None, int]:
        found = _ID.fullmatch(event_id)
        if found is None or found[1] != self._tag:
            return None, 0
        return self._streams.get(int(found[2])), int(found[3])

    def make_position_id(self, stream: str) -> str:
        """The id of the place after everything appended so far, for an event without data."""
        opened = self._open(stream)
        return self._id(opened.number, opened.last)

    def list_events_after(self, event_id: str) -> tuple[str, list[StoredEvent]] | None:
        """The stream of this id and the events after it; None for an id that was never given here.

        Raises EventGap if some of the events after it are no longer kept.
        """
        found = _ID.fullmatch(event_id)
        if found is None or found[1] != self._tag:
            return None
        number, place = int(found[2]), int(found[3])
        if not 0 < number <= self._made:
            return None
        stream = self._streams.get(number)
        if stream is None:
            raise EventGap(None, [])
        if place > stream.last:
            return None
        left = [(self._id(number, at), data) for at, data in stream.kept.items() if at > place]
        if place < stream.lost:
            raise EventGap(stream.name, left)
        return stream.name, left

    def finish_stream(self, stream: str) -> None:
        """The client has received the whole stream, so it is the first to be dropped when room is needed."""
        number = self._names.get(stream)
        if number is None:
            return
        if number not in self._finished:
            self._finished[number] = None
            self._finished_bytes += self._streams[number].bytes
        # The newest stays, however large: its end may not have reached the client.
        while len(self._finished) > self.finished or (self._finished_bytes > self.size and len(self._finished) > 1):
            self._drop(next(iter(self._finished)))

    def drop_events(self) -> None:
        """The session is over: drop everything."""
        self._streams.clear()
        self._names.clear()
        self._finished.clear()
        self._finished_bytes = 0
        self._adjust_size(-self.bytes)
        if self._budget is not None:
            self._budget.remove_store(self)

    def evict_stream(self) -> bool:
        """Drop a stream to make room. False: there is none but the one that is being appended to."""
        # An OrderedDict finds its oldest at once, however many of them were dropped before it. A dict does not.
        for number in chain(self._finished, self._streams):
            if number != self._busy:
                self._drop(number)
                return True
        return False

    def _adjust_size(self, size: int) -> None:
        self.bytes += size
        if self._budget is not None:
            self._budget.adjust_size(self, size)

    def _open(self, stream: str) -> _Stream:
        number = self._names.get(stream)
        if number is not None:
            # The stream goes on after all. The session's own stream does so with each new reader.
            self._no_longer_finished(number)
            return self._streams[number]
        self._made += 1
        self._names[stream] = self._made
        opened = self._streams[self._made] = _Stream(self._made, stream)
        return opened

    def _id(self, number: int, place: int) -> str:
        return f"{self._tag}-{number}-{place}"

    def _drop(self, number: int) -> None:
        self._no_longer_finished(number)
        gone = self._streams.pop(number)
        del self._names[gone.name]
        self._adjust_size(-gone.bytes)

    def _no_longer_finished(self, number: int) -> None:
        if number in self._finished:
            del self._finished[number]
            self._finished_bytes -= self._streams[number].bytes


class EventBudget:
    """What the sessions of a server keep together, at most `most` bytes. Those that hold most give way first.

    So somebody who opens many sessions, and reads nothing, loses its own events.
    """

    def __init__(self, most: int = 128 * 1024 * 1024) -> None:
        self.most, self.used = most, 0
        self._stores: set[MemoryEvents] = set()

    def adjust_size(self, store: MemoryEvents, size: int) -> None:
        """A store holds so many bytes more, or less."""
        self.used += size
        self._stores.add(store)
        if size > 0 and self.used > self.most:  # a store that gives way says so here too
            self._make_room()

    def remove_store(self, store: MemoryEvents) -> None:
        """The session of a store is over."""
        self._stores.discard(store)

    def _make_room(self) -> None:
        # More than is needed now, so that the stores are not sorted for each event.
        enough = self.most * 9 // 10
        for store in sorted(self._stores, key=lambda one: one.bytes, reverse=True):
            while self.used > enough and store.evict_stream():
                pass


class _Stream:
    """The events of one stream by their place, from 1. `lost` is the place of the newest that was dropped."""

    __slots__ = (
        "number",
        "name",
        "last",
        "lost",
        "kept",
        "audiences",
        "bytes",
        "_droppable",
        "_droppable_bytes",
        "_latest",
    )

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.last = self.lost = self.bytes = 0
        self.kept: dict[int, bytes] = {}
        self.audiences: dict[int, object] = {}
        self._droppable: OrderedDict[int, Hashable] = OrderedDict()
        self._droppable_bytes = 0
        self._latest: dict[Hashable, int] = {}

    def append(self, data: bytes, kind: StoredEventKind, key: Hashable) -> None:
        self.last += 1
        self.kept[self.last] = data
        self.bytes += len(data)
        if kind in KEPT:
            return
        if key is not None:
            if (superseded := self._latest.get(key)) is not None:
                self._remove(superseded)
            self._latest[key] = self.last
        self._droppable[self.last] = key
        self._droppable_bytes += len(data)

    def release(self, place: int) -> None:
        if place in self.kept and place not in self._droppable:
            self._droppable[place] = None
            self._droppable_bytes += len(self.kept[place])

    def shrink(self, events: int, size: int) -> None:
        while len(self._droppable) > events or self._droppable_bytes > size:
            oldest = next(iter(self._droppable))
            self.lost = max(self.lost, oldest)  # a released request is not always the oldest
            self._remove(oldest)

    def _remove(self, place: int) -> None:
        key = self._droppable.pop(place)
        if key is not None:
            del self._latest[key]
        self.audiences.pop(place, None)
        length = len(self.kept.pop(place))
        self.bytes -= length
        self._droppable_bytes -= length
