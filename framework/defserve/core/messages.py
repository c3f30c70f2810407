"""JSON-RPC 2.0 messages as small objects, bytes made into messages and back, and streams cut into lines. No I/O.

Any bytes give messages, never an exception: what cannot be read is a `MalformedMessage` that says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

from pydantic_core import PydanticSerializationError, from_json, to_json

from defserve.core.json_values import find_limit_violation, is_object, replace_surrogates

RequestId: TypeAlias = int | str
Params: TypeAlias = dict[str, Any]

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603


class Request:
    """A question that wants an answer. `raw` is the whole decoded object, for members outside JSON-RPC."""

    __slots__ = ("id", "method", "params", "raw")

    def __init__(self, id: RequestId, method: str, params: Params, raw: dict[str, Any]) -> None:
        self.id, self.method, self.params, self.raw = id, method, params, raw


class Notification:
    """A statement that is never answered."""

    __slots__ = ("method", "params", "raw")

    def __init__(self, method: str, params: Params, raw: dict[str, Any]) -> None:
        self.method, self.params, self.raw = method, params, raw


class Reply:
    """The answer to a request of ours: `error` is None when it went well. `id` is None when unreadable."""

    __slots__ = ("id", "result", "error")

    def __init__(self, id: RequestId | None, result: Any, error: dict[str, Any] | None) -> None:
        self.id, self.result, self.error = id, result, error


class MalformedMessage:
    """Input that is not a message: the code and text of its refusal, and its id if it could be read.

    `notification` is set if it is a notification except for a null `id`. `is_reply`: it was meant as an answer, so the
    id is one of ours, and it must not be answered in turn.
    """

    __slots__ = ("code", "message", "id", "notification", "is_reply")

    def __init__(
        self,
        code: int,
        message: str,
        id: RequestId | None = None,
        *,
        notification: Notification | None = None,
        is_reply: bool = False,
    ) -> None:
        self.code, self.message, self.id = code, message, id
        self.notification, self.is_reply = notification, is_reply


Message: TypeAlias = Request | Notification | Reply | MalformedMessage


class EncodedJson(bytes):
    """JSON that is already bytes: a result the encoder copies instead of encoding again."""


# -- Bytes to messages and back (JSON-RPC 2.0). Any bytes give messages, never an exception.


def _refuse(value: Any, level: int = 0) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON form here")


try:
    # What `json` is made of; importing that costs 1.5 ms of a start.
    from _json import encode_basestring, make_encoder  # pyright: ignore
except ImportError:  # not every interpreter has it
    _pieces: Any = _refuse
else:
    _pieces = make_encoder(None, _refuse, encode_basestring, None, ":", ",", False, False, False)

ID_BYTES, METHOD_BYTES = 256, 128
MAX_DEPTH = 64
"""The levels of a message from a client, if nothing else is said."""
MAX_REPLY_DEPTH = 192
"""The levels of a reply. A server sends no more, and its clients refuse more: parsers of JSON end at 200."""
MAX_BATCH_MESSAGES = 256
"""The members of a batch are begun in one step of the loop, so there may not be many."""
LARGE = 1 << 62


def decode(data: bytes, depth: int = MAX_DEPTH, keys: int = 10_000) -> Message | list[Message]:
    """One framed message, or a list of them for a batch. What breaks the rules becomes `MalformedMessage`."""
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        return MalformedMessage(PARSE_ERROR, f"Parse error: {error}")
    if value.__class__ is list and len(value) > MAX_BATCH_MESSAGES:
        return MalformedMessage(INVALID_REQUEST, f"Invalid request: a batch may have {MAX_BATCH_MESSAGES} messages")
    # Walk only a message that could be too deep or too wide; a short one cannot be.
    size = len(data)
    if size > 2 * depth and (data.count(b"{") + data.count(b"[") > depth or (size > keys and data.count(b":") > keys)):
        problem = find_limit_violation(value, depth, keys)
        if problem is not None:
            return MalformedMessage(INVALID_REQUEST, f"Invalid request: {problem}", _readable_id(value))
    return _batch(value) if value.__class__ is list else parse_json_message(value)


def parse_json_message(raw: Any) -> Message:
    """One decoded JSON value as a message."""
    # `__class__`, not `isinstance`: JSON gives no subclasses, and this runs for every message.
    if raw.__class__ is not dict:
        return MalformedMessage(INVALID_REQUEST, "Invalid request: a message is a JSON object")
    # The usual kind of message first. Looking up what is there costs less than asking before.
    try:
        version, id, method, params = raw["jsonrpc"], raw["id"], raw["method"], raw["params"]
    except KeyError:
        return _other_message(raw, raw.get("id"), raw.get("method"), raw.get("params"))
    if (
        version == "2.0"
        and method.__class__ is str
        and params.__class__ is dict
        and ((id.__class__ is int and 0 <= id < LARGE) or is_request_id(id))
        and 0 < len(method) <= METHOD_BYTES
    ):
        return Request(id, method, params, raw)
    return _other_message(raw, id, method, params)


def _other_message(raw: dict[str, Any], id: Any, method: Any, params: Any) -> Message:
    if raw.get("jsonrpc") != "2.0":
        is_reply = "method" not in raw and ("result" in raw or "error" in raw)
        text = 'Invalid request: "jsonrpc" must be "2.0"'
        return MalformedMessage(INVALID_REQUEST, text, _readable_id(raw), is_reply=is_reply)
    if "method" not in raw:
        return _reply(raw)
    if not isinstance(method, str) or not 0 < len(method) <= METHOD_BYTES:
        text = f'Invalid request: "method" must be a string of 1 to {METHOD_BYTES} characters'
        return MalformedMessage(INVALID_REQUEST, text, _readable_id(raw))
    if params is None:
        params = {}
    if "id" not in raw:
        return Notification(method, params if is_object(params) else {}, raw)
    if is_request_id(id) and is_object(params):
        return Request(id, method, params, raw)
    if not is_request_id(id):
        text = f'Invalid request: "id" must be an integer or a string of at most {ID_BYTES} characters'
        return MalformedMessage(INVALID_REQUEST, text, notification=_null_id_notification(id, method, params, raw))
    return MalformedMessage(INVALID_PARAMS, 'Invalid params: "params" must be an object', id)


def encode(value: Any) -> bytes:
    """A message as one line of JSON, without the line feed.

    Infinities and NaN become null and lone surrogates U+FFFD, since neither exists in JSON text.
    Raises ValueError for a value that has no JSON form.
    """
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError as error:
        if "surrogates" not in str(error):
            raise
        return to_json(replace_surrogates(value), inf_nan_mode="null")


def encode_at_startup(value: Any) -> EncodedJson:
    """The same value as with `encode`, for what a process says first.

    The first use of pydantic's encoder imports pathlib, uuid and urllib: 5 ms of a start of 60 ms.
    """
    if type(value) is EncodedJson:
        return value
    try:
        return EncodedJson("".join(_pieces(value, 0)).encode())
    except (TypeError, ValueError, RecursionError):  # it needs the other encoder, or has no JSON form at all
        return EncodedJson(encode(value))


def encode_result(id: RequestId, result: Any) -> bytes:
    """A successful reply. An `EncodedJson` result is copied as it stands."""
    if type(result) is EncodedJson:
        written = b"%d" % id if type(id) is int else encode_at_startup(id)
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (written, result)
    reply = {"jsonrpc": "2.0", "id": id, "result": result}
    try:
        return to_json(reply, inf_nan_mode="null")
    except PydanticSerializationError:
        return encode(reply)


def encode_notification(method: str, params: Any) -> bytes:
    """A notification."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def _batch(values: Sequence[Any]) -> Message | list[Message]:
    if not values:
        return MalformedMessage(INVALID_REQUEST, "Invalid request: an empty batch")
    return [parse_json_message(value) for value in values]


def _reply(raw: dict[str, Any]) -> Message:
    id, error = raw.get("id"), raw.get("error")
    usable = id is None or is_request_id(id)
    if usable and "result" in raw and "error" not in raw:
        return Reply(id, raw["result"], None)
    if usable and is_object(error) and "result" not in raw:
        return Reply(id, None, error)
    text = 'Invalid request: neither "method" nor one of "result" and "error"'
    return MalformedMessage(INVALID_REQUEST, text, _readable_id(raw), is_reply="result" in raw or "error" in raw)


def is_request_id(id: Any) -> TypeGuard[RequestId]:
    """Whether a JSON value can be the id of a request."""
    # A bool is an int in Python but not an id in JSON-RPC. The bound keeps a hostile integer printable.
    if type(id) is int:
        return -(1 << 512) < id < (1 << 512)
    return isinstance(id, str) and len(id) <= ID_BYTES


def _readable_id(value: Any) -> RequestId | None:
    id = value.get("id") if is_object(value) else None
    return id if is_request_id(id) else None


def _null_id_notification(id: Any, method: str, params: Any, raw: dict[str, Any]) -> Notification | None:
    # Some clients write notifications with `"id": null`. A layer that knows the method may accept it as one.
    return Notification(method, params, raw) if id is None and is_object(params) else None


# -- A byte stream cut into lines at LF (0x0A) and nowhere else. No decoding, no I/O.


BOM = b"\xef\xbb\xbf"


class LineSplitter:
    """Takes chunks and gives whole lines; None stands for a line longer than `limit`.

    The rest of a line that is too long is skipped as it arrives, so memory stays bounded.
    """

    __slots__ = ("limit", "_rest", "_skipping", "_first")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rest = bytearray()
        self._skipping = False
        self._first = True

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that `data` completes, without their LF. Blank lines are left out."""
        whole: list[bytes | None] = []
        if b"\n" not in data:
            self._buffer_rest(data, whole)
            return whole
        head, *lines = data.split(b"\n")
        tail = lines.pop()
        self._complete(head, whole)
        for line in lines:
            # A call a line less for what nearly every line is.
            if line.startswith(b"{") and len(line) <= self.limit:
                whole.append(line)
            else:
                self._add(line, whole)
        self._buffer_rest(tail, whole)
        return whole

    def take_single_line(self, data: bytes) -> bytes | None:
        """The line, if `data` is one whole line that begins with a brace. Otherwise `feed` it."""
        is_only = data.find(b"\n") == len(data) - 1 <= self.limit and data.startswith(b"{")
        return data[:-1] if is_only and not (self._rest or self._skipping or self._first) else None

    def finish(self) -> bytes | None:
        """What stood after the last LF when the stream ended, or None."""
        whole: list[bytes | None] = []
        self._complete(b"", whole)
        return whole[0] if whole else None

    def _complete(self, head: bytes, whole: list[bytes | None]) -> None:
        if self._skipping:
            self._skipping = False
            return
        if self._rest:
            # Free it first: if memory is too short for this line, there may be enough for the next.
            rest, self._rest = self._rest, bytearray()
            head = bytes(rest) + head
        self._add(head, whole)

    def _add(self, line: bytes, whole: list[bytes | None]) -> None:
        if self._first:
            self._first = False
            # Some editors and shells put a byte order mark at the start of a stream. JSON forbids it elsewhere.
            line = line.removeprefix(BOM)
        if len(line) > self.limit:
            whole.append(None)
        elif line and not line.isspace():
            whole.append(line)

    def _buffer_rest(self, data: bytes, whole: list[bytes | None]) -> None:
        if self._skipping or not data:
            return
        self._rest += data
        mark = len(BOM) if self._first and self._rest.startswith(BOM) else 0
        if len(self._rest) > self.limit + mark:
            self._rest.clear()
            self._first, self._skipping = False, True
            whole.append(None)
