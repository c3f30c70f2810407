"""MGP §4: tool security metadata. What a tool may do, declared by a mark; contradictions are refused at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_args, overload

from defserve.binding.functions import place, where
from defserve.errors import UsageError
from defserve.protocols.mgp.security.vocabulary import (
    EFFECTS,
    PERMISSIONS,
    READING,
    VALIDATORS,
    Risk,
    checked_permission,
)
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mgp.security.validators import Validator

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__defserve_security__"
REGISTERED = "__defserve_registered__"
DETAILS = ("effects", "validator", "reversible", "confirm")


@dataclass(frozen=True, slots=True)
class Security:
    """What a tool may do. `@safe`, `@moderate` and `@dangerous` make one; `security=Security(…)` says the same.

    `validator` is one of the standard validators, one of your own (`@validator`), or several. None: what the types of
    the arguments say. `confirm` None: a dangerous tool is confirmed. `where` is where it was declared, for errors.
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
        """The validators that were named: none, one or several."""
        given = self.validator
        if given is None:
            return ()
        return tuple(given) if isinstance(given, list | tuple) else (given,)  # pyright: ignore

    @property
    def confirmation_required(self) -> bool:
        """What `confirm` says. If it is None, whether the tool is dangerous."""
        return self.risk_level == "dangerous" if self.confirm is None else self.confirm

    def wire(self) -> Params:
        """The `security` object of a listed tool."""
        named = (v if isinstance(v, str) else v.name for v in self.validators)
        block: Params = {
            "risk_level": self.risk_level,
            "permissions_required": list(self.permissions),
            "side_effects": list(self.effects),
            "validator": next((name for name in named if name in VALIDATORS), "none"),
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
    if risk not in get_args(Risk):
        raise wrong(f"risk level {risk!r}", "use safe, moderate or dangerous")
    for name in ("reversible", "confirm"):
        said: Any = getattr(security, name)
        if said is not None and not isinstance(said, bool):
            raise wrong(f"{name}={said!r} is not possible", "use True or False")
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
    """Effects that cannot be undone: a call is confirmed before it runs, unless `confirm=False`."""
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
    if unknown := sorted(details.keys() - DETAILS):
        raise UsageError(f"@{risk} has no option {unknown[0]!r}", where=here, fix=f"use some of {', '.join(DETAILS)}")
    function.__dict__[MARK] = Security(risk, permissions, where=here, **details)
    return function
