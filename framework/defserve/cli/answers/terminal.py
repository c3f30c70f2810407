"""The questions of a server, asked at the terminal. They go to stderr, because stdout is for the result."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from defserve.host.answers import Accept, Answers, Cancel, Decision, Decline

Read = Callable[[], str]
Field = Mapping[str, Any]

TRIES: Final = 3
YES_OR_NO: Final = {
    **dict.fromkeys(("y", "yes", "true", "1"), True),
    **dict.fromkeys(("n", "no", "false", "0"), False),
}

# type -> (what JSON makes of it, what to type)
KINDS: Final[Mapping[Any, tuple[tuple[type, ...], str]]] = {
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "array": ((list,), 'a list: ["one", "two"]'),
}


class UnclearAnswer(ValueError):
    """What was typed is not an answer; the text says what to type."""


def terminal_answers(read: Read = sys.stdin.readline) -> Answers:
    """Answers typed at the terminal, one line per field. End of input dismisses the question."""

    async def ask(message: str, schema: dict[str, Any]) -> Any:
        return await asyncio.to_thread(fill_in, message, schema, read)

    async def ask_url(message: str, url: str) -> Decision:
        return await asyncio.to_thread(agree, f"{message}\nOpen {url} and come back.", read)

    return Answers(ask=ask, ask_url=ask_url)


def fill_in(message: str, schema: dict[str, Any], read: Read) -> dict[str, Any] | Decision:
    """Ask for every field of `schema`. An empty line declines if the field is required; for yes or no it means no."""
    properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
    if not properties:
        return agree(f"\n{message}", read)
    alone = is_yes_or_no(schema)
    _say(f"\n{message}" if alone else f"\n{message}\n")
    content: dict[str, Any] = {}
    for name, field in properties.items():
        is_required = name in (schema.get("required") or []) and "default" not in field
        answer = _answer("" if alone else f"  {_about(name, field)}", field, is_required, read)
        if isinstance(answer, Decision):
            return answer
        if answer is not None:
            content[name] = answer
    return content


def is_yes_or_no(schema: Field) -> bool:
    """Whether the form is a single yes or no, so that its message is the question."""
    fields: Mapping[str, Field] = schema.get("properties") or {}
    return [field.get("type") for field in fields.values()] == ["boolean"]


def agree(message: str, read: Read) -> Decision:
    """Ask a question without fields: yes or no."""
    agreed = _answer(message, {"type": "boolean"}, True, read)
    return agreed if isinstance(agreed, Decision) else Accept if agreed else Decline


def _answer(label: str, field: Field, is_required: bool, read: Read) -> Any:
    """What is typed, as its type. Empty: None if the field is optional, Decline if not. Cancel after the last try."""
    for _ in range(TRIES):
        _say(f"{label} {_hint(field, is_required)} ")
        line = read()
        if not line:
            return Cancel
        if not line.strip():
            return None if not is_required else False if field.get("type") == "boolean" else Decline
        try:
            return _read(line.strip(), field)
        except UnclearAnswer as error:
            _say(f"  {error}\n")
    return Cancel


def _about(name: str, field: Field) -> str:
    return str(field.get("description") or field.get("title") or name)


def _hint(field: Field, is_required: bool) -> str:
    if field.get("type") == "boolean":
        shown = {True: "Y/n", False: "y/N", None: "y/N" if is_required else "y/n"}
        return f"[{shown[field.get('default')]}]"
    hints = [" | ".join(map(str, _choices(field))) or str(field.get("type", ""))]
    if "default" in field:
        hints.append(f"default {json.dumps(field['default'])}")
    return f"({', '.join(filter(None, hints))}):"


def _choices(field: Field) -> list[Any]:
    options: list[Field] = field.get("oneOf") or []
    return field.get("enum") or [option.get("const") for option in options]


def _read(text: str, field: Field) -> Any:
    """Raises UnclearAnswer."""
    kind, choices = field.get("type"), _choices(field)
    if kind == "boolean":
        if text.lower() not in YES_OR_NO:
            raise UnclearAnswer("type y or n")
        return YES_OR_NO[text.lower()]
    if choices and text not in choices:
        raise UnclearAnswer(f"type one of {', '.join(map(str, choices))}")
    if kind not in KINDS:
        return text
    types, example = KINDS[kind]
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = None
    if type(value) not in types:
        raise UnclearAnswer(f"type {example}")
    return value


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
