"""The sessions of one endpoint: found by id and principal, ended when their client is silent for too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

from defserve.auth.principals import Principal
from defserve.stores.stream_events import EventBudget
from defserve.transports.http.session import HttpSession

# How often to look for idle sessions: a share of the time that they may be idle, within limits.
LOOK_SHARE, LOOK_LEAST, LOOK_MOST = 0.25, 0.01, 60.0


class HttpSessions:
    """The sessions of one endpoint, by id. Idle ones end by themselves."""

    def __init__(self, idle: float) -> None:
        self.idle, self._budget = idle, EventBudget()
        self._open: dict[str, HttpSession] = {}
        self._look: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def new(self, id: str, opener: Principal) -> HttpSession:
        """A session that is not listed yet."""
        return HttpSession(id, opener, self._budget)

    def add(self, session: HttpSession) -> None:
        self._open[session.id] = session
        session.end = partial(self.end, session)
        session.conversation.holder = session
        self._look_later()

    def find(self, id: str, principal: str) -> HttpSession | None:
        """The session with this id, if it is this principal's and not idle for too long."""
        session = self._open.get(id)
        # Another principal's session is not found: an id is never authority.
        if session is None or session.opener.id != principal:
            return None
        now = time.monotonic()
        if now - session.used > self.idle and session.is_idle(self.idle):
            self.end(session)
            return None
        session.used = now
        return session

    def end(self, session: HttpSession) -> None:
        """Forget a session and everything that was kept for it."""
        if self._open.pop(session.id, None) is not None:
            session.close()

    def end_idle(self) -> None:
        """End the sessions whose client has been silent for too long."""
        for session in self:
            if session.is_idle(self.idle):
                self.end(session)

    def close(self) -> None:
        """End every session."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for session in self:
            self.end(session)

    def _look_later(self) -> None:
        if self._look is None:
            seconds = min(max(self.idle * LOOK_SHARE, LOOK_LEAST), LOOK_MOST)
            self._look = asyncio.get_running_loop().call_later(seconds, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self.end_idle()
        if self._open:
            self._look_later()
