"""The events of one session's streams, in memory: kept so that a client that lost its connection can resume.

No I/O, no clock. Events are numbered from 1 in their stream. A client can resume after an event that was dropped
meanwhile: it gets what is left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple

StoredEventKind = Literal["result", "request", "message", "progress"]
"""`result` and `request` are kept, because somebody waits for them. `message`, `progress` and released requests are
dropped when room is needed."""

KEPT: frozenset[StoredEventKind] = frozenset(("result", "request"))


class StoredEvent(NamedTuple):
    """`audience` is who may read it, in the words of whoever appended it."""

    number: int
    kind: str
    data: bytes
    audience: Any = None


NO_NUMBERS: Final[frozenset[int]] = frozenset()  # each call makes a new one


class SessionEventStreams:
    """What one session has sent, by stream.

    Each stream keeps up to `events` messages and progresses, of `size` bytes together; the oldest are dropped first.
    Results stay as long as their stream, requests until they are released. Streams are dropped, oldest first, if more
    than `finished` are finished or those hold more than `size` bytes, or if the session holds more than `held` bytes:
    finished ones before others, never the one just appended to. `budget` bounds all sessions together.
    """

    __slots__ = (
        "events", "size", "finished", "held", "bytes",
        "_budget", "_streams", "_finished", "_finished_bytes", "_busy",
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
        self._streams: OrderedDict[str, EventStream] = OrderedDict()
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._finished_bytes = 0
        self._busy = ""
        self.bytes = 0

    def get_or_open_stream(self, name: str) -> EventStream:
        """The stream of this name, which may be new. One that was finished goes on after all."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = EventStream(name)
        elif name in self._finished:
            self._no_longer_finished(name)
        return stream

    def find_stream(self, name: str) -> EventStream | None:
        return self._streams.get(name)

    def append(
        self,
        name: str,
        data: bytes,
        *,
        kind: StoredEventKind = "message",
        key: Hashable = None,
        audience: object = None,
    ) -> int:
        """Keep an event and return its number. A `progress` takes the place of an earlier one with its `key`."""
        stream = self.get_or_open_stream(name)
        held = stream.bytes
        stream.append(data, kind, key if kind == "progress" else None)
        if audience is not None:
            stream.audiences[stream.last] = audience
        stream.shrink(self.events, self.size)
        self._busy = name
        self._adjust_size(stream.bytes - held)
        while self.bytes > self.held and self.evict_stream():
            pass
        self._busy = ""
        return stream.last

    def make_request_droppable(self, name: str, number: int) -> None:
        """Nobody waits for the answer to this `request` any more: it may be dropped like any message."""
        if (stream := self._streams.get(name)) is not None:
            held = stream.bytes
            stream.release(number)
            stream.shrink(self.events, self.size)
            self._adjust_size(stream.bytes - held)
            if name in self._finished:
                self._finished_bytes += stream.bytes - held

    def mark_stream_received(self, name: str) -> None:
        """The client has received the whole stream, so it is the first to be dropped when room is needed."""
        if (stream := self._streams.get(name)) is None:
            return
        if name not in self._finished:
            self._finished[name] = None
            self._finished_bytes += stream.bytes
        # The newest stays, however large: its end may not have reached the client.
        while len(self._finished) > self.finished or (self._finished_bytes > self.size and len(self._finished) > 1):
            self._drop(next(iter(self._finished)))

    def drop_events(self) -> None:
        """The session is over: drop everything."""
        streams, self._streams = self._streams, OrderedDict()
        self._finished.clear()
        self._finished_bytes = 0
        self._adjust_size(-self.bytes)
        if self._budget is not None:
            self._budget.remove_store(self)
        for stream in streams.values():
            stream.drop_events()

    def evict_stream(self) -> bool:
        """Drop a stream to make room. False: there is none but the one that is being appended to."""
        # An OrderedDict finds its oldest at once, however many of them were dropped before it. A dict does not.
        for name in chain(self._finished, self._streams):
            if name != self._busy and self._streams[name].bytes:
                self._drop(name)
                return True
        return False

    def _adjust_size(self, size: int) -> None:
        self.bytes += size
        if self._budget is not None:
            self._budget.adjust_size(self, size)

    def _drop(self, name: str) -> None:
        self._no_longer_finished(name)
        stream = self._streams[name]
        size = stream.bytes
        if stream.is_over:
            del self._streams[name]
        else:
            self._streams.move_to_end(name)  # it counts on: an id that was given stands for one event
        stream.drop_events()
        self._adjust_size(-size)

    def _no_longer_finished(self, name: str) -> None:
        if name in self._finished:
            del self._finished[name]
            self._finished_bytes -= self._streams[name].bytes


class EventBudget:
    """What the sessions of a server keep together, at most `most` bytes. Those that hold most give way first.

    So somebody who opens many sessions, and reads nothing, loses its own events.
    """

    def __init__(self, most: int = 128 * 1024 * 1024) -> None:
        self.most, self.used = most, 0
        self._stores: set[SessionEventStreams] = set()

    def adjust_size(self, store: SessionEventStreams, size: int) -> None:
        """A store holds so many bytes more, or less."""
        self.used += size
        self._stores.add(store)
        if size > 0 and self.used > self.most:  # a store that gives way says so here too
            self._make_room()

    def remove_store(self, store: SessionEventStreams) -> None:
        """The session of a store is over."""
        self._stores.discard(store)

    def _make_room(self) -> None:
        # More than is needed now, so that the stores are not sorted for each event.
        enough = self.most * 9 // 10
        for store in sorted(self._stores, key=lambda one: one.bytes, reverse=True):
            while self.used > enough and store.evict_stream():
                pass


class EventStream:
    """The events of one stream. `owner` may read it, and nobody with less rights; None: each event says who may.

    `last` is the number of the newest event. `is_over`: no more will follow. `read` and `skipped` say how far a stream
    without an owner was read, and which events before that were not. `untaken` tells who sent an event that it was
    dropped; whoever reads it takes it out.
    """

    __slots__ = (
        *("name", "owner", "last", "is_over", "read", "skipped", "kept", "audiences", "untaken", "bytes"),
        *("_result", "_droppable", "_droppable_bytes", "_latest"),
    )

    def __init__(self, name: str) -> None:
        self.name, self.is_over = name, False
        self.owner: object = None
        self.last = self.read = self.bytes = self._result = 0
        self.skipped = NO_NUMBERS
        self.kept: dict[int, bytes] = {}
        self.audiences: dict[int, object] = {}
        self.untaken: dict[int, Callable[[], None]] = {}
        self._droppable: OrderedDict[int, Hashable] = OrderedDict()
        self._droppable_bytes = 0
        self._latest: dict[Hashable, int] = {}

    def list_events_after(self, number: int, most: int | None = None) -> list[StoredEvent]:
        """Those of the events after this one that are still kept."""
        found = (each for each in self.kept.items() if each[0] > number)
        return [StoredEvent(at, self._kind(at), data, self.audiences.get(at)) for at, data in islice(found, most)]

    def _kind(self, number: int) -> StoredEventKind:
        if number == self._result:
            return "result"
        return "message" if number in self._droppable else "request"

    def append(self, data: bytes, kind: StoredEventKind, key: Hashable) -> None:
        self.last += 1
        self.kept[self.last] = data
        self.bytes += len(data)
        if kind in KEPT:
            if kind == "result":
                self._result, self.is_over = self.last, True
            return
        if key is not None:
            if (superseded := self._latest.get(key)) is not None:
                self._remove(superseded)
            self._latest[key] = self.last
        self._droppable[self.last] = key
        self._droppable_bytes += len(data)

    def release(self, number: int) -> None:
        if number in self.kept and number not in self._droppable and number != self._result:
            self._droppable[number] = None
            self._droppable_bytes += len(self.kept[number])

    def shrink(self, events: int, size: int) -> None:
        while len(self._droppable) > events or self._droppable_bytes > size:
            self._remove(next(iter(self._droppable)))

    def drop_events(self) -> None:
        untaken, self.untaken = self.untaken, {}
        for kept in (self.kept, self.audiences, self._droppable, self._latest):
            kept.clear()
        self.bytes = self._droppable_bytes = 0
        for taken in untaken.values():
            taken()

    def _remove(self, number: int) -> None:
        key = self._droppable.pop(number)
        if key is not None:
            del self._latest[key]
        self.audiences.pop(number, None)
        length = len(self.kept.pop(number))
        self.bytes -= length
        self._droppable_bytes -= length
        if (taken := self.untaken.pop(number, None)) is not None:
            taken()
