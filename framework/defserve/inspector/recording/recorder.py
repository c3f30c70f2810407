"""Keeps what passed: one `RecordedMessage` a message, its body, and which answer belongs to which request.

New bodies are in memory, older ones in a temporary file without a name, the oldest forgotten.
"""

from __future__ import annotations

import tempfile
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import IO, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic_core import from_json, to_json

from defserve.client.replies import Json, object_or_empty, parse_json_object
from defserve.core.json_values import is_array
from defserve.core.messages import is_request_id
from defserve.inspector.recording.masking import mask_headers, mask_message, mask_text, mask_value
from defserve.inspector.waterfalls import Waterfall
from defserve.protocols.mcpl.state.ownership import STATE_META_KEY

Direction: TypeAlias = Literal["sent", "received"]
Kind: TypeAlias = Literal["request", "notice", "answer", "other"]

MAX_ENTRIES: Final = 200_000
DROPPED_AT_ONCE: Final = 10_000
MAX_NOTICES: Final = 40
"""Notices of one request whose times are kept."""
HEADERS_IN_MEMORY: Final = 4 * 1024 * 1024
HEADERS_IN_FILE: Final = 64 * 1024 * 1024
MAX_NAME_LENGTH: Final = 128
"""Characters of a method, or of an id that is a text. A peer chooses both."""
MAX_METHODS: Final = 1_000
MAX_SEARCHED: Final = 50_000
RECENT: Final = 200
FIRST_MESSAGES: Final = 100
RATE_SECONDS: Final = 10.0
OWN_METHODS: Final = frozenset(
    (
        "initialize",
        "notifications/initialized",
        "server/discover",
        "ping",
        "logging/setLevel",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/list",
        "skills/list",
        "subscriptions/listen",
        "featureSets/update",
        "mgp/permission/request",
        "mgp/permission/grant",
    )
)
"""What the inspector says without being told to: to open a conversation, to fill its lists, and to watch."""
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


@dataclass(slots=True)
class RecordedMessage:
    """One message. `seq` counts all messages, from 0.

    time     seconds since 1970
    id       of the JSON-RPC request that it is, answers, or belongs to (progress)
    about    what it is about, in a word or two: the tool, the URI, the message of an error
    of       for an answer or a notice, the `seq` of its request; for a request, that of its answer once it came
    ms       for an answer, and its request then: how long it took
    error    the code of an error, or True for a result with `isError`
    note     of a request: "cancelled", or "asks" if the answer asks for more before it goes on
    trace    of a call: the id by which logs and the audit trail know it
    checkpoint  of a call: the state that it left behind; of one that changed nothing, the state that it began with
    """

    seq: int
    time: float
    era: str
    direction: Direction
    kind: Kind
    method: str
    id: str | int | None
    size: int
    about: str = ""
    of: int | None = None
    ms: float | None = None
    error: int | bool | None = None
    note: str = ""
    trace: str = ""
    checkpoint: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the inspector sent it for itself, or it answers that: nobody has asked for it."""
        is_ours = self.direction == ("received" if self.kind == "answer" else "sent")
        return (is_ours and self.method in OWN_METHODS) or self.method == ACKNOWLEDGED

    @property
    def is_answered_call(self) -> bool:
        """Whether it is a call of ours that was answered. One that was asked something goes on in another."""
        is_call = self.kind == "request" and self.method == "tools/call" and self.direction == "sent"
        return is_call and self.of is not None and self.note == ""

    def to_wire(self) -> Json:
        """The entry for the page."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) not in (None, "")}


class RecordedExchange(NamedTuple):
    """The HTTP request that carried a message, and the head of its response, which came `at` that time."""

    method: str
    address: str
    headers: Mapping[str, str]
    status: int
    answered: Mapping[str, str]
    at: float = 0.0


class Recorder:
    """The timeline of one inspector. Entries `first` to `count - 1` are there; older ones were forgotten."""

    def __init__(self, bodies: Bodies | None = None, most: int = MAX_ENTRIES) -> None:
        self._bodies, self._most = bodies or Bodies(), most
        self._entries: list[RecordedMessage] = []
        self._exchanges = Bodies(HEADERS_IN_MEMORY, HEADERS_IN_FILE)
        self._waterfalls = Bodies(HEADERS_IN_MEMORY, HEADERS_IN_FILE)
        self._notices: dict[int, list[float]] = {}
        self._open: dict[tuple[str, Direction, str | int], RecordedMessage] = {}
        self._methods: dict[str, str] = {}
        self._subscribers: list[Callable[[RecordedMessage], object]] = []
        self._calls: deque[float] = deque(maxlen=1_000)
        self._times: deque[float] = deque(maxlen=RECENT)
        self.first = self.errors = self._cleared = 0

    @property
    def count(self) -> int:
        """How many messages there were, also those that are forgotten."""
        return self.first + len(self._entries)

    def append(self, era: str, direction: Direction, body: bytes) -> RecordedMessage:
        """Record a message that passes now. Never raises: the message itself must reach its receiver."""
        message = parse_json_object(body)
        kind, method, id = _classify_message(message)
        if len(self._methods) < MAX_METHODS:
            method = self._methods.setdefault(method, method)  # the same few, again and again
        entry = RecordedMessage(self.count, time.time(), era, direction, kind, method, id, len(body))
        with suppress(Exception):
            entry.about = summarize_message(message)
        with suppress(Exception):
            self._pair(entry, message)
        self._entries.append(entry)
        with suppress(OSError):  # no room for the file of old bodies
            self._bodies.store_body(entry.seq, body)
        if len(self._entries) > self._most:
            self._drop_oldest(min(DROPPED_AT_ONCE, self._most))
        for tell in tuple(self._subscribers):
            with suppress(Exception):
                tell(entry)
        return entry

    def restore_message(self, entry: RecordedMessage, body: bytes | None, exchange: RecordedExchange | None) -> None:
        """Take a message of an earlier session. Its `seq` is the next, and `of` a message before it, or None."""
        if self._entries:
            entry.time = max(entry.time, self._entries[-1].time)
        asked = self.get_message(entry.of) if entry.of is not None else None
        if asked is None or asked.kind != "request":
            entry.of = None
        elif entry.kind == "answer":
            asked.of = entry.seq
        elif len(times := self._notices.setdefault(asked.seq, [])) < MAX_NOTICES:
            times.append(entry.time)
        self.errors += entry.kind == "answer" and entry.error is not None
        self._entries.append(entry)
        if body is not None:
            self._bodies.store_body(entry.seq, body)
        if exchange is not None:
            self.attach(entry.seq, exchange)

    def assign_era(self, era: str) -> None:
        """The conversation that began without an era speaks this one: its first messages belong to it."""
        for entry in self._entries[-FIRST_MESSAGES:]:
            entry.era = entry.era or era
        self._open = {(entry.era, entry.direction, id): entry for (_, _, id), entry in self._open.items()}

    def attach(self, seq: int, exchange: RecordedExchange) -> None:
        """Add the HTTP exchange that carried a message. Never raises."""
        if seq >= self.first:
            with suppress(ValueError, OSError):
                self._exchanges.store_body(seq, to_json(exchange))

    def attach_waterfall(self, seq: int, waterfall: Waterfall) -> None:
        """Add the stages of a call to its request. Never raises."""
        if seq >= self.first:
            with suppress(ValueError, OSError):
                self._waterfalls.store_body(seq, to_json(waterfall.to_wire()))

    def get_waterfall(self, seq: int) -> Json | None:
        """The stages of a call, by its request, for the page."""
        kept = self._waterfalls.get(seq)
        return from_json(kept) if kept is not None else None

    def find_http_exchange(self, seq: int) -> RecordedExchange | None:
        """The HTTP exchange that carried a message, with its secrets."""
        kept = self._exchanges.get(seq)
        return RecordedExchange(*from_json(kept)) if kept is not None else None

    def find_request(self, id: str) -> RecordedMessage | None:
        """The newest request of ours with this id, if it is among the newest messages."""
        newest = reversed(self._entries[-MAX_SEARCHED:])
        return next((each for each in newest if each.id == id and each.kind == "request"), None)

    def list_pending(self, era: str) -> list[str | int]:
        """The ids of requests of a person in an era that were neither answered nor cancelled."""
        return [
            id
            for (spoken, direction, id), entry in self._open.items()
            if spoken == era and direction == "sent" and not entry.is_own and entry.note != "cancelled"
        ]

    def get_messages(self, start: int, stop: int) -> list[RecordedMessage]:
        """The entries with these sequence numbers, as far as they are there."""
        return self._entries[max(start - self.first, 0) : max(stop - self.first, 0)]

    def get_message(self, seq: int) -> RecordedMessage | None:
        place = seq - self.first
        return self._entries[place] if 0 <= place < len(self._entries) else None

    def find_first_since(self, moment: float) -> int:
        """The sequence number of the first message at or after a time."""
        return self.first + bisect_left(self._entries, moment, key=lambda entry: entry.time)

    def describe_message(self, seq: int) -> Json | None:
        """A message for the page: its entry, its `body` with secrets masked, and its HTTP `exchange`, if it had one.

        A call of the page has its `waterfall`. None if the message is forgotten. `body` is missing if only the entry is
        left.
        """
        if (entry := self.get_message(seq)) is None:
            return None
        shown = entry.to_wire()
        if (body := self._bodies.get(seq)) is not None:
            shown["body"] = mask_message(body)
            if len(body) < entry.size:
                shown["cut"] = len(body)
        if (waterfall := self.get_waterfall(seq)) is not None:
            shown["waterfall"] = waterfall
        if (exchange := self.find_http_exchange(seq)) is not None:
            shown["exchange"] = {
                **exchange._asdict(),
                "address": mask_text(exchange.address),
                "headers": mask_headers(exchange.headers),
                "answered": mask_headers(exchange.answered),
            }
        return shown

    def get_body(self, seq: int) -> bytes | None:
        """The bytes of a message with its secrets, to send it again. Never show them."""
        return self._bodies.get(seq)

    def parse_body(self, seq: int) -> Json:
        """The members of a message, with their secrets; none if it is forgotten, was cut or is no object."""
        return parse_json_object(self._bodies.get(seq) or b"{}")

    def get_notice_times(self, seq: int) -> list[float]:
        """When the first notices of a request came."""
        return self._notices.get(seq, [])

    def subscribe(self, tell: Callable[[RecordedMessage], object]) -> Callable[[], None]:
        """Have `tell` called with each new entry. Call what it returns to end that."""
        self._subscribers.append(tell)
        return lambda: self._subscribers.remove(tell)

    def make_status_figures(self) -> Json:
        """For the status line: messages, calls a second, the median of recent answers, errors."""
        now = time.time()
        recent = sum(1 for moment in self._calls if now - moment <= RATE_SECONDS)
        shown: Json = {
            "messages": self.count - self._cleared,
            "rate": round(recent / RATE_SECONDS, 1),
            "errors": self.errors,
        }
        return {**shown, "median": round(median(self._times), 1)} if self._times else shown

    def clear(self) -> None:
        """Forget every message. Sequence numbers go on."""
        self._drop_oldest(len(self._entries))
        self.errors, self._cleared = 0, self.count

    def close(self) -> None:
        for each in (self._bodies, self._exchanges, self._waterfalls):
            each.close()

    def _pair(self, entry: RecordedMessage, message: Json) -> None:
        if entry.kind == "request" and entry.id is not None:
            self._open[entry.era, entry.direction, entry.id] = entry
            if entry.method == "tools/call":
                self._calls.append(entry.time)
                params = object_or_empty(message.get("params"))
                entry.trace = _name_in(params, "trace_id")
                entry.checkpoint = _name_in(params, "checkpoint")
        elif entry.kind == "answer" and entry.id is not None:
            asked = self._open.pop((entry.era, _other(entry.direction), entry.id), None)
            entry.error = _error_in(message)
            self.errors += entry.error is not None
            if asked is not None:
                entry.method, entry.about, entry.of, asked.of = asked.method, asked.about, asked.seq, entry.seq
                entry.ms = asked.ms = round((entry.time - asked.time) * 1000, 2)
                asked.error = entry.error
                result = object_or_empty(message.get("result"))
                if result.get("resultType") == "input_required":
                    asked.note = "asks"
                asked.checkpoint = _name_in(read_state_left_by_call(result), "checkpoint") or asked.checkpoint
                asked.about = entry.about = asked.about or about_answer(asked.method, result)
                self._times.append(entry.ms)
        elif entry.kind == "notice" and entry.id is not None:
            self._belongs(entry)

    def _belongs(self, notice: RecordedMessage) -> None:
        """Find the request that a notice belongs to."""
        is_end = notice.method == "notifications/cancelled"
        direction = notice.direction if is_end else _other(notice.direction)
        if notice.id is None or (asked := self._open.get((notice.era, direction, notice.id))) is None:
            return
        notice.of = asked.seq
        if is_end:
            asked.note = "cancelled"
        times = self._notices.setdefault(asked.seq, [])
        if len(times) < MAX_NOTICES:
            times.append(notice.time)

    def _drop_oldest(self, number: int) -> None:
        for entry in self._entries[:number]:
            for each in (self._bodies, self._exchanges, self._waterfalls):
                each.drop_body(entry.seq)
            self._notices.pop(entry.seq, None)
        del self._entries[:number]
        self.first += number
        self._open = {key: entry for key, entry in self._open.items() if entry.seq >= self.first}


def _other(direction: Direction) -> Direction:
    return "received" if direction == "sent" else "sent"


def _classify_message(message: Json) -> tuple[Kind, str, str | int | None]:
    """The kind, the method and the id of a message."""
    method, id = message.get("method"), message.get("id")
    known = _id(id)
    if isinstance(method, str):
        if known is not None:
            return "request", method[:MAX_NAME_LENGTH], known
        params = object_or_empty(message.get("params"))
        of = params.get("progressToken", params.get("requestId", params.get("request_id")))
        return "notice", method[:MAX_NAME_LENGTH], _id(of)
    return ("answer" if "result" in message or "error" in message else "other"), "", known


def _id(given: Any) -> str | int | None:
    if not is_request_id(given):
        return None
    return given[:MAX_NAME_LENGTH] if isinstance(given, str) else given


def read_state_left_by_call(result: Json) -> Json:
    """What the result of a call says of the state it left behind (MCPL); empty if it says nothing."""
    return object_or_empty(result.get("state") or object_or_empty(result.get("_meta")).get(STATE_META_KEY))


def _name_in(members: Json, name: str) -> str:
    """A member that names something; empty if it does not, or nobody could mean it."""
    found = members.get(name)
    return found if isinstance(found, str) and len(found) <= MAX_NAME_LENGTH * 2 else ""


def _error_in(message: Json) -> int | bool | None:
    if "error" in message:
        code = object_or_empty(message.get("error")).get("code")
        return code if isinstance(code, int) else True
    return True if object_or_empty(message.get("result")).get("isError") is True else None


# -- What a message is about, in a word or two. Texts of a server are without secrets.


MAX_MESSAGE_SUMMARY_LENGTH: Final = 80

LISTS: Final[Mapping[str, tuple[str, str]]] = {
    "tools/list": ("tools", "tool"),
    "resources/list": ("resources", "resource"),
    "resources/templates/list": ("resourceTemplates", "template"),
    "prompts/list": ("prompts", "prompt"),
    "roots/list": ("roots", "root"),
}


def summarize_message(message: Json) -> str:
    """A request or a notice: the tool, the URI, the text that it carries. An error: its message."""
    params = object_or_empty(message.get("params"))
    method = message.get("method")
    if method == "notifications/progress":
        return _format_summary(_progress(params))
    if method == "notifications/message":
        return _format_summary(f"{params.get('level')}: {_text(params.get('data'))}")
    if method == "notifications/mgp.audit":
        tool = object_or_empty(params.get("target")).get("tool_name")
        return _format_summary(" ".join(each for each in (tool, params.get("event_type")) if isinstance(each, str)))
    if isinstance(name := params.get("name"), str) and name:
        return name[:MAX_MESSAGE_SUMMARY_LENGTH]
    if isinstance(reference := object_or_empty(params.get("ref")).get("name"), str):
        return reference[:MAX_MESSAGE_SUMMARY_LENGTH]
    found: Any = params.get("uri") or params.get("message") or params.get("reason") or params.get("data")
    if found is None and "error" in message:
        found = object_or_empty(message.get("error")).get("message")
    if found is None and (server := client_or_server(params, "clientInfo")):
        return _format_summary(server)
    return _format_summary(found) if isinstance(found, str) else ""


def about_answer(method: str, result: Json) -> str:
    """What a result tells about its request, where the request itself says nothing."""
    if method in LISTS:
        name, one = LISTS[method]
        items = result.get(name)
        count = len(items) if is_array(items) else 0
        return f"{count} {one if count == 1 else f'{one}s'}" + (", and more" if result.get("nextCursor") else "")
    if method == "initialize":
        return _format_summary(client_or_server(result, "serverInfo"))
    if method == "server/discover":
        return _format_summary(client_or_server(result, "serverInfo") or _versions(result))
    return ""


def client_or_server(told: Json, which: str) -> str:
    """Who speaks: name, version, and the version of the protocol."""
    info = object_or_empty(told.get(which))
    words = " ".join(str(info[name]) for name in ("name", "version") if name in info)
    return ", ".join(each for each in (words, str(told.get("protocolVersion") or "")) if each)


def _versions(result: Json) -> str:
    versions = result.get("supportedVersions")
    return ", ".join(map(str, versions)) if is_array(versions) else ""


def _progress(params: Json) -> str:
    done, total, text = params.get("progress"), params.get("total"), params.get("message")
    share = f"{_number(done)} of {_number(total)}" if isinstance(total, int | float) else _number(done)
    return f"{share}, {text}" if isinstance(text, str) and text else share


def _number(value: Any) -> str:
    try:
        return f"{value:g}" if isinstance(value, int | float) else str(value)
    except OverflowError:  # an integer that no float can hold
        return str(value)


def _text(data: Any) -> str:
    if isinstance(data, str):
        return mask_text(data[:8192])
    data = mask_value(data)
    told = object_or_empty(data)
    return str(told.get("message") or told.get("msg") or (", ".join(told) if told else data))


def _format_summary(text: str) -> str:
    shown = mask_text(text[:512])[:512].replace("\n", "\\n")
    return shown if len(shown) <= MAX_MESSAGE_SUMMARY_LENGTH else f"{shown[: MAX_MESSAGE_SUMMARY_LENGTH - 1]}…"


# -- The bytes of messages: new ones in memory, older ones in a temporary file without a name, the oldest forgotten.


IN_MEMORY: Final = 32 * 1024 * 1024
IN_FILE: Final = 256 * 1024 * 1024
"""Bytes of one file. There are two at most: when the newer is full, the older is dropped."""
MAX_KEPT_BODY_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one body that are kept."""


class Spilled(NamedTuple):
    """Where a body lies in a file."""

    file: int
    offset: int
    length: int


class Bodies:
    """Bodies by number. Numbers only grow. A body of more than `MAX_KEPT_BODY_BYTES` is cut."""

    def __init__(self, in_memory: int = IN_MEMORY, in_file: int = IN_FILE) -> None:
        self._in_memory, self._in_file = in_memory, in_file
        self._held: dict[int, bytes] = {}
        self._order: deque[int] = deque()
        self._size = 0
        self._spilled: dict[int, Spilled] = {}
        self._files: dict[int, IO[bytes]] = {}
        self._newest = 0
        self._written = 0

    @property
    def in_memory(self) -> int:
        """Bytes that are held in memory."""
        return self._size

    def store_body(self, number: int, body: bytes) -> None:
        """Keep a body, in place of an earlier one of this number."""
        if number in self._held:
            self.drop_body(number)
        body = body if len(body) <= MAX_KEPT_BODY_BYTES else body[:MAX_KEPT_BODY_BYTES]
        self._held[number] = body
        self._order.append(number)
        self._size += len(body)
        while self._size > self._in_memory and len(self._order) > 1:
            self._spill(self._order.popleft())

    def get(self, number: int) -> bytes | None:
        """A body; None if it was forgotten."""
        if (held := self._held.get(number)) is not None:
            return held
        if (place := self._spilled.get(number)) is None:
            return None
        file = self._files[place.file]
        file.seek(place.offset)
        return file.read(place.length)

    def drop_body(self, number: int) -> None:
        """Nobody will ask for this body again."""
        if (held := self._held.pop(number, None)) is not None:
            self._size -= len(held)
            self._order.remove(number)
        self._spilled.pop(number, None)

    def close(self) -> None:
        """Forget everything."""
        for file in self._files.values():
            file.close()
        self._files, self._held, self._spilled, self._size = {}, {}, {}, 0
        self._order.clear()

    def _spill(self, number: int) -> None:
        body = self._held.pop(number)
        self._size -= len(body)
        if not self._files or self._written + len(body) > self._in_file:
            self._turn()
        file = self._files[self._newest]
        file.seek(self._written)
        file.write(body)
        self._spilled[number] = Spilled(self._newest, self._written, len(body))
        self._written += len(body)

    def _turn(self) -> None:
        """Begin another file, and drop the one before the last."""
        self._newest += 1
        self._written = 0
        self._files[self._newest] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
        old = self._newest - 2
        if (file := self._files.pop(old, None)) is not None:
            file.close()
            self._spilled = {number: place for number, place in self._spilled.items() if place.file != old}
