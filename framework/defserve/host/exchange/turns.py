"""How long one peer may keep the event loop busy at a time. All the others share it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Final

TURN_SECONDS: Final = 0.002
PIECE: Final = 4 * 1024
"""Bytes. A piece of nothing but line ends is read in a few milliseconds."""


class Turns:
    """Counts the time that is spent on what one stream brings. Once it is too much, other tasks have a turn."""

    __slots__ = ("_spent",)

    def __init__(self) -> None:
        self._spent = 0.0

    async def spend(self, since: float) -> None:
        """Count the time since then, as `monotonic` gives it."""
        self._spent += monotonic() - since
        if self._spent > TURN_SECONDS:
            self._spent = 0.0
            await asyncio.sleep(0)


def pieces(data: bytes) -> Iterable[bytes]:
    """The data in parts that are read quickly, whatever is in them."""
    if len(data) <= PIECE:
        return (data,)
    return (data[place : place + PIECE] for place in range(0, len(data), PIECE))
