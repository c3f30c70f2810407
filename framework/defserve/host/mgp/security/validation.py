"""MGP §4.5, §8.2: validators that the host applies before it sends a call, whether or not the server knows them.

A tool gets the validator that it declares. A tool that declares none gets the ones that its name and the names of its
arguments suggest. Validators in the configuration are added; "none" there turns the other ones off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

from defserve.errors import UsageError
from defserve.host.fields import object_of
from defserve.host.mgp.security.tool_security import ListedSecurity
from defserve.protocols.mgp.security.forwarding import judge
from defserve.protocols.mgp.security.validators import STANDARD, Validator, validator
from defserve.wire.jsonvalue import as_list

Check: TypeAlias = str | Validator | Callable[..., Any]
"""The name of a standard validator, one made with `@validator`, or a function that `@validator` takes."""
Checks: TypeAlias = Check | Sequence[Check]

EVERY_TOOL: Final = "*"

# Validator → words (and pairs of words) in a tool's name that suggest it, and argument names that do.
SUGGESTED_BY: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "sandbox": (
        frozenset({"shell", "bash", "sh", "zsh", "terminal", "powershell", "cmd"}),
        frozenset({"command", "cmd", "commandline", "command_line", "shell_command"}),
    ),
    "network_restricted": (
        frozenset({"fetch", "http", "curl", "wget", "download", "browse", "scrape", "crawl"}),
        frozenset({"url"}),
    ),
    "code_safety": (
        frozenset({"python", "repl", "eval", "run code", "execute code", "exec code", "evaluate code"}),
        frozenset[str](),
    ),
}


class CallValidation:
    """The validators of one host. Raises UsageError for a validator that does not exist."""

    def __init__(self, configured: Mapping[str, Checks]) -> None:
        self._configured = {
            tool: [_check(tool, check) for check in as_list(checks)] for tool, checks in configured.items()
        }

    async def check(self, tool: ListedSecurity, arguments: Mapping[str, Any], *, enforced: bool) -> None:
        """Raises Rejected. `enforced` says that the server applies the declared validator as well."""
        configured = [*self._configured.get(EVERY_TOOL, ()), *self._configured.get(tool.name, ())]
        if "none" not in configured:
            self._check_standard(tool, arguments, enforced)
        for check in configured:
            if isinstance(check, Validator):
                await check.judge(dict(arguments))
            elif check != "none":
                judge(check, arguments)

    def _check_standard(self, tool: ListedSecurity, arguments: Mapping[str, Any], enforced: bool) -> None:
        name = tool.validator
        if name is not None and name in STANDARD:
            # A server that applies it knows which argument is meant; here only a name, or being alone, can tell.
            if not (enforced and len(tool.properties) > 1 and STANDARD[name][1].isdisjoint(tool.properties)):
                judge(name, arguments, tool.security if enforced else None)
        elif name != "none":
            for guess, meant in guesses(tool, arguments).items():
                judge(guess, meant)


def guesses(tool: ListedSecurity, arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the names suggest for a tool that declares nothing: validator → the arguments to check.

    A word in the tool's name selects the arguments that the validator is meant for, or else the only text. An argument
    that can only be one of several values is not checked.
    """
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tool.name).lower())
    phrases = {*words, *(" ".join(pair) for pair in pairwise(words))}
    free = {
        name: value
        for name, value in arguments.items()
        if not object_of(tool.properties.get(name)).keys() & {"enum", "const"}
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (tool_words, argument_names) in SUGGESTED_BY.items():
        meant = {argument: value for argument, value in free.items() if argument.lower() in argument_names}
        if phrases & tool_words:
            meant = {argument: value for argument, value in free.items() if argument in STANDARD[name][1]} or meant
            lone = {argument: value for argument, value in free.items() if isinstance(value, str)}
            meant = meant or (lone if len(lone) == 1 else {})
        if meant:
            found[name] = meant
    return found


def _check(tool: str, given: Any) -> str | Validator:
    if isinstance(given, Validator) or (isinstance(given, str) and (given in STANDARD or given == "none")):
        return given
    if not callable(given):
        known = ", ".join([*STANDARD, "none"])
        raise UsageError(f"there is no validator {given!r} (for {tool!r})", fix=f"use one of {known}, or a function")
    return validator(given)
