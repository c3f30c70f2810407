"""What a server lists or gives, read for the page: members of the right type, whatever came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from defserve.host.fields import Json, number_of, object_of, text_of, texts_of
from defserve.wire.jsonvalue import is_array, is_object

TEXTS: Final = ("uri", "uriTemplate", "name", "title", "description", "mimeType")
CONTENT: Final = ("uri", "mimeType", "text", "blob")


def named(items: Iterable[Any], key: str) -> list[Json]:
    """The items whose `key` is a text, once each, with their texts and what else the page shows."""
    found: dict[str, Json] = {}
    for item in items:
        if is_object(item) and isinstance(name := item.get(key), str) and name not in found:
            found[name] = _item(item)
    return list(found.values())


def contents_of(contents: Any) -> list[Json]:
    """The contents of a resource: texts and base64."""
    return [_texts(each, CONTENT) for each in contents if is_object(each)] if is_array(contents) else []


def _item(item: Json) -> Json:
    told = _texts(item, TEXTS)
    if (size := number_of(item.get("size"))) is not None:
        told["size"] = size
    notes = object_of(item.get("annotations"))
    told["annotations"] = {
        "audience": texts_of(notes.get("audience")),
        "priority": number_of(notes.get("priority")),
        "lastModified": text_of(notes.get("lastModified")),
    }
    if is_array(asked := item.get("arguments")):
        told["arguments"] = named(asked, "name")
    if isinstance(required := item.get("required"), bool):
        told["required"] = required
    return told


def _texts(item: Json, names: Sequence[str]) -> Json:
    return {name: text for name in names if (text := text_of(item.get(name))) is not None}
