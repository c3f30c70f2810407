"""Which conversation serves which caller. Two callers never share one unless the operator says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable

from defserve.base.background import BackgroundTasks
from defserve.proxying.conversations.channel import Channel
from defserve.proxying.conversations.fronts import Front
from defserve.proxying.failures import too_busy

MOST_CHANNELS = 64
IDLE_SECONDS = 300.0
SHARE_OF_ONE = 3
"""Quarters of the conversations that one caller may have, so that it cannot keep out the others."""


class Pool:
    """The conversations that belong to one front each. They end when they are idle, and when their front leaves."""

    def __init__(
        self,
        id: str,
        open: Callable[[Front], Awaitable[Channel]],
        *,
        most: int = MOST_CHANNELS,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self.ended: Callable[[Front], None] = lambda front: None
        """Called with the front of each conversation that ends."""
        self._id, self._open, self.most, self.idle = id, open, most, idle
        self._opening: dict[Hashable, asyncio.Task[Channel]] = {}
        self._opening_fronts: dict[Hashable, Front] = {}
        self._unwanted: set[Hashable] = set()
        self._opening_for: Counter[str] = Counter()
        self._channels: dict[Hashable, Channel] = {}
        self._single: set[Channel] = set()
        self._tasks = BackgroundTasks()
        self._sweeper: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._channels) + len(self._single) + self._opening_for.total()

    def all(self) -> list[Channel]:
        return [*self._channels.values(), *self._single]

    def known(self, front: Front) -> Channel | None:
        """The open conversation of a front."""
        channel = self._channels.get(front.place) if front.key is not None else None
        return channel if channel is not None and channel.gone is None else None

    async def get(self, front: Front) -> Channel:
        """The conversation of a front, opened if there is none. A front without a key gets one for a single call."""
        if (channel := self.known(front)) is not None:
            return channel
        if front.key is None:
            self._make_room(front)
            self._opening_for[front.principal] += 1
            channel = await self._counted(front)
            channel.on_idle = lambda: self._over(channel)
            self._single.add(channel)
            return channel
        key = front.place
        task = self._opening.get(key)
        if task is None:
            self._make_room(front)
            self._opening_for[front.principal] += 1
            self._opening_fronts[key] = front
            task = self._opening[key] = asyncio.create_task(self._opened(key, front))
            # If everybody who waited was cancelled, nobody looks at the outcome.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: others may wait for the same one.
        return await asyncio.shield(task)

    async def _opened(self, key: Hashable, front: Front) -> Channel:
        try:
            channel = await self._counted(front)
        finally:
            is_unwanted = key in self._unwanted
            self._unwanted.discard(key)
            self._opening.pop(key, None)
            self._opening_fronts.pop(key, None)
        if is_unwanted or (front.session is not None and front.session.closed):
            self._end(channel)
        else:
            self._channels[key] = channel
            self._sweep_later()
        return channel

    async def _counted(self, front: Front) -> Channel:
        """Open one that counts already. Processes take a while to end, and there must not be too many of those."""
        try:
            while len(self._tasks) >= self.most:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            return await self._open(front)
        finally:
            self._opening_for[front.principal] -= 1
            if not self._opening_for[front.principal]:
                del self._opening_for[front.principal]

    def _over(self, channel: Channel) -> None:
        """No call is under way. A conversation that was opened for one call alone ends."""
        if channel in self._single:
            self._single.discard(channel)
            self._end(channel)

    def drop(self, channel: Channel) -> None:
        """Forget a conversation that has ended by itself."""
        self._single.discard(channel)
        for key, kept in list(self._channels.items()):
            if kept is channel:
                del self._channels[key]
        self._end(channel)

    def end(self, front: Front) -> None:
        """A front wants nothing more."""
        if (channel := self._channels.pop(front.place, None)) is not None:
            self._end(channel)

    def end_of(self, which: Callable[[Front], bool]) -> None:
        """Fronts have left, or may no longer be served: what was opened for them ends."""
        for key, channel in list(self._channels.items()):
            if channel.front is not None and which(channel.front):
                del self._channels[key]
                self._end(channel)
        for channel in [one for one in self._single if one.front is not None and which(one.front)]:
            self._over(channel)
        # What is being opened ends when it is open: others may wait for it.
        self._unwanted.update(key for key, front in self._opening_fronts.items() if which(front))

    async def aclose(self) -> None:
        """End all conversations."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        opening, channels = list(self._opening.values()), self.all()
        self._channels.clear()
        self._single.clear()
        for task in opening:
            task.cancel()
        for channel in channels:
            self._end(channel)
        await asyncio.gather(*opening, *self._tasks, return_exceptions=True)

    def _make_room(self, front: Front) -> None:
        """End an idle conversation if there are too many: one of the same caller, or of the one with the most."""
        each, share = self._by_principal(), -(-self.most * SHARE_OF_ONE // 4)
        is_greedy = each[front.principal] >= share
        if len(self) < self.most and not is_greedy:
            return
        idle = [
            (-each[whose], since, key)
            for key, channel in self._channels.items()
            if (since := channel.idle_since) is not None and (not is_greedy or _principal(channel) == front.principal)
            for whose in [_principal(channel)]
        ]
        if not idle:
            most = (
                f"{share} of its {self.most} conversations are in use by you" if is_greedy and share < self.most else ""
            )
            raise too_busy(self._id, most or f"all of its {self.most} conversations are in use")
        self._end(self._channels.pop(min(idle, key=lambda one: one[:2])[2]))

    def _by_principal(self) -> Counter[str]:
        """How many conversations each caller has."""
        return self._opening_for + Counter(_principal(channel) for channel in self.all())

    def _end(self, channel: Channel) -> None:
        if channel.front is not None:
            self.ended(channel.front)
        self._tasks.start(channel.aclose())

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._channels:
            self._sweeper = asyncio.get_running_loop().call_later(self.idle / 2, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = asyncio.get_running_loop().time() - self.idle
        for key, channel in list(self._channels.items()):
            if (since := channel.idle_since) is not None and since <= oldest and not channel.updates.uris:
                del self._channels[key]
                self._end(channel)
        self._sweep_later()


def _principal(channel: Channel) -> str:
    return channel.front.principal if channel.front is not None else ""
