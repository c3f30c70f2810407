"""Which resources of a backend its fronts want to hear of. They are asked for again in a new conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING

from defserve.errors import PeerError

if TYPE_CHECKING:
    from defserve.proxying.conversations.channel import Channel
    from defserve.proxying.conversations.fronts import Front

SHARED = "shared"
"""Stands for all fronts, where they share one conversation."""


class Watched:
    """The URIs, as the backend knows them, that one front wants to hear of, and how often it said so."""

    __slots__ = ("front", "uris")

    def __init__(self, front: Front) -> None:
        self.front, self.uris = front, Counter[str]()


class Watching:
    """For one backend. `find` gives the conversation of a front, `key` what its watches are kept under."""

    def __init__(self, find: Callable[[Front], Awaitable[Channel]], key: Callable[[Front], Hashable]) -> None:
        self._find, self._key = find, key
        self._watched: dict[Hashable, Watched] = {}

    async def add(self, front: Front, uris: Collection[str]) -> None:
        """A front wants to hear of resources. Raises PeerError if the backend refuses."""
        channel = await self._find(front)
        watched = self._watched.setdefault(self._key(front), Watched(front))
        watched.uris.update(uris)
        try:
            await channel.updates.want(uris=watched.uris.keys())
        except BaseException:
            self._subtract(watched, uris)
            raise

    async def drop(self, front: Front, uris: Collection[str], known: Callable[[Front], Channel | None]) -> None:
        """It no longer does."""
        key = self._key(front)
        if (watched := self._watched.get(key)) is None:
            return
        self._subtract(watched, uris)
        if not watched.uris:
            del self._watched[key]
        if (channel := known(front)) is not None:
            with suppress(PeerError):
                await channel.updates.want(uris=watched.uris.keys())

    def forget(self, which: Callable[[Front], bool]) -> None:
        """Fronts that have left want nothing."""
        self._watched = {key: one for key, one in self._watched.items() if key == SHARED or not which(one.front)}

    async def repeat(self, channel: Channel, key: Hashable) -> None:
        """Ask a new conversation for what an earlier one was asked for."""
        if (watched := self._watched.get(key)) is not None:
            with suppress(PeerError):
                await channel.updates.want(uris=watched.uris.keys())

    def watches(self, front: Front) -> bool:
        """Whether a front waits for news."""
        return self._key(front) in self._watched

    @staticmethod
    def _subtract(watched: Watched, uris: Collection[str]) -> None:
        watched.uris.subtract(uris)
        watched.uris = +watched.uris
