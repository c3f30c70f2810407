"""Content blocks for a terminal: texts are printed, bytes are saved."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from defserve.cli.content.files import save
from defserve.cli.screen.blocks import Block, Line, Written
from defserve.wire.jsonvalue import is_array, is_object

MEDIA: Final = ("image", "audio")
TYPES: Final = frozenset(("text", "resource", "resource_link", *MEDIA))


def is_content(value: Any) -> bool:
    """Whether a value is a list of content blocks."""
    return is_array(value) and bool(value) and all(is_object(each) and each.get("type") in TYPES for each in value)


def content_page(blocks: Iterable[Any], name: str, folder: str = ".") -> Iterator[Block]:
    """Content blocks, in their order. What is saved is named after `name` or its own URI."""
    for block in blocks:
        kind = block.get("type") if is_object(block) else None
        if kind == "text":
            yield Written(str(block.get("text", "")))
        elif kind in MEDIA:
            yield saved_line(block.get("data"), str(block.get("mimeType", "")), name, folder)
        elif kind == "resource" and is_object(resource := block.get("resource")):
            yield resource_block(resource, folder)
        elif kind == "resource_link":
            title = str(block.get("title") or block.get("name") or "")
            yield Line((str(block.get("uri", "")), "title"), f"  {title}" if title else "")
        else:
            yield Line(f"(content of an unknown type: {kind})")


def media_of(result: Mapping[str, Any]) -> list[Any]:
    """The blocks of a result that hold bytes: a value that is printed instead of the content does not show them."""
    content: Any = result.get("content")
    return [block for block in content if is_object(block) and _has_bytes(block)] if is_array(content) else []


def resource_block(resource: Mapping[str, Any], folder: str = ".") -> Block:
    """The content of a resource."""
    kind = str(resource.get("mimeType", ""))
    if "blob" in resource:
        return saved_line(resource["blob"], kind, str(resource.get("uri", "")), folder)
    return Written(str(resource.get("text", "")), kind)


def saved_line(data: Any, kind: str, name: str, folder: str) -> Line:
    """Save base64 and say where it is."""
    held = decoded(data)
    if held is None:
        return Line(("broken:", "error"), f" {kind or 'content'} that is not base64")
    path = save(held, name, kind, folder)
    return Line("saved ", (str(path), "title"), f" ({kind or 'bytes'}, {len(held):,} bytes)")


def decoded(data: Any) -> bytes | None:
    try:
        return base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError):
        return None


def _has_bytes(block: Mapping[str, Any]) -> bool:
    resource = block.get("resource")
    return block.get("type") in MEDIA or (is_object(resource) and "blob" in resource)
