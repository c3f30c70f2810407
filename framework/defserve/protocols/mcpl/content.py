"""MCPL §10.3, appendix B.1: content blocks. They differ from MCP's. Four kinds: text, image, audio and resource."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from defserve.binding.content import Audio, Embedded, Image, Link, Part, Text
from defserve.errors import InvalidParams, UsageError
from defserve.wire.jsonvalue import is_array, is_mapping, is_object
from defserve.wire.messages import Params

Content: TypeAlias = Text | Image | Audio | Link
"""What a host sends. An image or audio given by its URI is a Link of the type `image/*` or `audio/*`."""

Sendable: TypeAlias = str | Part | Mapping[str, Any] | Sequence[str | Part | Mapping[str, Any]]
"""What an author may send: a text, a part, a block written by hand, or several of them."""

MEDIA = ("image", "audio")


def blocks(value: Sendable) -> list[Params]:
    """An author's value as content blocks. Raises UsageError for what MCPL cannot carry."""
    return [_block(item) for item in (value if is_array(value) else [value])]


def read(value: Any) -> list[Content]:
    """What a host sent: a string or blocks. Raises InvalidParams for broken blocks.

    An unknown kind becomes a text that names it.
    """
    if isinstance(value, str):
        return [Text(value)]
    if not is_array(value):
        raise InvalidParams("Invalid params: content must be a string or a list of content blocks")
    return [_part(block) for block in value]


# -- out -------------------------------------------------------------------------------------------------


def _block(item: Any) -> Params:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if isinstance(item, Part):
        return next(encode(item) for kind, encode in _ENCODERS if isinstance(item, kind))
    if is_mapping(item):
        return _by_hand(item)
    raise UsageError(
        f"{item!r:.80} is not content", fix="give a str, Text, Image, Audio, File, Link or a content block"
    )


def _text(part: Any) -> Params:
    return {"type": "text", "text": part.text}


def _media(part: Any) -> Params:
    return _data(part.mime_type.partition("/")[0], part.data, part.mime_type)


def _link(part: Any) -> Params:
    family = (part.mime_type or "").partition("/")[0]
    return {"type": family if family in MEDIA else "resource", "uri": part.uri}


def _embedded(part: Any) -> Params:
    """The content itself, because a resource block holds only a URI."""
    family = (part.mime_type or "").partition("/")[0]
    if part.text is not None:
        return _text(part)
    if family not in MEDIA:
        raise UsageError(f"MCPL has no block that holds {part.mime_type or 'bytes'}", fix="send a Link to it instead")
    return _data(family, part.data, part.mime_type)


def _data(family: str, data: bytes, mime_type: str) -> Params:
    return {"type": family, "data": b64encode(data).decode("ascii"), "mimeType": mime_type}


_ENCODERS: tuple[tuple[type[Part], Callable[[Any], Params]], ...] = (
    (Text, _text),
    (Image, _media),
    (Audio, _media),
    (Link, _link),
    (Embedded, _embedded),
)

# The members that each kind of block may have. The first complete choice counts.
_MEMBERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "text": (("text",),),
    "image": (("data", "mimeType"), ("uri",)),
    "audio": (("data", "mimeType"), ("uri",)),
    "resource": (("uri",),),
}


def _by_hand(block: Mapping[str, Any]) -> Params:
    """The members of a block that MCPL knows. The others are dropped."""
    for members in _MEMBERS.get(block.get("type", ""), ()):
        if all(isinstance(block.get(member), str) for member in members):
            return {"type": block["type"], **{member: block[member] for member in members}}
    raise UsageError(
        f"{dict(block)!r:.80} is not a content block of MCPL",
        fix='write {"type": "text", "text": …}, {"type": "image", "uri": …} or {"type": "resource", "uri": …}',
    )


# -- in --------------------------------------------------------------------------------------------------


def _part(block: Any) -> Content:
    kind = block.get("type") if is_object(block) else None
    if not isinstance(kind, str):
        raise InvalidParams("Invalid params: a content block must be an object with a type")
    if (choices := _MEMBERS.get(kind)) is None:
        return Text(f"[content of type {kind:.40}]")
    for members in choices:
        if all(isinstance(block.get(member), str) for member in members):
            return _known(kind, block, members)
    needed = " or ".join(map(" and ".join, choices))
    raise InvalidParams(f"Invalid params: a content block of type {kind} needs {needed}")


def _known(kind: str, block: Params, members: tuple[str, ...]) -> Content:
    if kind == "text":
        return Text(block["text"])
    if members == ("uri",):
        return Link(block["uri"], mime_type=f"{kind}/*" if kind in MEDIA else None)
    try:
        made = Image if kind == "image" else Audio
        return made(b64decode(block["data"], validate=True), mime_type=block["mimeType"])
    except (NotBase64, TypeError, ValueError) as error:
        raise InvalidParams(f"Invalid params: {kind}: {error}") from None
