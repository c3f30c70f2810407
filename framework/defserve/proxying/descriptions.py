"""What a backend writes for models and people: bounded, and without characters that hide or reorder text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from defserve.base.hidden_characters import find_hidden, remove_hidden
from defserve.errors import ProtocolError
from defserve.host.fields import Json
from defserve.protocols.mcp.failures import SERVER_KEY, SOURCE_KEY
from defserve.wire.jsonvalue import is_array, is_object

LONGEST: Final = 64 * 1024
PROSE: Final = frozenset({"description", "title"})
EXACT: Final = frozenset({"enum", "const"})
"""Where a text is sent back to the backend as it is, so that it cannot be changed here."""
OUR_WORDS: Final = frozenset({SOURCE_KEY, SERVER_KEY, "featureSet"})
"""Members of `_meta` that only this server may say."""
SHOWN_IN_FORMS: Final = PROSE | {"enumNames"}
MAX_QUESTION: Final = 4_000
MAX_QUESTION_LINES: Final = 20
"""Of a question: fewer than a terminal has."""
MARK: Final = "  | "
LAYOUT: Final = "\r\n\t"
METADATA: Final = "_meta"
"""For programs alone: nobody is shown it."""


def readable(listed: Json) -> Json:
    """A listed item whose texts, at any depth, can be shown. The same object if they all can.

    None says that it is a tool of ours, whose it is, or to which of our feature sets it belongs. Names and choices stay
    as they are: see `find_hidden_name`.
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

    Who asks stays in sight: the rest is short, and its lines are marked. What has no text to begin with says it in
    `_meta` alone. Raises ProtocolError for a form with names or choices that do not show all their characters.
    """
    meta = params.get("_meta")
    named: Json = {**params, "_meta": {**(meta if is_object(meta) else {}), SERVER_KEY: id}}
    if method == "elicitation/create":
        named |= readable({name: value for name, value in params.items() if name != "_meta"})
        if is_object(schema := named.get("requestedSchema")):
            for kind, text in _exact_texts(schema, ""):
                if (hidden := next(find_hidden(text), None)) is not None:
                    raise ProtocolError(f"a form cannot be shown: {kind} in it has a hidden character ({hidden[1]})")
            named["requestedSchema"] = _on_one_line(schema)
        message = named.get("message")
        said = quote_lines(message, MAX_QUESTION, MAX_QUESTION_LINES) if isinstance(message, str) else ""
        named["message"] = f"{asker_words(id)} asks: {said}" if said else asker_words(id)
    elif method == "sampling/createMessage":
        named |= _cleaned({name: value for name, value in params.items() if name != METADATA})
        prompt = named.get("systemPrompt")
        said = quote_lines(prompt, LONGEST, LONGEST) if isinstance(prompt, str) else ""
        named["systemPrompt"] = f"{asker_words(id)} asks.{f' {said}' if said else ''}"
    return named


def quote_lines(text: str, longest: int, most_lines: int) -> str:
    """A text of a backend inside one of ours: no empty lines, each line but the first marked, and what is cut is said.

    So none of its lines can be taken for a line of ours, and none of ours is scrolled out of sight.
    """
    lines = [line for line in map(_shown_line, text[:longest].splitlines()) if line]
    more = "" if len(text) <= longest else f" … ({len(text) - longest} more characters are left out)"
    if len(lines) > most_lines:
        lines, more = lines[:most_lines], f" … ({len(lines) - most_lines} more lines are left out)"
    return f"\n{MARK}".join(lines) + more


def _shown_line(line: str) -> str:
    return remove_hidden(line, keep="\t").strip()


def _on_one_line(value: Any, member: str = "") -> Any:
    """A form whose titles and descriptions are one line each: a terminal shows them beside our words."""
    if is_object(value):
        is_schema = member != "properties"
        return {name: _on_one_line(inner, name if is_schema else "") for name, inner in value.items()}
    if is_array(value):
        return [_on_one_line(item, member) for item in value]
    if isinstance(value, str) and member not in EXACT:
        return " ".join(value.split())[:MAX_QUESTION] if member in SHOWN_IN_FORMS else value
    return value


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
