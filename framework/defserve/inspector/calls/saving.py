"""A call as code that does the same: a `defserve call` line, and a test for pytest.

Secrets are not written: in their places stands what is to be filled in.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pprint import pformat
from typing import Any, Final

from defserve.host.fields import Json, object_of
from defserve.inspector.recording.masking import masked, masked_words
from defserve.redaction import MASK
from defserve.wire.jsonvalue import is_array, is_object

NAME: Final = re.compile(r"[^=:\s-][^=:\s]*")
WIDTH: Final = 88
LONGEST_EXPECTED: Final = 2_000


def command_line(words: Sequence[str], tool: str, arguments: Mapping[str, Any]) -> str:
    """The `defserve call` line of a call. `words` name the server."""
    before, after = _split(_filled_words(words))
    arguments = _without_secrets(dict(arguments))
    given = [_argument(name, value) for name, value in arguments.items()]
    if not all(map(NAME.fullmatch, arguments)):
        given = ["--json", json.dumps(arguments, ensure_ascii=False)]
    return shlex.join(["defserve", "call", *before, tool, *given, *after])


def _argument(name: str, value: Any) -> str:
    return f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value, ensure_ascii=False)}"


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What names the server, before and after the rest of the line."""
    named = list(words)
    cut = named.index("--") if "--" in named else len(named)
    return named[:cut], named[cut:]


def pytest_test(words: Sequence[str], tool: str, arguments: Mapping[str, Any], outcome: Any) -> str:
    """A test that makes the call and expects what it gave: a `result`, `{"error": {"message"}}`, or None."""
    before, command = _split(_filled_words(words))
    arguments, outcome = _without_secrets(dict(arguments)), _without_secrets(outcome)
    name = f"test_{re.sub(r'[^0-9a-zA-Z_]+', '_', tool).strip('_').lower() or 'tool'}"
    asked = f"client.call_raw({tool!r}, {_literal(arguments, 8)})"
    error = object_of(object_of(outcome).get("error")).get("message")
    raises = isinstance(error, str)
    checks = (
        [f"with pytest.raises(DefserveError, match={_first_line(error)!r}):", f"    {asked}"]
        if isinstance(error, str)
        else [f"result = {asked}", *_expected(object_of(outcome))]
    )
    lines = [*_imports(bool(command), raises), ""]
    if command:
        lines += [
            "",
            f"def {name}() -> None:",
            "    async def main() -> None:",
            f"        link = await ProcessLink.spawn({', '.join(map(repr, command[1:2]))}, {command[2:]!r})",
            "        async with Client(link) as client:",
            *(f"            {line.replace('client.call_raw', 'await client.call_raw')}" for line in checks),
            "",
            "    asyncio.run(main())",
        ]
    else:
        served = before[0] if before else "server.py"
        lines += ["", f"@pytest.mark.serves({served!r})", f"def {name}(client) -> None:"]
        lines += [f"    {line}" for line in checks]
    return "\n".join(lines) + "\n"


def _without_secrets(value: Any) -> Any:
    return _filled(value, masked(value), "the secret")


def _filled(value: Any, shown: Any, name: str) -> Any:
    """The value, with what to fill in where the mask is in `shown`. All else is as it was, to the last character."""
    if is_object(value) and is_object(shown):
        pairs = zip(value.items(), shown.items(), strict=True)
        return {_filled(key, other, "the secret"): _filled(each, masks, key) for (key, each), (other, masks) in pairs}
    if is_array(value) and is_array(shown):
        return [_filled(each, other, name) for each, other in zip(value, shown, strict=True)]
    if isinstance(shown, str) and MASK in shown and shown != value:
        return shown.replace(MASK, f"<fill in {name}>")
    return value


def _filled_words(words: Sequence[str]) -> list[str]:
    return [_filled(word, shown, "the secret") for word, shown in zip(words, masked_words(words), strict=True)]


def _imports(is_command: bool, raises: bool) -> list[str]:
    lines = ["import asyncio", ""] if is_command else []
    if raises or not is_command:
        lines += ["import pytest", ""]
    if raises:
        lines.append("from defserve.errors import DefserveError")
    if is_command:
        lines.append("from defserve.host import Client, ProcessLink")
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _expected(result: Json) -> list[str]:
    """What to expect of a result: its structured content, or else its texts, or else the kinds of its content."""
    if not result:
        return ['assert not result.get("isError")']
    lines = ['assert result["isError"]' if result.get("isError") is True else 'assert not result.get("isError")']
    content: Any = result.get("content")
    blocks: list[Json] = [block for block in content if is_object(block)] if is_array(content) else []
    structured = result.get("structuredContent")
    if structured is not None and len(json.dumps(structured)) <= LONGEST_EXPECTED:
        lines.append(f'assert result["structuredContent"] == {_literal(structured, 8)}')
    elif blocks and all(block.get("type") == "text" for block in blocks) and len(str(blocks)) <= LONGEST_EXPECTED:
        texts = [block.get("text") for block in blocks]
        lines.append(f'assert [block["text"] for block in result["content"]] == {_literal(texts, 8)}')
    elif blocks:
        kinds = [block.get("type") for block in blocks]
        lines.append(f'assert [block["type"] for block in result["content"]] == {_literal(kinds, 8)}')
    return lines


def _first_line(text: str) -> str:
    return re.escape(text.strip().partition("\n")[0])


def _literal(value: Any, indent: int) -> str:
    """A value as Python, over several lines if it is long."""
    if len(text := repr(value)) <= WIDTH:
        return text
    lines = pformat(value, width=WIDTH, sort_dicts=False).split("\n")
    return ("\n" + " " * indent).join(lines)
