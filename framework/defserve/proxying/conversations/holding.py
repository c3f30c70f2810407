"""Conversations that are kept for one more request: that of a client which nobody vouches for, with its answers.

A child without sessions asks in its result, and may need its memory to go on: the answers must reach the same child.
"""

from __future__ import annotations

import asyncio
from secrets import token_urlsafe
from typing import Any, Final, NamedTuple

from defserve.proxying.conversations.channel import Channel, Exchange

HELD_SECONDS: Final = 600.0
MOST_HELD: Final = 16


class HeldChannel(NamedTuple):
    """A conversation that an exchange keeps open, though it is over."""

    channel: Channel
    exchange: Exchange
    timer: asyncio.TimerHandle


class HeldChannels:
    """Those of one backend, by handle: bounded in number and in time."""

    def __init__(self) -> None:
        self._held: dict[str, HeldChannel] = {}

    def hold(self, channel: Channel, exchange: Exchange) -> str | None:
        """Keep a conversation; its handle. None if there is no room: then it ends."""
        if len(self._held) >= MOST_HELD:
            return None
        handle = token_urlsafe(16)
        timer = asyncio.get_running_loop().call_later(HELD_SECONDS, self._expire, handle)
        self._held[handle] = HeldChannel(channel, exchange, timer)
        return handle

    def take(self, handle: Any) -> HeldChannel | None:
        """The conversation behind a handle. Who takes it ends the exchange, after its own has begun."""
        held = self._held.pop(handle, None) if isinstance(handle, str) else None
        if held is not None:
            held.timer.cancel()
        return held if held is not None and held.channel.gone is None else None

    def _expire(self, handle: str) -> None:
        if (held := self._held.pop(handle, None)) is not None:
            held.channel.end(held.exchange)
