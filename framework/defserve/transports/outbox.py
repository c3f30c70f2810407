"""Messages that wait to be written to one client: in order and bounded. Answers and questions are never dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Protocol

# What a session says beside the reply to a call for which there was no room. It is no code of the reply itself.
TOO_MANY_CALLS = 429

UNREAD = 256
SLOW = 16
UNREAD_BYTES = 1024 * 1024
STALL = 30.0


class OutboundMessage(Protocol):
    """A message for the peer, as the runner hands it over. An empty message ends its request without an answer."""

    release: Callable[[], None] | None

    @property
    def data(self) -> bytes: ...
    @property
    def answers(self) -> bool: ...
    @property
    def asks(self) -> int | str | bool: ...
    @property
    def code(self) -> int | None: ...
    @property
    def replaces(self) -> Hashable: ...
    @property
    def taken(self) -> Callable[[], None] | None: ...
    @property
    def bulk(self) -> bool: ...
    @property
    def relates_to(self) -> object | None: ...
    @property
    def audience(self) -> tuple[Any, ...] | None: ...


class CompleteReply:
    """A reply that the transport got directly from `begin`, not from the session's outlet."""

    __slots__ = ("data", "code", "release")

    answers, asks, bulk = True, False, False
    replaces = taken = relates_to = audience = None

    def __init__(self, data: bytes, code: int | None) -> None:
        self.data, self.code = data, code
        self.release: Callable[[], None] | None = None


class UnreadMessage:
    """A message that is not written yet, and its event id, if it has one."""

    __slots__ = ("message", "id")

    def __init__(self, message: OutboundMessage, id: str | None) -> None:
        self.message, self.id = message, id

    def leave(self) -> None:
        """The message was written, or was dropped."""
        if self.message.taken is not None:
            self.message.taken()


class Wakes(Protocol):
    """What `rouse` wakes: a future, or who stands for one."""

    def done(self) -> bool: ...

    def set_result(self, result: bool, /) -> None: ...


class ClientOutbox:
    """The messages that one client has not read. `finished`: no more will follow. `gone`: nobody reads any more."""

    __slots__ = ("finished", "gone", "unread", "_wake")

    def __init__(self) -> None:
        self.finished = self.gone = False
        # Mostly empty, and an empty deque takes ten times the room of an empty list.
        self.unread: list[UnreadMessage] = []
        self._wake: Wakes | None = None

    def keep(self, message: OutboundMessage, id: str | None = None) -> None:
        """Put a message at the end, or in front of the bulk of other calls.

        For a slow reader, a message replaces an older one with the same `replaces`. A full outbox drops messages that
        nobody waits for.
        """
        if message.replaces is not None and len(self.unread) >= SLOW:
            self._drop_first(lambda item: item.message.replaces == message.replaces)
        if self.gone or not message.data:
            UnreadMessage(message, id).leave()
            return
        if message.bulk or not self.unread:  # the sender of bulk limits itself
            self.unread.append(UnreadMessage(message, id))
            return
        while self.unread and self._has_no_room(len(message.data)):
            if not self._drop_first(lambda item: not (item.message.answers or item.message.asks or item.message.bulk)):
                break
        self.unread.insert(self._place(message), UnreadMessage(message, id))

    def _place(self, message: OutboundMessage) -> int:
        """The index behind everything except bulk of other calls. Answers to a batch belong to no single call: last."""
        bulk = next((at for at, item in enumerate(self.unread) if item.message.bulk), None)
        if bulk is None or (message.answers and message.relates_to is None):
            return len(self.unread)
        own = (at for at, item in enumerate(self.unread) if item.message.relates_to is message.relates_to)
        return bulk if message.relates_to is None else max(bulk, 1 + max(own, default=-1))

    def take(self) -> list[UnreadMessage]:
        """Take out all unread messages."""
        taken, self.unread = self.unread, []
        for item in taken:
            item.leave()
        return taken

    def abandon(self) -> None:
        """Nobody reads any more: what is unread is dropped, and so is what follows."""
        self.gone = True
        self.take()

    @property
    def full(self) -> bool:
        """Whether so much waits that nothing more should be read from this client."""
        return self._has_no_room(0)

    def _has_no_room(self, size: int) -> bool:
        waiting = [len(item.message.data) for item in self.unread if not item.message.bulk]
        return len(waiting) >= UNREAD or sum(waiting) + size > UNREAD_BYTES

    def rouse(self) -> None:
        """Wake up `wait`."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(True)

    def call_when_roused(self, waiting: Wakes | None) -> None:
        """Have `rouse` tell this one, as long as nobody waits here; None: nobody."""
        self._wake = waiting

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until there is something to write, or no more will follow. False when `seconds` passed first."""
        if self.unread or self.finished or self.gone:
            return True
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()
        timer = loop.call_later(seconds, _give_up, wake) if seconds is not None else None
        try:
            return await wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    def _drop_first(self, is_needless: Callable[[UnreadMessage], bool]) -> bool:
        found = next((item for item in self.unread if is_needless(item)), None)
        if found is not None:
            self.unread.remove(found)
            found.leave()
        return found is not None


def _give_up(wake: asyncio.Future[bool]) -> None:
    if not wake.done():
        wake.set_result(False)
