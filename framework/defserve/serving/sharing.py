"""Several processes as one server: sessions, streams and changes that they share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from defserve.core.composition import Composition
from defserve.core.extension import Extension
from defserve.stores.shared.link import SharedLink


class Sharing(Extension):
    """Has the link to the other processes. It is up while the server serves, if something is shared through it."""

    name = "sharing"

    def __init__(self, address: str) -> None:
        self.link, self._is_used = SharedLink(address), False

    def use(self) -> SharedLink:
        """The link, which is needed from now on."""
        self._is_used = True
        return self.link

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        return self._linked()

    @asynccontextmanager
    async def _linked(self) -> AsyncGenerator[None]:
        if not self._is_used:
            yield
            return
        await self.link.start()
        try:
            yield
        finally:
            await self.link.stop()


def sharing_of(composition: Composition) -> Sharing | None:
    """What a server shares with other processes, if it does."""
    return next((each for each in composition.extensions if isinstance(each, Sharing)), None)
