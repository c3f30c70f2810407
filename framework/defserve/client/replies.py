"""Reads what a peer sends: fields of its JSON, and the value of a tool's result.

Also results that are kept as bytes, lines that cannot be decoded, errors that mean "the server lacks this method", and
what a peer sent until somebody reads it (`ByteBoundedQueue`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping
from sys import float_info
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from pydantic_core import from_json

from defserve.base.peer_bounds import MAX_UNREAD_BYTES, RecentItems
from defserve.core.json_values import find_limit_violation, is_array, is_object
from defserve.core.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    MAX_REPLY_DEPTH,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    EncodedJson,
    MalformedMessage,
    Message,
    Reply,
    RequestId,
    decode,
    encode,
    is_request_id,
)
from defserve.errors import PeerError, PeerGone, PeerTimeout, ToolError
from defserve.serve.address import CredentialsRequired, HttpRefusal, SignInError

Json: TypeAlias = dict[str, Any]


def object_or_empty(value: Any) -> Json:
    """`value` if it is a JSON object, else an empty object."""
    return value if is_object(value) else {}


def string_or_none(value: Any) -> str | None:
    """`value` if it is a string, else None."""
    return value if isinstance(value, str) else None


def number_or_none(value: Any) -> float | None:
    """`value` if it is a number that a float can hold, else None: JSON has integers of any length."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) <= float_info.max else None


def filter_strings(value: Any) -> list[str]:
    """The strings in a JSON array; empty if `value` is no array."""
    return [item for item in value if isinstance(item, str)] if is_array(value) else []


# -- A tool's result as a Python value.


RETURN_TYPE_KEY: Final = "dev.defserve/returns"
"""The key of a tool's `_meta` that gives the type of its only text."""
WRAPPED_KEY: Final = "dev.defserve/wrapped"
"""The key of a result's `_meta` that says that its structured content is `{"result": value}`."""


def get_single_text(result: Mapping[str, Any]) -> str | None:
    """The text of a result that is a single text block; None for other results."""
    content: Any = result.get("content")
    if result.get("structuredContent") is not None or not is_array(content) or len(content) != 1:
        return None
    block = object_or_empty(content[0])
    return str(block.get("text", "")) if block.get("type") == "text" else None


def extract_result_value(result: Mapping[str, Any], returns: Mapping[str, Any] | None) -> Any:
    """Structured content if there is any, or else the only text decoded by `returns`, or else the content blocks.

    A result without content gives None. Raises ToolError for a result with `isError`, PeerError for no content blocks.
    """
    if result.get("isError"):
        raise make_tool_error(result)
    if "structuredContent" in result:
        return unwrap_structured_content(result)
    text = get_single_text(result)
    if text is None:
        content: Any = result.get("content") or []
        if not is_array(content) or not all(map(is_object, content)):
            raise PeerError("the result has content that is no list of blocks")
        return content or None
    return parse_text_by_schema(text, returns) if returns is not None else text


def unwrap_structured_content(result: Mapping[str, Any]) -> Any:
    """The structured content of a result, without the wrapping that defserve and FastMCP give to lists and scalars."""
    content, meta = result["structuredContent"], object_or_empty(result.get("_meta"))
    is_wrapped = meta.get(WRAPPED_KEY) is True or object_or_empty(meta.get("fastmcp")).get("wrap_result") is True
    return content["result"] if is_wrapped and is_object(content) and content.keys() == {"result"} else content


def parse_text_by_schema(text: str, schema: Mapping[str, Any]) -> Any:
    """`text` as the JSON value that `schema` declares, or `text` itself if the schema allows a string."""
    types = _types(schema)
    if not types or "string" in types:
        return text
    try:
        return from_json(text)
    except ValueError:
        return text


def make_tool_error(result: Mapping[str, Any]) -> ToolError:
    text = join_text_blocks(result) or "the tool failed without a message"
    return ToolError(text, data=object_or_empty(result.get("structuredContent")))


def join_text_blocks(result: Mapping[str, Any]) -> str:
    """The text blocks of a result, joined by line feeds."""
    content: Any = result.get("content")
    blocks = [object_or_empty(block) for block in content] if is_array(content) else []
    return "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")


def parse_json_object(data: bytes | str) -> Json:
    """The JSON object in `data`; empty if it is anything else."""
    try:
        return object_or_empty(from_json(data))
    except ValueError:
        return {}


def _types(schema: Any) -> set[str]:
    """Every JSON type that the schema allows; empty if it does not say."""
    schema = object_or_empty(schema)
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if is_array(named):
        return set(filter_strings(named))
    members: Any = schema.get("anyOf") or schema.get("oneOf")
    values: Any = [schema["const"]] if "const" in schema else schema.get("enum")
    return {kind for member in (members if is_array(members) else ()) for kind in _types(member)} | {
        "string" if isinstance(value, str) else "other" for value in (values if is_array(values) else ())
    }


# -- Replies whose result is kept as the bytes that came, so that it can be passed on without being encoded again.


MAX_KEYS: Final = 10_000

# The two ways in which servers write a successful reply. The result stands between a known start and a known end.
ID_FIRST: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":(0|[1-9][0-9]{0,17}),"result":').match
RESULT_FIRST: Final = b'{"result":'
ID_LAST: Final = re.compile(rb',"jsonrpc":"2\.0","id":(0|[1-9][0-9]{0,17})\}\Z').search
MAX_TAIL_LENGTH: Final = len(b',"jsonrpc":"2.0","id":}') + 18
CLOSING: Final = ord("}")


class RawReply(Reply):
    """A reply and the bytes of its result. `result` and `error` are decoded; `error` is None if it went well."""

    __slots__ = ("_bytes",)

    def __init__(
        self, id: RequestId | None, result: Any, error: dict[str, Any] | None, bytes: bytes | None = None
    ) -> None:
        # Not by `super`: a proxy makes one for every call.
        self.id, self.result, self.error, self._bytes = id, result, error, bytes

    @property
    def raw(self) -> EncodedJson:
        """The result as JSON on one line: the server's own bytes where possible, else encoded again."""
        data = self._bytes
        # A body may be laid out over several lines. A line feed would break the framing of a pipe, a CR that of events.
        if data is None or b"\n" in data or b"\r" in data:
            return EncodedJson(encode(self.result))
        return EncodedJson(data)


def read_raw_reply(data: bytes) -> Message | list[Message]:
    """What `decode` gives. A successful reply in one of the usual forms is a `RawReply`."""
    if found := ID_FIRST(data):
        # `}` closes the reply, because nothing but a whole JSON value is accepted before it.
        number, part = found[1], data[found.end() : -1]
        if data[-1] != CLOSING:
            return _decode_reply(data)
    elif data.startswith(RESULT_FIRST) and (found := ID_LAST(data, max(0, len(data) - MAX_TAIL_LENGTH))):
        number, part = found[1], data[len(RESULT_FIRST) : found.start()]
    else:
        return _decode_reply(data)
    try:
        value = from_json(part, allow_inf_nan=False)
    except ValueError:
        return _decode_reply(data)
    # Like `decode`: walk only what could be too deep or too wide.
    if (
        len(part) >= 2 * MAX_REPLY_DEPTH
        and (
            part.count(b"{") + part.count(b"[") >= MAX_REPLY_DEPTH
            or (len(part) > MAX_KEYS and part.count(b":") > MAX_KEYS)
        )
        and find_limit_violation(value, MAX_REPLY_DEPTH - 1, MAX_KEYS) is not None
    ):
        return _decode_reply(data)
    return RawReply(int(number), value, None, part)


_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|u[dD][c-fC-F][0-9a-fA-F]{2}|.)", re.DOTALL
)


def _decode_reply(data: bytes) -> Message | list[Message]:
    """As `decode`, with U+FFFD for half a surrogate pair, which is no character.

    A server in JavaScript that cuts an emoji in half sends that, and its call has run.
    """
    message = decode(data, MAX_REPLY_DEPTH)
    if isinstance(message, MalformedMessage) and message.code == PARSE_ERROR and b"\\u" in data:
        return decode(_ESCAPE.sub(_replace_half_pair, data), MAX_REPLY_DEPTH)
    return message


def _replace_half_pair(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if len(escape[0]) == 6 else escape[0]


# -- Lines that cannot be decoded: which request one was meant to answer, by a bounded part of it.


KEPT_HEAD_BYTES: Final = 16 * 1024
KEPT_TAIL_BYTES: Final = 1024

# A string without an end is taken whole: else each quote in it would be tried as a beginning.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?+|[{}\[\]]', re.DOTALL)
_ID_VALUE: Final = re.compile(rb'\s*+:\s*+(-?\d{1,18}(?=[\s,}])|"(?:[^"\\]|\\.){0,256}+")')
_LAST_ID: Final = re.compile(rb',\s*+"id"(\s*+:[^{}\[\]]{1,600})\}\s*+$')
_OPENING: Final = (b"{", b"[")


class TruncatedMessage(bytes):
    """The beginning and the end of a line that was longer than `limit` bytes."""

    limit = 0


class UnreadableReply(Reply):
    """Stands for a reply that cannot be decoded. `why` is in our own words."""

    __slots__ = ("why",)

    def __init__(self, id: RequestId | None, code: int, why: str) -> None:
        super().__init__(id, None, {"code": code, "message": f"the peer's reply is unreadable: {why}"})
        self.why = why


class UnreadableLine:
    """A line that is no message. `is_reply`: it may have been one; `id`: the request that it then answers, if found.

    What a program prints beside its messages is no reply, nor is anything with a method.
    """

    __slots__ = ("id", "is_reply")

    def __init__(self, data: bytes) -> None:
        head, tail = data[:KEPT_HEAD_BYTES].lstrip(), data[-KEPT_TAIL_BYTES:]
        members = _members(head)
        self.id: RequestId | None = None
        self.is_reply = (
            head.startswith(_OPENING) and b'"method"' not in members and (b'"jsonrpc"' in head or b'"jsonrpc"' in tail)
        )
        if self.is_reply:
            last = _LAST_ID.search(tail)
            self.id = (
                _id_at(head, members[b'"id"']) if b'"id"' in members else _id_at(tail, last.start(1)) if last else None
            )


def _members(head: bytes) -> dict[bytes, int]:
    """The strings right inside the outermost object, each with the place where it ends."""
    found: dict[bytes, int] = {}
    depth = 0
    for token in _TOKEN.finditer(head):
        if (text := token[0]) in _OPENING:
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and head[token.end() : token.end() + 8].lstrip().startswith(b":"):
            found.setdefault(text, token.end())
    return found


def _id_at(data: bytes, place: int) -> RequestId | None:
    value = _ID_VALUE.match(data, place)
    try:
        id: Any = from_json(value[1]) if value else None
    except ValueError:
        return None
    return id if is_request_id(id) else None


# -- Methods that a server does not have, though it offers what they belong to: how that is told from other errors.


# A request for the first page of a list has no parameters that could be wrong.
_CODES: Final = frozenset((METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS))
_STATUSES: Final = frozenset((400, 404, 405, 501))

# Servers that use another code say it in words.
_WORDS: Final = re.compile(
    r"(unknown|unsupported|unhandled|unrecogni[sz]ed|invalid|no such)\W+(?:\w+\W+){0,2}(method|request)"
    r"|(method|request)\b.{0,60}\b(unknown|unsupported|not (found|supported|known|available|allowed|handled))"
    r"|\bnot implemented\b|\bnot supported\b",
    re.IGNORECASE | re.DOTALL,
)
MAX_QUOTE: Final = 120


class ListedItems(NamedTuple):
    """What a server lists. `note` says that it lacks the method; it is empty otherwise."""

    items: list[Json]
    note: str = ""


def is_method_missing(error: PeerError) -> bool:
    """Whether the error to a request without parameters means that the server does not have the method."""
    if isinstance(error, PeerGone | PeerTimeout | CredentialsRequired | SignInError):
        return False
    if isinstance(error, HttpRefusal):
        return object_or_empty(error.data).get("status") in _STATUSES
    return error.code in _CODES or _WORDS.search(error.message[:1000]) is not None


async def list_if_supported(method: str, listing: Awaitable[list[Json]]) -> ListedItems:
    """A list, empty if the server lacks the method. Raises PeerError for any other error."""
    try:
        return ListedItems(await listing)
    except PeerError as error:
        if not is_method_missing(error):
            raise
        quote = " ".join(error.message.split())[:MAX_QUOTE]
        return ListedItems([], f"the server does not know {method}, which belongs to what it offers: {quote}")


# -- What a peer sent, until somebody reads it: bounded in number and bytes. The oldest make room, or the peer waits.


T = TypeVar("T")


class UnreadItemQueue(Generic[T]):
    """`get` waits for the next item. After `end` it gives out what is left, then raises the reason."""

    def __init__(self, most: int) -> None:
        self._items: RecentItems[T] = RecentItems(most)
        self._ended = False
        self._reason: PeerError | None = None
        self._news = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether `get` would have to wait."""
        return not (self._items or self._ended)

    def put(self, item: T, size: int) -> None:
        """Take an item that takes so many bytes. After the end, none is taken."""
        if not self._ended:
            self._items.append_with_size(item, size)
            self._news.set()

    def put_if_room(self, item: T, size: int) -> bool:
        """Take it only if nothing has to go for it. Whether it was taken."""
        has_room = not self._ended and self._items.has_room(size)
        if has_room:
            self.put(item, size)
        return has_room

    def end(self, reason: PeerError | None = None) -> None:
        """Take nothing more. The first reason counts."""
        if not self._ended:
            self._ended, self._reason = True, reason
            self._news.set()

    async def get(self) -> T:
        """Raises the reason of the end, or StopAsyncIteration."""
        while not self._items:
            if self._ended:
                raise self._reason or StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._items.popleft()


class ByteBoundedQueue(asyncio.Queue[T]):
    """A queue in which putting waits while there are `most` items, or `most_bytes` in all. Its items are bytes, or
    something of ours that takes next to nothing."""

    def __init__(self, most: int, most_bytes: int = MAX_UNREAD_BYTES) -> None:
        self.bytes, self._most_bytes = 0, most_bytes
        super().__init__(most)

    def full(self) -> bool:
        return super().full() or self.bytes >= self._most_bytes

    def _put(self, item: T) -> None:
        self.bytes += len(item) if isinstance(item, bytes) else 0
        super()._put(item)

    def _get(self) -> T:
        item = super()._get()
        self.bytes -= len(item) if isinstance(item, bytes) else 0
        return item
