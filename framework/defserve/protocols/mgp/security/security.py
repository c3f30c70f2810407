"""MGP §4: tool security metadata. What a tool may do, declared by a mark and kept honest at registration."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from defserve.binding.functions import place, where
from defserve.errors import UsageError
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.extension import MGP
    from defserve.protocols.mgp.security.validators import Validator, Watch

Risk = Literal["safe", "moderate", "dangerous"]
F = TypeVar("F", bound=Callable[..., Any])

MARK = "__defserve_security__"
REGISTERED = "__defserve_registered__"

# §3.2: the standard permissions and their risk.
PERMISSIONS: Mapping[str, Risk] = {
    "filesystem.read": "moderate",
    "filesystem.write": "dangerous",
    "network.outbound": "moderate",
    "network.listen": "dangerous",
    "shell.execute": "dangerous",
    "code_execution": "dangerous",
    "memory.read": "safe",
    "memory.write": "moderate",
    "system.info": "safe",
    "camera": "dangerous",
    "notification": "safe",
}
READING = frozenset({"filesystem.read", "network.outbound", "memory.read", "system.info"})
EFFECTS = ("filesystem", "network", "process", "database", "notification")
DETAILS = ("effects", "validator", "reversible", "confirm")
VALIDATORS = ("sandbox", "readonly", "network_restricted", "code_safety", "none")
CUSTOM = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9][a-z0-9_-]*){2,}")


def checked_permission(name: object, place: str = "") -> str:
    """A standard permission or one in reverse-domain notation. Raises UsageError for anything else."""
    if isinstance(name, str) and (name in PERMISSIONS or CUSTOM.fullmatch(name)):
        return name
    from difflib import get_close_matches

    close = get_close_matches(str(name), PERMISSIONS, 1)
    raise UsageError(
        f"{name!r} is not a permission",
        where=place,
        fix=f"did you mean {close[0]!r}?"
        if close
        else f"use one of {', '.join(PERMISSIONS)}, or your own in reverse-domain notation: com.example.billing",
    )


@dataclass(frozen=True, slots=True)
class Security:
    """What a tool may do. `@safe`, `@moderate` and `@dangerous` make one; `security=Security(…)` says the same.

    `validator` is one of the standard validators, one of your own (`@validator`), or several. None: what the types of
    the arguments say. `confirm` None: a dangerous tool is confirmed. `where` is the declaration, for complaints.
    """

    risk_level: Risk
    permissions: Sequence[str] = ()
    effects: Sequence[str] = ()
    validator: str | Validator | Sequence[str | Validator] | None = None
    reversible: bool | None = None
    confirm: bool | None = None
    code_safety: Mapping[str, Any] | None = None
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.where:
            caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  (behind the dataclass's own __init__)
            object.__setattr__(self, "where", place(caller.f_code.co_filename, caller.f_lineno))
        _check(self)
        object.__setattr__(self, "permissions", tuple(self.permissions))
        object.__setattr__(self, "effects", tuple(self.effects))

    @property
    def validators(self) -> tuple[str | Validator, ...]:
        """Every guard that was named: none, one or several."""
        given = self.validator
        if given is None:
            return ()
        return tuple(given) if isinstance(given, list | tuple) else (given,)  # pyright: ignore

    @property
    def confirmation_required(self) -> bool:
        """What `confirm` says; where it says nothing, whether the tool is dangerous."""
        return self.risk_level == "dangerous" if self.confirm is None else self.confirm

    def wire(self) -> Params:
        """The `security` object of a listed tool."""
        named = [v if isinstance(v, str) else v.name for v in self.validators]
        standard = next((name for name in named if name in VALIDATORS), None)
        block: Params = {
            "risk_level": self.risk_level,
            "permissions_required": list(self.permissions),
            "side_effects": list(self.effects),
            "validator": standard or "none",
            "reversible": self.risk_level == "safe" if self.reversible is None else self.reversible,
            "confirmation_required": self.confirmation_required,
        }
        if self.code_safety is not None:
            block["code_safety"] = dict(self.code_safety)
        return block

    def annotations(self) -> Params:
        """MCP's hints that follow from it."""
        read_only = not self.effects and set(self.permissions) <= READING and self.risk_level != "dangerous"
        hints: Params = {"readOnlyHint": read_only}
        if not read_only:
            hints["destructiveHint"] = self.risk_level == "dangerous" and self.reversible is not True
        hints["openWorldHint"] = "network" in self.effects or any(p.startswith("network.") for p in self.permissions)
        return hints


def _check(security: Security) -> None:
    def wrong(problem: str, fix: str) -> UsageError:
        return UsageError(problem, where=security.where, fix=fix)

    risk: str = security.risk_level
    if risk not in ("safe", "moderate", "dangerous"):
        raise wrong(f"risk level {risk!r}", "use safe, moderate or dangerous")
    for given in (security.permissions, security.effects):
        if isinstance(given, str):
            raise wrong(f"{given!r} is a text, not a list", f"write [{given!r}]")
    for permission in security.permissions:
        checked_permission(permission, security.where)
    for effect in security.effects:
        if effect not in EFFECTS:
            raise wrong(f"{effect!r} is not a side effect", f"use some of {', '.join(EFFECTS)}")
    for validator in security.validators:
        if isinstance(validator, str) and validator not in VALIDATORS:
            raise wrong(
                f"{validator!r} is not a validator",
                f"use one of {', '.join(VALIDATORS)}, or a function marked @validator",
            )
    if risk == "safe" and security.effects:
        raise wrong(f"a safe tool with effects ({', '.join(security.effects)})", "mark it @moderate, or drop effects")
    risky = [p for p in security.permissions if PERMISSIONS.get(p, "moderate") != "safe"]
    if risk == "safe" and risky:
        raise wrong(f"a safe tool that needs {risky[0]!r}", "mark it @moderate or @dangerous")
    if "readonly" in security.validators:
        writing = [p for p in security.permissions if p in PERMISSIONS and p not in READING]
        if security.effects or writing:
            what = f"effects {', '.join(security.effects)}" if security.effects else f"permission {writing[0]!r}"
            raise wrong(f"a readonly tool with {what}", "drop validator='readonly', or what it contradicts")


# -- marks -----------------------------------------------------------------------------------------------


@overload
def safe(function: F, /) -> F: ...
@overload
def safe(*permissions: str, **details: Any) -> Callable[[F], F]: ...
def safe(*permissions: Any, **details: Any) -> Any:
    """No side effects: runs without confirmation. Works bare and called."""
    return _mark("safe", permissions, details)


@overload
def moderate(function: F, /) -> F: ...
@overload
def moderate(*permissions: str, **details: Any) -> Callable[[F], F]: ...
def moderate(*permissions: Any, **details: Any) -> Any:
    """Limited side effects: `@moderate("network.outbound", effects=["network"])`."""
    return _mark("moderate", permissions, details)


@overload
def dangerous(function: F, /) -> F: ...
@overload
def dangerous(*permissions: str, **details: Any) -> Callable[[F], F]: ...
def dangerous(*permissions: Any, **details: Any) -> Any:
    """Effects on the system that cannot be taken back: confirmed before it runs, unless `confirm=False`."""
    return _mark("dangerous", permissions, details)


def _mark(risk: Risk, permissions: tuple[Any, ...], details: dict[str, Any]) -> Any:
    if len(permissions) == 1 and callable(permissions[0]) and not details:
        return _marked(permissions[0], risk, (), {})
    return lambda function: _marked(function, risk, permissions, details)  # pyright: ignore


def _marked(function: F, risk: Risk, permissions: tuple[Any, ...], details: dict[str, Any]) -> F:
    here = where(function)
    if REGISTERED in function.__dict__:
        raise UsageError(
            f"@{risk} comes after @server.tool has registered {function.__name__}",
            where=here,
            fix=f"swap the lines: @server.tool above, @{risk} right above the def",
        )
    if MARK in function.__dict__:
        raise UsageError(
            f"{function.__name__} is already marked {function.__dict__[MARK].risk_level}",
            where=here,
            fix="keep one of @safe, @moderate and @dangerous",
        )
    unknown = sorted(details.keys() - DETAILS)
    if unknown:
        raise UsageError(f"@{risk} has no option {unknown[0]!r}", where=here, fix=f"use some of {', '.join(DETAILS)}")
    function.__dict__[MARK] = Security(risk, permissions, where=here, **details)
    return function


# -- what was read of a tool -----------------------------------------------------------------------------


class Guarded:
    """A tool's security as it is enforced: the block in effect, and what has to look at its arguments."""

    __slots__ = ("security", "_watches")

    def __init__(self, security: Security, watches: tuple[Watch, ...]) -> None:
        self.security, self._watches = security, watches

    @classmethod
    def of(cls, tool: Tool) -> Guarded | None:
        """Read a tool. None for one that declares nothing; raises UsageError for one that contradicts itself."""
        from defserve.protocols.mgp.security import guarded_types, validators

        function = tool.function.signature.function
        given: Any = tool.options.security
        if given is not None and not isinstance(given, Security):
            raise UsageError(f"security={given!r}", where=tool.where, fix="write security=Security(…)")
        marked: Security | None = getattr(function, MARK, None)
        if given is not None and marked is not None and given != marked:
            raise UsageError(
                f"tool {tool.name!r} is marked {marked.risk_level} and given another security=…",
                where=tool.where,
                fix="keep one of the two",
            )
        declared = given or marked
        _remember(function)
        found = guarded_types.guards_of(tool)
        if declared is None and not found:
            return None
        security = validators.in_effect(tool, declared, found)
        tool.options = replace(tool.options, annotations=_annotations(tool, security))
        return cls(security, validators.watches(tool, declared, security, found))

    async def judge(self, mgp: MGP, call: Call, tool: Tool, arguments: dict[str, Any]) -> None:
        """Let everyone concerned look at the validated arguments. Raises Rejected."""
        for watch in self._watches:
            await watch(mgp, arguments)


def _remember(function: Any) -> None:
    """So that a mark that comes too late can say so."""
    if hasattr(function, "__code__"):  # methods and other callables cannot be marked later in the same way
        function.__dict__[REGISTERED] = True


def _annotations(tool: Tool, security: Security) -> Params:
    """The author's own hints win, unless they promise what the security block denies."""
    given, derived = dict(tool.options.annotations or {}), security.annotations()
    if given.get("readOnlyHint") is True and (security.effects or security.risk_level == "dangerous"):
        raise UsageError(
            f"tool {tool.name!r} says readOnlyHint, but it is {security.risk_level}"
            + (f" with effects {', '.join(security.effects)}" if security.effects else ""),
            where=tool.where,
            fix="drop the hint, or mark the tool as what it is",
        )
    return derived | given
