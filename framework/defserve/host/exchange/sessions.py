"""The session of a link that has one. A session that the server has lost is opened again, once that is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

from defserve.errors import PeerError, PeerGone
from defserve.host.link import ExchangingLink, Hear, SessionLost
from defserve.wire.messages import Reply, Request

OpenAgain: TypeAlias = Callable[[], Awaitable[object]]
"""Opens the conversation again, in the same words."""

MOST_SETTINGS: Final = 10_000
SETTING_SECONDS = 30.0
LEVEL, SUBSCRIBE, UNSUBSCRIBE = "logging/setLevel", "resources/subscribe", "resources/unsubscribe"
SETTINGS: Final = frozenset((LEVEL, SUBSCRIBE, UNSUBSCRIBE))
# They are about something that ended with the session.
NOT_REPEATED: Final = frozenset(("notifications/cancelled", "notifications/progress"))

log = logging.getLogger("defserve.host")


class Ask(Protocol):
    """`ClientConversation.request`."""

    async def __call__(self, method: str, params: Mapping[str, Any], *, within: float | None) -> Any: ...


class Settings:
    """What the server has accepted and keeps until the session ends: the log level, and the subscriptions."""

    def __init__(self) -> None:
        self._accepted: dict[tuple[str, str], Mapping[str, Any]] = {}

    def keep(self, method: str, params: Mapping[str, Any]) -> None:
        if method == LEVEL:
            self._accepted[LEVEL, ""] = params
        elif method == UNSUBSCRIBE:
            self._accepted.pop((SUBSCRIBE, str(params.get("uri"))), None)
        elif len(self._accepted) < MOST_SETTINGS:
            self._accepted[SUBSCRIBE, str(params.get("uri"))] = params

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return iter([(method, params) for (method, _), params in self._accepted.items()])


class Sessions:
    """Sends messages over one link. Until `keep_open`, the end of the session is the end of the conversation."""

    def __init__(self, link: ExchangingLink) -> None:
        self._link = link
        self._opens: OpenAgain | None = None
        self._request: Ask | None = None
        self._settings = Settings()
        self._lost = False
        self._opening: asyncio.Task[None] | None = None

    def keep_open(self, opens: OpenAgain, request: Ask) -> None:
        """From now on open a lost session again: with `opens`, and then with the settings, said by `request`."""
        self._opens, self._request = opens, request
        self._link.on_session_lost = self._on_lost

    async def aclose(self) -> None:
        """Open nothing any more."""
        self._opens = None
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    async def ask(self, request: Request, message: bytes, hear: Hear) -> Reply:
        """The answer to a request. One that was refused for want of a session is sent again in a new one."""
        if self._lost:
            await self._open_again()
        session = self._link.session_id
        try:
            reply = await self._link.ask(request, message, hear)
        except SessionLost:
            await self._recover(session)
            reply = await self._link.ask(request, message, hear)
        if request.method in SETTINGS and reply.error is None:
            self._settings.keep(request.method, request.params)
        return reply

    async def tell(self, method: str | None, message: bytes) -> None:
        """Send a notification; without a `method`, an answer."""
        if self._lost and method is not None:
            await self._open_again()
        session = self._link.session_id
        try:
            await self._link.send(message)
        except SessionLost:
            await self._recover(session)
            if method is not None and method not in NOT_REPEATED:
                await self._link.send(message)

    async def _recover(self, session: str | None) -> None:
        """The server has refused a message for want of `session`. Raises SessionLost if that cannot be helped."""
        if self._opens is None or self._opening is asyncio.current_task():
            raise SessionLost
        # Somebody else may have noticed it before, and opened a new one.
        self._lost = self._lost or self._link.session_id == session
        if self._lost:
            await self._open_again()

    def _on_lost(self) -> None:
        """Open it at once, rather than with the next request: the server may have something to say."""
        if self._opens is not None and self._opening is None:
            self._lost = True
            self._start()

    async def _open_again(self) -> None:
        opening = self._opening
        if opening is asyncio.current_task():
            return
        opening = opening or self._start()
        await asyncio.wait((opening,))
        if opening.cancelled():
            raise PeerGone("the client was closed")
        if error := opening.exception():
            raise PeerGone(f"the server ended the session, and opened no other: {error}") from None

    def _start(self) -> asyncio.Task[None]:
        opening = self._opening = asyncio.create_task(self._open(), name="defserve.host opening")
        # Perhaps nobody waits for it.
        opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        return opening

    async def _open(self) -> None:
        assert self._opens is not None and self._request is not None
        log.info("the server ended the session; opening another")
        try:
            self._link.forget_session()
            await self._opens()
            for method, params in self._settings:
                try:
                    await self._request(method, params, within=SETTING_SECONDS)
                except PeerError as error:
                    log.warning("%s could not be said again: %s", method, error)
            self._lost = False
        finally:
            self._opening = None
