"""The sessions that processes share through Redis: loaded where they are needed, owned by one process, told news once.

How it works: a process serves the sessions that it knows without asking, and hears when one changes or ends. A session
that it does not know, or that another process has changed, is loaded first. One process owns a session: it delivers
news to it. If the owner dies or leaves, the next process that serves the session claims it, and begins with what the
one before has left. An answer to a question, and a cancellation, is handed to the process that it concerns.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from defserve.auth.principals import Principal, decode_principal, encode_principal
from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import get_logger
from defserve.core.messages import Notification, Reply, decode
from defserve.errors import LimitExceeded, Refused
from defserve.serve.http.redis_log import RedisLog
from defserve.serve.sockets import FinalReply, UnfinishedCall, get_client_network
from defserve.stores.shared import lua_scripts
from defserve.stores.shared.worker_link import SharedStoreLink, is_earlier_id, make_preceding_id
from defserve.stores.store import StoreUnavailable

if TYPE_CHECKING:
    from defserve.serve.http.sessions import HttpSession, HttpSessions


SESSION_ID = re.compile(r"[A-Za-z0-9_-]{32}")
# While the store is away, what is known counts for so long before it is asked for again.
UNCHECKED_SECONDS = 1.0
# A call has run when it waits for the store: as long as a store takes that is started again. Then it is answered all
# the same.
TOLD_SECONDS = 30.0
# Seconds before a new owner looks again whether it knows everything, and how often it looks for its own news.
PAUSE, TRIES = 0.01, 100

SessionUpdates = list[tuple[str, dict[str, bytes]]]
Replay = Callable[[RedisLog, SessionUpdates | None], Mapping[str, "asyncio.Task[None]"]]

log = get_logger()


class RedisLogs:
    """The logs of one endpoint. Each session that this process knows has one."""

    sessions: HttpSessions

    def __init__(self, link: SharedStoreLink) -> None:
        self.link = link
        self._owned: dict[RedisLog, None] = {}
        self._stale: set[RedisLog] = set()
        """Those that this process owns; and of these the ones that another process has changed."""
        self._loading: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._heard: dict[str, int] = {}
        """How often others have said something about a session that is being loaded. What was read before is old."""
        self._unchecked_until = 0.0
        self.ownership = SessionOwnership(link, self._heard, self._forget)
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
            link.add_receiver(kind, receiver)
        self._tasks = BackgroundTasks()
        self._checking: asyncio.Task[None] | None = None
        link.renewed.append(self._check_owners_soon)
        link.renewed.append(self._load_missed)
        link.news_lost.append(self._on_news_lost)
        link.lease_lost.append(self._on_lease_lost)

    def __iter__(self) -> Iterator[RedisLog]:
        return (cast(RedisLog, session.log) for session in self.sessions)

    def make_log(self, session: HttpSession) -> RedisLog:
        return RedisLog(session, self)

    @property
    def is_current(self) -> bool:
        return self.link.is_up or time.monotonic() < self._unchecked_until

    @property
    def published(self) -> int:
        return self.link.published

    def hold_reply(self, call: UnfinishedCall, session: HttpSession | None, published: int) -> UnfinishedCall:
        return HeldCall(call, partial(self._settle, cast("RedisLog", session.log) if session else None, published))

    async def _settle(self, changed: RedisLog | None, published: int) -> None:
        """What a call has changed and told is in the store before it is answered, if the store can take it.

        A call that has run is answered in any case. What an absent store has not taken is written when it is back; what
        is too much to remember is known in this process alone.
        """
        if changed is not None and changed.has_unsaved_changes:
            try:
                await changed.save_changes()
            except Refused as error:
                log.error("what a call has changed is not in the store: %s", error.message)
        if self.link.published != published and not self.link.is_written:
            await self.wait_until_published()

    async def wait_until_published(self) -> None:
        await self.link.wait_until_written(TOLD_SECONDS)

    def close(self) -> None:
        for task in (*self._tasks, *([self._checking] if self._checking is not None else ())):
            task.cancel()
        self.ownership.close()

    # -- loading -----------------------------------------------------------------------------------------

    async def load_session(self, id: str, principal: Principal | str) -> None:
        """The principal may be given by its id. A session that is known is served on while the store is away."""
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
        known = self.find_log(id)
        try:
            if known is not None and known.has_unsaved_changes:
                await known.save_changes()
            if known is not None and not self.link.is_written:
                await known.wait_until_written()  # what was changed here must not be read as it was before
            changes, heard = known.changes if known is not None else 0, self._heard.get(id)
            found = await self.link.run_script(lua_scripts.LOAD_SESSION, id)
        except StoreUnavailable:
            if known is None:
                raise
            self._unchecked_until = time.monotonic() + UNCHECKED_SECONDS
            return
        if self._heard.get(id) != heard:
            await self._load(id, principal)  # it was changed elsewhere meanwhile, and nobody says so again
            return
        known = self.find_log(id)
        if found is None:
            if known is not None:
                self._forget(known)
            return
        record = decode_session_record(found)
        if known is not None and (known.has_unsaved_changes or known.changes != changes):
            await self._load(id, principal)  # it was changed here meanwhile, and that must not be lost
            return
        if known is None:
            known = self._reopen_session(id, record, principal)
            if known is None:
                return
        known.restore(record)
        if known.session.opener.id == _id(principal):  # an id alone moves nothing, and keeps nothing open
            known.session.used = time.monotonic()
            try:
                await self.ownership.claim_if_orphaned(known, record.get("owner", ""), bool(found[1]))
            except BaseException:
                known.schedule_reload()  # nobody else tells it news if this claim was taken
                raise
        if known in self.link.behind and not known.is_stale:
            news = known.take_deferred_updates()
            if known.is_owner:
                self.ownership.replay(known, news)

    def _reopen_session(self, id: str, record: dict[str, str], principal: Principal | str) -> RedisLog | None:
        opener = decode_principal(json.loads(record["opener"]))
        if opener.id != _id(principal):
            return None  # another principal's session is not found: an id is never authority
        if isinstance(principal, Principal):
            is_same = (opener.kind, opener.credential) == (principal.kind, principal.credential)
            opener = principal if is_same else opener
        session = self.sessions.make_session(id, opener)
        reopened = cast(RedisLog, session.log)
        reopened.restore(record)
        self.sessions.add(session)
        return reopened

    async def load_principal_sessions(self, principal: str) -> None:
        """Ask the store for all sessions of a principal, so that it can be spoken to from here."""
        for id in await self.link.run_script(lua_scripts.LIST_ACCOUNT_SESSIONS, _account(principal)):
            known = self.find_log(id.decode())
            if known is None or known.is_stale or known.session.is_idle(self.sessions.idle) or not self.is_current:
                await self.load_session(id.decode(), principal)

    # -- the life of a session ---------------------------------------------------------------------------

    async def open_session(self, session: HttpSession) -> None:
        limits, opener = self.sessions.provider.limits, session.opener
        if not self.link.is_following_updates:
            raise StoreUnavailable("The store cannot be reached")
        if opener.kind == "anonymous":
            account, most = f"at {get_client_network(opener.id.partition(':')[2])}", limits.sessions_per_address
        else:
            account, most = _account(opener.id), limits.sessions_per_principal
        opened = cast(RedisLog, session.log)
        record = opened.make_record()
        fields = {"opener": json.dumps(encode_principal(opener)), **record}
        pairs = [part for pair in fields.items() for part in pair]
        limit = "" if opener.is_shared_identity else str(most)
        arguments = (session.id, self.link.worker, opened.ttl, account, limit, *pairs)
        if not await self.link.run_script(lua_scripts.OPEN_SESSION, *arguments):
            raise LimitExceeded("too many sessions", data={"limit": "sessions", "retry_after_ms": 1000})
        opened.known, opened.owner = record, self.link.worker

    def release_session(self, released: RedisLog) -> None:
        """This process forgets a session that goes on. If it owns it, the next one that serves it will."""
        if released.is_owner or released in self.link.behind:  # or perhaps, if the reply to a claim was lost
            told = make_preceding_id(released.missed[0][0]) if released.missed else self.link.handled_news
            self.link.queue_script(lua_scripts.RELEASE_SESSION, released.id, self.link.worker, told)

    def _forget(self, forgotten: RedisLog) -> None:
        self.sessions.forget_session(forgotten.session)

    # -- whom this process tells news --------------------------------------------------------------------

    def reindex_owned_log(self, changed: RedisLog) -> None:
        """Whether a session is owned, or stale, may have changed."""
        if changed.is_closed or not changed.is_owner:
            self._owned.pop(changed, None)
            self._stale.discard(changed)
            return
        self._owned[changed] = None
        if changed.is_stale:
            self._stale.add(changed)
        else:
            self._stale.discard(changed)

    def find_log(self, id: str) -> RedisLog | None:
        """The log of this session, if this process knows it."""
        session = self.sessions.find_known_session(id)
        return cast(RedisLog, session.log) if session is not None else None

    def list_owned_logs(self) -> list[RedisLog]:
        """The sessions that this process tells news."""
        return list(self._owned)

    def list_owned_logs_behind(self) -> list[RedisLog]:
        """Those of them that must hear other news first, or of which it is not known what they want to hear."""
        if not self._stale and not self.link.behind:
            return []
        behind = cast("set[RedisLog]", self.link.behind)
        return [each for each in {*self._stale, *behind} & self._owned.keys() if each.is_stale or each.missed]

    async def reload_stale_owned_logs(self) -> None:
        """Load those of them that another process has changed."""
        if not self._stale:
            return
        loads = (self.load_session(each.id, each.session.opener) for each in list(self._stale))
        for result in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(result, Exception):  # the other sessions must hear of it all the same
                log.error("a session could not be refreshed: %s", result)

    def _load_soon(self, stale: RedisLog) -> None:
        self._tasks.start(self._reload(stale))

    async def _reload(self, stale: RedisLog) -> None:
        with suppress(Refused):  # it stays stale, and is loaded when it is used
            await self.load_session(stale.id, stale.session.opener)

    def _load_missed(self) -> None:
        for behind in list(self.link.behind):
            self._load_soon(cast(RedisLog, behind))

    def _check_owners_soon(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_owners())

    async def _check_owners(self) -> None:
        """Take over the sessions whose owner died. They may be read here without another request."""
        owners = {each.owner for each in self} - {"", self.link.worker}
        if not owners or not self.link.can_trust_leases:
            return
        with suppress(Refused):
            found: list[int] = await self.link.run_script(lua_scripts.FIND_LIVE_WORKERS, *owners)
            dead = {owner for owner, is_alive in zip(owners, found, strict=True) if not is_alive}
            for each in [each for each in self if each.owner in dead]:
                await self._reload(each)

    # -- what others say ---------------------------------------------------------------------------------

    def _find_in(self, fields: dict[str, bytes]) -> RedisLog | None:
        return self.find_log(fields["s"].decode())

    def _hear(self, fields: dict[str, bytes]) -> RedisLog | None:
        """The session whose record others have changed."""
        id = fields["s"].decode()
        if id in self._heard:
            self._heard[id] += 1
        return self.find_log(id)

    def _on_news_lost(self) -> None:
        for each in self:
            each.is_stale = True
            if each.is_owner:
                each.mark_updates_lost()

    def _on_lease_lost(self) -> None:
        for each in self:
            for reader in list(each.session.reading.values()):
                reader.on_event_number(0)

    def _on_changed(self, fields: dict[str, bytes], id: str) -> None:
        if (changed := self._hear(fields)) is None or fields["w"].decode() == self.link.worker:
            return
        changed.is_stale = True
        if changed.is_owner:  # what it does for the session by itself follows from the record
            self._load_soon(changed)

    def _on_ended(self, fields: dict[str, bytes], id: str) -> None:
        if (ended := self._hear(fields)) is not None:
            self._forget(ended)

    def _on_owner(self, fields: dict[str, bytes], id: str) -> None:
        owner = fields["w"].decode()
        owned = self._hear(fields)
        # What comes late may be older than a claim that this process has made since.
        if owned is None or owner == self.link.worker or is_earlier_id(id, owned.claim):
            return
        was_owner, owned.owner = owned.is_owner, owner
        # What it did for the session by itself ends; or there is no owner, and somebody here waits for news.
        if was_owner or (owned.session.readers and not owner):
            owned.is_stale = True
            self._load_soon(owned)

    def _on_event(self, fields: dict[str, bytes], id: str) -> None:
        read = self._find_in(fields)
        if read is not None and (reader := read.session.reading.get(fields["n"].decode())) is not None:
            reader.on_event_number(int(fields["q"]))

    def _on_replaced(self, fields: dict[str, bytes], id: str) -> None:
        read = self._find_in(fields)
        reader = read.session.reading.get(fields["n"].decode()) if read is not None else None
        if reader is not None and reader.token == fields["r"].decode():
            reader.exchange.end_without_answer()

    def _on_answer(self, fields: dict[str, bytes], id: str) -> None:
        if (asking := self._find_in(fields)) is None:
            return
        who, data = json.loads(fields["p"]), fields["d"]
        limits = self.sessions.provider.limits
        reply: Any = decode(data, depth=limits.depth + 1, keys=limits.keys + 4)
        if isinstance(reply, Reply):
            asking.conversation.feed_reply(reply, decode_principal(who))

    def _on_notification(self, fields: dict[str, bytes], id: str) -> None:
        if (asking := self._find_in(fields)) is not None:
            method, params = json.loads(fields["d"])
            asking.conversation.feed_message(
                Notification(method, params, {}), None, decode_principal(json.loads(fields["p"]))
            )

    def _on_cancel(self, fields: dict[str, bytes], id: str) -> None:
        running, call = self._find_in(fields), json.loads(fields["i"])
        if running is None or fields["w"].decode() == self.link.worker:
            return
        conversation = running.conversation
        if call in conversation.in_flight:
            conversation.cancel(call, decode_principal(json.loads(fields["p"])))


def _id(principal: Principal | str) -> str:
    return principal if isinstance(principal, str) else principal.id


def _account(principal: str) -> str:
    return f"of {principal}"


def decode_session_record(found: Any) -> dict[str, str]:
    """The record that `LOAD_SESSION` has found."""
    texts = [each.decode() for each in found[0]]
    return dict(zip(texts[::2], texts[1::2], strict=True))


class HeldCall:
    """A call that waits, and then for `settle`. Until that is done nobody gets its reply."""

    __slots__ = ("_call", "_settle", "_is_wanted", "rest", "reply")

    def __init__(self, call: UnfinishedCall, settle: Callable[[], Awaitable[None]]) -> None:
        self._call, self._settle, self._is_wanted = call, settle, False
        self.rest: Awaitable[None] | None = self._run()
        self.reply: FinalReply | None = None

    async def _run(self) -> None:
        assert self._call.rest is not None
        try:
            await self._call.rest
            await self._settle()
        finally:
            self.reply = self._call.reply
            if self._is_wanted:
                self._call.send_reply()

    def send_reply(self) -> None:
        self._is_wanted = True
        if self.reply is not None:
            self._call.send_reply()


# -- Which process tells a session news: one that lives. A new one begins with what the one before has left.


class SessionOwnership:
    """`heard` says how often others have said something about a session that is being loaded.

    `replay` tells a session news that it has missed, and gives the work that goes on, by the id of its news. For None
    it is no longer known what was missed. Whoever delivers news sets it.
    """

    def __init__(self, link: SharedStoreLink, heard: Mapping[str, int], forget: Callable[[RedisLog], None]) -> None:
        self._link, self._heard, self._forget = link, heard, forget
        self._tasks = BackgroundTasks()
        self.replay: Replay = lambda session, news: {}

    async def claim_if_orphaned(self, session: RedisLog, owner: str, is_alive: bool) -> None:
        """Become the owner of a session whose own is dead. A claim whose reply got lost is repeated."""
        if session.owner == self._link.worker == owner:
            return
        claimed = None
        if owner == self._link.worker or not is_alive:
            if self._link.is_following_updates:
                claimed = await self._link.run_script(lua_scripts.CLAIM_SESSION, session.id, self._link.worker)
            else:
                session.schedule_reload()
        if claimed:
            since, claim = (each.decode() for each in claimed)
            await self.take_over(session, since, claim)
        elif session.owner != self._link.worker:
            session.owner = owner

    async def take_over(self, session: RedisLog, since: str, claim: str) -> None:
        """This process is the new owner of a session: from here on it tells it news, beginning with what it missed."""
        found, news, is_all = await self._read_session(session, since)
        tried = 0
        # What this process has said to everyone before it reads that itself reaches its new session by news alone.
        while not is_all or (not self._link.has_read_own_updates and tried < TRIES):
            await asyncio.sleep(PAUSE)
            found, news, is_all = await self._read_session(session, since)
            tried += 1
        if found is None:
            self._forget(session)
            return
        session.owner, session.claim = self._link.worker, claim
        try:
            session.restore(decode_session_record(found))  # what only an owner does begins
            left = self.replay(session, news)
        except BaseException:
            session.owner = ""  # so that the claim is made again, and what was missed is told then
            raise
        if left:
            self._tasks.start(self._catch_up(session.id, claim, left))
        else:
            self._link.queue_script(lua_scripts.END_CATCH_UP, session.id, claim)

    async def _read_session(self, session: RedisLog, since: str) -> tuple[Any, SessionUpdates | None, bool]:
        """The record of a session, what it has missed, and whether nothing has come meanwhile."""
        if session.has_unsaved_changes:
            await session.save_changes()
        if not self._link.is_written:
            await session.wait_until_written()  # what was changed here must not be read as it was before
        before = self._state(session)
        # What was subscribed to before news was published must be known when it is told.
        found = await self._link.run_script(lua_scripts.LOAD_SESSION, session.id)
        news = await self._link.read_updates_after(since)
        return found, news, before == self._state(session) and not session.has_unsaved_changes

    def _state(self, session: RedisLog) -> tuple[object, ...]:
        return self._link.last_read_update_id, self._heard.get(session.id), session.changes

    async def _catch_up(self, session: str, claim: str, left: Mapping[str, asyncio.Task[None]]) -> None:
        """Say how far it is: if this process dies, the next one goes on from there."""
        for id, task in left.items():
            await asyncio.wait((task,))
            self._link.queue_script(lua_scripts.MARK_DELIVERED, session, claim, id)
        self._link.queue_script(lua_scripts.END_CATCH_UP, session, claim)

    def close(self) -> None:
        self._tasks.cancel()
