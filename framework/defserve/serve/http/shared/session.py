"""A session that any process may serve: what of it is in the store, and what this process knows of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from defserve.auth.principals import Principal, decode_principal, encode_principal
from defserve.core.messages import Params, RequestId
from defserve.errors import LimitExceeded
from defserve.serve.http.exchange import Exchange, WritableMessage
from defserve.serve.http.sessions import HttpSession
from defserve.serve.http.shared.interrupted import encode_interrupted_reply
from defserve.serve.http.shared.owned import OwnedSessions
from defserve.serve.http.shared.reading import (
    SHARED_STANDALONE_STREAM_NAME,
    StoredMessage,
    StreamReader,
    decode_read_position,
)
from defserve.serve.http.shared.streams import SharedStandaloneStream
from defserve.stores.shared import lua_scripts
from defserve.stores.shared.worker_link import SharedStoreLink, UpdateDelivery
from defserve.stores.store import StoreUnavailable

MAX_RECORD_BYTES = 1024 * 1024
# More news than this is not kept for a session that cannot be loaded.
MAX_DEFERRED_UPDATES = 1024
MAX_ID_LENGTH = 256
CREDENTIAL = "credential:"
# Seconds that an answer waits for the store, and if the store is known to be away.
WRITE_TIMEOUT, AWAY_TIMEOUT = 5.0, 0.5
TRIES = 5

WORKER = re.compile(r"[0-9a-f]{12}")
_EVENT = re.compile(r"([0-9a-z.]{1,40})-([0-9]{1,15})")


class StreamFullyRead(Exception):
    """A client continues a stream that is over, and has all of it."""


class SharedSession(HttpSession):
    """`known` is its record as the store has it. `is_stale`: another process has changed it since.

    `owner` is the process that tells it news. `reading` are the responses of this process that read a stream, by its
    name; `streams` are the calls of this process that have one.
    """

    reading: dict[str, StreamReader]

    def __init__(
        self, id: str, opener: Principal, link: SharedStoreLink, idle: float, owned: OwnedSessions[SharedSession]
    ) -> None:
        super().__init__(id, opener)
        self.link, self.ttl = link, int(idle * 1250)
        self.standalone = SharedStandaloneStream(self)
        self.known: dict[str, str] = {}
        self.credentials: dict[str, Principal] = {}
        self._owned, self._owner = owned, ""
        self._is_stale = self.is_closed = self.has_changed = self.goes_on = False
        self.changes = 0
        """How often this process has changed the record."""
        self._changing = 0
        """How many of these changes the store does not have yet."""
        self.touched = time.monotonic()
        self.claim = "0-0"
        """The news by which this process became its owner last."""
        self.delivered = "0-0"
        """The last news that was delivered when the record was loaded."""
        self.missed: list[tuple[str, dict[str, bytes]]] = []
        """News that came while the record could not be loaded. It is told when that is possible again."""
        self._has_lost_news = False
        self.reading = {}
        self._numbers: dict[str, int] = {}
        # A session that was forgotten and found again must not begin to count as it did before.
        self._producer = link.make_unique_name()
        self.numbering = f"{self._producer}."
        self.forget: Callable[[], None] = self.close
        """Forgets the session in this process alone. Whoever lists it sets this."""

    @property
    def owner(self) -> str:
        return self._owner

    @owner.setter
    def owner(self, owner: str) -> None:
        self._owner = owner
        self._owned.update_session(self)

    @property
    def is_owner(self) -> bool:
        return self._owner == self.link.worker

    @property
    def is_stale(self) -> bool:
        return self._is_stale

    @is_stale.setter
    def is_stale(self, is_stale: bool) -> None:
        self._is_stale = is_stale
        self._owned.update_session(self)

    def new_name(self) -> str:
        """A name for a stream that nobody else gives, here or in another process."""
        return self.link.make_unique_name()

    def new_token(self) -> str:
        return self.link.make_unique_name().replace(".", "/")

    # -- the record --------------------------------------------------------------------------------------

    def record(self) -> dict[str, str]:
        """What is kept of the conversation, each value as JSON. Raises LimitExceeded if that is too much."""
        found = {name: json.dumps(value) for name, value in self.conversation.record().items()}
        if sum(len(name) + len(value) for name, value in found.items()) > MAX_RECORD_BYTES:
            raise LimitExceeded("too much to remember for this session", data={"limit": "session"})
        return found

    def restore(self, record: Mapping[str, str]) -> None:
        """Take over what another process has written."""
        self.known = {name: value for name, value in record.items() if name.startswith(("offer", "ready", "kept:"))}
        self.conversation.restore({name: json.loads(value) for name, value in self.known.items()})
        given = {name: value for name, value in record.items() if name.startswith(CREDENTIAL)}
        self.credentials = {name.removeprefix(CREDENTIAL): decode_principal(json.loads(v)) for name, v in given.items()}
        self.delivered = record.get("delivered", "0-0")
        self.is_stale = False

    def defer_update(self, id: str, fields: dict[str, bytes]) -> None:
        """Tell it this news later: what it wants to hear of is not known now."""
        if len(self.missed) < MAX_DEFERRED_UPDATES:
            self.missed.append((id, fields))
        self.link.behind.add(self)

    def mark_updates_lost(self) -> None:
        """News that it may want is gone. It is told so when its record is loaded again."""
        self._has_lost_news = True
        self.schedule_reload()

    def schedule_reload(self) -> None:
        """Have this process load it again soon, with or without a request."""
        self.is_stale = True
        self.link.behind.add(self)

    def take_deferred_updates(self) -> list[tuple[str, dict[str, bytes]]] | None:
        """The news that it has missed; None if that is no longer known."""
        found, self.missed = self.missed, []
        is_all = len(found) < MAX_DEFERRED_UPDATES and not self._has_lost_news
        self._has_lost_news = False
        self.link.behind.discard(self)
        return found if is_all else None

    def mark_dirty(self) -> None:
        self.has_changed = True

    async def save_changes(self) -> None:
        """Write what has changed, and wait until the store has it. Raises StoreUnavailable if that takes too long."""
        self.has_changed = False
        record = self.record()
        put = [part for name, value in record.items() if self.known.get(name) != value for part in (name, value)]
        drop = [name for name in self.known if name not in record]
        if (put or drop) and self.link.is_full:
            self.has_changed = True
            raise StoreUnavailable("The store cannot be reached")
        if put or drop:
            self.known = record
            self.update_record(put, drop)
        if self._changing:  # by this call, or by one before whose caller was told to try again
            await self.wait_until_written()

    def update_record(self, put: list[str], drop: list[str]) -> None:
        """Write names and values of the record, and tell the other processes."""
        self.changes += 1
        self._changing += 1
        self.link.queue_script(
            lua_scripts.CHANGE_SESSION, self.id, self.link.worker, len(drop), *drop, *put, done=self._on_changes_written
        )

    def _on_changes_written(self, reply: object) -> None:
        self._changing -= 1

    async def wait_until_written(self) -> None:
        """Wait until the store has everything. Raises StoreUnavailable if that takes too long."""
        if not await self.link.wait_until_written(WRITE_TIMEOUT if self.link.is_up else AWAY_TIMEOUT):
            raise StoreUnavailable("The store cannot be reached")

    # -- events ------------------------------------------------------------------------------------------

    def append_event(self, name: str, message: WritableMessage, *, delivery: UpdateDelivery | None = None) -> None:
        """Add a message to a stream. When the store has it, it goes to who reads the stream.

        A message of a `delivery` is added once, whichever process adds it.
        """
        kind = "message"
        if message.answers:
            kind = "result" if message.data else "end"
        elif message.asks:
            kind = "request"
        elif message.replaces is not None:
            kind = "progress"
        if not (message.data or message.answers) or (self.link.is_full and kind in ("message", "progress")):
            if message.taken is not None:
                message.taken()
            return
        question = str(message.asks) if message.asks else ""
        if question:
            message.release = partial(self._release, question)
        asker = message.audience[0] if message.audience else self.opener
        key = json.dumps(message.replaces, default=str) if message.replaces is not None else ""
        news, record = ("", ("", "")) if delivery is None else (delivery.next_id(self.id), delivery.record)
        if not news:
            self._numbers[name] = self._numbers.get(name, 0) + 1
        args = lua_scripts.append_arguments(
            message.data,
            session=self.id,
            stream=name,
            producer=self._producer,
            number="" if news else self._numbers[name],
            news=news,
            record=record[0],
            record_value=record[1],
            kind=kind,
            replaces=key,
            audience=_audience(message) if name == SHARED_STANDALONE_STREAM_NAME else "",
            question=question,
            asker=json.dumps(encode_principal(asker)) if question else "",
            ttl=self.ttl,
        )
        self.link.queue_script(lua_scripts.APPEND_EVENT, *args, done=partial(self._on_event_appended, name, message))
        if message.answers:
            self.streams.pop(name, None)
            self._numbers.pop(name, None)

    def _on_event_appended(self, name: str, message: WritableMessage, reply: Any) -> None:
        reader = self.reading.get(name)
        outcome = reply[0] if reply else lua_scripts.SESSION_OVER
        is_unread = reader is None or outcome != lua_scripts.EVENT_ADDED or not message.data
        if is_unread and message.taken is not None:
            message.taken()
        if reader is None:
            return
        if outcome in (lua_scripts.SESSION_OVER, lua_scripts.NO_STREAM):
            reader.exchange.end_without_answer()
        elif outcome != lua_scripts.EVENT_ADDED or not message.data:
            # It was there already, or somebody else has ended the stream: the store knows what the client gets.
            reader.on_event_number(0)
        else:
            reader.on_event_appended(reply[1], reply[2], message)

    def _release(self, question: str) -> None:
        self.link.queue_script(lua_scripts.RELEASE_QUESTION, self.id, question)

    # -- reading -----------------------------------------------------------------------------------------

    async def resume_shared(self, event_id: str, exchange: Exchange) -> StreamReader | None:
        """The reader of the stream that a client continues. None for an unknown id. Raises NothingLeft."""
        found = _EVENT.fullmatch(event_id)
        if found is None:
            return None
        name, place = found[1], int(found[2])
        for _ in range(TRIES):
            looked = await self.link.run_script(lua_scripts.LOOK_UP_STREAM, self.id, name)
            if looked is None or place > int(looked[0][4]):
                return None
            fields, after = looked[0], place
            if name == SHARED_STANDALONE_STREAM_NAME:
                reader = StreamReader(self, name, exchange, after=after, left=decode_read_position(fields)[1])
            elif fields[2] is None or not exchange.principal.covers(decode_principal(json.loads(fields[2]))):
                return None
            elif fields[3] and place == int(fields[4]):
                raise StreamFullyRead
            else:
                reader = StreamReader(self, name, exchange, after=after)
            with reader.release_on_failure():
                if await self._attach(reader, fields[5]):
                    reader.send_first_event_id()
                    if name != SHARED_STANDALONE_STREAM_NAME and not looked[1]:
                        await self.interrupt_if_dead(name)
                    await reader.deliver_stored_events()
                    return reader
        return None

    async def listen_shared(self, exchange: Exchange) -> StreamReader | None:
        """The reader of the session's own stream. None if another client reads it that cannot be replaced."""
        for _ in range(TRIES):
            looked = await self.link.run_script(lua_scripts.LOOK_UP_STREAM, self.id, SHARED_STANDALONE_STREAM_NAME)
            fields: list[bytes | None] = looked[0] if looked is not None else [None] * 9
            if looked is not None and looked[2] and self._is_taken(fields, exchange.principal):
                return None
            read, left = decode_read_position(fields)
            reader = StreamReader(self, SHARED_STANDALONE_STREAM_NAME, exchange, after=read, left=left)
            with reader.release_on_failure():
                if await self._attach(reader, fields[5]):
                    reader.send_first_event_id()
                    await reader.deliver_stored_events()  # the first event may have come after the look
                    return reader
        return None

    def _is_taken(self, fields: list[bytes | None], principal: Principal) -> bool:
        token = (fields[5] or b"").decode()
        here = self.reading.get(SHARED_STANDALONE_STREAM_NAME)
        if token.startswith(f"{self.link.worker}/") and (here is None or here.token != token or here.is_over):
            return False
        current = decode_principal(json.loads(fields[6])) if fields[6] else self.opener
        return current.covers(principal) or not principal.covers(current)

    async def _attach(self, reader: StreamReader, before: bytes | None) -> bool:
        rights = json.dumps(encode_principal(reader.exchange.principal))
        old = self.reading.get(reader.name)
        # Where it begins is all that its client has. It may come back without an id.
        begins = reader.get_read_position() if reader.name == SHARED_STANDALONE_STREAM_NAME else ()
        if not await self.link.run_script(
            *(lua_scripts.ATTACH_READER, self.id, reader.name, before or b"", reader.token, rights, self.ttl, *begins)
        ):
            return False
        if old is not None:
            old.exchange.end_without_answer()
        self.reading[reader.name] = reader
        return True

    async def interrupt_if_dead(self, name: str) -> None:
        """End a stream, exactly once, whose call ran in a process that died."""
        if not self.link.knows_live_workers:
            return
        looked = await self.link.run_script(lua_scripts.LOOK_UP_STREAM, self.id, name)
        if looked is None or looked[1] or looked[0][3] or not looked[0][0]:
            return
        data = encode_interrupted_reply(json.loads(looked[0][1] or b"null"))
        args = lua_scripts.append_arguments(
            data, session=self.id, stream=name, kind="result", ttl=self.ttl, dead=looked[0][0].decode()
        )
        await self.link.run_script(lua_scripts.APPEND_EVENT, *args)

    # -- elsewhere ---------------------------------------------------------------------------------------

    def notify_elsewhere(self, question: RequestId, method: str, params: Params, identity: Any) -> bool:
        if not self.is_asked_elsewhere(question) or identity is None or self.link.is_full:
            return False
        self.link.queue_script_once(lua_scripts.SEND_MAIL, *self._letter(question, method, params, identity))
        return True

    def is_asked_elsewhere(self, question: RequestId) -> bool:
        worker = question.partition(".")[0] if isinstance(question, str) else ""
        return WORKER.fullmatch(worker) is not None and worker != self.link.worker

    async def answer_elsewhere(self, question: RequestId, method: str, params: Params, identity: Any) -> bool:
        asked = await self.link.run_script(lua_scripts.FIND_QUESTION, self.id, str(question))
        if asked is None or not identity.covers(decode_principal(json.loads(asked.split(b"\n", 2)[2]))):
            return False
        letter = self._letter(question, method, params, identity)
        sent = await self.link.run_script(lua_scripts.NOTIFY_ASKER, self.id, str(question), *letter)
        if sent == lua_scripts.MAILBOX_FULL:
            raise StoreUnavailable("The process that asks is behind with its answers; try again")
        return bool(sent)

    def _letter(self, question: RequestId, method: str, params: Params, identity: Any) -> tuple[str, ...]:
        worker, data, who = (
            str(question).partition(".")[0],
            json.dumps([method, params]),
            json.dumps(encode_principal(identity)),
        )
        return worker, "t", "notification", "s", self.id, "d", data, "p", who

    def cancel_elsewhere(self, id: RequestId, identity: Any) -> None:
        text = json.dumps(id)
        if len(text) <= MAX_ID_LENGTH and identity is not None and not self.link.is_full:
            who = json.dumps(encode_principal(identity))
            self.link.queue_script(
                lua_scripts.SEND_SIGNAL, "t", "cancel", "s", self.id, "i", text, "p", who, "w", self.link.worker
            )

    # -- credentials -------------------------------------------------------------------------------------

    def add_credential(self, exchange: Exchange) -> None:
        before = {shown.key for shown in self.list_credentials()}
        super().add_credential(exchange)
        for shown in self.list_credentials():
            if shown.key not in before and shown.key not in self.credentials:
                self.credentials[shown.key] = shown.principal
                self.update_record([f"{CREDENTIAL}{shown.key}", json.dumps(encode_principal(shown.principal))], [])

    def credential_ended(self, key: Any) -> None:
        for reader in list(self.reading.values()):
            if reader.exchange.principal.credential == key:
                reader.exchange.end_without_answer()
        if self.credentials.pop(key, None) is not None:
            self.update_record([], [f"{CREDENTIAL}{key}"])
        super().credential_ended(key)

    def has_credential(self) -> bool:
        return super().has_credential() or any(each.covers(self.opener) for each in self.credentials.values())

    def interrupt(self) -> None:
        """This process ends before its calls do. Who comes back for one is told."""
        for name, stream in list(self.streams.items()):
            request = getattr(stream, "request", None)
            self.append_event(name, StoredMessage(encode_interrupted_reply(request), "result"))

    def evict(self) -> None:
        self.forget()

    def close(self) -> None:
        for reader in list(self.reading.values()):
            reader.exchange.end_without_answer()
        self.link.behind.discard(self)
        self.is_closed = True
        self._owned.update_session(self)
        super().close()


def _audience(message: WritableMessage) -> str:
    if message.audience is None:
        return ""
    return json.dumps([encode_principal(each) for each in message.audience]) if message.audience else "*"
