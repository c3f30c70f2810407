"""The questions of a server, asked at the terminal. They go to stderr, because stdout is for the result."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from select import select
from threading import Event
from typing import Any, Final

from defserve.cli.answers.bounds import bound_problem, bounds_of
from defserve.cli.answers.forms import form_problem
from defserve.cli.screen.blocks import Line
from defserve.cli.screen.screen import prompt_for, tell
from defserve.host.answers import Accept, Answers, Cancel, Decision, Decline
from defserve.host.fields import object_of

Read = Callable[[], str]
Field = Mapping[str, Any]

TRIES: Final = 3
MAX_EMPTY_LINES: Final = 20
DECLINE: Final = "/decline"
"""What is typed to decline a question, whatever it asks for."""
NEEDED: Final = f"an answer is needed; type {DECLINE} to decline, or press Ctrl-D to dismiss the question"
LOOK_SECONDS: Final = 0.1
"""How often a read looks whether its question is over."""
LONE: Final = "value"
"""The field of a form that servers make for a single answer."""
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


def terminal_answers(read: Read | None = None) -> Answers:
    """Answers typed at the terminal, one line per field. End of input dismisses the question.

    A question that is cancelled, as Ctrl-C does, stops waiting for its line. `read` replaces the terminal.
    """

    async def ask(message: str, schema: dict[str, Any]) -> Any:
        with _typed() if read is None else nullcontext(read) as line:
            return await asyncio.to_thread(fill_in, message, schema, line)

    async def ask_url(message: str, url: str) -> Decision:
        with _typed() if read is None else nullcontext(read) as line:
            return await asyncio.to_thread(agree, f"{message}\nOpen {url} and come back.", line)

    return Answers(ask=ask, ask_url=ask_url)


@contextmanager
def _typed() -> Generator[Read]:
    """Reads lines of stdin while the block runs. A read that still waits at its end is the end of input.

    A thread that waits in `readline` cannot be stopped, and the process would wait for it.
    """
    if os.name != "posix":  # Elsewhere only sockets can be waited for.
        yield sys.stdin.readline
        return
    is_over = Event()

    def read() -> str:
        while not is_over.is_set():
            if select([sys.stdin], [], [], LOOK_SECONDS)[0]:
                return sys.stdin.readline()
        return ""

    try:
        yield read
    finally:
        is_over.set()


def fill_in(message: str, schema: dict[str, Any], read: Read) -> dict[str, Any] | Decision:
    """Ask for every field of `schema`.

    An empty line takes the default, or leaves an optional field out; for yes or no it means no. A required field is
    asked for again.
    """
    if (problem := form_problem(schema)) is not None:
        tell(f"The server asks with a form that cannot be shown: {problem}.")
        return Cancel
    properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
    if not properties:
        return agree(message, read)
    beside = _last_line(message) if is_yes_or_no(schema) else None
    if beside is None:
        tell("", *_lines(message))
    content: dict[str, Any] = {}
    for name, field in properties.items():
        is_required = name in (schema.get("required") or [])
        label = _label(name, field, is_lone=len(properties) == 1) if beside is None else beside
        answer = _answer(label, field, is_required and "default" not in field, read)
        if isinstance(answer, Decision):
            return answer
        if answer is None and is_required:
            answer = field["default"]
        if answer is not None:
            content[name] = answer
    return content


def is_yes_or_no(schema: Field) -> bool:
    """Whether the form is a single yes or no, so that its message is the question."""
    fields = object_of(schema.get("properties")).values()
    return [object_of(field).get("type") for field in fields] == ["boolean"]


def agree(message: str, read: Read) -> Decision:
    """Ask a question without fields: yes or no."""
    agreed = _answer(_last_line(message), {"type": "boolean"}, True, read)
    return agreed if isinstance(agreed, Decision) else Accept if agreed else Decline


def _lines(message: str) -> list[Line]:
    return [Line((line, "heading"), hang=0) for line in message.expandtabs(4).splitlines()] or [Line()]


def _last_line(message: str) -> Line:
    """The line of a message that is answered beside it. The lines above it are printed."""
    *above, last = _lines(message)
    tell("", *above)
    return last


def _label(name: str, field: Field, *, is_lone: bool) -> Line:
    """The field as a form shows it: its title or name, and what it is about. A lone `value` is the question itself."""
    title, about = str(field.get("title") or name), str(field.get("description") or "")
    if is_lone and name == LONE:
        return Line(f"  {about}")
    return Line(f"  {title}", (f" – {about}" if about and about != title else "", "faint"))


def _answer(label: Line, field: Field, is_required: bool, read: Read) -> Any:
    """What is typed, as its type; None for an empty line at an optional field; Cancel after the last try."""
    if _has_titles(field):
        tell(*([label] if label.strip() else []), *_menu(field))
        label = Line("  ")
    space = " " if label.strip() else ""
    unclear = empty = 0
    while unclear < TRIES and empty < MAX_EMPTY_LINES:
        prompt_for(Line(*label.parts, f"{space}{_hint(field, is_required)} "))
        line = read()
        if not line:
            return Cancel
        text = line.strip()
        if text.lower() == DECLINE:
            return Decline
        if not text and not is_required:
            return None
        if not text and field.get("type") == "boolean":
            return False
        if not text:
            empty += 1
            tell(Line(f"  {NEEDED}"))
            continue
        try:
            return _read(text, field)
        except UnclearAnswer as error:
            unclear += 1
            tell(Line(f"  {error}"))
    tell(Line("  the question is dismissed, because nothing that fits was typed"))
    return Cancel


def _menu(field: Field) -> Iterator[Line]:
    for number, title in enumerate(_choices(field).values(), 1):
        yield Line("    ", (f"{number}.", "name"), f" {title}", hang=3)


def _hint(field: Field, is_required: bool) -> str:
    if field.get("type") == "boolean":
        shown = {True: "Y/n", False: "y/N", None: "y/N" if is_required else "y/n"}
        return f"[{shown[field.get('default')]}]"
    choices = _choices(field)
    if _has_titles(field):
        hints = [f"1-{len(choices)}" + (", several as 1, 2" if _is_several(field) else "")]
    else:
        hints = [" | ".join(map(str, choices)) or str(field.get("type", ""))]
    hints.append(bounds_of(field))
    if "default" in field:
        default = field["default"]
        is_known = isinstance(default, Hashable) and default in choices
        hints.append(f"default {choices[default] if is_known else json.dumps(default)}")
    return f"({', '.join(filter(None, hints))}):"


def _choices(field: Field) -> dict[Any, str]:
    """The values to choose from, each with its label; of a list, those of its items."""
    one: Field = (field.get("items") or {}) if _is_several(field) else field
    options: list[Field] = one.get("oneOf") or one.get("anyOf") or []
    if options:
        return {option.get("const"): str(option.get("title") or option.get("const")) for option in options}
    values: list[Any] = one.get("enum") or []
    titles: list[Any] = one.get("enumNames") or []
    return dict(zip(values, map(str, titles if len(titles) == len(values) else values), strict=True))


def _has_titles(field: Field) -> bool:
    return any(str(value) != title for value, title in _choices(field).items())


def _is_several(field: Field) -> bool:
    return field.get("type") == "array"


def _read(text: str, field: Field) -> Any:
    """The answer that is meant, within its bounds. Raises UnclearAnswer."""
    value = _value(text, field)
    if (problem := bound_problem(value, field)) is not None:
        raise UnclearAnswer(f"type {problem}")
    return value


def _value(text: str, field: Field) -> Any:
    """Raises UnclearAnswer."""
    kind, choices = field.get("type"), _choices(field)
    if kind == "boolean":
        if text.lower() not in YES_OR_NO:
            raise UnclearAnswer("type y or n")
        return YES_OR_NO[text.lower()]
    if choices and not _is_several(field):
        return _chosen(text, field)
    if choices and not text.startswith("["):
        return [_chosen(word.strip(), field) for word in text.split(",")]
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


def _chosen(text: str, field: Field) -> Any:
    """The value that is meant: by itself, its label, or its number among the choices. Raises UnclearAnswer.

    Values that are numbers and have no labels are only chosen by themselves: a person who types 2 may mean 20.
    """
    choices = _choices(field)
    for value, title in choices.items():
        if text == str(value) or text.lower() == title.lower():
            return value
    is_numbered = _has_titles(field) or not any(map(_looks_like_a_number, choices))
    if is_numbered and text.isdecimal() and 1 <= (number := int(text[:9])) <= len(choices) and len(text) < 9:
        return list(choices)[number - 1]
    if _has_titles(field):
        raise UnclearAnswer(f"type a number from 1 to {len(choices)}")
    raise UnclearAnswer(f"type one of {', '.join(map(str, choices))}{', or its number' if is_numbered else ''}")


def _looks_like_a_number(value: object) -> bool:
    return str(value)[:1].isdecimal() or isinstance(value, int | float)
