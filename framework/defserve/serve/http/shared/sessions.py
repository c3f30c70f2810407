"""The sessions that this process knows, of all that the processes share."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from defserve.auth.principals import Principal, decode_principal, encode_principal
from defserve.base.concurrency import BackgroundTasks
from defserve.core.messages import Notification, Reply, decode
from defserve.errors import LimitExceeded, Refused
from defserve.serve.http.sessions import HttpSession, HttpSessions
from defserve.serve.http.shared.owned import OwnedSessions
from defserve.serve.http.shared.ownership import SessionOwnership, decode_session_record
from defserve.serve.http.shared.session import SharedSession
from defserve.serve.sockets import get_client_network
from defserve.stores.shared import lua_scripts
from defserve.stores.shared.worker_link import SharedStoreLink, is_earlier_id, make_preceding_id
from defserve.stores.store import StoreUnavailable

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.serve.session_opener import SessionOpener


SESSION_ID = re.compile(r"[A-Za-z0-9_-]{32}")
# While the store is away, what is known counts for so long before it is asked for again.
UNCHECKED_SECONDS = 1.0

log = logging.getLogger("defserve")


class SharedSessions(HttpSessions):
    """A session that is known is found without asking anybody. `load` asks the store for others."""

    def __init__(self, provider: SessionOpener, link: SharedStoreLink, primed: frozenset[str]) -> None:
        super().__init__(provider.limits.idle)
        self._provider, self._link, self._primed = provider, link, primed
        self._owned = OwnedSessions[SharedSession]()
        self._loading: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._heard: dict[str, int] = {}
        """How often others have said something about a session that is being loaded. What was read before is old."""
        self._unchecked_until = 0.0
        self.ownership = SessionOwnership(link, self._heard, self.drop_session)
        for kind, receiver in (
            ("changed", self._on_changed),
            ("ended", self._on_ended),
            ("owner", self._on_owner),
            ("event", self._on_event),
            ("replaced", self._on_replaced),
            ("answer", self._on_answer),
            ("notification", self._on_notification),
            ("cancel", self._on_cancel),
        ):
            link.set_receiver(kind, receiver)
        self._tasks = BackgroundTasks()
        self._checking: asyncio.Task[None] | None = None
        link.renewed.append(self._check_owners_soon)
        link.renewed.append(self._load_missed)
        link.news_lost.append(self._on_news_lost)
        link.lease_lost.append(self._on_lease_lost)

    def make_session(self, id: str, opener: Principal) -> SharedSession:
        return SharedSession(id, opener, self._link, self.idle, self._owned)

    def add(self, session: HttpSession) -> None:
        super().add(session)
        assert isinstance(session, SharedSession)
        session.forget = partial(self._release, session)

    # -- finding -----------------------------------------------------------------------------------------

    def is_current(self, id: str) -> bool:
        """Whether a session is known here, as it is now."""
        session = cast("SharedSession | None", self._open.get(id))
        if session is None or session.is_stale:
            return False
        now = time.monotonic()
        if now - session.used > self.idle and session.is_idle(self.idle):
            return False  # it may have been used elsewhere
        return self._link.is_up or now < self._unchecked_until

    def find(self, id: str, principal: str) -> SharedSession | None:
        session = cast("SharedSession | None", self._open.get(id))
        if session is None or session.opener.id != principal:
            return None
        session.used = now = time.monotonic()
        if now - session.touched > self.idle / 4:
            self._touch(session)
        return session

    def _touch(self, session: SharedSession) -> None:
        session.touched = time.monotonic()
        self._link.queue_script(lua_scripts.TOUCH_SESSION, session.id, session.ttl)

    async def load(self, id: str, principal: Principal | str) -> None:
        """Ask the store for a session of this principal, who may be given by its id.

        Raises StoreUnavailable, and LimitExceeded. A session that is known is served on while the store is away.
        """
        if SESSION_ID.fullmatch(id) is None:
            return
        key = (id, _id(principal))
        task = self._loading.get(key)
        if task is None:
            self._heard.setdefault(id, 0)
            task = self._loading[key] = asyncio.create_task(self._load(id, principal))
            task.add_done_callback(partial(self._on_loaded, key))
        await asyncio.wait((task,))
        task.result()

    def _on_loaded(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # those who wait get it; there may be none any more
        self._loading.pop(key, None)
        if not any(id == key[0] for id, _ in self._loading):
            self._heard.pop(key[0], None)

    async def _load(self, id: str, principal: Principal | str) -> None:
        known = cast("SharedSession | None", self._open.get(id))
        try:
            if known is not None and known.has_changed:
                await known.save_changes()
            if known is not None and not self._link.is_written:
                await known.wait_until_written()  # what was changed here must not be read as it was before
            changes, heard = known.changes if known is not None else 0, self._heard.get(id)
            found = await self._link.run_script(lua_scripts.LOAD_SESSION, id)
        except StoreUnavailable:
            if known is None:
                raise
            self._unchecked_until = time.monotonic() + UNCHECKED_SECONDS
            return
        if self._heard.get(id) != heard:
            await self._load(id, principal)  # it was changed elsewhere meanwhile, and nobody says so again
            return
        known = cast("SharedSession | None", self._open.get(id))
        if found is None:
            if known is not None:
                self.drop_session(known)
            return
        record = decode_session_record(found)
        if known is not None and (known.has_changed or known.changes != changes):
            await self._load(id, principal)  # it was changed here meanwhile, and that must not be lost
            return
        if known is None:
            known = self._reopen_session(id, record, principal)
            if known is None:
                return
        known.restore(record)
        known.used = time.monotonic()
        if known.opener.id == _id(principal):  # an id alone moves nothing
            try:
                await self.ownership.claim_if_orphaned(known, record.get("owner", ""), bool(found[1]))
            except BaseException:
                known.schedule_reload()  # nobody else tells it news if this claim was taken
                raise
        if known in self._link.behind and not known.is_stale:
            news = known.take_deferred_updates()
            if known.is_owner:
                self.ownership.replay(known, news)

    def find_session(self, id: str) -> SharedSession | None:
        """The session of this id, if this process knows it."""
        return cast("SharedSession | None", self._open.get(id))

    def list_owned(self) -> list[SharedSession]:
        """The sessions that this process tells news."""
        return list(self._owned.all)

    def list_owned_behind(self) -> list[SharedSession]:
        """Those of them that must hear other news first, or of which it is not known what they want to hear."""
        if not self._owned.stale and not self._link.behind:
            return []
        behind = cast("set[SharedSession]", self._link.behind)
        return [each for each in {*self._owned.stale, *behind} & self._owned.all.keys() if each.is_stale or each.missed]

    async def refresh_owned(self) -> None:
        """Load those of them that another process has changed."""
        if not self._owned.stale:
            return
        loads = (self.load(each.id, each.opener) for each in list(self._owned.stale))
        for result in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(result, Exception):  # the other sessions must hear of it all the same
                log.error("a session could not be refreshed: %s", result)

    def _reopen_session(self, id: str, record: dict[str, str], principal: Principal | str) -> SharedSession | None:
        opener = decode_principal(json.loads(record["opener"]))
        if opener.id != _id(principal):
            return None  # another principal's session is not found: an id is never authority
        if isinstance(principal, Principal):
            is_same = (opener.kind, opener.credential) == (principal.kind, principal.credential)
            opener = principal if is_same else opener
        session = self.make_session(id, opener)
        session.conversation = self._conversation(session)
        session.restore(record)
        session.primed = session.conversation.version in self._primed
        self.add(session)
        return session

    def _conversation(self, session: SharedSession) -> Session:
        try:
            return self._provider.open(session.outlet, principal=session.opener, counted=True)
        except LimitExceeded:
            self.end_idle()
            return self._provider.open(session.outlet, principal=session.opener, counted=True)

    # -- the life of a session ---------------------------------------------------------------------------

    async def load_all(self, principal: str) -> None:
        """Ask the store for all sessions of a principal, so that it can be spoken to from here."""
        for id in await self._link.run_script(lua_scripts.LIST_ACCOUNT_SESSIONS, _account(principal)):
            if not self.is_current(id.decode()):
                await self.load(id.decode(), principal)

    async def store_session(self, session: SharedSession) -> None:
        """Write down a session that was opened. Raises StoreUnavailable, and LimitExceeded past a limit."""
        limits, opener = self._provider.limits, session.opener
        if not self._link.is_following_updates:
            raise StoreUnavailable("The store cannot be reached")
        if opener.kind == "anonymous":
            account, most = f"at {get_client_network(opener.id.partition(':')[2])}", limits.sessions_per_address
        else:
            account, most = _account(opener.id), limits.sessions_per_principal
        record = session.record()
        fields = {"opener": json.dumps(encode_principal(opener)), **record}
        pairs = [part for pair in fields.items() for part in pair]
        limit = "" if opener.is_shared_identity else str(most)
        if not await self._link.run_script(
            *(lua_scripts.OPEN_SESSION, session.id, self._link.worker, session.ttl, account, limit, *pairs)
        ):
            raise LimitExceeded("too many sessions", data={"limit": "sessions", "retry_after_ms": 1000})
        session.known, session.owner = record, self._link.worker
        self.add(session)

    def end_session(self, session: HttpSession) -> None:
        if self._open.pop(session.id, None) is not None:
            session.close()
            self._link.queue_script(lua_scripts.END_SESSION, session.id)

    def drop_session(self, session: SharedSession) -> None:
        """Forget a session in this process. Others may go on with it."""
        session.goes_on = True
        if self._open.pop(session.id, None) is not None:
            session.close()

    def _release(self, session: SharedSession) -> None:
        """Forget a session that goes on. If this process owns it, the next one that serves it will."""
        if session.is_owner or session in self._link.behind:  # or perhaps, if the reply to a claim was lost
            told = make_preceding_id(session.missed[0][0]) if session.missed else self._link.handled_news
            self._link.queue_script(lua_scripts.RELEASE_SESSION, session.id, self._link.worker, told)
        self.drop_session(session)

    def end_idle(self) -> None:
        """Forget those that are idle here. In the store they end by themselves."""
        for each in self:
            session = cast(SharedSession, each)
            if session.is_idle(self.idle):
                self._release(session)
            elif session.readers or session.streams:
                self._touch(session)

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for task in (*self._tasks, *([self._checking] if self._checking is not None else ())):
            task.cancel()
        self.ownership.close()
        for session in map(_to_shared_session, self):
            session.interrupt()
            self.drop_session(session)

    # -- what others say ---------------------------------------------------------------------------------

    def _of(self, fields: dict[str, bytes]) -> SharedSession | None:
        return cast("SharedSession | None", self._open.get(fields["s"].decode()))

    def _hear(self, fields: dict[str, bytes]) -> SharedSession | None:
        """The session whose record others have changed."""
        id = fields["s"].decode()
        if id in self._heard:
            self._heard[id] += 1
        return self._of(fields)

    def _on_news_lost(self) -> None:
        for session in map(_to_shared_session, self):
            session.is_stale = True
            if session.is_owner:
                session.mark_updates_lost()

    def _on_lease_lost(self) -> None:
        for session in map(_to_shared_session, self):
            for reader in list(session.reading.values()):
                reader.on_event_number(0)

    def _on_changed(self, fields: dict[str, bytes], id: str) -> None:
        if (session := self._hear(fields)) is None or fields["w"].decode() == self._link.worker:
            return
        session.is_stale = True
        if session.is_owner:  # what it does for the session by itself follows from the record
            self._load_soon(session)

    def _load_soon(self, session: SharedSession) -> None:
        self._tasks.start(self._reload_session(session))

    def _check_owners_soon(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_owners())

    def _load_missed(self) -> None:
        for session in list(self._link.behind):
            self._load_soon(cast(SharedSession, session))

    async def _reload_session(self, session: SharedSession) -> None:
        with suppress(Refused):  # it stays stale, and is loaded when it is used
            await self.load(session.id, session.opener)

    async def _check_owners(self) -> None:
        """Take over the sessions whose owner died. They may be read here without another request."""
        owners = {each.owner for each in map(_to_shared_session, self)} - {"", self._link.worker}
        if not owners or not self._link.knows_live_workers:
            return
        with suppress(Refused):
            found: list[int] = await self._link.run_script(lua_scripts.FIND_LIVE_WORKERS, *owners)
            dead = {owner for owner, is_alive in zip(owners, found, strict=True) if not is_alive}
            for session in [each for each in map(_to_shared_session, self) if each.owner in dead]:
                await self._reload_session(session)

    def _on_ended(self, fields: dict[str, bytes], id: str) -> None:
        if (session := self._hear(fields)) is not None:
            self.drop_session(session)

    def _on_owner(self, fields: dict[str, bytes], id: str) -> None:
        owner = fields["w"].decode()
        session = self._hear(fields)
        # What comes late may be older than a claim that this process has made since.
        if session is None or owner == self._link.worker or is_earlier_id(id, session.claim):
            return
        was_owner, session.owner = session.is_owner, owner
        # What it did for the session by itself ends; or there is no owner, and somebody here waits for news.
        if was_owner or (session.readers and not owner):
            session.is_stale = True
            self._load_soon(session)

    def _on_event(self, fields: dict[str, bytes], id: str) -> None:
        session = self._of(fields)
        if session is not None and (reader := session.reading.get(fields["n"].decode())) is not None:
            reader.on_event_number(int(fields["q"]))

    def _on_replaced(self, fields: dict[str, bytes], id: str) -> None:
        session = self._of(fields)
        reader = session.reading.get(fields["n"].decode()) if session is not None else None
        if reader is not None and reader.token == fields["r"].decode():
            reader.exchange.end_without_answer()

    def _on_answer(self, fields: dict[str, bytes], id: str) -> None:
        if (session := self._of(fields)) is None:
            return
        who, data = json.loads(fields["p"]), fields["d"]
        limits = self._provider.limits
        reply: Any = decode(data, depth=limits.depth + 1, keys=limits.keys + 4)
        if isinstance(reply, Reply):
            session.conversation.feed_reply(reply, decode_principal(who))

    def _on_notification(self, fields: dict[str, bytes], id: str) -> None:
        if (session := self._of(fields)) is not None:
            method, params = json.loads(fields["d"])
            session.conversation.feed_message(
                Notification(method, params, {}), None, decode_principal(json.loads(fields["p"]))
            )

    def _on_cancel(self, fields: dict[str, bytes], id: str) -> None:
        session, call = self._of(fields), json.loads(fields["i"])
        if session is not None and fields["w"].decode() != self._link.worker and call in session.conversation.in_flight:
            session.conversation.cancel(call, decode_principal(json.loads(fields["p"])))


def _id(principal: Principal | str) -> str:
    return principal if isinstance(principal, str) else principal.id


def _account(principal: str) -> str:
    return f"of {principal}"


def _to_shared_session(session: HttpSession) -> SharedSession:
    return cast(SharedSession, session)
