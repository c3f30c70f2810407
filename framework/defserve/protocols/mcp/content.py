"""MCP content blocks (tools: tool result; prompts: content): an author's parts as a protocol version has them."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from defserve.binding.content import Audio, Embedded, Image, Link, Part, Text
from defserve.errors import LimitExceeded
from defserve.protocols.mcp.lifecycle import Dialect
from defserve.wire.messages import Params


def blocks(said: Sequence[Part] | str, dialect: Dialect, limit: int = sys.maxsize) -> list[Params]:
    """Parts, or a bare text, as content blocks. A kind the version does not know becomes text that says what it was.

    Raises LimitExceeded if they would be longer than `limit`, before they are encoded.
    """
    size = len(said) if isinstance(said, str) else sum(_least_size(part, dialect) for part in said)
    if size > limit:
        raise LimitExceeded(f"the result is larger than {limit} bytes", data={"limit": "response"})
    if isinstance(said, str):
        return [{"type": "text", "text": said}]
    return [block(part, dialect) for part in said]


def block(part: Part, dialect: Dialect) -> Params:
    encoded = next(_ENCODERS[kind] for kind in type(part).__mro__ if kind in _ENCODERS)(part, dialect)
    if part.annotations:
        encoded["annotations"] = annotations_wire(part.annotations, dialect)
    if part.meta and "meta" in dialect.has:
        encoded["_meta"] = dict(part.meta)
    return encoded


def _least_size(part: Part, dialect: Dialect) -> int:
    """The least number of bytes that a block of the part takes, found without encoding it."""
    if isinstance(part, Audio) and "audio" not in dialect.has:
        return 0
    text: str | None = getattr(part, "text", None)
    data: bytes | None = getattr(part, "data", None)
    return len(text) if text is not None else 4 * len(data or b"") // 3


def contents(uri: str, part: Part, mime_type: str | None, dialect: Dialect) -> Params:
    """A part as the contents of a resource (resources: resource contents)."""
    found: Params = {"uri": uri}
    if isinstance(part, Embedded):
        found = _embedded_contents(part, mime_type)
    elif isinstance(part, Text):
        found |= {"mimeType": mime_type or "text/plain", "text": part.text}
    elif isinstance(part, Image | Audio):
        found |= {"mimeType": mime_type or part.mime_type, "blob": b64encode(part.data).decode()}
    else:
        raise TypeError(f"a resource cannot contain a {type(part).__name__}")
    if part.meta and "meta" in dialect.has:
        found["_meta"] = dict(part.meta)
    return found


def annotations_wire(given: Mapping[str, Any], dialect: Dialect) -> Params:
    """`audience`, `priority`, `lastModified`, as far as the version has them."""
    hidden = () if "last_modified" in dialect.has else ("lastModified", "last_modified")
    return {_WIRE_NAMES.get(key, key): value for key, value in given.items() if key not in hidden}


_WIRE_NAMES = {"last_modified": "lastModified"}


def _audio(part: Any, dialect: Dialect) -> Params:
    if "audio" not in dialect.has:
        return {"type": "text", "text": f"[audio, {part.mime_type}, {len(part.data)} bytes]"}
    return {"type": "audio", "data": b64encode(part.data).decode(), "mimeType": part.mime_type}


def _link(part: Any, dialect: Dialect) -> Params:
    if "resource_links" not in dialect.has:
        return {"type": "text", "text": f"[resource] {part.title or part.name}: {part.uri}"}
    fields = {
        "name": part.name,
        "title": part.title,
        "description": part.description,
        "mimeType": part.mime_type,
        "size": part.size,
    }
    return {"type": "resource_link", "uri": part.uri, **{k: v for k, v in fields.items() if v is not None}}


def _embedded_contents(part: Embedded, mime_type: str | None = None) -> Params:
    found: Params = {"uri": part.uri}
    if known := part.mime_type or mime_type:
        found["mimeType"] = known
    if part.text is not None:
        found["text"] = part.text
    else:
        found["blob"] = b64encode(part.data or b"").decode()
    return found


_ENCODERS: Mapping[type[Part], Callable[[Any, Dialect], Params]] = {
    Text: lambda part, _: {"type": "text", "text": part.text},
    Image: lambda part, _: {"type": "image", "data": b64encode(part.data).decode(), "mimeType": part.mime_type},
    Audio: _audio,
    Link: _link,
    Embedded: lambda part, _: {"type": "resource", "resource": _embedded_contents(part)},
}
