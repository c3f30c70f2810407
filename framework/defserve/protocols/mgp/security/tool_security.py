"""MGP §4: a tool's security as it is enforced: its declaration, completed by the types of its parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from defserve.errors import UsageError
from defserve.guard.argument_types import URLS, Code
from defserve.protocols.mgp.security.argument_checks import ArgumentCheck, argument_checks, check_noted_urls
from defserve.protocols.mgp.security.guarded_types import Guard, guards_of, takes_text
from defserve.protocols.mgp.security.security import MARK, REGISTERED, Security
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.net.egress import Egress
    from defserve.protocols.mcp.tools.tools import Tool

# Parameters that are dangerous by their name, and the type that guards them.
TELLING = {"command": "ShellCommand", "cmd": "ShellCommand", "url": "PublicUrl", "code": "Annotated[str, Code()]"}


class UnguardedParameter(UserWarning):
    """A parameter that is usually dangerous, and that no guard checks."""


class ToolSecurity:
    """A tool's security as it is enforced: the block in effect, and what has to look at its arguments.

    Without `is_enforced` it is only shown in lists, and calls pass as those of a tool without one.
    """

    __slots__ = ("security", "_checks", "notes_urls", "is_enforced")

    def __init__(self, security: Security, checks: tuple[ArgumentCheck, ...], *, is_enforced: bool = True) -> None:
        self.security, self._checks, self.is_enforced = security, checks, is_enforced
        self.notes_urls = check_noted_urls in checks

    @classmethod
    def of(cls, tool: Tool) -> ToolSecurity | None:
        """Read a tool. None for one that declares nothing; raises UsageError for one that contradicts itself."""
        function = tool.function.signature.function
        given: Any = tool.options.security
        if given is not None and not isinstance(given, Security):
            raise UsageError(f"security={given!r} is not possible", where=tool.where, fix="write security=Security(…)")
        marked: Security | None = getattr(function, MARK, None)
        if given is not None and marked is not None and given != marked:
            raise UsageError(
                f"tool {tool.name!r} is marked {marked.risk_level} and given another security=…",
                where=tool.where,
                fix="keep one of the two",
            )
        declared = given or marked
        # Remembered, so that a mark that comes too late can say so. Other callables than functions cannot be marked.
        if hasattr(function, "__code__"):
            function.__dict__[REGISTERED] = True
        found = guards_of(tool)
        if declared is None and not found:
            return None
        security = _in_effect(tool, declared, found)
        tool.options = replace(tool.options, annotations=_annotations(tool, security))
        return cls(security, argument_checks(tool, declared, security, found))

    def begin(self) -> None:
        """The arguments of a call are going to be validated."""
        if self.notes_urls:
            URLS.set([])

    async def judge(self, egress: Egress | None, arguments: dict[str, Any]) -> None:
        """Run every check on the validated arguments. `egress` is the server's. Raises Rejected."""
        for check in self._checks:
            await check(egress, arguments)


def _annotations(tool: Tool, security: Security) -> Params:
    """The author's own hints win, unless they promise what the security block denies."""
    given, derived = dict(tool.options.annotations or {}), security.annotations()
    if given.get("readOnlyHint") is True and (security.effects or security.risk_level == "dangerous"):
        raise UsageError(
            f"tool {tool.name!r} says readOnlyHint, but it is {security.risk_level}"
            + (f" with effects {', '.join(security.effects)}" if security.effects else ""),
            where=tool.where,
            fix="drop the hint, or change the mark",
        )
    return derived | given


def _in_effect(tool: Tool, declared: Security | None, found: Mapping[str, list[Guard]]) -> Security:
    """The declaration, completed by what the types of the arguments say. Raises UsageError if the two disagree."""
    guards = [guard for several in found.values() for guard in several]
    named = next((guard.validator for guard in guards if guard.validator), None)
    security = declared or Security("moderate", where=tool.where)
    if security.validator is None and named is not None:
        security = replace(security, validator=named)
    elif named is not None and not {named, "none"} & set(security.validators):
        security = replace(security, validator=(*security.validators, named))
    code = next((guard for guard in guards if isinstance(guard, Code)), None)
    if code is None and "code_safety" in security.validators:
        code = Code()
    if code is not None and security.code_safety is None:
        security = replace(security, code_safety=_code_safety(code))
    _warn_unguarded(tool, security, found)
    return security


def _code_safety(code: Code) -> dict[str, Any]:
    """§7.3, as `tools/list` shows it."""
    from defserve.guard.code.policy import CodePolicy

    policy = CodePolicy.of(code.level, code.allow, code.block, code.max_bytes, ())
    return {"level": code.level, "language": "python", **policy.declaration()}


def _warn_unguarded(tool: Tool, security: Security, found: Mapping[str, list[Guard]]) -> None:
    if security.validators or not (security.permissions or security.risk_level == "dangerous"):
        return
    for parameter in tool.function.signature.parameters:
        if parameter.name in TELLING and parameter.name not in found and takes_text(parameter.annotation):
            warnings.warn(
                f"{tool.where}: {tool.name} takes {parameter.name!r} as plain text and nothing judges it;"
                f" annotate it {TELLING[parameter.name]}, or say validator='none'",
                UnguardedParameter,
                stacklevel=2,
            )
