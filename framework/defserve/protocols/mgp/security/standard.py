"""MGP §4.5: the standard validators, each with the parameters it is meant for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from defserve.guard.arguments import Code, Shell, Url

TextJudge: TypeAlias = Callable[[str], object]
"""Raises Rejected for a text that is refused."""

_COMMANDS = frozenset({"command", "cmd", "shell", "script", "commandline"})

# Name → who judges a text, and the names of the parameters that are judged.
STANDARD: Mapping[str, tuple[TextJudge, frozenset[str]]] = {
    "sandbox": (Shell().command, _COMMANDS),
    "readonly": (Shell(mode="readonly").command, _COMMANDS),
    "network_restricted": (Url().url, frozenset({"url", "uri", "endpoint", "href", "link", "address"})),
    "code_safety": (Code().source, frozenset({"code", "source", "script", "program", "snippet"})),
}
