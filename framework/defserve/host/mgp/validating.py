"""MGP §4.5, §8.2: validators applied before a call leaves, whether or not its server knows of them.

What the configuration says for a tool comes on top of what the tool declares, or, where it declares nothing, of what
the names of the tool and its arguments say. "none" in the configuration switches the latter off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

from defserve.errors import UsageError
from defserve.host.conversation import object_of
from defserve.host.mgp.declared import Declared
from defserve.protocols.mgp.security.forwarding import judge
from defserve.protocols.mgp.security.validators import STANDARD, Validator, validator
from defserve.wire.jsonvalue import is_array

Check: TypeAlias = str | Validator | Callable[..., Any]
"""A standard validator by its name, one made with `@validator`, or a function as `@validator` takes it."""
Checks: TypeAlias = Check | Sequence[Check]

EVERY_TOOL: Final = "*"

# Validator → words and pairs of words in a tool's name that call for it, and names of arguments that do by themselves.
TELLING: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
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


class Validating:
    """The validators of one host. Raises UsageError for one that does not exist."""

    def __init__(self, configured: Mapping[str, Checks]) -> None:
        self._configured = {tool: _checks(tool, checks) for tool, checks in configured.items()}

    async def check(self, tool: Declared, arguments: Mapping[str, Any], *, enforced: bool) -> None:
        """Raises Rejected. `enforced`: the server applies what it declares as well."""
        configured = [*self._configured.get(EVERY_TOOL, ()), *self._configured.get(tool.name, ())]
        if "none" not in configured:
            self._check_standard(tool, arguments, enforced)
        for check in configured:
            if isinstance(check, Validator):
                await check.judge(dict(arguments))
            elif check != "none":
                judge(check, arguments)

    def _check_standard(self, tool: Declared, arguments: Mapping[str, Any], enforced: bool) -> None:
        name = tool.validator
        if name is not None and name in STANDARD:
            judge(name, arguments, tool.security if enforced else None)
        elif name != "none":
            for guess, meant in guesses(tool, arguments).items():
                judge(guess, meant)


def guesses(tool: Declared, arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What names say about a tool that declares nothing: validator → the arguments it has to look at.

    A tool's name speaks for the arguments a validator is meant for, or else for its only text. An argument that can
    only be one of several values is no free text.
    """
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tool.name).lower())
    said = {*words, *(" ".join(pair) for pair in pairwise(words))}
    free = {name: value for name, value in arguments.items() if _is_free(tool.properties.get(name))}
    found: dict[str, dict[str, Any]] = {}
    for name, (tool_words, argument_names) in TELLING.items():
        meant = {argument: value for argument, value in free.items() if argument.lower() in argument_names}
        if said & tool_words:
            meant = {argument: value for argument, value in free.items() if argument in STANDARD[name][1]} or meant
            lone = {argument: value for argument, value in free.items() if isinstance(value, str)}
            meant = meant or (lone if len(lone) == 1 else {})
        if meant:
            found[name] = meant
    return found


def _is_free(schema: Any) -> bool:
    return not object_of(schema).keys() & {"enum", "const"}


def _checks(tool: str, given: Any) -> list[str | Validator]:
    return [_check(tool, check) for check in (given if is_array(given) else [given])]


def _check(tool: str, given: Any) -> str | Validator:
    if isinstance(given, Validator) or (isinstance(given, str) and (given in STANDARD or given == "none")):
        return given
    if not callable(given):
        known = ", ".join([*STANDARD, "none"])
        raise UsageError(f"validators: {given!r} for {tool!r} is none", fix=f"use one of {known}, or a function")
    return validator(given)
