"""Answers to the questions of a server: prepared on the command line, or typed at the terminal.

Questions go to stderr, because stdout is for the result. If nobody can answer, the server is told that it cannot ask.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from select import select
from threading import Event
from typing import Any, Final

from defserve.cli.screen import show_input_prompt, show_stderr
from defserve.cli.screen_blocks import StyledLine, format_count
from defserve.client.answers import Accept, Answers, Cancel, Decision, Decline, ask_yes_or_no, maybe_await
from defserve.client.mgp.server_claims import ListedToolClaims
from defserve.client.replies import filter_strings, object_or_empty
from defserve.core.json_values import is_array, is_object, read_required_names
from defserve.errors import ToolError, UsageError
from defserve.protocols.mgp.permissions import format_confirmation_question, shorten_text

MAX_PERMISSIONS: Final = 8
PERMISSION_EDGES: Final = (40, 20)
"""Characters of the begin and the end of a permission: a server chooses its words."""
EXAMPLE: Final = """--answer true, --answer '"Ada"' or --answer '{"value": true}'"""


def parse_answer_option(text: str) -> Any:
    """The value of an `--answer`: an object, or the value of a question with one field."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if answer is None:
        raise ArgumentTypeError(f"{text!r} is not an answer in JSON; write {EXAMPLE}")
    return answer


class PreparedAnswers:
    """Gives the prepared answers in their order, then asks at the terminal. `yes` agrees to every yes-or-no question.

    A question at the terminal is asked within `around()`. `unanswered` is the error about the first question that
    nobody could answer.
    """

    def __init__(
        self,
        answers: Sequence[Any],
        *,
        yes: bool,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._left, self._yes, self._around = list(answers), yes, around
        self._terminal = make_terminal_answers() if sys.stdin.isatty() and sys.stderr.isatty() else Answers()
        self._confirmed: str | None = None
        self.unanswered: UsageError | None = None

    @property
    def can_answer(self) -> bool:
        return self._yes or bool(self._left) or self._terminal.ask is not None

    def make_client_answers(self) -> Answers:
        """What we offer the server: no answers if nobody can be asked."""
        url = self._terminal.ask_url

        async def ask_url(message: str, address: str) -> Any:
            assert url is not None
            with self._around():
                return await maybe_await(url(message, address))

        return Answers(ask=self._ask if self.can_answer else None, ask_url=ask_url if url is not None else None)

    async def confirm(self, tool: ListedToolClaims, arguments: dict[str, Any]) -> None:
        """Ask about a tool that needs confirmation, because its server may assume that we did. Its title is not shown:
        a server could word its own confirmation.

        Raises UsageError if nobody can be asked, ToolError for a no.
        """
        if not tool.confirmation_required and tool.is_listed:
            return
        if not self.can_answer:
            raise UsageError(f"{tool.name} {_reason(tool)}", fix="run it at a terminal, or add --yes")
        asked = format_confirmation_question(tool.name, arguments, tool.schema)
        if self._yes or self._left:
            agreed = await ask_yes_or_no(Answers(ask=self._ask), asked, LONE)
        else:
            with self._around():
                show_stderr("", *format_danger(tool, asked))
                agreed = await ask_yes_or_no(self._terminal, "Run it?", LONE)
        if not agreed:
            raise ToolError(f"{tool.name} was not run, because you did not confirm it")
        self._confirmed = asked

    async def _ask(self, message: str, schema: dict[str, Any]) -> Any:
        if self._confirmed is not None and _is_about(self._confirmed, message):
            # The server asks about what was just agreed to, in every line.
            self._confirmed = None
            return dict.fromkeys(object_or_empty(schema.get("properties")), True)
        if (problem := form_problem(schema)) is not None:
            self.unanswered = self.unanswered or UsageError(
                f"the server asks with a form that cannot be shown: {problem}", fix="correct the schema of its question"
            )
            return Cancel
        if self._yes and is_yes_or_no(schema):
            return dict.fromkeys(object_or_empty(schema.get("properties")), True)
        if self._left:
            return self._resolve_answer(self._left.pop(0), message, schema)
        if self._terminal.ask is not None:
            with self._around():
                return await maybe_await(self._terminal.ask(message, schema))
        self.unanswered = UsageError(
            f"nobody can answer {message!r}", fix=f"run it at a terminal, or add {_option(schema)}"
        )
        raise self.unanswered

    def _resolve_answer(self, answer: Any, message: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Raises UsageError for fields that the question does not have, or needs: they would count as no answer."""
        fields = list(object_or_empty(schema.get("properties")))
        if not is_object(answer) and len(fields) == 1:
            return {fields[0]: answer}
        if not is_object(answer):
            problem = f"the question {message!r} has {len(fields)} fields, and {json.dumps(answer)} is one value"
        elif fields and (unknown := [name for name in answer if name not in fields]):
            problem = f"the question {message!r} has no field {unknown[0]!r}"
        elif lacking := [name for name in _list_required_fields(schema) if name not in answer]:
            problem = f"the question {message!r} needs the field {lacking[0]!r}"
        else:
            return answer
        self.unanswered = UsageError(problem, fix=f"write {_option(schema)}")
        raise self.unanswered


def _list_required_fields(schema: dict[str, Any]) -> list[str]:
    """The required fields of a form that have no default."""
    properties = object_or_empty(schema.get("properties"))
    return [
        name
        for name in filter_strings(schema.get("required"))
        if "default" not in object_or_empty(properties.get(name))
    ]


def _is_about(confirmed: str, asked: str) -> bool:
    """Whether a server asks for the same again, with the same arguments. One in front of others says whose tool it is.

    A server that reads an argument differently from how it was written asks something else, and gets another answer.
    """
    (agreed, *shown), (first, *lines) = confirmed.split("\n"), asked.split("\n")
    agreed = agreed.removesuffix("?")
    if not first.startswith(agreed) or lines != shown:
        return False
    rest, before, after = first.removeprefix(agreed), " of server '", "'?"
    is_named = rest.startswith(before) and rest.endswith(after) and len(rest) >= len(before + after)
    return rest == "?" or (is_named and "'" not in rest[len(before) : -len(after)])


def _reason(tool: ListedToolClaims) -> str:
    if not tool.is_listed:
        return "is not in the server's list, which would say what it does: it needs your yes"
    return f"is {tool.risk} and needs your yes" if tool.risk == "dangerous" else "needs your yes"


def format_danger(tool: ListedToolClaims, asked: str) -> Iterator[StyledLine]:
    """What a person has to know before they say yes: the tool, the permissions that it needs, and the arguments.

    `asked` is the question in our own words, with the arguments on lines of their own.
    """
    style = "danger" if tool.risk == "dangerous" else "warning"
    wanted = [shorten_text(permission, *PERMISSION_EDGES) for permission in (tool.permissions or [])[:MAX_PERMISSIONS]]
    needs = f" needs {', '.join(wanted)}" if wanted else "" if tool.is_listed else f" {_reason(tool)}"
    yield StyledLine((f"{tool.risk}: {tool.name}{needs}", style))
    for line in asked.split("\n")[1:]:
        name, colon, value = line.partition(": ")
        yield StyledLine((f"{name}{colon}", "faint"), value, hang=4)


def _option(schema: dict[str, Any]) -> str:
    """The `--answer` that a form takes."""
    fields = ", ".join(f"{json.dumps(name)}: …" for name in object_or_empty(schema.get("properties")))
    return f"--answer '{{{fields}}}'"


# -- The questions of a server, asked at the terminal. They go to stderr, because stdout is for the result.


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


def make_terminal_answers(read: Read | None = None) -> Answers:
    """Answers typed at the terminal, one line per field. End of input dismisses the question.

    A question that is cancelled, as Ctrl-C does, stops waiting for its line. `read` replaces the terminal.
    """

    async def ask(message: str, schema: dict[str, Any]) -> Any:
        with _open_line_reader() if read is None else nullcontext(read) as line:
            return await asyncio.to_thread(fill_in, message, schema, line)

    async def ask_url(message: str, url: str) -> Decision:
        with _open_line_reader() if read is None else nullcontext(read) as line:
            return await asyncio.to_thread(agree, f"{message}\nOpen {url} and come back.", line)

    return Answers(ask=ask, ask_url=ask_url)


@contextmanager
def _open_line_reader() -> Generator[Read]:
    """Reads lines of stdin while the block runs. A read that still waits at its end is the end of input.

    A thread that waits in `readline` cannot be stopped, and the process would wait for it.
    """
    if os.name != "posix":  # Elsewhere only sockets can be waited for.
        yield sys.stdin.readline
        return
    is_over = Event()

    def read_line() -> str:
        while not is_over.is_set():
            if select([sys.stdin], [], [], LOOK_SECONDS)[0]:
                return sys.stdin.readline()
        return ""

    try:
        yield read_line
    finally:
        is_over.set()


def fill_in(message: str, schema: dict[str, Any], read: Read) -> dict[str, Any] | Decision:
    """Ask for every field of `schema`.

    An empty line takes the default, or leaves an optional field out. A required field is asked for again, and so is a
    form that is one yes or no: Enter, pressed too soon, neither declines nor agrees.
    """
    if (problem := form_problem(schema)) is not None:
        show_stderr(f"The server asks with a form that cannot be shown: {problem}.")
        return Cancel
    properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
    if not properties:
        return agree(message, read)
    beside = _last_line(message) if is_yes_or_no(schema) else None
    if beside is None:
        show_stderr("", *_lines(message))
    content: dict[str, Any] = {}
    required = read_required_names(schema)
    for name, field in properties.items():
        is_required = name in required
        label = _label(name, field, is_lone=len(properties) == 1) if beside is None else beside
        is_needed = beside is not None or (is_required and "default" not in field)
        answer = _answer(label, field, is_needed, read)
        if isinstance(answer, Decision):
            return answer
        if answer is None and is_required:
            answer = field["default"]
        if answer is not None:
            content[name] = answer
    return content


def is_yes_or_no(schema: Field) -> bool:
    """Whether the form is a single yes or no, so that its message is the question."""
    fields = object_or_empty(schema.get("properties")).values()
    return [object_or_empty(field).get("type") for field in fields] == ["boolean"]


def agree(message: str, read: Read) -> Decision:
    """Ask a question without fields: yes or no."""
    agreed = _answer(_last_line(message), {"type": "boolean"}, True, read)
    return agreed if isinstance(agreed, Decision) else Accept if agreed else Decline


def _lines(message: str) -> list[StyledLine]:
    return [StyledLine((line, "heading"), hang=0) for line in message.expandtabs(4).splitlines()] or [StyledLine()]


def _last_line(message: str) -> StyledLine:
    """The line of a message that is answered beside it. The lines above it are printed."""
    *above, last = _lines(message)
    show_stderr("", *above)
    return last


def _label(name: str, field: Field, *, is_lone: bool) -> StyledLine:
    """The field as a form shows it: its title or name, and what it is about. A lone `value` is the question itself."""
    title, about = str(field.get("title") or name), str(field.get("description") or "")
    if is_lone and name == LONE:
        return StyledLine(f"  {about}")
    return StyledLine(f"  {title}", (f" – {about}" if about and about != title else "", "faint"))


def _answer(label: StyledLine, field: Field, is_required: bool, read: Read) -> Any:
    """What is typed, as its type; None for an empty line at an optional field; Cancel after the last try."""
    if _has_titles(field):
        show_stderr(*([label] if label.strip() else []))
        for number, title in enumerate(_choices(field).values(), 1):
            show_stderr(StyledLine("    ", (f"{number}.", "name"), f" {title}", hang=3))
        label = StyledLine("  ")
    space = " " if label.strip() else ""
    unclear = empty = 0
    while unclear < TRIES and empty < MAX_EMPTY_LINES:
        show_input_prompt(StyledLine(*label.parts, f"{space}{_hint(field, is_required)} "))
        line = read()
        if not line:
            return Cancel
        text = line.strip()
        if text.lower() == DECLINE:
            return Decline
        if not text and not is_required:
            return None
        if not text:
            empty += 1
            show_stderr(StyledLine(f"  {'type y or n' if field.get('type') == 'boolean' else NEEDED}"))
            continue
        try:
            return _parse_answer(text, field)
        except UnclearAnswer as error:
            unclear += 1
            show_stderr(StyledLine(f"  {error}"))
    show_stderr(StyledLine("  the question is dismissed, because nothing that fits was typed"))
    return Cancel


def _hint(field: Field, is_required: bool) -> str:
    if field.get("type") == "boolean":
        shown = {True: "Y/n", False: "y/N", None: "y/n"}
        return f"[{shown[None if is_required else field.get('default')]}]"
    choices = _choices(field)
    if _has_titles(field):
        hints = [f"1-{len(choices)}" + (", several as 1, 2" if _is_several(field) else "")]
    else:
        hints = [" | ".join(map(str, choices)) or str(field.get("type", ""))]
    hints += (words for words, _ in _rules(field))
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


def _parse_answer(text: str, field: Field) -> Any:
    """The answer that is meant, within its bounds. Raises UnclearAnswer."""
    value = _value(text, field)
    for words, is_met in _rules(field):
        if not is_met(value):
            raise UnclearAnswer(f"type {words}")
    return value


def _value(text: str, field: Field) -> Any:
    """Raises UnclearAnswer."""
    kind, choices = field.get("type"), _choices(field)
    if kind == "boolean":
        if text.lower() not in YES_OR_NO:
            raise UnclearAnswer("type y or n")
        return YES_OR_NO[text.lower()]
    if choices and not _is_several(field):
        return _parse_choice(text, field)
    if choices and not text.startswith("["):
        return [_parse_choice(word.strip(), field) for word in text.split(",")]
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


def _parse_choice(text: str, field: Field) -> Any:
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


# -- Whether a form that a server sends can be shown: its fields, their types and choices.


def form_problem(schema: dict[str, Any]) -> str | None:
    """What is wrong with a `requestedSchema`, in words; None if it can be asked field by field."""
    fields, required = schema.get("properties"), schema.get("required")
    if fields is None:
        fields = {}
    if not is_object(fields):
        return "its properties are not an object"
    if required is not None and not (is_array(required) and all(isinstance(name, str) for name in required)):
        return "its required is not a list of names"
    for name, field in fields.items():
        if (problem := _field_problem(field)) is not None:
            return f"its field {name!r} {problem}"
    return None


def _field_problem(field: Any) -> str | None:
    if not is_object(field):
        return "is not an object"
    kind, one = field.get("type"), field
    if kind is not None and not isinstance(kind, str):
        return "has a type that is not a string"
    if kind == "boolean" and not isinstance(field.get("default", False), bool | None):
        return "has a default that is neither true nor false"
    if kind == "array":
        one = field.get("items")
        if one is None:
            one = {}
        if not is_object(one):
            return "has items that are not an object"
    for member in ("oneOf", "anyOf"):
        options = one.get(member)
        if options is not None and not (
            is_array(options) and all(is_object(option) and _is_plain(option.get("const")) for option in options)
        ):
            return f"has a {member} that is not a list of choices"
    for member in ("enum", "enumNames"):
        values = one.get(member)
        if values is not None and not (is_array(values) and all(map(_is_plain, values))):
            return f"has an {member} that is not a list of plain values"
    return None


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


# -- The bounds of a form's field: in words beside the question, and checked before an answer is sent.


FORMATS: Final[Mapping[str, tuple[str, re.Pattern[str]]]] = {
    "email": ("an email address", re.compile(r"[^@\s]+@[^@\s]+")),
    "uri": ("an address such as https://example.com", re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")),
    "date": ("a date such as 2026-07-28", re.compile(r"\d{4}-\d\d-\d\d")),
    "date-time": ("a time such as 2026-07-28T12:00:00Z", re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d\S*")),
}
"""Format → what to type, and roughly what that looks like: the server looks closely."""


def _rules(field: Field) -> list[tuple[str, Callable[[Any], bool]]]:
    """What an answer must keep to, in words (`1 to 10`, `at most 80 characters`), each with whether a value does."""
    kind = field.get("type")
    if kind in ("integer", "number"):
        return _number(field)
    if kind == "array":
        return _make_length_rules(field, "minItems", "maxItems", "item")
    if kind != "string":
        return []
    rules = _make_length_rules(field, "minLength", "maxLength", "character")
    if (known := FORMATS.get(str(field.get("format")))) is not None:
        words, pattern = known
        rules.insert(0, (words, lambda value: pattern.fullmatch(value) is not None))
    return rules


def _number(field: Field) -> list[tuple[str, Callable[[Any], bool]]]:
    low, high = _figure(field, "minimum"), _figure(field, "maximum")
    rules: list[tuple[str, Callable[[Any], bool]]] = []
    if low is not None and high is not None:
        rules.append((f"{low} to {high}", lambda value: low <= value <= high))
    elif low is not None:
        rules.append((f"at least {low}", lambda value: value >= low))
    elif high is not None:
        rules.append((f"at most {high}", lambda value: value <= high))
    above, below = _figure(field, "exclusiveMinimum"), _figure(field, "exclusiveMaximum")
    if above is not None:
        rules.append((f"more than {above}", lambda value: value > above))
    if below is not None:
        rules.append((f"less than {below}", lambda value: value < below))
    return rules


def _make_length_rules(field: Field, least: str, most: str, thing: str) -> list[tuple[str, Callable[[Any], bool]]]:
    low, high = _figure(field, least) or 0, _figure(field, most)
    if high is not None and low:
        words = format_count(high, thing) if low == high else f"{low} to {format_count(high, thing)}"
    elif high is not None:
        words = f"at most {format_count(high, thing)}"
    elif low:
        words = f"at least {format_count(low, thing)}"
    else:
        return []
    return [(words, lambda value: low <= len(value) and (high is None or len(value) <= high))]


def _figure(field: Field, name: str) -> int | float | None:
    """A bound, if it is a number. A server may send anything."""
    value = field.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
