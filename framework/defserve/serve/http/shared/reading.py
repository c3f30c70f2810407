"""Who reads a stream: a client's response, and how far it has come. It follows the events of any process in order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from defserve.auth.principals import decode_principal
from defserve.errors import Refused
from defserve.serve.http.exchange import Exchange, UnreadMessage, WritableMessage
from defserve.stores.shared import lua_scripts

if TYPE_CHECKING:
    from defserve.serve.http.shared.session import SharedSession

SHARED_STANDALONE_STREAM_NAME = "s"
PAGE = 64
# How often a reader looks whether the process that it depends on lives.
LOOK_SECONDS = 1.0
PAUSE = 0.1


class StoredMessage:
    """An event from the store, as a message for a client. Without data it only carries an id."""

    __slots__ = ("data", "answers", "asks", "release", "taken")

    code = replaces = relates_to = audience = None
    bulk = False

    def __init__(self, data: bytes, kind: str, taken: Callable[[], None] | None = None) -> None:
        self.data, self.answers, self.asks, self.taken = data, kind == "result", kind == "request", taken
        self.release: Callable[[], None] | None = None


class StreamReader:
    """One response that reads a stream, and the route of a GET that does.

    Events are delivered in the order of their numbers, each at most once: `cursor` is the last. `token` names the
    reader; a stream has one at a time. `left` are events of the session's own stream that readers before might not see.
    """

    statuses: dict[int, int] = {}

    def __init__(
        self, session: SharedSession, name: str, exchange: Exchange, *, after: int = 0, left: Collection[int] = ()
    ) -> None:
        self.session, self.name, self.exchange = session, name, exchange
        self.is_begun = True
        """Whether the store knows the stream. Until then there is nothing to look for, and nothing is lost."""
        self.token = session.new_token()
        self.read, self.skipped = after, set(left)
        self.cursor = min(min(self.skipped) - 1, after) if self.skipped else after
        self._fetching: asyncio.Task[None] | None = None
        self._again = False
        self._is_marking = False
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.exchange.gone or self.exchange.finished

    # -- events ------------------------------------------------------------------------------------------

    def on_event_appended(self, number: int, before: int, message: WritableMessage) -> None:
        """This process has added an event, after the one numbered `before`."""
        if (
            self.is_over
            or self._fetching is not None
            or self.cursor != before
            or self.name == SHARED_STANDALONE_STREAM_NAME
        ):
            if message.taken is not None:
                message.taken()
            self.on_event_number(number)
        else:
            self.cursor = self.read = number
            self.exchange.push(message, f"{self.name}-{number}")

    def on_event_number(self, number: int) -> None:
        """There is an event of this number."""
        if self.is_over or not self.is_begun or (number <= self.cursor and number > 0):
            return
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_all())
        else:
            self._again = True

    async def _fetch_all(self) -> None:
        try:
            while not self.is_over:
                self._again = False
                try:
                    await self.deliver_stored_events()
                except Refused:
                    await asyncio.sleep(PAUSE)
                    continue
                if not self._again:
                    return
        finally:
            self._fetching = None

    async def deliver_stored_events(self) -> None:
        """Deliver what is in the store."""
        link, id = self.session.link, self.session.id
        while not self.is_over:
            after = self.cursor
            found = await link.run_script(lua_scripts.FETCH_EVENTS, id, self.name, after, PAGE)
            if found is None:
                self.exchange.end_without_answer()
                return
            entries, last, is_done = found
            # A store that has lost events which this client has gives their numbers again.
            if int(last) < after == self.cursor:
                self.cursor = self.read = int(last)
            for place, fields in entries:
                named = dict(zip(fields[::2], fields[1::2], strict=True))
                self._deliver(int(place.partition(b"-")[0]), named)
            if len(entries) < PAGE:
                # A call that was cancelled ends without a result.
                if is_done and not self.exchange.finished:
                    self.exchange.end_without_answer()
                return

    def _deliver(self, number: int, fields: dict[bytes, bytes]) -> None:
        if number <= self.cursor:
            return
        self.cursor = number
        if number <= self.read and number not in self.skipped:
            return
        self.skipped.discard(number)
        if self.name == SHARED_STANDALONE_STREAM_NAME and not self._is_for(fields[b"a"]):
            self.skipped.add(number)
        else:
            taken = self._mark_soon if self.name == SHARED_STANDALONE_STREAM_NAME else None
            self.exchange.push(StoredMessage(fields[b"d"], fields[b"k"].decode(), taken), f"{self.name}-{number}")
        self.read = max(self.read, number)

    def _is_for(self, audience: bytes) -> bool:
        """Whether this client may see an event. `*` stands for everybody, nothing for who opened the session."""
        if audience == b"*":
            return True
        meant = [decode_principal(each) for each in json.loads(audience)] if audience else [self.session.opener]
        return any(map(self.exchange.principal.covers, meant))

    def send_first_event_id(self) -> None:
        """Give the client an id to come back with, before the first event, if its version knows such ids.

        Clients forget the id that they have resumed with. Without one they come back as new readers.
        """
        if self.session.primed and not self.is_over:
            self.exchange.unread.append(UnreadMessage(StoredMessage(b"", ""), f"{self.name}-{self.read}"))
            self.exchange.wake_writer()

    # -- as the route of a GET ---------------------------------------------------------------------------

    def push(self, message: WritableMessage) -> None:
        """Nothing is sent this way: events come from the store."""

    def wants_events(self, exchange: Exchange) -> bool:
        return True

    def can_start_events(self, seconds: float) -> bool:
        return True

    def start_events(self) -> bytes:
        return b""

    def on_response_started(self) -> None:
        self.session.readers += 1
        self._watching = asyncio.create_task(self._watch())

    def on_disconnect(self) -> None:
        """The client went away. The stream goes on."""

    def detach(self, exchange: Exchange) -> None:
        self.session.readers -= 1
        self.session.used = time.monotonic()
        if self._watching is not None:
            self._watching.cancel()
        if self.session.reading.get(self.name) is self:
            del self.session.reading[self.name]
        if self.name == SHARED_STANDALONE_STREAM_NAME:
            self._mark("")
        exchange.take_unread()  # what the client did not read stays in the store

    def finish(self) -> None:
        """Nothing to end: a stream outlives who reads it."""

    @contextmanager
    def release_on_failure(self) -> Generator[None]:
        """A reader that cannot begin leaves its place, and what it has not given its client, to the next one."""
        try:
            yield
        except BaseException:
            if self.session.reading.get(self.name) is self:
                del self.session.reading[self.name]
            self._mark("")
            self.exchange.take_unread()
            raise

    async def _watch(self) -> None:
        while self.name != SHARED_STANDALONE_STREAM_NAME:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.session.interrupt_if_dead(self.name)
            except Refused:
                continue
            self.on_event_number(0)

    def _mark_soon(self) -> None:
        """Events have left: say so once for all of them."""
        if not self._is_marking:
            self._is_marking = True
            asyncio.get_running_loop().call_soon(self._mark, "on")

    def _mark(self, is_on: str) -> None:
        """Tell the store how far this client has read, for the next one that comes without an id."""
        self._is_marking = False
        self.session.link.queue_script(
            lua_scripts.MARK_READ, self.session.id, self.name, self.token, *self.get_read_position(), is_on
        )

    def get_read_position(self) -> tuple[int, str]:
        """The last event that has left, and those before that have not."""
        events = (item.id for item in self.exchange.unread if item.id and item.message.data)
        unread = {int(id.rpartition("-")[2]) for id in events}
        return self.read, json.dumps(sorted(self.skipped | {number for number in unread if number <= self.read}))


def decode_read_position(found: Any) -> tuple[int, set[int]]:
    """How far the session's own stream was read, and what was left for others, of what `LOOK` found."""
    read, skipped = found[7], found[8]
    return int(read or 0), set(json.loads(skipped) if skipped else ())
