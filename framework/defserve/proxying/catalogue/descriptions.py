"""What a backend writes for models and people: bounded, and without characters that hide or reorder text."""

from __future__ import annotations

from typing import Any, Final

from defserve.guard.text import hidden
from defserve.host.fields import Json
from defserve.protocols.mcp.failures import SOURCE_KEY
from defserve.wire.jsonvalue import is_array, is_object

LONGEST: Final = 64 * 1024
PROSE: Final = frozenset({"description", "title"})
LINES: Final = "\r\n"


def readable(listed: Json) -> Json:
    """A listed item whose descriptions and titles, at any depth, can be shown. The same object if they all can.

    None says that it is a tool of ours.
    """
    meta = listed.get("_meta")
    if is_object(meta) and SOURCE_KEY in meta:
        listed = {**listed, "_meta": {name: value for name, value in meta.items() if name != SOURCE_KEY}}
    return _cleaned(listed)


def _cleaned(value: Any, is_prose: bool = False) -> Any:
    if isinstance(value, str):
        return _text(value) if is_prose else value
    if is_object(value):
        members: Json = {name: _cleaned(member, name in PROSE) for name, member in value.items()}
        return members if any(members[name] is not value[name] for name in members) else value
    if is_array(value):
        items = [_cleaned(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _text(text: str) -> str:
    if text.isascii() and text.isprintable() and len(text) <= LONGEST:
        return text
    odd = {index for index, _ in hidden(text) if text[index] not in LINES}
    if odd:
        text = "".join(character for index, character in enumerate(text) if index not in odd)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"
