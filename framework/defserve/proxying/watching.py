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
    """For one backend. `find` gives the conversation of a front, `group` is the same for those that share one."""

    def __init__(self, find: Callable[[Front], Awaitable[Channel]], group: Callable[[Front], Hashable]) -> None:
        self._find, self._group = find, group
        self._watched: dict[Hashable, Watched] = {}

    async def add(self, front: Front, uris: Collection[str]) -> None:
        """A front wants to hear of resources. Raises PeerError if the backend refuses."""
        channel = await self._find(front)
        self._watched.setdefault(front.key, Watched(front)).uris.update(uris)
        try:
            await channel.updates.want(uris=lambda: self._wanted(self._group(front)))
        except BaseException as error:
            self._subtract(front, uris)
            if isinstance(error, PeerError):
                await self.settle(channel, self._group(front))
            raise

    async def drop(self, front: Front, uris: Collection[str], known: Callable[[Front], Channel | None]) -> None:
        """It no longer does."""
        if not self.watches(front):
            return
        self._subtract(front, uris)
        if (channel := known(front)) is not None:
            await self.settle(channel, self._group(front))

    def forget(self, which: Callable[[Front], bool]) -> bool:
        """Fronts that have left want nothing. Whether one of them did."""
        left = [key for key, one in self._watched.items() if which(one.front)]
        for key in left:
            del self._watched[key]
        return bool(left)

    async def repeat(self, channel: Channel, group: Hashable) -> None:
        """Ask a new conversation for what an earlier one was asked for."""
        if self._wanted(group):
            await self.settle(channel, group)

    async def settle(self, channel: Channel, group: Hashable) -> None:
        """Ask a conversation for what its fronts want to hear of, and for nothing else."""
        with suppress(PeerError):
            await channel.updates.want(uris=lambda: self._wanted(group))

    def watches(self, front: Front) -> bool:
        """Whether a front waits for news."""
        return front.key in self._watched

    def _wanted(self, group: Hashable) -> set[str]:
        return {uri for one in self._watched.values() if self._group(one.front) == group for uri in one.uris}

    def _subtract(self, front: Front, uris: Collection[str]) -> None:
        if (watched := self._watched.get(front.key)) is None:
            return
        watched.uris.subtract(uris)
        watched.uris = +watched.uris
        if not watched.uris:
            del self._watched[front.key]
