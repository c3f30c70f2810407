"""Conversations that are kept for further requests, though the one that opened them is over.

A child without sessions asks in its result, and may need its memory to go on: the answers must reach the same child.
A child that runs a task has it in its memory, until the task is over.
"""

from __future__ import annotations

import asyncio
from secrets import token_urlsafe
from typing import Any, Final, NamedTuple

from defserve.proxying.conversations.channel import BackendExchange, Channel

HELD_SECONDS: Final = 600.0
MOST_HELD: Final = 16
SHARE_OF_ONE: Final = 3
"""Quarters of them that one caller may have, so that it cannot keep out the others."""


class HeldChannel(NamedTuple):
    """A conversation that an exchange keeps open, though it is over."""

    channel: Channel
    exchange: BackendExchange
    timer: asyncio.TimerHandle


class HeldChannels:
    """Those of one backend, by handle: bounded in number, for each caller too, and in time."""

    def __init__(self, most: int = MOST_HELD) -> None:
        self._held: dict[str, HeldChannel] = {}
        self._most, self._share = most, -(-most * SHARE_OF_ONE // 4)

    def hold(self, channel: Channel, exchange: BackendExchange, seconds: float = HELD_SECONDS) -> str | None:
        """Keep a conversation; its handle. None if there is no room: then it ends."""
        caller = _caller(channel)
        if len(self._held) >= self._most:
            return None
        if sum(_caller(held.channel) == caller for held in self._held.values()) >= self._share:
            return None
        handle = token_urlsafe(16)
        timer = asyncio.get_running_loop().call_later(seconds, self.release, handle)
        self._held[handle] = HeldChannel(channel, exchange, timer)
        return handle

    def take(self, handle: Any) -> HeldChannel | None:
        """The conversation behind a handle. Who takes it ends the exchange, after its own has begun."""
        held = self._held.pop(handle, None) if isinstance(handle, str) else None
        if held is not None:
            held.timer.cancel()
        return held if held is not None and held.channel.gone is None else None

    def find(self, handle: Any) -> Channel | None:
        """The conversation behind a handle, which stays kept; None if it has ended."""
        held = self._held.get(handle)
        return held.channel if held is not None and held.channel.gone is None else None

    def release(self, handle: Any) -> None:
        """Nobody needs it any more."""
        if (held := self._held.pop(handle, None)) is not None:
            held.timer.cancel()
            held.channel.end(held.exchange)


def _caller(channel: Channel) -> str | None:
    return channel.front.principal if channel.front is not None else None
