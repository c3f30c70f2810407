"""The log of a session in Redis: any process of the server may serve the session. See `session_log.py`.

How it works: each step is one script (`stores/shared/lua_scripts.py`). What this process writes goes there in its order
(`SharedStoreLink.queue_script`); an event goes to its reader when Redis has given it a number. What is kept of the
conversation is the session's record. `known` is the record as the store has it; a process that changes it tells the
others, whose own is stale from then on. `redis_sessions.py` loads it, and decides which process owns a session.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from defserve.auth.principals import Principal, decode_principal, encode_principal
from defserve.core.messages import INTERNAL_ERROR, Params, Reply, RequestId, encode
from defserve.errors import LimitExceeded, Refused
from defserve.serve.http.exchange import WritableMessage
from defserve.serve.http.session_log import Audience, EventPage, StreamState, find_event_kind
from defserve.serve.http.streams import StoredMessage
from defserve.stores.shared import lua_scripts
from defserve.stores.store import StoreUnavailable
from defserve.stores.stream_events import StoredEvent

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.serve.http.redis_sessions import RedisLogs
    from defserve.serve.http.sessions import HttpSession
    from defserve.serve.http.streams import ResponseStream, StreamReader
    from defserve.stores.shared.worker_link import UpdateDelivery

STANDALONE_STREAM_NAME = "s"
MAX_RECORD_BYTES = 1024 * 1024
# More news than this is not kept for a session that cannot be loaded.
MAX_DEFERRED_UPDATES = 1024
MAX_ID_LENGTH = 256
MAX_QUESTION_ID_LENGTH = 64
CREDENTIAL = "credential:"
# Seconds that an answer waits for the store, and if the store is known to be away.
WRITE_TIMEOUT, AWAY_TIMEOUT = 5.0, 0.5
# How often a reader looks whether the process that it depends on lives.
LOOK_SECONDS = 1.0
DIED = "the process that ran this call died; send it again"

WORKER = re.compile(r"[0-9a-f]{12}")


class RedisLog:
    """`is_stale`: another process has changed the record. `owner` is the process that tells the session news."""

    standalone = STANDALONE_STREAM_NAME
    keeps_complete_responses = False

    def __init__(self, session: HttpSession, logs: RedisLogs) -> None:
        self.session, self.link, self._logs = session, logs.link, logs
        self.ttl = int(logs.sessions.idle * 1250)
        self.known: dict[str, str] = {}
        self.credentials: dict[str, Principal] = {}
        self._owner = ""
        self._is_stale = self.is_closed = self.has_unsaved_changes = False
        self.changes = 0
        """How often this process has changed the record."""
        self._changing = 0
        """How many of these changes the store does not have yet."""
        self.claim = "0-0"
        """The news by which this process became its owner last."""
        self.delivered = "0-0"
        """The last news that was delivered when the record was loaded."""
        self.missed: list[tuple[str, dict[str, bytes]]] = []
        """News that came while the record could not be loaded. It is told when that is possible again."""
        self._has_lost_news = False
        self._numbers: dict[str, int] = {}
        # A session that was forgotten and found again must not begin to count as it did before.
        self._producer = self.link.make_unique_name()
        self.numbering = f"{self._producer}."

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def conversation(self) -> Session:
        return self.session.conversation

    @property
    def sharer(self) -> RedisLog:
        return self

    @property
    def is_up(self) -> bool:
        return self.link.is_up

    @property
    def goes_on(self) -> bool:
        return self.session.is_forgotten

    @property
    def owner(self) -> str:
        return self._owner

    @owner.setter
    def owner(self, owner: str) -> None:
        self._owner = owner
        self._logs.reindex_owned_log(self)

    @property
    def is_owner(self) -> bool:
        return self._owner == self.link.worker

    @property
    def is_stale(self) -> bool:
        return self._is_stale

    @is_stale.setter
    def is_stale(self, is_stale: bool) -> None:
        self._is_stale = is_stale
        self._logs.reindex_owned_log(self)

    # -- streams -----------------------------------------------------------------------------------------

    def begin_stream(self, stream: ResponseStream, reader: StreamReader) -> str:
        name = self.link.make_unique_name()
        request, caller = json.dumps(stream.request), json.dumps(encode_principal(reader.exchange.principal))
        arguments = (self.id, name, self.link.worker, request, caller, reader.token, self.ttl)
        self.link.queue_script(lua_scripts.BEGIN_STREAM, *arguments, done=lambda reply: reader.on_stream_begun(name))
        return name

    def append(self, name: str, message: WritableMessage) -> None:
        """Messages that are told because of news are added once, whichever process adds them."""
        kind = find_event_kind(message)
        if kind is None or (self.link.is_full and kind in ("message", "progress")):
            if message.taken is not None:
                message.taken()
            return
        is_own = name == STANDALONE_STREAM_NAME
        delivery = self.link.delivering if is_own else None
        question = str(message.asks) if message.asks else ""
        if question:
            message.release = partial(self.link.queue_script, lua_scripts.RELEASE_QUESTION, self.id, question)
        asker = message.audience[0] if message.audience else self.session.opener
        arguments = lua_scripts.append_arguments(
            message.data,
            session=self.id,
            stream=name,
            producer=self._producer,
            **self._count_event(name, delivery),
            kind=kind,
            replaces=json.dumps(message.replaces, default=str) if message.replaces is not None else "",
            audience=_encode_audience(message.audience) if is_own else "",
            question=question,
            asker=json.dumps(encode_principal(asker)) if question else "",
            ttl=self.ttl,
        )
        done = partial(self._on_event_appended, name, message)
        self.link.queue_script(lua_scripts.APPEND_EVENT, *arguments, done=done)
        if message.answers:
            self._numbers.pop(name, None)

    def _count_event(self, name: str, delivery: UpdateDelivery | None) -> dict[str, str | int]:
        """What tells the script that it has added an event before: its number, or the news that it delivers."""
        if delivery is not None:
            field, value = delivery.record
            return {"number": "", "news": delivery.next_id(self.id), "record": field, "record_value": value}
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        return {"number": number, "news": "", "record": "", "record_value": ""}

    def _on_event_appended(self, name: str, message: WritableMessage, reply: Any) -> None:
        reader, is_handed = self.session.reading.get(name), False
        outcome = reply[0] if reply else lua_scripts.SESSION_OVER
        if reader is None:
            pass
        elif outcome == lua_scripts.EVENT_ADDED:
            is_handed = reader.on_event_appended(reply[1], reply[2], message)
        elif outcome in (lua_scripts.SESSION_OVER, lua_scripts.NO_STREAM):
            reader.exchange.end_without_answer()
        else:
            # It was there already, or somebody else has ended the stream: the store knows what the client gets.
            reader.on_event_number(0)
        if not is_handed and message.taken is not None:
            message.taken()

    def interrupt_streams(self) -> None:
        for name, stream in list(self.session.streams.items()):
            self.append(name, StoredMessage(encode_interrupted_reply(stream.request), "result"))

    # -- readers -----------------------------------------------------------------------------------------

    def make_reader_token(self) -> str:
        return self.link.make_unique_name().replace(".", "/")

    async def look_up_stream(self, name: str) -> StreamState | None:
        looked = await self.link.run_script(lua_scripts.LOOK_UP_STREAM, self.id, name)
        if looked is None:
            return None
        (_, _, caller, is_over, last, reader, rights, read, skipped), is_run, is_reader_alive = looked
        token = (reader or b"").decode()
        is_read = bool(is_reader_alive)
        if token.startswith(f"{self.link.worker}/"):
            here = self.session.reading.get(name)
            is_read = is_read and here is not None and here.token == token and not here.is_over
        current = decode_principal(json.loads(rights)) if rights else self.session.opener
        return StreamState(
            caller=decode_principal(json.loads(caller)) if caller else None,
            last=int(last),
            is_over=bool(is_over),
            is_orphaned=name != STANDALONE_STREAM_NAME and not is_run,
            reader=current if is_read else None,
            token=token,
            read=int(read or 0),
            skipped=frozenset(json.loads(skipped) if skipped else ()),
        )

    async def attach_reader(self, reader: StreamReader, before: str) -> bool:
        rights = json.dumps(encode_principal(reader.exchange.principal))
        # Where it begins is all that its client has. It may come back without an id.
        begins = _encode_position(reader) if reader.is_standalone else ()
        arguments = (self.id, reader.name, before, reader.token, rights, self.ttl, *begins)
        return bool(await self.link.run_script(lua_scripts.ATTACH_READER, *arguments))

    async def fetch_events(self, name: str, after: int, most: int) -> EventPage | None:
        found = await self.link.run_script(lua_scripts.FETCH_EVENTS, self.id, name, after, most)
        if found is None:
            return None
        entries, last, is_over = found
        events: list[StoredEvent] = []
        for place, parts in entries:
            fields = dict(zip(parts[::2], parts[1::2], strict=True))
            number, kind = int(place.partition(b"-")[0]), fields[b"k"].decode()
            events.append(StoredEvent(number, kind, fields[b"d"], _decode_audience(fields[b"a"])))
        return EventPage(events, int(last), bool(is_over))

    async def end_orphaned_stream(self, name: str) -> None:
        if not self.link.can_trust_leases:
            return
        looked = await self.link.run_script(lua_scripts.LOOK_UP_STREAM, self.id, name)
        if looked is None:
            return
        (worker, request, _, is_over, *_), is_run, _ = looked
        if is_run or is_over or not worker:
            return
        arguments = lua_scripts.append_arguments(
            encode_interrupted_reply(json.loads(request or b"null")),
            session=self.id,
            stream=name,
            kind="result",
            ttl=self.ttl,
            dead=worker.decode(),
        )
        await self.link.run_script(lua_scripts.APPEND_EVENT, *arguments)

    def watch_stream(self, reader: StreamReader) -> Callable[[], object] | None:
        return None if reader.is_standalone else asyncio.create_task(self._watch_stream(reader)).cancel

    async def _watch_stream(self, reader: StreamReader) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(Refused):
                await self.end_orphaned_stream(reader.name)
                reader.on_event_number(0)

    def on_event_taken(self, reader: StreamReader, number: int) -> None:
        """Events have left: say so once for all of them."""
        if not reader.is_marking:
            reader.is_marking = True
            asyncio.get_running_loop().call_soon(self._mark_read, reader, "on")

    def detach_reader(self, reader: StreamReader, *, has_all: bool) -> None:
        if reader.is_standalone or not has_all:
            self._mark_read(reader, "")

    def _mark_read(self, reader: StreamReader, is_on: str) -> None:
        """Tell the store how far this client has read, for the next one that comes without an id."""
        reader.is_marking = False
        position = _encode_position(reader)
        self.link.queue_script(lua_scripts.MARK_READ, self.id, reader.name, reader.token, *position, is_on)

    # -- the record --------------------------------------------------------------------------------------

    def make_record(self) -> dict[str, str]:
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

    def mark_dirty(self) -> None:
        self.has_unsaved_changes = True

    async def save_changes(self) -> None:
        self.has_unsaved_changes = False
        record = self.make_record()
        put = [part for name, value in record.items() if self.known.get(name) != value for part in (name, value)]
        drop = [name for name in self.known if name not in record]
        if (put or drop) and self.link.is_full:
            self.has_unsaved_changes = True
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
        arguments = (self.id, self.link.worker, len(drop), *drop, *put)
        self.link.queue_script(lua_scripts.CHANGE_SESSION, *arguments, done=self._on_changes_written)

    def _on_changes_written(self, reply: object) -> None:
        self._changing -= 1

    async def wait_until_written(self) -> None:
        if not await self.link.wait_until_written(WRITE_TIMEOUT if self.link.is_up else AWAY_TIMEOUT):
            raise StoreUnavailable("The store cannot be reached")

    def call_after_writes(self, action: Callable[[], None]) -> None:
        self.link.call_after_writes(action)

    def add_credential(self, key: str, principal: Principal) -> None:
        if key not in self.credentials:
            self.credentials[key] = principal
            self.update_record([f"{CREDENTIAL}{key}", json.dumps(encode_principal(principal))], [])

    def remove_credential(self, key: str) -> None:
        if self.credentials.pop(key, None) is not None:
            self.update_record([], [f"{CREDENTIAL}{key}"])

    def has_credential_of(self, opener: Principal) -> bool:
        return any(each.covers(opener) for each in self.credentials.values())

    # -- news --------------------------------------------------------------------------------------------

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

    # -- questions and calls of other processes ----------------------------------------------------------

    def is_asked_elsewhere(self, question: RequestId) -> bool:
        worker = question.partition(".")[0] if isinstance(question, str) else ""
        return WORKER.fullmatch(worker) is not None and worker != self.link.worker

    def notify_elsewhere(self, question: RequestId, method: str, params: Params, identity: Any) -> bool:
        if not self.is_asked_elsewhere(question) or identity is None or self.link.is_full:
            return False
        self.link.queue_script_once(lua_scripts.SEND_MAIL, *self._make_letter(question, method, params, identity))
        return True

    async def answer_elsewhere(self, question: RequestId, method: str, params: Params, identity: Any) -> bool:
        asked = await self.link.run_script(lua_scripts.FIND_QUESTION, self.id, str(question))
        if asked is None or not identity.covers(_decode_asker(asked)):
            return False
        letter = self._make_letter(question, method, params, identity)
        sent = await self.link.run_script(lua_scripts.NOTIFY_ASKER, self.id, str(question), *letter)
        if sent == lua_scripts.MAILBOX_FULL:
            raise StoreUnavailable("The process that asks is behind with its answers; try again")
        return bool(sent)

    def _make_letter(self, question: RequestId, method: str, params: Params, identity: Any) -> tuple[str, ...]:
        worker, data = str(question).partition(".")[0], json.dumps([method, params])
        who = json.dumps(encode_principal(identity))
        return worker, "t", "notification", "s", self.id, "d", data, "p", who

    async def hand_over_reply(self, reply: Reply, sender: Principal) -> bool:
        question = reply.id
        if (
            not isinstance(question, str)
            or len(question) > MAX_QUESTION_ID_LENGTH
            or question.startswith(self.numbering)
        ):
            return True  # it was asked here, or by nobody
        asked = await self.link.run_script(lua_scripts.FIND_QUESTION, self.id, question)
        if asked is not None and not sender.covers(_decode_asker(asked)):
            return False
        body = {"result": reply.result} if reply.error is None else {"error": reply.error}
        data, who = encode({"jsonrpc": "2.0", "id": question, **body}), json.dumps(encode_principal(sender))
        if not self.link.is_written:
            await self.wait_until_written()  # what came before the answer comes first
        await self._mail_reply(question, data, who, is_open=asked is not None)
        return True

    async def _mail_reply(self, question: str, data: bytes, who: str, *, is_open: bool) -> None:
        """Put an answer into the mailbox of the process that asks."""
        worker = question.partition(".")[0]
        if is_open:
            taken = await self.link.run_script(lua_scripts.ANSWER_QUESTION, self.id, question, worker, data, who)
        elif not self.is_asked_elsewhere(question):
            return  # nobody waits for it any more
        else:
            # Nobody waits for it, or it was asked while the store was away. The process that asked knows, and judges.
            letter = ("t", "answer", "s", self.id, "d", data, "p", who)
            taken = await self.link.run_script(lua_scripts.SEND_MAIL, "", "", worker, *letter)
            if taken == 0 and not self.link.can_trust_leases:
                raise StoreUnavailable("The process that asks is not back yet")
        if taken == lua_scripts.MAILBOX_FULL:
            raise StoreUnavailable("The process that asks is behind with its answers")

    def cancel_elsewhere(self, id: RequestId, identity: Any) -> None:
        text = json.dumps(id)
        if len(text) <= MAX_ID_LENGTH and identity is not None and not self.link.is_full:
            who = json.dumps(encode_principal(identity))
            self.link.queue_script(
                lua_scripts.SEND_SIGNAL, "t", "cancel", "s", self.id, "i", text, "p", who, "w", self.link.worker
            )

    # -- the end -----------------------------------------------------------------------------------------

    def touch(self) -> None:
        self.link.queue_script(lua_scripts.TOUCH_SESSION, self.id, self.ttl)

    def end(self) -> None:
        self.link.queue_script(lua_scripts.END_SESSION, self.id)

    def release(self) -> None:
        """If this process owns it, the next one that serves it will."""
        self._logs.release_session(self)

    def close(self) -> None:
        self.link.behind.discard(self)
        self.is_closed = True
        self._logs.reindex_owned_log(self)


def encode_interrupted_reply(request: Any) -> bytes:
    """The answer to a request, or to a batch of them, given by id, if its process died."""
    calls = cast("list[Any]", request) if isinstance(request, list) else [request]
    died = b",".join(map(_encode_died, calls))
    return b"[%b]" % died if isinstance(request, list) else died


def _encode_died(id: Any) -> bytes:
    error = {"code": INTERNAL_ERROR, "message": DIED, "data": {"type": "interrupted", "retry_after_ms": 0}}
    return encode({"jsonrpc": "2.0", "id": id, "error": error})


def _decode_asker(question: bytes) -> Principal:
    return decode_principal(json.loads(question.split(b"\n", 2)[2]))


def _encode_position(reader: StreamReader) -> tuple[int, str]:
    read, skipped = reader.get_read_position()
    return read, json.dumps(sorted(skipped))


def _encode_audience(audience: tuple[Any, ...] | None) -> str:
    """`*` stands for everybody, nothing for who opened the session."""
    if audience is None:
        return ""
    return json.dumps([encode_principal(each) for each in audience]) if audience else "*"


def _decode_audience(audience: bytes) -> Audience:
    if audience == b"*":
        return ()
    return tuple(decode_principal(each) for each in json.loads(audience)) if audience else None
