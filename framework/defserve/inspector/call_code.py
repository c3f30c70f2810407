"""Calls as code that does the same: a `defserve call` line, and a file for pytest that makes some calls in their order.

Secrets are not written: in their places stands what is to be filled in. What looks different at every run, a time or
an id, is not compared.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pprint import pformat
from typing import Any, Final, NamedTuple

from defserve.base.redaction import (
    REDACTION_MASK,
    escape_unprintable,
    escape_unprintable_json,
    escape_unprintable_lines,
)
from defserve.client.replies import Json, object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.inspector.recording.masking import mask_command_words, mask_text, mask_value

NAME: Final = re.compile(r"[^=:\s-][^=:\s]*")
WIDTH: Final = 88
MAX_LITERAL_LENGTH: Final = 2_000
"""Characters of an expected value that are written. Of a longer one it is a digest."""
MAX_OPEN_LENGTH: Final = 50_000
"""Characters of one with parts that are not compared: it has no digest."""
MAX_NAMED_TOOLS: Final = 3


class SavedCall(NamedTuple):
    """One call. `outcome` is its result, `{"error": {"message"}}`, or None if it is not known.

    answers  what a person answered to its questions, each an `elicitation/create` result; `content` may be one value
    time     when it was made, in seconds since 1970; numbers near it are times
    """

    tool: str
    arguments: Mapping[str, Any]
    outcome: Any = None
    answers: Sequence[Json] = ()
    time: float | None = None


def format_call_command(words: Sequence[str], tool: str, arguments: Mapping[str, Any]) -> str:
    """The `defserve call` line of a call. `words` name the server.

    A server chooses the name of a tool and the defaults of its arguments. The line is a comment if `defserve call`
    would read the name as an option, such as `--token=@FILE`, or a terminal would act on what is in it.
    """
    if tool.startswith("-") or any(escape_unprintable(word) != word for word in (tool, *words)):
        return "# defserve call cannot be told the names of this tool and its server"
    before, after = _split_words(_fill_masked_words(words))
    arguments = _fill_masks(dict(arguments), mask_value(dict(arguments)), "the secret")
    given = [
        f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value, ensure_ascii=False)}"
        for name, value in arguments.items()
    ]
    if not all(map(NAME.fullmatch, arguments)) or any(escape_unprintable_lines(text) != text for text in given):
        given = ["--json", escape_unprintable_json(json.dumps(arguments, ensure_ascii=False))]
    return shlex.join(["defserve", "call", *before, tool, *given, *after])


def _split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What names the server, before and after the rest of the line."""
    named = list(words)
    cut = named.index("--") if "--" in named else len(named)
    return named[:cut], named[cut:]


def _fill_masked_words(words: Sequence[str]) -> list[str]:
    return [
        _fill_masks(word, shown, "the secret") for word, shown in zip(words, mask_command_words(words), strict=True)
    ]


def _fill_masks(value: Any, shown: Any, name: str) -> Any:
    """The value, with what to fill in where the mask is in `shown`. All else is as it was, to the last character."""
    if is_object(value) and is_object(shown):
        return {
            _fill_masks(key, other, "the secret"): _fill_masks(each, masks, key)
            for (key, each), (other, masks) in zip(value.items(), shown.items(), strict=True)
        }
    if is_array(value) and is_array(shown):
        return [_fill_masks(each, other, name) for each, other in zip(value, shown, strict=True)]
    if isinstance(shown, str) and REDACTION_MASK in shown:
        return shown.replace(REDACTION_MASK, f"<fill in {name}>")
    return value


# -- A test: each call, and what is expected of it. Its parts come from three tables at the top of the file: what is
#    imported, helpers, and notes for who reads it.


HELPERS: Final[Mapping[str, str]] = {
    "Like": '''class Like(str):
    """A pattern that is equal to the texts it matches: what changes at every run is left open in it."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and re.fullmatch(self, other, re.DOTALL) is not None''',
    "digest": '''def digest(value: object) -> str:
    """What a long value is compared by."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()''',
}
IMPORTS: Final[Mapping[str, Sequence[str]]] = {"Like": ("re",), "digest": ("hashlib", "json")}
NOTES: Final[Mapping[str, str]] = {
    "<fill in": "Secrets are not saved: fill in what is marked with <fill in …>.",
    "ANY": "ANY and Like stand for what changes at every run: times, ids. A secret is never compared.",
    "Like(": "ANY and Like stand for what changes at every run: times, ids. A secret is never compared.",
}


def format_call_test(words: Sequence[str], calls: Sequence[SavedCall], era: str | None = None) -> str:
    """A file with one test that makes the calls in their order, in one conversation, and expects what they gave.

    With an era, it runs only in that one: a call that changes something must not be made twice.
    """
    before, command = _split_words(_fill_masked_words(words))
    # A client without a fixture has nobody who answers.
    asked = [each._replace(answers=()) for each in calls] if command else calls
    checks = [line for each in asked for line in _write_call(each, 16 if command else 8)]
    if command:
        version = f", version={era!r}" if era is not None else ""
        body = [
            f"def {_make_name(calls)}() -> None:",
            "    async def main() -> None:",
            f"        link = await ProcessLink.spawn({', '.join(map(repr, command[1:2]))}, {command[2:]!r})",
            f"        async with Client(link{version}) as client:",
            *(f"            {line.replace('client.call_raw', 'await client.call_raw')}" for line in checks),
            "",
            "    asyncio.run(main())",
        ]
    else:
        marks = [f"@pytest.mark.serves({_find_served(before)!r})"]
        marks += [f"@pytest.mark.eras({era!r})"] if era is not None else []
        body = [*marks, f"def {_make_name(calls)}(client) -> None:", *(f"    {line}" for line in checks)]
    text = "\n".join(body)
    helpers = [name for name in HELPERS if f"{name}(" in text]
    lines = [*_write_head(text, len(calls)), *_write_imports(text, helpers, bool(command))]
    for name in helpers:
        lines += ["", "", HELPERS[name]]
    return "\n".join([*lines, "", "", text]) + "\n"


def _find_served(before: Sequence[str]) -> str:
    """What the mark `serves` is told."""
    return before[1] if before[:1] == ["-m"] and len(before) > 1 else before[0] if before else "server.py"


def _make_name(calls: Sequence[SavedCall]) -> str:
    tools = list(dict.fromkeys(call.tool for call in calls))
    named = "_then_".join(tools[:MAX_NAMED_TOOLS]) + ("_and_more" if len(tools) > MAX_NAMED_TOOLS else "")
    return f"test_{re.sub(r'[^0-9a-zA-Z_]+', '_', named).strip('_').lower() or 'tool'}"


def _write_head(text: str, calls: int) -> list[str]:
    notes = list(dict.fromkeys(note for sign, note in NOTES.items() if sign in text))
    if calls > 1:
        notes.insert(0, "The calls are made in this order, of a server that has just been started.")
    return [*(f"# {note}" for note in notes), *([""] if notes else [])]


def _write_imports(text: str, helpers: Sequence[str], is_command: bool) -> list[str]:
    standard = {module for name in helpers for module in IMPORTS[name]} | ({"asyncio"} if is_command else set[str]())
    groups = [
        [f"import {module}" for module in sorted(standard)]
        + (["from unittest.mock import ANY"] if re.search(r"\bANY\b", text) else []),
        ["import pytest"] if "pytest." in text else [],
        (["from defserve.client import Client, ProcessLink"] if is_command else [])
        + (["from defserve.errors import DefserveError"] if "DefserveError" in text else [])
        + ([f"from defserve.testing import {', '.join(said)}"] if (said := _find_said(text)) else []),
    ]
    lines: list[str] = []
    for group in filter(None, groups):
        lines += [*([""] if lines else []), *group]
    return lines


def _find_said(text: str) -> list[str]:
    return [word for word in ("Cancel", "Decline") if f"will_answer({word})" in text]


def _write_call(call: SavedCall, indent: int) -> Iterator[str]:
    """The lines of a call and of what is expected. Lines that a literal goes on in are indented already."""
    arguments = _fill_masks(dict(call.arguments), mask_value(dict(call.arguments)), "the secret")
    for answer in call.answers:
        said = {"decline": "Decline", "cancel": "Cancel"}.get(str(answer.get("action")))
        content: Any = answer.get("content", {})
        yield f"client.will_answer({said or _write_literal(_fill_masks(content, mask_value(content), 'it'), indent)})"
    asked = f"client.call_raw({call.tool!r}, {_write_literal(arguments, indent)})"
    error = object_or_empty(object_or_empty(call.outcome).get("error")).get("message")
    if isinstance(error, str):
        yield f"with pytest.raises(DefserveError, match={_make_pattern(error.strip().partition(chr(10))[0])!r}):"
        yield f"    {asked}"
        return
    yield f"result = {asked}"
    yield from _write_assertions(object_or_empty(call.outcome), indent, call.time)


def _write_assertions(result: Json, indent: int, now: float | None) -> Iterator[str]:
    """What to expect of a result: its structured content, or else its texts, or else all of its content."""
    yield 'assert result["isError"]' if result.get("isError") is True else 'assert not result.get("isError")'
    content: Any = result.get("content")
    blocks: list[Json] = [block for block in content if is_object(block)] if is_array(content) else []
    if (structured := result.get("structuredContent")) is not None:
        yield _write_comparison('result["structuredContent"]', structured, indent, now)
    elif blocks and all(block.get("type") == "text" for block in blocks):
        texts = [block.get("text") for block in blocks]
        yield _write_comparison('[block["text"] for block in result["content"]]', texts, indent, now)
    elif blocks:
        kinds = [block.get("type") for block in blocks]
        yield f'assert [block["type"] for block in result["content"]] == {_write_literal(kinds, indent)}'
        data = [block.get("data") for block in blocks]
        yield _write_comparison('[block.get("data") for block in result["content"]]', data, indent, now)


def _write_comparison(got: str, value: Any, indent: int, now: float | None) -> str:
    expected = _open_changing(value, mask_value(value), now)
    text = _write_literal(expected, indent)
    if len(text) <= MAX_LITERAL_LENGTH:
        return f"assert {got} == {text}"
    if not _has_code(expected):
        return f"assert digest({got}) == {sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()!r}"
    if len(text) <= MAX_OPEN_LENGTH:
        return f"assert {got} == {text}"
    return f"# {got} is not compared: it is very long, and parts of it change at every run."


# -- What changes at every run, by its look.


TIME: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?"
UUID: Final = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
CHANGING: Final = re.compile(rf"(?<!\w)(?:{TIME}|{UUID})(?!\w)")
UNCOMPARED_TEXT: Final = re.compile(rf"{CHANGING.pattern}|{re.escape(REDACTION_MASK)}")
NEAR_SECONDS: Final = 86_400.0
"""A number as near to the time of the call, in seconds or milliseconds since 1970, is a time."""
MAX_TIME: Final = 1e15


class PythonCode(str):
    """A piece of Python, which stands as it is where others stand as literals."""

    def __repr__(self) -> str:
        return str(self)


ANY: Final = PythonCode("ANY")


def _open_changing(value: Any, shown: Any, now: float | None) -> Any:
    """The value, with code in place of what changes at every run, and of secrets."""
    if is_object(value) and is_object(shown):
        if list(value) != list(shown):
            return ANY  # a name is a secret
        pairs = zip(value.items(), shown.items(), strict=True)
        return {key: _open_changing(each, masked, now) for (key, each), (_, masked) in pairs}
    if is_array(value) and is_array(shown):
        return [_open_changing(each, masked, now) for each, masked in zip(value, shown, strict=True)]
    if isinstance(shown, str) and REDACTION_MASK in shown:
        return ANY
    if isinstance(value, str):
        if CHANGING.fullmatch(value):
            return ANY
        return PythonCode(f"Like({_make_pattern(value)!r})") if CHANGING.search(value) else value
    if isinstance(value, int | float) and not isinstance(value, bool) and now is not None:
        # Compared first, because an integer may be too large to be divided.
        is_time = abs(value) < MAX_TIME and any(abs(value / unit - now) < NEAR_SECONDS for unit in (1, 1000))
        return ANY if is_time else value
    return value


def _make_pattern(text: str) -> str:
    """The text as a regular expression, open where it has a time, an id or a secret."""
    return ".+".join(map(re.escape, UNCOMPARED_TEXT.split(mask_text(text))))


def _has_code(value: Any) -> bool:
    if is_object(value):
        return any(map(_has_code, value.values()))
    return any(map(_has_code, value)) if is_array(value) else isinstance(value, PythonCode)


def _write_literal(value: Any, indent: int) -> str:
    """A value as Python, over several lines if it is long."""
    if len(text := repr(value)) <= WIDTH:
        return text
    lines = pformat(value, width=WIDTH, sort_dicts=False).split("\n")
    return ("\n" + " " * indent).join(lines)
