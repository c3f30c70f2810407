"""sed: addresses and the commands that edit text. Not `e` (runs), `r`, `R` (read), `w`, `W` (write)."""

from __future__ import annotations

import re

# Most seds let `[/]` hide the mark, some do not. Where they differ, the script is refused. A bracket that comes first
# belongs to the set: `[]x]`. So what is taken is never given back (`?+`, `*+`).
_SET = r"\[\^?+\]?+(?:\[:\w+:\]|\[(?![:.=])|[^]/\[\\])*+\]"
_ADDRESS = re.compile(rf"\s*(?:\d+(?:~\d+)?|\$|/(?:[^/\\\[]|\\.|{_SET})*+/[IM]*)")
_SECOND = re.compile(rf"\s*,\s*+(?:[+~]\d+|{_ADDRESS.pattern})")
_END = r"\s*(?:;|$|(?=\}))"
_BRACKETS = re.compile(r"\[\^?+\]?+(?:\[:\w+:\]|\[(?![:.=])|[^]\[])*+\]")

_COMMANDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("{", re.compile("")),
    ("}", re.compile(_END)),
    ("dDgGhHnNpPxzF=", re.compile(_END)),
    ("lqQ", re.compile(rf"\s*+\d*{_END}")),
    (":btT", re.compile(r"\s*+\w*\s*(?:;|$)")),
    # One line of text. A backslash at its end would take the next script for text, or not.
    ("aic", re.compile(r"(?:\s*\\)?[^\\]*(?:\\[^\\]+)*$")),
)


def problem(script: str) -> str | None:
    """Why this script is not known to be harmless, or None."""
    at = 0
    if not script.strip():
        return "it is empty"
    while at < len(script):
        if script[at] in " \t;":
            at += 1
            continue
        if first := _ADDRESS.match(script, at):
            second = _SECOND.match(script, first.end())
            at = (second or first).end()
        while at < len(script) and script[at] in " \t!":
            at += 1
        if at == len(script):
            return "an address without a command"
        if script[at] == "b" and not first and _is_endless(script, at):
            return "a loop without an end"
        end = _after(script, at)
        if end is None:
            return f"the command '{script[at]}' in this form"
        at = end
    return None


def _is_endless(script: str, at: int) -> bool:
    """Whether the branch at `at`, which has no condition, goes back over commands that read no further line."""
    label = re.match(r"b\s*(\w+)", script[at:])
    start = re.search(rf":\s*{label[1]}\b", script[:at]) if label else None
    return start is not None and not re.search(r"[;{}\s\d$]N", script[start.end() : at])


def _after(script: str, at: int) -> int | None:
    """Where the command at `at` ends, or None if it is not known."""
    command = script[at]
    if command in "sy":
        return _substitution(script, at + 1, command)
    for letters, rest in _COMMANDS:
        if command in letters:
            found = rest.match(script, at + 1)
            return found.end() if found else None
    return None


def _substitution(script: str, at: int, command: str) -> int | None:
    """`s/…/…/flags` without the flags `w` (writes) and `e` (runs)."""
    if at >= len(script) or (mark := script[at]).isalnum() or mark in "\\ \n;":
        return None
    part = rf"((?:[^\\{re.escape(mark)}]|\\.)*){re.escape(mark)}"
    found = re.compile(re.escape(mark) + part + part).match(script, at)
    if not found or "[" in _BRACKETS.sub("", re.sub(r"\\.", "x", found[1])):
        return None
    flags = re.compile((r"[gpiImM0-9]*" if command == "s" else "") + _END).match(script, found.end())
    return flags.end() if flags else None
