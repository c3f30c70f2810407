"""Sessions over HTTP: found by id and principal, their streams, and when a silent session ends.

What of a session outlives a response, or this process, is in its log: see `session_log.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from defserve.auth.live_credentials import BearerCredential, LiveBearerCredentials
from defserve.auth.principals import Principal
from defserve.errors import LimitExceeded
from defserve.serve.http.exchange import Exchange
from defserve.serve.http.session_log import SessionLogs, StreamState
from defserve.serve.http.streams import ResponseStream, StreamReader

if TYPE_CHECKING:
    from defserve.core.service import SessionSharer
    from defserve.core.session import Session
    from defserve.serve.session_opener import SessionOpener


# How many credentials may use one session at a time. A client that refreshes its token uses two.
MAX_SESSION_CREDENTIALS = 32

# How often a reader looks again who reads its stream, if that changes meanwhile.
ATTACH_TRIES = 5

_EVENT_ID = re.compile(r"([0-9a-z.-]{1,40})-([0-9]{1,15})")


class StreamFullyRead(Exception):
    """A client continues a stream that is over, and has all of it."""


class HttpSession:
    """The session that `Mcp-Session-Id` names. Bound to the principal that opened it.

    Another credential of that principal may use it, with its own rights: what it reads and resumes is only what it may
    see. `primed`: a response may end early; its client has an event id to come back with (SEP-1699).

    Its log is told that it is used from time to time: at `touch_at`, or later.

    `reading` are the responses of this process that read a stream, by its name; `streams` are the calls of this process
    that have one. `readers` counts all open responses.
    """

    conversation: Session

    primed = is_forgotten = False
    """The second: only this process has ended the session. Others may go on with it."""

    def __init__(self, id: str, opener: Principal, sessions: HttpSessions) -> None:
        self.id, self.opener = id, opener
        self.opened = self.used = now = time.monotonic()
        self.touch_at = now + sessions.idle / 4
        self.readers = 0
        self.streams: dict[str, ResponseStream] = {}
        self.reading: dict[str, StreamReader] = {}
        self._credentials: dict[str, BearerCredential] = {}
        self._live: LiveBearerCredentials | None = None
        self._sessions = sessions
        self.log = sessions.logs.make_log(self)

    @property
    def sharer(self) -> SessionSharer | None:
        """See `core.session.Session`."""
        return self.log.sharer

    def outlet(self, message: Any) -> None:
        """Send a message to the stream of its request, or to the session's own."""
        stream = message.destination
        if isinstance(stream, ResponseStream):
            stream.push(message)
        else:
            self.log.append(self.log.standalone, message)

    # -- reading -----------------------------------------------------------------------------------------

    async def resume(self, event_id: str, exchange: Exchange) -> StreamReader | None:
        """The reader of the stream that a client continues. None for an unknown id. Raises StreamFullyRead."""
        found = _EVENT_ID.fullmatch(event_id)
        if found is None:
            return None
        name, place = found[1], int(found[2])
        for _ in range(ATTACH_TRIES):
            state = await self.log.look_up_stream(name)
            if state is None or place > state.last:
                return None
            if name == self.log.standalone:
                reader = StreamReader(self, name, exchange, after=place, skipped=state.skipped)
            elif state.caller is None or not exchange.principal.covers(state.caller):
                return None
            elif state.is_over and place == state.last:
                raise StreamFullyRead
            else:
                reader = StreamReader(self, name, exchange, after=place)
            if await self._attach(reader, state):
                return reader
        return None

    async def listen(self, exchange: Exchange) -> StreamReader | None:
        """The reader of the session's own stream. None if another client reads it that cannot be replaced."""
        name = self.log.standalone
        for _ in range(ATTACH_TRIES):
            state = await self.log.look_up_stream(name) or StreamState()
            current = state.reader
            # A client may take the place of one that sees less, and of no other.
            if current is not None and (current.covers(exchange.principal) or not exchange.principal.covers(current)):
                return None
            reader = StreamReader(self, name, exchange, after=state.read, skipped=state.skipped)
            if await self._attach(reader, state):
                return reader
        return None

    async def _attach(self, reader: StreamReader, state: StreamState) -> bool:
        """Have a client read a stream, beginning with what it has missed. False: another one was faster."""
        old = self.reading.get(reader.name)
        with reader.detach_reader_on_failure():
            if not await self.log.attach_reader(reader, state.token):
                return False
            if old is not None:
                old.exchange.take_unread()  # the new one gets it
                old.exchange.end_without_answer()
            self.reading[reader.name] = reader
            if state.is_orphaned:
                await self.log.end_orphaned_stream(reader.name)
            await reader.begin()
        return True

    # -- credentials -------------------------------------------------------------------------------------

    def add_credential(self, exchange: Exchange) -> None:
        """A request with this credential belongs to the session."""
        if exchange.live is None or exchange.principal.credential in self._credentials:
            return
        for shown in exchange.list_credentials():
            if shown.key not in self._credentials:
                self._credentials[shown.key] = shown
                self.log.add_credential(shown.key, shown.principal)
        if self._live is None and self._credentials:
            self._live = exchange.live
            self._live.keep_verifying_holder(self)
        if len(self._credentials) > MAX_SESSION_CREDENTIALS:
            self.credential_ended(next(iter(self._credentials)))

    def list_credentials(self) -> tuple[BearerCredential, ...]:
        return tuple(self._credentials.values())

    def credential_ended(self, key: Any) -> None:
        """End what belongs to a credential, and the session itself if no other one with its opener's rights is left."""
        self._credentials.pop(key, None)
        self.log.remove_credential(key)
        self.conversation.end_credential(key)
        # What its calls are told comes first.
        for reader in list(self.reading.values()):
            if reader.exchange.principal.credential == key:
                reader.exchange.end_without_answer()
        if not self.has_credential():
            self._sessions.end_session(self)

    def has_credential(self) -> bool:
        """Whether a credential with the rights of who opened the session is left."""
        is_mine = any(shown.principal.covers(self.opener) for shown in self._credentials.values())
        return is_mine or self.log.has_credential_of(self.opener)

    # -- life --------------------------------------------------------------------------------------------

    def is_idle(self, seconds: float) -> bool:
        """Whether nothing is running, and the client has sent nothing for so many seconds."""
        return not (self.readers or self.streams) and time.monotonic() - self.used > seconds

    def get_idle_seconds(self) -> tuple[bool, float] | None:
        """As a `SessionHolder`: whether it was never used since it was opened, and for how long it is idle."""
        if self.readers or self.streams or self.conversation.in_flight:
            return None
        return self.used == self.opened, time.monotonic() - self.used

    def evict(self) -> None:
        self._sessions.release_session(self)

    def close(self) -> None:
        for reader in list(self.reading.values()):
            reader.exchange.end_without_answer()
        self.conversation.close()
        self.log.close()
        if self._live is not None:
            self._live.stop_verifying_holder(self)


# -- The sessions of one endpoint: found by id and principal, ended when their client is silent for too long.


# How often to look for idle sessions: a share of the time that they may be idle, within limits.
LOOK_SHARE, LOOK_LEAST, LOOK_MOST = 0.25, 0.01, 60.0


class HttpSessions:
    """The sessions that this process knows, by id. Idle ones end by themselves."""

    def __init__(self, provider: SessionOpener, logs: SessionLogs, primed_versions: frozenset[str]) -> None:
        self.provider, self.logs, self._primed_versions = provider, logs, primed_versions
        self.idle = provider.limits.idle
        self._open: dict[str, HttpSession] = {}
        self._look: asyncio.TimerHandle | None = None
        logs.sessions = self

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def find(self, id: str, principal: str) -> HttpSession | None:
        """The session with this id, if it is this principal's. None: it is not known here as it is now; `load` it."""
        session = self._open.get(id)
        # Another principal's session is not found: an id is never authority.
        if session is None or session.opener.id != principal or session.log.is_stale or not self.logs.is_current:
            return None
        now = time.monotonic()
        if now - session.used > self.idle and session.is_idle(self.idle):
            return None
        session.used = now
        if now > session.touch_at:
            session.touch_at = now + self.idle / 4
            session.log.touch()
        return session

    async def load(self, id: str, principal: Principal) -> HttpSession | None:
        """The session with this id, if it is this principal's. Raises StoreUnavailable, and LimitExceeded."""
        await self.logs.load_session(id, principal)
        session = self._open.get(id)
        if session is None or session.opener.id != principal.id:
            return None
        session.used = time.monotonic()
        return session

    def find_known_session(self, id: str) -> HttpSession | None:
        """The session of this id, whoever's it is, and however old is what this process knows of it."""
        return self._open.get(id)

    # -- opening -----------------------------------------------------------------------------------------

    def make_session(self, id: str, opener: Principal) -> HttpSession:
        """A session that is not listed yet. Raises LimitExceeded if there are too many."""
        session = HttpSession(id, opener, self)
        try:
            session.conversation = self.provider.open(session.outlet, principal=opener, counted=True)
        except LimitExceeded:
            self.end_idle()
            session.conversation = self.provider.open(session.outlet, principal=opener, counted=True)
        return session

    async def open_session(self, session: HttpSession) -> None:
        """List a session that has shaken hands. Raises StoreUnavailable, and LimitExceeded."""
        await self.logs.open_session(session)
        self.add(session)

    def add(self, session: HttpSession) -> None:
        """List a session."""
        session.primed = session.conversation.version in self._primed_versions
        session.conversation.holder = session
        self._open[session.id] = session
        self._look_later()

    # -- ending ------------------------------------------------------------------------------------------

    def end_session(self, session: HttpSession) -> None:
        """Forget a session and everything that was kept for it."""
        if self._open.pop(session.id, None) is not None:
            session.close()
            session.log.end()

    def release_session(self, session: HttpSession) -> None:
        """Forget a session in this process. Others may go on with it."""
        if session.id in self._open:
            session.log.release()
            self.forget_session(session)

    def forget_session(self, session: HttpSession) -> None:
        """Forget a session that others have ended, or go on with."""
        session.is_forgotten = True
        if self._open.pop(session.id, None) is not None:
            session.close()

    def end_idle(self) -> None:
        """Forget the sessions whose client has been silent for too long."""
        for session in self:
            if session.is_idle(self.idle):
                self.release_session(session)
            elif session.readers or session.streams:
                session.log.touch()

    def close(self) -> None:
        """This process ends."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self.logs.close()
        for session in self:
            session.log.interrupt_streams()
            self.forget_session(session)

    def _look_later(self) -> None:
        if self._look is None:
            seconds = min(max(self.idle * LOOK_SHARE, LOOK_LEAST), LOOK_MOST)
            self._look = asyncio.get_running_loop().call_later(seconds, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self.end_idle()
        if self._open:
            self._look_later()
