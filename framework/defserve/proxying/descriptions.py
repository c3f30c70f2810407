"""What a backend writes for models and people: bounded, and without characters that hide or reorder text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from defserve.base.hidden_characters import find_hidden, remove_hidden
from defserve.host.fields import Json
from defserve.protocols.mcp.failures import SERVER_KEY, SOURCE_KEY
from defserve.wire.jsonvalue import is_array, is_object

LONGEST: Final = 64 * 1024
PROSE: Final = frozenset({"description", "title"})
EXACT: Final = frozenset({"enum", "const"})
"""Where a text is sent back to the backend as it is, so that it cannot be changed here."""
OUR_WORDS: Final = frozenset({SOURCE_KEY, SERVER_KEY, "featureSet"})
"""Members of `_meta` that only this server may say."""
LAYOUT: Final = "\r\n\t"
METADATA: Final = "_meta"
"""For programs alone: nobody is shown it."""


def readable(listed: Json) -> Json:
    """A listed item whose texts, at any depth, can be shown. The same object if they all can.

    None says that it is a tool of ours, whose it is, or to which of our feature sets it belongs. Names
    and choices stay as they are: see `find_hidden_name`.
    """
    meta = listed.get(METADATA)
    if is_object(meta) and not OUR_WORDS.isdisjoint(meta):
        listed = {**listed, METADATA: {name: value for name, value in meta.items() if name not in OUR_WORDS}}
    return _cleaned(listed)


def find_hidden_name(listed: Json) -> str | None:
    """Why an item cannot be offered: a member, a choice or an argument of it has a character that cannot be seen.

    Such a text is sent back as it came, so it cannot be cleaned, and two that look alike would differ.
    """
    for kind, text in _exact_texts(listed, ""):
        if text.isascii() and text.isprintable():
            continue
        for index, what in find_hidden(text):
            if text[index] not in LAYOUT or kind == NAMES:
                return f"{kind} in its schema has a hidden character ({what} U+{ord(text[index]):04X})"
    return None


NAMES: Final = "a name"


def with_asker(id: str, method: str, params: Json) -> Json:
    """A question of a backend as its front is asked it: it begins with who asks, and hides no character.

    What has no text to begin with says it in `_meta` alone.
    """
    meta = params.get("_meta")
    named: Json = {**params, "_meta": {**(meta if is_object(meta) else {}), SERVER_KEY: id}}
    if method == "elicitation/create":
        named |= readable({name: value for name, value in params.items() if name != "_meta"})
        message = named.get("message")
        named["message"] = f"{asker_words(id)} asks: {message}" if isinstance(message, str) else asker_words(id)
    elif method == "sampling/createMessage":
        prompt = params.get("systemPrompt")
        named["systemPrompt"] = f"{asker_words(id)} asks.{f' {prompt}' if isinstance(prompt, str) else ''}"
    return named


def asker_words(id: str) -> str:
    return f"Server {id!r}"


def _exact_texts(value: Any, member: str) -> Iterator[tuple[str, str]]:
    """The texts of an item that must stay as they are, each with what it is."""
    if is_object(value):
        for name, inner in value.items():
            if name != METADATA:
                yield NAMES, name
                yield from _exact_texts(inner, "" if member == "properties" else name)
        if member == "arguments" and isinstance(name := value.get("name"), str):
            yield NAMES, name
    elif is_array(value):
        for item in value:
            yield from _exact_texts(item, member)
    elif isinstance(value, str) and member in EXACT:
        yield "a choice", value


def _cleaned(value: Any, member: str = "") -> Any:
    if isinstance(value, str):
        return value if member in EXACT else _text(value, member in PROSE)
    if is_object(value):
        # A property may be called `enum` or `_meta`.
        is_schema = member != "properties"
        members: Json = {
            name: inner if is_schema and name == METADATA else _cleaned(inner, name if is_schema else "")
            for name, inner in value.items()
        }
        return members if any(members[name] is not value[name] for name in members) else value
    if is_array(value):
        items = [_cleaned(item, member) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _text(text: str, is_prose: bool) -> str:
    if not (text.isascii() and text.isprintable()):
        text = remove_hidden(text, keep=LAYOUT)
    return text if not is_prose or len(text) <= LONGEST else text[:LONGEST] + "…"
