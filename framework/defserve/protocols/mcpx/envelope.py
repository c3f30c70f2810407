"""The shape of every message of a topic. Any bytes give an `Envelope`, or a `BrokenEnvelope` that says why not.

Below: kinds, whether a kind matches its payload, and which kinds a participant may send.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from pydantic_core import from_json

from defserve.core.json_values import find_limit_violation, is_array, is_object
from defserve.core.messages import EncodedJson
from defserve.core.messages import encode as encode_json
from defserve.errors import UsageError

MCPX_PROTOCOL: Final = "mcpx/v0.1"
TOPIC_MCP_VERSION: Final = "2025-06-18"
"""The MCP version of a peer that has not sent `initialize`."""

GATEWAY_SENDER: Final = "system:gateway"

ID_CHARACTERS: Final = 256
KIND_CHARACTERS: Final = 4096
RECIPIENTS: Final = 10_000
MAX_MEMBERS: Final = 64
"""Of an envelope: the eight of the specification, and what somebody may add to them."""
MAX_DEPTH: Final = 65
"""One level more than the message inside may have."""
MAX_KEYS: Final = 10_000
"""Of an object in the payload, as in every message."""

# The whole of RFC 3339 that matters here: a date, a time and a zone, each of the right length.
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DECISIVE: Final = (b'"kind"', b'"from"', b'"to"', b'"payload"')


class Envelope:
    """One message of a topic. `sender` is `from` on the wire; an empty `to` is for everyone.

    `frame` holds the bytes it came in, to pass it on unchanged. A `payload` that is `EncodedJson` is copied unchanged
    when the envelope is encoded.
    """

    __slots__ = ("id", "ts", "sender", "to", "kind", "correlation_id", "payload", "frame")

    def __init__(
        self,
        kind: str,
        sender: str,
        payload: Mapping[str, Any] | EncodedJson,
        *,
        to: Iterable[str] = (),
        correlation_id: str | None = None,
        id: str | None = None,
        ts: str | None = None,
        frame: bytes = b"",
    ) -> None:
        self.kind, self.sender, self.payload, self.to = kind, sender, payload, tuple(to)
        self.correlation_id, self.ts, self.frame = correlation_id, ts, frame
        self.id = id if id is not None else new_envelope_id()

    @property
    def body(self) -> dict[str, Any]:
        """The payload, decoded."""
        return from_json(self.payload) if isinstance(self.payload, EncodedJson) else dict(self.payload)

    def encode(self) -> bytes:
        """The bytes of an envelope of ours; `ts` is always there. One that came in is passed on as its `frame`."""
        fields: dict[str, Any] = {
            "protocol": MCPX_PROTOCOL,
            "id": self.id,
            "ts": self.ts or format_current_time(),
            "from": self.sender,
        }
        if self.to:
            fields["to"] = self.to
        fields["kind"] = self.kind
        if self.correlation_id is not None:
            fields["correlation_id"] = self.correlation_id
        payload = self.payload if isinstance(self.payload, EncodedJson) else encode_json(self.payload)
        return b'%b,"payload":%b}' % (encode_json(fields)[:-1], payload)


class BrokenEnvelope:
    """Bytes that are no envelope of this version. `id`, `kind` and `sender` are None if they could not be read."""

    __slots__ = ("reason", "message", "id", "kind", "sender")

    def __init__(self, reason: str, message: str, fields: Mapping[str, Any] | None = None) -> None:
        self.reason, self.message = reason, message
        found = fields or {}
        self.id, self.kind, self.sender = _readable(found, "id"), _readable(found, "kind"), _readable(found, "from")


def parse_envelope(data: bytes | str) -> Envelope | BrokenEnvelope:
    """Read a frame. Only the shape of the payload is checked: it has to be an object.

    `BrokenEnvelope.reason` is one of `not_json`, `wrong_version` and `invalid_envelope`.
    """
    frame = data.encode() if isinstance(data, str) else data
    try:
        fields = from_json(frame, allow_inf_nan=False)
    except ValueError as error:
        return BrokenEnvelope("not_json", f"not JSON: {error}")
    if not is_object(fields):
        return BrokenEnvelope("invalid_envelope", "an envelope is a JSON object")
    if fields.get("protocol") != MCPX_PROTOCOL:
        spoken = str(fields.get("protocol"))[:64]
        return BrokenEnvelope("wrong_version", f"protocol is {MCPX_PROTOCOL!r} here, not {spoken!r}", fields)
    problem = _problem(fields) or _oversize(frame, fields) or _find_repeated_name(frame)
    if problem is not None:
        return BrokenEnvelope("invalid_envelope", problem, fields)
    return Envelope(
        fields["kind"],
        fields["from"],
        fields["payload"],
        to=fields.get("to") or (),
        correlation_id=fields.get("correlation_id"),
        id=fields["id"],
        ts=fields.get("ts"),
        frame=frame,
    )


def new_envelope_id() -> str:
    """A globally unique id (UUIDv4)."""
    from uuid import uuid4

    return str(uuid4())


def format_current_time() -> str:
    """This moment, as RFC 3339 in UTC with milliseconds."""
    import time

    from defserve.core.json_values import format_unix_timestamp

    return format_unix_timestamp(time.time(), "milliseconds")


def _problem(fields: dict[str, Any]) -> str | None:
    # Written out with few function calls, for speed: a gateway does this for every message of every topic.
    get = fields.get
    id, sender, kind = get("id"), get("from"), get("kind")
    if type(id) is not str or not 0 < len(id) <= ID_CHARACTERS:
        return f"id: expected a text of 1 to {ID_CHARACTERS} characters"
    if type(sender) is not str or not 0 < len(sender) <= ID_CHARACTERS:
        return f"from: expected a text of 1 to {ID_CHARACTERS} characters"
    if type(kind) is not str or len(kind) > KIND_CHARACTERS or "" in kind.split(":", 2):
        return f"kind: expected base[:METHOD[:CONTEXT]] of at most {KIND_CHARACTERS} characters"
    ts, to, correlation = get("ts"), get("to"), get("correlation_id")
    if ts is not None and (type(ts) is not str or not _INSTANT.fullmatch(ts)):
        return "ts: expected an RFC 3339 timestamp"
    if to is not None and not (is_array(to) and len(to) <= RECIPIENTS and all(map(_is_name, to))):
        return "to: expected an array of participant ids"
    if correlation is not None and not _is_name(correlation):
        return f"correlation_id: expected a text of 1 to {ID_CHARACTERS} characters"
    return None if is_object(get("payload")) else "payload: expected an object"


def _oversize(frame: bytes, fields: dict[str, Any]) -> str | None:
    if len(fields) > MAX_MEMBERS:
        return f"an envelope has at most {MAX_MEMBERS} members"
    # Counting tells for most frames that they cannot be too deep or too wide; only the others are walked.
    if frame.count(b"{") + frame.count(b"[") <= MAX_DEPTH and frame.count(b":") <= MAX_KEYS:
        return None
    return find_limit_violation(fields, MAX_DEPTH, MAX_KEYS)


def _find_repeated_name(frame: bytes) -> str | None:
    # Two parsers may disagree on which of two `kind`s counts; then one is checked and another acted on. Counting is
    # enough for most frames. A frame that repeats a name, or could hide one in an escape, is read again.
    if b"\\u" not in frame and max(map(frame.count, _DECISIVE)) <= 1:
        return None
    import json

    outermost: list[tuple[str, Any]] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal outermost
        outermost = pairs  # the outermost object is the last to be finished

    json.loads(frame, object_pairs_hook=note)
    seen: set[str] = set()
    for name, _ in outermost:
        if name in seen:
            return f"{name[:64]}: given twice"
        seen.add(name)
    return None


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= ID_CHARACTERS


def _readable(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if _is_name(value) else None


# -- What an envelope says it holds: `base[:METHOD[:CONTEXT]]`. METHOD has no colon, CONTEXT may have any number.


REQUEST_KIND: Final = "mcp/request"
RESPONSE_KIND: Final = "mcp/response"
PROPOSAL_KIND: Final = "mcp/proposal"
REJECT_KIND: Final = "mcp/reject"
WITHDRAW_KIND: Final = "mcp/withdraw"
CHAT_KIND: Final = "chat"
PRESENCE_KIND: Final = "system/presence"
WELCOME_KIND: Final = "system/welcome"
ERROR_KIND: Final = "system/error"

BARE: Final = frozenset({"presence", "system"})
"""The short names that §3 has for the gateway's kinds. We send the full names of §3.4 and §3.5."""

CONTEXT_FIELD_BY_METHOD: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
    "notifications/resources/updated": "uri",
}
"""The member of a method's params that CONTEXT repeats."""

MAX_CONTEXT_LENGTH: Final = 2_048


class MessageKind(NamedTuple):
    """A kind in its parts; `method` and `context` may be empty."""

    base: str
    method: str = ""
    context: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in self if part)


def parse_kind(text: str) -> MessageKind | None:
    """The parts of a kind; None if one of them is empty."""
    parts = text.split(":", 2)
    return MessageKind(*parts) if all(parts) else None


def make_message_kind(base: str, method: str, params: Mapping[str, Any]) -> str:
    """The kind of a message about `method`. Its CONTEXT is in the params, if it has one; a huge one is left out."""
    context = find_operation_context(method, params)
    return f"{base}:{method}:{context}" if 0 < len(context) <= MAX_CONTEXT_LENGTH else f"{base}:{method}"


def find_operation_context(method: str, params: Mapping[str, Any]) -> str:
    """The operation within a method (the tool's name, the resource's URI); empty for methods that have none."""
    field = CONTEXT_FIELD_BY_METHOD.get(method)
    value = params.get(field) if field is not None else None
    return value if isinstance(value, str) else ""


def is_gateway_only_kind(kind: str) -> bool:
    """Whether only a gateway may send it."""
    return kind.startswith("system/") or kind.partition(":")[0] in BARE


def qualify_kind(kind: str, payload: Mapping[str, Any]) -> str:
    """The full kind of a gateway's message. The payload of a short one says which it is."""
    if kind not in BARE:
        return kind
    if kind == "presence" or "event" in payload:
        return PRESENCE_KIND
    return WELCOME_KIND if "you" in payload else ERROR_KIND


# -- §4.3: whether a kind matches its payload. The gateway does not check this, so every receiver must.


CHAT_FORMATS: Final = ("plain", "markdown")

Payload = Mapping[str, Any]


def find_kind_mismatch(kind: MessageKind, payload: Payload) -> str | None:
    """Why a message must not be acted on; None if its METHOD and CONTEXT are those of its payload."""
    check = _CHECKS.get(kind.base)
    return check(kind, payload) if check is not None else None


def _operation(kind: MessageKind, payload: Payload) -> str | None:
    method, params = payload.get("method"), payload.get("params", {})
    if not kind.method or method != kind.method:
        return f"the kind says {kind.method!r}, the payload {_brief(method)}"
    if not is_object(params):
        return "params are not an object"
    if kind.context and kind.context != find_operation_context(kind.method, params):
        context = find_operation_context(kind.method, params)
        return f"the kind is about {kind.context[:64]!r}, the payload about {_brief(context)}"
    return None


def _response(kind: MessageKind, payload: Payload) -> str | None:
    if not kind.method or "method" in payload:
        return "a response names its METHOD in the kind and holds none"
    if ("result" in payload) == ("error" in payload):
        return "a response holds either a result or an error"
    return _not_jsonrpc(payload)


def _chat(kind: MessageKind, payload: Payload) -> str | None:
    if not isinstance(payload.get("text"), str):
        return "chat needs a text"
    return None if payload.get("format", "plain") in CHAT_FORMATS else f"format is one of {', '.join(CHAT_FORMATS)}"


def _decision(kind: MessageKind, payload: Payload) -> str | None:
    return None if isinstance(payload.get("reason", ""), str) else "a reason is a text"


def _not_jsonrpc(payload: Payload) -> str | None:
    return None if payload.get("jsonrpc") == "2.0" else 'jsonrpc is not "2.0"'


def _brief(value: Any) -> str:
    return repr(value)[:64]


_CHECKS: Final[Mapping[str, Callable[[MessageKind, Payload], str | None]]] = {
    REQUEST_KIND: lambda kind, payload: _not_jsonrpc(payload) or _operation(kind, payload),
    RESPONSE_KIND: _response,
    PROPOSAL_KIND: _operation,
    REJECT_KIND: _decision,
    WITHDRAW_KIND: _decision,
    CHAT_KIND: _chat,
}


# -- Which kinds a participant may send: patterns in which `*` stands for any run of characters, `/` and `:` included.


CAPABILITY_PROFILES: Final[Mapping[str, tuple[str, ...]]] = {
    "full": ("mcp/*", "chat"),
    "proposal-only": ("mcp/proposal:*", "mcp/withdraw", "mcp/response:*", "chat"),
    "response-only": ("mcp/response:*", "mcp/reject", "chat"),
    "read-only": ("mcp/request:resources/read", "mcp/request:*/list", "mcp/response:*", "chat"),
    "tool-only": ("mcp/request:tools/*", "mcp/response:tools/*", "chat"),
}

REMEMBERED: Final = 512
MAX_KIND_LENGTH: Final = 256


def is_kind_covered(kind: str, capability: str) -> bool:
    """Whether the capability covers the kind.

    A capability without CONTEXT is compared with `base:METHOD`. So it covers every CONTEXT of a method it covers, and
    no CONTEXT can be mistaken for a method.
    """
    if capability.count(":") < 2:
        kind = ":".join(kind.split(":", 2)[:2])
    return _glob(kind, capability)


def matches_strictly(kind: str, capability: str) -> bool:
    """The reference gateway's rule: a final `*` means "begins with", anything else is compared whole."""
    return kind.startswith(capability[:-1]) if capability.endswith("*") else kind == capability


def _glob(text: str, pattern: str) -> bool:
    # Every piece at its first place: a later one never allows more, so the text is walked once.
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    last = rest.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in rest:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


class TopicCapabilities:
    """What a participant may send. `strict` compares as the reference gateway does. `system/` is never allowed."""

    __slots__ = ("patterns", "_matches", "_known")

    def __init__(self, patterns: Iterable[str], *, strict: bool = False) -> None:
        if isinstance(patterns, str):
            raise UsageError("capabilities are a list of patterns", fix=f"write [{patterns!r}]")
        self.patterns = tuple(dict.fromkeys(patterns))
        if not all(isinstance(pattern, str) and pattern for pattern in self.patterns):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("a capability is a text such as 'mcp/request:tools/*'", fix="remove the empty ones")
        self._matches: Callable[[str, str], bool] = matches_strictly if strict else is_kind_covered
        self._known: dict[str, bool] = {}

    def allows_kind(self, kind: str) -> bool:
        """Whether one of them covers the kind."""
        if (known := self._known.get(kind)) is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = not is_gateway_only_kind(kind) and any(self._matches(kind, pattern) for pattern in self.patterns)
            if len(kind) <= MAX_KIND_LENGTH:
                self._known[kind] = known
        return known

    def with_changes(self, add: Iterable[str] = (), remove: Iterable[str] = ()) -> TopicCapabilities:
        """A copy with some added and some removed. A pattern that is both added and removed stays."""
        gone = set(remove)
        kept = TopicCapabilities((*(pattern for pattern in self.patterns if pattern not in gone), *add))
        kept._matches = self._matches
        return kept
