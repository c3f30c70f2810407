"""Session files (`NAME.defsession`): what an inspector knows, saved without its secrets, and opened again to look at.

A file is JSON lines, compressed with gzip or not. Each line is an object with one member, which says what it is:
`defsession` (the first: the version of this format, and where the session is from), `definitions` of an era, `tree`
with its `checkpoint`s after it, `message`, and at last `end`. docs/inspector.md describes their members.

A file may be from a stranger: all that it says is bounded and checked here, and then shown like words of a server.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any, Final, NoReturn, TypeAlias, TypeGuard

from pydantic_core import from_json, to_json

from defserve.base.redaction import escape_unprintable
from defserve.client.eras import MCP_KEY_PREFIX
from defserve.client.link import ClientLink
from defserve.client.replies import Json, object_or_empty
from defserve.core.json_values import find_limit_violation, is_array, is_object
from defserve.core.messages import INVALID_REQUEST, encode, is_request_id
from defserve.errors import UsageError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.recording.masking import mask_value
from defserve.inspector.recording.recorder import (
    MAX_ENTRIES,
    MAX_KEPT_BODY_BYTES,
    MAX_MESSAGE_SUMMARY_LENGTH,
    MAX_NAME_LENGTH,
    RecordedExchange,
    RecordedMessage,
    Recorder,
)
from defserve.inspector.recording.timeline import Latencies
from defserve.inspector.state_trees import KnownCheckpoint, SavedTree
from defserve.inspector.waterfalls import parse_waterfall
from defserve.tooling.listing import LIST_WIRE_NAMES, ServerListing

FORMAT_VERSION: Final = 1
SUFFIX: Final = ".defsession"
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
MAX_BYTES: Final = 512 * 1024 * 1024
"""Bytes of all lines, unpacked."""
MAX_LINE_BYTES: Final = 32 * 1024 * 1024
MAX_LINES: Final = 500_000
MAX_DEPTH: Final = 200
MAX_KEYS: Final = 100_000
MAX_CHECKPOINTS: Final = 20_000
MAX_TREES: Final = 200
MAX_CONTENT_BYTES: Final = 64 * 1024 * 1024
MAX_TEXT_LENGTH: Final = 64 * 1024
MAX_TIME: Final = 4_102_444_800.0
"""The year 2100, in seconds since 1970."""
CHUNK_BYTES: Final = 256 * 1024

ERAS: Final = ("handshake", "stateless")
FACTS: Final[Mapping[str, type]] = {"store": str, "keep": int, "undoes": bool, "opaque": bool, "owner": str}
"""What is known of a tree, and its type."""
DAMAGED: Final = "save the session again, and copy the whole file"
TOO_MUCH: Final = "open it only if you know who made it; to save less, clear the Wire panel before the calls that count"


@dataclass(slots=True)
class SavedSession:
    """A session file that was read. Its messages are in `recorder`, which whoever opened the file closes.

    name     of the file
    time     when it was saved, in seconds since 1970
    maker    the program that saved it
    address  where the server was, in words
    words    how a `defserve` command named the server
    """

    name: str
    recorder: Recorder
    time: float = 0.0
    maker: str = ""
    address: str = ""
    words: tuple[str, ...] = ()
    listings: dict[str, ServerListing] = field(default_factory=dict[str, ServerListing])
    trees: list[SavedTree] = field(default_factory=list[SavedTree])

    def to_wire(self) -> Json:
        """For the page."""
        return {"name": self.name, "time": self.time, "maker": self.maker}

    def summarize(self) -> Json:
        """The session in figures: its messages, errors, the calls of each tool, and its trees."""
        latencies, recorder = Latencies(), self.recorder
        for entry in recorder.get_messages(0, recorder.count):
            latencies.add(entry)
        tools = [tool for era in ERAS for tool in latencies.describe_era(era)["tools"]]
        return {
            **self.to_wire(),
            "messages": recorder.count,
            "errors": recorder.errors,
            "tools": [{name: tool[name] for name in ("tool", "calls", "errors", "median")} for tool in tools],
            "trees": [{"set": tree.feature_set, "owner": tree.owner, "checkpoints": len(tree)} for tree in self.trees],
        }


# -- Reading. Whatever is wrong with a file is told with its line.


class _Problem(Exception):
    """Why a file is refused, and what to do."""

    def __init__(self, why: str, fix: str = DAMAGED) -> None:
        super().__init__(why)
        self.why, self.fix = why, fix


def read_session_file(path: Path) -> SavedSession:
    """Read a session file. Raises UsageError if it is none, is too large, or was damaged."""
    name = escape_unprintable(path.name)
    session = SavedSession(name, Recorder())
    number = 0
    try:
        if not path.exists():
            raise _Problem("there is no such file", "check the path")
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise _Problem("it is not a file", f"name a {SUFFIX} file that the inspector saved")
        if status.st_size > MAX_FILE_BYTES:
            raise _Problem(f"it has {status.st_size:,} bytes, and {MAX_FILE_BYTES:,} are read", TOO_MUCH)
        with path.open("rb") as file:
            reader = _Reader(session)
            for number, line in enumerate(_iter_lines(file), 1):
                reader.read_line(line, number)
        reader.require_end()
    except (_Problem, OSError) as error:
        session.recorder.close()
        why, fix = (error.why, error.fix) if isinstance(error, _Problem) else (error.strerror or str(error), "check it")
        line = f", line {number}" if number else ""
        raise UsageError(f"the session cannot be opened: {why}", where=f"{name}{line}", fix=fix) from None
    return session


def _iter_lines(file: IO[bytes]) -> Generator[bytes]:
    unpacked, total, lines = bytearray(), 0, 0
    for piece in _iter_pieces(file):
        total += len(piece)
        if total > MAX_BYTES:
            raise _Problem(f"it unpacks to more than {MAX_BYTES:,} bytes", TOO_MUCH)
        start = 0
        while (stop := piece.find(b"\n", start)) >= 0:
            unpacked += piece[start:stop]
            lines += 1
            if lines > MAX_LINES:
                raise _Problem(f"it has more than {MAX_LINES:,} lines", TOO_MUCH)
            yield bytes(unpacked)
            unpacked.clear()
            start = stop + 1
        unpacked += piece[start:]
        if len(unpacked) > MAX_LINE_BYTES:
            raise _Problem(f"a line has more than {MAX_LINE_BYTES:,} bytes", TOO_MUCH)
    if unpacked:
        yield bytes(unpacked)


def _iter_pieces(file: IO[bytes]) -> Generator[bytes]:
    is_packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    if not is_packed:
        while piece := file.read(CHUNK_BYTES):
            yield piece
        return
    unpacker = zlib.decompressobj(wbits=31)
    try:
        while piece := file.read(CHUNK_BYTES):
            if unpacker.eof:
                raise _Problem("something follows its compressed data")
            while piece:
                yield unpacker.decompress(piece, CHUNK_BYTES)
                piece = unpacker.unconsumed_tail
            if unpacker.unused_data:
                raise _Problem("something follows its compressed data")
        yield unpacker.flush()
    except zlib.error:
        raise _Problem("its compressed data is damaged") from None
    if not unpacker.eof:
        raise _Problem("its end is missing")


def _parse_line(line: bytes) -> tuple[str, Any]:
    """The kind and the record of a line."""
    try:
        parsed = json.loads(line.decode(), object_pairs_hook=_make_object, parse_constant=_refuse_constant)
        if b"\\ud" in line.lower():
            to_json(parsed)  # half of a character that takes two cannot be written again
    except RecursionError:
        raise _Problem(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise _Problem("this is not JSON") from None
    if (wrong := find_limit_violation(parsed, MAX_DEPTH, MAX_KEYS)) is not None:
        raise _Problem(wrong)
    if not is_object(parsed) or len(parsed) != 1:
        raise _Problem("a line is an object with one member")
    return next(iter(parsed.items()))


def _make_object(pairs: list[tuple[str, Any]]) -> Json:
    made = dict(pairs)
    # Two programs may disagree on which of two equal names counts.
    if len(made) != len(pairs):
        raise _Problem("an object has two members of the same name")
    return made


def _refuse_constant(word: str) -> NoReturn:
    raise _Problem(f"{word} is no number of JSON")


class _Reader:
    """Takes lines into a session, each kind by its own method."""

    def __init__(self, session: SavedSession) -> None:
        self._session = session
        self._seqs: dict[int, int] = {}
        self._checkpoints = self._contents = 0
        self._is_ended = False
        self._takers: Mapping[str, Callable[[Any], None]] = {
            "definitions": self._take_definitions,
            "tree": self._take_tree,
            "checkpoint": self._take_checkpoint,
            "message": self._take_message,
            "end": self._take_end,
        }

    def read_line(self, line: bytes, number: int) -> None:
        if number == 1:
            self._take_header(line)
            return
        if self._is_ended:
            raise _Problem("something follows its last line")
        kind, record = _parse_line(line)
        take = self._takers.get(kind)
        if take is None:
            raise _Problem(f"there is no record {escape_unprintable(kind[:40])!r} in this version of the format")
        if kind != "end" and not is_object(record):
            raise _Problem(f"a {kind} is an object")
        take(record)

    def require_end(self) -> None:
        if not self._is_ended:
            raise _Problem("its end is missing")

    def _take_header(self, line: bytes) -> None:
        none = _Problem("it is not a session file", f"name a {SUFFIX} file that the inspector saved")
        try:
            kind, record = _parse_line(line)
        except _Problem:
            raise none from None
        if kind != "defsession" or not is_object(record):
            raise none
        version = record.get("version")
        if type(version) is not int:
            raise none
        if version != FORMAT_VERSION:
            fix = "install a newer defserve" if version > FORMAT_VERSION else DAMAGED
            raise _Problem(f"its format has the version {version}, and this defserve reads {FORMAT_VERSION}", fix)
        session = self._session
        read = _Fields(record, "defsession")
        session.time, session.maker = read.get_time("time"), read.get_text("maker", 200)
        session.address = read.get_text("address", MAX_TEXT_LENGTH)
        words = record.get("words", [])
        if not is_array(words) or len(words) > 100 or not all(_is_text(word) for word in words):
            raise _Problem("'words' is no list of texts")
        session.words = tuple(words)

    def _take_definitions(self, record: Json) -> None:
        read = _Fields(record, "definitions")
        era = read.get_choice("era", ERAS)
        opening = read.get_object("initialize")
        inner = _Fields(opening, "initialize")
        for name in ("capabilities", "serverInfo"):
            inner.get_object(name)
        tools, resources, templates, prompts = (read.get_objects(name) for name in LIST_WIRE_NAMES)
        self._session.listings[era] = ServerListing(opening, tools, resources, templates, prompts)

    def _take_tree(self, record: Json) -> None:
        read = _Fields(record, "tree")
        if len(self._session.trees) >= MAX_TREES:
            raise _Problem(f"it has more than {MAX_TREES} trees", TOO_MUCH)
        tree = SavedTree(
            read.get_choice("era", ERAS),
            read.get_text("set", MAX_TEXT_LENGTH),
            read.get_optional_text("owner"),
            read.get_optional_text("head"),
            {name: each for name, each in read.get_object("facts").items() if type(each) is FACTS.get(name)},
        )
        self._session.trees.append(tree)

    def _take_checkpoint(self, record: Json) -> None:
        self._checkpoints += 1
        if self._checkpoints > MAX_CHECKPOINTS:
            raise _Problem(f"it has more than {MAX_CHECKPOINTS:,} checkpoints", TOO_MUCH)
        if not self._session.trees:
            raise _Problem("a checkpoint stands before its tree")
        read = _Fields(record, "checkpoint")
        made = KnownCheckpoint(
            read.get_text("id", MAX_TEXT_LENGTH),
            read.get_optional_text("parent"),
            read.get_count("number"),
            read.get_time("time"),
            read.get_optional_text("call"),
            read.get_optional_text("change"),
            read.get_optional_text("who"),
        )
        content = to_json(record["content"]) if "content" in record else None
        self._contents += len(content or b"")
        if self._contents > MAX_CONTENT_BYTES:
            raise _Problem(f"its checkpoints have more than {MAX_CONTENT_BYTES:,} bytes", TOO_MUCH)
        if not self._session.trees[-1].add_checkpoint(made, content):
            raise _Problem("two checkpoints of a tree have the same id")

    def _take_message(self, record: Json) -> None:
        recorder = self._session.recorder
        if recorder.count >= MAX_ENTRIES:
            raise _Problem(f"it has more than {MAX_ENTRIES:,} messages", TOO_MUCH)
        read = _Fields(record, "message")
        id, error, of = record.get("id"), record.get("error"), record.get("of")
        if not (id is None or is_request_id(id)) or not (error is None or isinstance(error, int)):
            raise _Problem("'id' or 'error' of a message is of a wrong type")
        kind = read.get_choice("kind", ("request", "notice", "answer", "other"))
        entry = RecordedMessage(
            recorder.count,
            read.get_time("time"),
            read.get_choice("era", (*ERAS, ""), ""),
            read.get_choice("direction", ("sent", "received")),
            kind,
            read.get_text("method", MAX_NAME_LENGTH),
            id[:MAX_NAME_LENGTH] if isinstance(id, str) else id,
            read.get_count("size"),
            read.get_text("about", MAX_MESSAGE_SUMMARY_LENGTH),
            # Only what came before can be meant: a request learns of its answer from that.
            self._seqs.get(of) if isinstance(of, int) and kind != "request" else None,
            read.get_duration("ms"),
            error,
            read.get_choice("note", ("", "cancelled", "asks"), ""),
            read.get_text("trace", MAX_NAME_LENGTH * 2),
            read.get_text("checkpoint", MAX_NAME_LENGTH * 2),
        )
        self._seqs[read.get_count("seq")] = entry.seq
        body: bytes | None = None
        if "body" in record:
            given = record["body"]
            body = given.encode(errors="replace") if isinstance(given, str) else to_json(given)
        recorder.restore_message(
            entry, body[:MAX_KEPT_BODY_BYTES] if body is not None else None, _read_exchange(record)
        )
        if "waterfall" in record:
            try:
                recorder.attach_waterfall(entry.seq, parse_waterfall(record["waterfall"]))
            except ValueError as error:
                raise _Problem(str(error)) from None

    def _take_end(self, record: Any) -> None:
        self._is_ended = True


def _read_exchange(record: Json) -> RecordedExchange | None:
    if "exchange" not in record:
        return None
    read = _Fields(object_or_empty(record["exchange"]), "exchange")
    return RecordedExchange(
        read.get_text("method", MAX_NAME_LENGTH),
        read.get_text("address", MAX_TEXT_LENGTH),
        read.get_texts("headers"),
        read.get_count("status"),
        read.get_texts("answered"),
        read.get_time("at") if "at" in read else 0.0,
    )


_MISSING: Final[Any] = object()
Choices: TypeAlias = tuple[str, ...]


def _is_text(value: Any, most: int = MAX_TEXT_LENGTH) -> bool:
    return isinstance(value, str) and len(value) <= most


class _Fields:
    """The members of a record, each of the type that is asked for. Raises _Problem if it has another."""

    def __init__(self, record: Json, kind: str) -> None:
        self._record, self._kind = record, kind

    def __contains__(self, name: str) -> bool:
        return name in self._record

    def get_text(self, name: str, most: int) -> str:
        value = self._record.get(name, "")
        return value if _is_text(value, most) else self._refuse(name, f"a text of up to {most} characters")

    def get_optional_text(self, name: str) -> str | None:
        value = self._record.get(name)
        return value if value is None or _is_text(value) else self._refuse(name, "a text, or null")

    def get_choice(self, name: str, choices: Choices, default: Any = _MISSING) -> Any:
        value = self._record.get(name, default)
        return value if value in choices else self._refuse(name, f"one of {', '.join(filter(None, choices))}")

    def get_count(self, name: str) -> int:
        value = self._record.get(name, 0)
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
        return value if is_count else self._refuse(name, "a whole number")

    def get_time(self, name: str) -> float:
        value = self._record.get(name)
        return float(value) if _is_number(value, MAX_TIME) else self._refuse(name, "a time in seconds since 1970")

    def get_duration(self, name: str) -> float | None:
        value = self._record.get(name)
        return value if value is None or _is_number(value, 1e12) else self._refuse(name, "a duration")

    def get_object(self, name: str) -> Json:
        value = self._record.get(name, {})
        return value if is_object(value) else self._refuse(name, "an object")

    def get_objects(self, name: str) -> list[Json]:
        value = self._record.get(name, [])
        return list(value) if is_array(value) and all(map(is_object, value)) else self._refuse(name, "objects")

    def get_texts(self, name: str) -> dict[str, str]:
        value = self.get_object(name)
        return value if all(map(_is_text, value.values())) else self._refuse(name, "an object of texts")

    def _refuse(self, name: str, wanted: str) -> NoReturn:
        raise _Problem(f"{name!r} of this {self._kind} is not {wanted}")


def _is_number(value: Any, most: float) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


# -- The server of a saved session: it says and lists what the file knows, and does nothing.


CONVERSATION_OPENING_METHODS: Final = ("initialize", "server/discover")
REPLAYED: Final = frozenset(
    (
        "resources/read",
        "resources/directory/read",
        "skills/list",
        "skills/get",
        "prompts/get",
        "completion/complete",
        "mgp/permission/request",
        "mgp/permission/grant",
    )
)
MADE_UP: Final = ("request_id", "trace_id", "grants", "message")
READ_ONLY: Final = "this is a saved session, so nothing is sent to the server"


def make_session_target(session: SavedSession) -> InspectionTarget:
    """A saved session, for the inspector."""

    @asynccontextmanager
    async def link() -> AsyncGenerator[ClientLink]:
        yield PlaybackLink(session)

    era = next((each for each in ERAS[::-1] if each in session.listings), "")
    return InspectionTarget(session.name, session.words, link, era, saved=session)


class PlaybackLink:
    """Answers each request at once, from a file. What was read in the session can be read again."""

    def __init__(self, session: SavedSession) -> None:
        self._session = session
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._read: dict[bytes, int] | None = None

    async def send(self, message: bytes) -> None:
        asked = object_or_empty(from_json(message))
        if "id" in asked and isinstance(method := asked.get("method"), str):
            self._answers.put_nowait(encode({"jsonrpc": "2.0", "id": asked["id"], **self._answer(method, asked)}))

    async def receive(self) -> bytes | None:
        return await self._answers.get()

    async def aclose(self) -> None:
        self._answers.put_nowait(None)

    def _answer(self, method: str, asked: Json) -> Json:
        params = object_or_empty(asked.get("params"))
        # A request of the stateless era brings the version along.
        is_stateless = f"{MCP_KEY_PREFIX}protocolVersion" in object_or_empty(params.get("_meta"))
        listing = self._session.listings.get(listing_era := "stateless" if is_stateless else "handshake")
        if listing is not None:
            if method in CONVERSATION_OPENING_METHODS:
                opening = listing.initialize
                return {"result": {**opening, "supportedVersions": [opening.get("protocolVersion")]}}
            for name, (lists, member) in LIST_WIRE_NAMES.items():
                if method == lists:
                    return {"result": {member: getattr(listing, name)}}
        elif method in CONVERSATION_OPENING_METHODS:
            return _refuse("the file has no definitions of this era", "switch to the other era")
        if method in REPLAYED and (answer := self._find_answer(listing_era, method, params)) is not None:
            return answer
        words = shlex.join(self._session.words) or "the server"
        return _refuse(READ_ONLY, f"to call it, inspect the server itself: defserve inspect {words} --web")

    def _find_answer(self, era: str, method: str, params: Json) -> Json | None:
        recorder = self._session.recorder
        if self._read is None:
            self._read = {}
            for entry in recorder.get_messages(0, recorder.count):
                if entry.kind == "request" and entry.of is not None and entry.method in REPLAYED:
                    params_then = object_or_empty(recorder.parse_body(entry.seq).get("params"))
                    self._read[_make_key(entry.era, entry.method, params_then)] = entry.of
        seq = self._read.get(_make_key(era, method, mask_value(params)))
        shown = object_or_empty((recorder.describe_message(seq) or {}).get("body")) if seq is not None else {}
        found = {name: shown[name] for name in ("result", "error") if name in shown}
        return found if len(found) == 1 else None


def _make_key(era: str, method: str, params: Json) -> bytes:
    """What is asked for, without what belongs to one sending of it: `_meta`, and ids and grants that we make up."""
    asked = sorted((name, to_json(each)) for name, each in params.items() if name[:1] != "_" and name not in MADE_UP)
    return to_json([era, method, asked])


def _refuse(why: str, fix: str) -> Json:
    return {"error": {"code": INVALID_REQUEST, "message": why, "data": {"fix": fix}}}
