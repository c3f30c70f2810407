"""Asks the sessions of a server at an address, from time to time, whether it is still there.

A link that was cut without a word looks like one on which nothing is said: only a question shows the difference. The
end of a child's pipe is noticed without that, and a server without sessions has no link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from defserve.errors import PeerError, PeerGone, PeerTimeout

if TYPE_CHECKING:
    from defserve.proxying.conversations.channel import Channel
    from defserve.proxying.conversations.conversations import Conversations

HEARTBEAT_SECONDS: Final = 15.0
SILENCE: Final = "it did not answer a ping within {:g} s"


class BackendHeartbeat:
    """Pings the sessions of one backend. `lost` is called with each conversation that has ended."""

    def __init__(
        self,
        conversations: Conversations,
        lost: Callable[[Channel, PeerGone], None],
        seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._conversations, self._lost, self._seconds = conversations, lost, seconds

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.beat()

    async def beat(self) -> None:
        """Ping every session once, all at the same time."""
        channels = [one for one in self._conversations.all() if one.pid is None and not one.stateless]
        await asyncio.gather(*(self._ping(channel) for channel in channels))

    async def _ping(self, channel: Channel) -> None:
        calls = set(channel.exchanges)
        try:
            await channel.request("ping", {}, self._seconds)
        except PeerTimeout:
            # A server that does one thing at a time answers nothing while a call runs. That call has its own deadline.
            if not calls and not channel.exchanges:
                self._lost(channel, PeerGone(SILENCE.format(self._seconds)))
        except PeerGone as gone:
            self._lost(channel, gone)
        except PeerError:
            pass  # it does not know pings, and it has answered
