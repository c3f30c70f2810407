"""A server's questions, asked of the person at the terminal. They go to stderr: stdout is for the result."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from defserve.host.answers import Accept, Answers, Cancel, Decision, Decline

Read = Callable[[], str]


def terminal_answers(read: Read = sys.stdin.readline) -> Answers:
    """Answers that come from the terminal, one line a field. End of input dismisses the question."""

    async def ask(message: str, schema: dict[str, Any]) -> Any:
        return await asyncio.to_thread(fill_in, message, schema, read)

    async def ask_url(message: str, url: str) -> Decision:
        return await asyncio.to_thread(agree, f"{message}\nOpen {url} and come back.", read)

    return Answers(ask=ask, ask_url=ask_url)


def fill_in(message: str, schema: dict[str, Any], read: Read) -> dict[str, Any] | Decision:
    """Ask for every field of `schema`; a required field that stays empty declines."""
    _say(f"\n{message}\n")
    properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
    if not properties:
        return agree("", read)
    content: dict[str, Any] = {}
    for name, field in properties.items():
        _say(f"  {_label(name, field)}: ")
        line = read()
        if not line:
            return Cancel
        if line.strip():
            content[name] = _read(line.strip(), field)
        elif name in (schema.get("required") or []) and "default" not in field:
            return Decline
    return content


def agree(message: str, read: Read) -> Decision:
    _say(f"{message} [y/N] ".lstrip())
    line = read()
    return Cancel if not line else Accept if line.strip().lower() in ("y", "yes") else Decline


def _label(name: str, field: dict[str, Any]) -> str:
    about = field.get("description") or field.get("title") or name
    options: list[dict[str, Any]] = field.get("oneOf") or []
    choices: list[Any] = field.get("enum") or [option.get("const") for option in options]
    hints = [" | ".join(map(str, choices))] if choices else [str(field.get("type", ""))]
    if "default" in field:
        hints.append(f"empty for {json.dumps(field['default'])}")
    return f"{about} ({', '.join(filter(None, hints))})"


def _read(text: str, field: dict[str, Any]) -> Any:
    if field.get("type") == "boolean":
        return text.lower() in ("y", "yes", "true", "1")
    if field.get("type") in ("integer", "number", "array"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
