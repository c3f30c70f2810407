"""The shape of every message of a topic. Any bytes give an `Envelope`, or a `BrokenEnvelope` that says why not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard

from pydantic_core import from_json

from defserve.wire.codec import encode as encode_json
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Encoded

PROTOCOL: Final = "mcpx/v0.1"
MCP_VERSION: Final = "2025-06-18"
"""The MCP version of a peer that has not sent `initialize`."""

GATEWAY: Final = "system:gateway"

ID_CHARACTERS: Final = 256
KIND_CHARACTERS: Final = 4096
RECIPIENTS: Final = 10_000

# The whole of RFC 3339 that matters here: a date, a time and a zone, each of the right length.
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DECISIVE: Final = (b'"kind"', b'"from"', b'"to"', b'"payload"')


class Envelope:
    """One message of a topic. `sender` is `from` on the wire; an empty `to` is for everyone.

    `frame` holds the bytes it came in, to pass it on unchanged. A `payload` that is `Encoded` is copied unchanged when
    the envelope is encoded.
    """

    __slots__ = ("id", "ts", "sender", "to", "kind", "correlation_id", "payload", "frame")

    def __init__(
        self,
        kind: str,
        sender: str,
        payload: Mapping[str, Any] | Encoded,
        *,
        to: Iterable[str] = (),
        correlation_id: str | None = None,
        id: str | None = None,
        ts: str | None = None,
        frame: bytes = b"",
    ) -> None:
        self.kind, self.sender, self.payload, self.to = kind, sender, payload, tuple(to)
        self.correlation_id, self.ts, self.frame = correlation_id, ts, frame
        self.id = id if id is not None else new_id()

    @property
    def body(self) -> dict[str, Any]:
        """The payload, decoded."""
        return from_json(self.payload) if isinstance(self.payload, Encoded) else dict(self.payload)

    def encode(self) -> bytes:
        """The bytes of an envelope of ours; `ts` is always there. One that came in is passed on as its `frame`."""
        fields: dict[str, Any] = {"protocol": PROTOCOL, "id": self.id, "ts": self.ts or now(), "from": self.sender}
        if self.to:
            fields["to"] = self.to
        fields["kind"] = self.kind
        if self.correlation_id is not None:
            fields["correlation_id"] = self.correlation_id
        payload = self.payload if isinstance(self.payload, Encoded) else encode_json(self.payload)
        return b'%b,"payload":%b}' % (encode_json(fields)[:-1], payload)


class BrokenEnvelope:
    """Bytes that are no envelope of this version. `id`, `kind` and `sender` are None if they could not be read."""

    __slots__ = ("reason", "message", "id", "kind", "sender")

    def __init__(self, reason: str, message: str, fields: Mapping[str, Any] | None = None) -> None:
        self.reason, self.message = reason, message
        found = fields or {}
        self.id, self.kind, self.sender = _readable(found, "id"), _readable(found, "kind"), _readable(found, "from")


def parse(data: bytes | str) -> Envelope | BrokenEnvelope:
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
    if fields.get("protocol") != PROTOCOL:
        spoken = str(fields.get("protocol"))[:64]
        return BrokenEnvelope("wrong_version", f"protocol is {PROTOCOL!r} here, not {spoken!r}", fields)
    problem = _problem(fields) or _repeated(frame)
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


def new_id() -> str:
    """A globally unique id (UUIDv4)."""
    from uuid import uuid4

    return str(uuid4())


def now() -> str:
    """This moment, as RFC 3339 in UTC with milliseconds."""
    import time

    from defserve.wire.instants import instant_at

    return instant_at(time.time(), "milliseconds")


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
    if not is_object(get("payload")):
        return "payload: expected an object"
    return None


def _repeated(frame: bytes) -> str | None:
    # Two parsers may disagree on which of two `kind`s counts; then one is checked and another acted on. Counting is
    # enough for most frames. A frame that repeats a name, or could hide one in an escape, is read again.
    if b"\\u" not in frame and max(map(frame.count, _DECISIVE)) <= 1:
        return None
    import json

    names: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        names[:] = [name for name, _ in pairs]  # the outermost object is the last to be finished

    json.loads(frame, object_pairs_hook=note)
    twice = next((name for name in names if names.count(name) > 1), None)
    return f"{twice[:64]}: given twice" if twice is not None else None


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= ID_CHARACTERS


def _readable(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if _is_name(value) else None
