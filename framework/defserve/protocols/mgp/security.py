"""MGP §4: tool security. What a tool declares with marks and with the types of its parameters, and the checks.

A declaration is read once, at registration. Contradictions are refused there. A call is refused before the function
runs, for every peer.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_args, overload

from defserve.binding.signature import find_source_location, format_source_location
from defserve.core.json_values import is_array, is_mapping
from defserve.core.messages import Params
from defserve.errors import Rejected, UsageError
from defserve.guard.argument_types import (
    VALIDATED_UPLOADS,
    VALIDATED_URLS,
    Code,
    FileTypes,
    PublicUrl,
    Shell,
    ShellCommand,
    Url,
)
from defserve.guard.verdict import Verdict, log_author_note, require_allowed
from defserve.protocols.mgp.guarded_types import ArgumentGuard, can_be_plain_text, find_tool_guards
from defserve.protocols.mgp.vocabulary import (
    PERMISSION_RISKS,
    READ_ONLY_PERMISSIONS,
    SIDE_EFFECT_NAMES,
    VALIDATOR_NAMES,
    RiskLevel,
    require_permission_name,
)

if TYPE_CHECKING:
    from defserve.guard.network import Egress
    from defserve.protocols.mcp.tools import Tool


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

    risk_level: RiskLevel
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
            object.__setattr__(self, "where", format_source_location(caller.f_code.co_filename, caller.f_lineno))
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

    def to_wire(self) -> Params:
        """The `security` object of a listed tool."""
        named = (v if isinstance(v, str) else v.name for v in self.validators)
        block: Params = {
            "risk_level": self.risk_level,
            "permissions_required": list(self.permissions),
            "side_effects": list(self.effects),
            "validator": next((name for name in named if name in VALIDATOR_NAMES), "none"),
            "reversible": self.risk_level == "safe" if self.reversible is None else self.reversible,
            "confirmation_required": self.confirmation_required,
        }
        if self.code_safety is not None:
            block["code_safety"] = dict(self.code_safety)
        return block

    def annotations(self) -> Params:
        """MCP's hints that follow from it."""
        read_only = (
            not self.effects and set(self.permissions) <= READ_ONLY_PERMISSIONS and self.risk_level != "dangerous"
        )
        # Each is said, also where it follows: stores want all three, and without one clients assume the worst.
        return {
            "readOnlyHint": read_only,
            "destructiveHint": not read_only and self.risk_level == "dangerous" and self.reversible is not True,
            "openWorldHint": "network" in self.effects or any(p.startswith("network.") for p in self.permissions),
        }


def _check(security: Security) -> None:
    def wrong(problem: str, fix: str) -> UsageError:
        return UsageError(problem, where=security.where, fix=fix)

    risk: str = security.risk_level
    if risk not in get_args(RiskLevel):
        raise wrong(f"risk level {risk!r}", "use safe, moderate or dangerous")
    for name in ("reversible", "confirm"):
        said: Any = getattr(security, name)
        if said is not None and not isinstance(said, bool):
            raise wrong(f"{name}={said!r} is not possible", "use True or False")
    for given in (security.permissions, security.effects):
        if isinstance(given, str):
            raise wrong(f"{given!r} is a text, not a list", f"write [{given!r}]")
    for permission in security.permissions:
        require_permission_name(permission, security.where)
    for effect in security.effects:
        if effect not in SIDE_EFFECT_NAMES:
            raise wrong(f"{effect!r} is not a side effect", f"use some of {', '.join(SIDE_EFFECT_NAMES)}")
    for validator in security.validators:
        if isinstance(validator, str) and validator not in VALIDATOR_NAMES:
            raise wrong(
                f"{validator!r} is not a validator",
                f"use one of {', '.join(VALIDATOR_NAMES)}, or a function marked @validator",
            )
    if risk == "safe" and security.effects:
        raise wrong(f"a safe tool with effects ({', '.join(security.effects)})", "mark it @moderate, or drop effects")
    risky = [p for p in security.permissions if PERMISSION_RISKS.get(p, "moderate") != "safe"]
    if risk == "safe" and risky:
        raise wrong(f"a safe tool that needs {risky[0]!r}", "mark it @moderate or @dangerous")
    if "readonly" in security.validators and (what := _find_writing(security)):
        raise wrong(f"a readonly tool with {what}", "drop validator='readonly', or what it contradicts")


def _find_writing(security: Security) -> str:
    """What a declaration says that a readonly tool cannot have; empty if there is nothing."""
    writing = [p for p in security.permissions if p in PERMISSION_RISKS and p not in READ_ONLY_PERMISSIONS]
    if security.effects:
        return f"effects {', '.join(security.effects)}"
    return f"permission {writing[0]!r}" if writing else ""


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


def _mark(risk: RiskLevel, permissions: tuple[Any, ...], details: dict[str, Any]) -> Any:
    if len(permissions) == 1 and callable(permissions[0]) and not details:
        return _mark_function(permissions[0], risk, (), {})
    return lambda function: _mark_function(function, risk, permissions, details)  # pyright: ignore


def _mark_function(function: F, risk: RiskLevel, permissions: tuple[Any, ...], details: dict[str, Any]) -> F:
    here = find_source_location(function)
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


# -- MGP §4.5: validators: the standard ones, and authors' functions that look at the arguments of a call.


TextJudge: TypeAlias = Callable[[str], object]
"""Raises Rejected for a text that is refused."""

_COMMANDS = frozenset({"command", "cmd", "shell", "script", "commandline"})

# Name → who judges a text, and the names of the parameters that are judged.
STANDARD_VALIDATORS: Mapping[str, tuple[TextJudge, frozenset[str]]] = {
    "sandbox": (Shell().command, _COMMANDS),
    "readonly": (Shell(mode="readonly").command, _COMMANDS),
    "network_restricted": (Url().url, frozenset({"url", "uri", "endpoint", "href", "link", "address"})),
    "code_safety": (Code().source, frozenset({"code", "source", "script", "program", "snippet"})),
}


@dataclass(frozen=True, slots=True)
class Validator:
    """An author's function that judges the arguments of a call; see `@validator`."""

    function: Callable[..., Any]
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def judge_arguments(self, arguments: dict[str, Any]) -> None:
        """Run the function on the arguments. Raises Rejected if it refuses them."""
        wanted = inspect.signature(self.function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted.values())
        given = arguments if takes_all else {name: arguments[name] for name in wanted if name in arguments}
        found = self.function(**given)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, Verdict):
            require_allowed(found, "Call refused", self.name)
        elif isinstance(found, str) or found is False:
            if found is False:
                log_author_note(f"validator {self.name} refused a call; return a text instead of False to say why")
            raise Rejected("Call refused", [found or "not allowed"], guard=self.name)


@overload
def validator(function: Callable[..., Any], /) -> Validator: ...


@overload
def validator(*, name: str) -> Callable[[Callable[..., Any]], Validator]: ...


def validator(function: Any = None, /, *, name: str | None = None) -> Any:
    """Make a function a validator for `@dangerous(…, validator=[…])`.

    The function takes those arguments of the tool that it names, or all with `**arguments`. To refuse the call it
    returns a text, False or a `Verdict` that does not allow. None, True or an allowing verdict lets the call pass. It
    may be async.
    """

    def make(function: Callable[..., Any]) -> Validator:
        if not callable(function):
            raise UsageError(f"@validator marks functions, not {function!r}", fix='give the name: @validator(name="…")')
        return Validator(function, name or function.__name__)

    return make(function) if function is not None else make


# -- MGP §4: a tool's security as it is enforced: its declaration, completed by the types of its parameters.


# Parameters that are dangerous by their name, and the type that guards them.
TELLING = {"command": "ShellCommand", "cmd": "ShellCommand", "url": "PublicUrl", "code": "Annotated[str, Code()]"}


class UnguardedParameter(UserWarning):
    """A parameter that is usually dangerous, and that no guard checks."""


class ToolSecurity:
    """A tool's security as it is enforced: the block in effect, and what has to look at its arguments.

    Without `is_enforced` it is only shown in lists, and calls pass as those of a tool without one.
    """

    __slots__ = ("security", "_checks", "notes_urls", "notes_uploads", "is_enforced")

    def __init__(self, security: Security, checks: tuple[ArgumentCheck, ...], *, is_enforced: bool = True) -> None:
        self.security, self._checks, self.is_enforced = security, checks, is_enforced
        self.notes_urls, self.notes_uploads = check_noted_urls in checks, check_noted_uploads in checks

    @classmethod
    def from_tool(cls, tool: Tool) -> ToolSecurity | None:
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
        found = find_tool_guards(tool)
        if declared is None and not found:
            return None
        security = _in_effect(tool, declared, found)
        # A guard says what a tool takes, and nothing of what it does with that: only a mark becomes hints.
        if declared is not None:
            tool.options = replace(tool.options, annotations=_annotations(tool, security))
        return cls(security, argument_checks(tool, declared, security, found))

    def start_url_and_upload_tracking(self) -> None:
        """The arguments of a call are going to be validated."""
        if self.notes_urls:
            VALIDATED_URLS.set([])
        if self.notes_uploads:
            VALIDATED_UPLOADS.set([])

    async def judge_arguments(self, egress: Egress | None, arguments: dict[str, Any]) -> None:
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


def _in_effect(tool: Tool, declared: Security | None, found: Mapping[str, list[ArgumentGuard]]) -> Security:
    """The declaration, completed by what the types of the arguments say. Raises UsageError if the two disagree."""
    guards = [guard for several in found.values() for guard in several]
    named = next((guard.validator for guard in guards if guard.validator), None)
    security = declared or Security("moderate", where=tool.where)
    if named == "readonly" and "none" not in security.validators and (what := _find_writing(security)):
        raise UsageError(
            f'tool {tool.name!r} takes commands that only read, Shell(mode="readonly"), and is marked with {what}',
            where=security.where,
            fix='drop that from the mark, or write Shell(mode="sandbox") if its commands may write',
        )
    if security.validator is None and named is not None:
        security = replace(security, validator=named)
    elif named is not None and not {named, "none"} & set(security.validators):
        security = replace(security, validator=(*security.validators, named))
    code = next((guard for guard in guards if isinstance(guard, Code)), None)
    if code is None and "code_safety" in security.validators:
        code = Code()
    if code is not None and security.code_safety is None:
        from defserve.guard.code.policy import CodePolicy

        declaration = CodePolicy.from_options(code.level, code.allow, code.block, code.max_bytes, ()).make_declaration()
        # §7.3, as `tools/list` shows it.
        security = replace(security, code_safety={"level": code.level, "language": "python", **declaration})
    _warn_unguarded(tool, security, found)
    return security


def _warn_unguarded(tool: Tool, security: Security, found: Mapping[str, list[ArgumentGuard]]) -> None:
    if security.validators or not (security.permissions or security.risk_level == "dangerous"):
        return
    for parameter in tool.function.signature.parameters:
        if parameter.name in TELLING and parameter.name not in found and can_be_plain_text(parameter.annotation):
            warnings.warn(
                f"{tool.where}: {tool.name} takes {parameter.name!r} as plain text and nothing judges it;"
                f" annotate it {TELLING[parameter.name]}, or say validator='none'",
                UnguardedParameter,
                stacklevel=2,
            )


# -- MGP §4.5: checks of the validated arguments of a call, before the function runs. Prepared at registration.


MAX_URL_HOSTS = 100
"""Of one call. Each costs a lookup of its name."""

ArgumentCheck: TypeAlias = "Callable[[Egress | None, dict[str, Any]], Awaitable[None]]"
"""Takes the server's own egress rules and the arguments. Raises Rejected."""


def argument_checks(
    tool: Tool, declared: Security | None, security: Security, found: Mapping[str, list[ArgumentGuard]]
) -> tuple[ArgumentCheck, ...]:
    """The checks of the validated arguments, in order. The guards in the types come before them.

    A guarded type replaces the standard validator of its kind. If the author names that validator, it also looks at
    unguarded parameters whose names it knows.
    """
    made: list[ArgumentCheck] = []
    named = declared.validators if declared is not None else ()
    covered = {guard.validator for several in found.values() for guard in several}
    for one in security.validators:
        if isinstance(one, Validator):
            made.append(_own_check(tool, one))
        elif one != "none" and (one not in covered or one in named):
            meant = _meant(tool, one, found, others=one not in covered)
            made += [_standard_check(one, meant)] if meant else []
    guards = [guard for several in found.values() for guard in several]
    if any(isinstance(guard, Url) for guard in guards):
        made.append(check_noted_urls)
    if any(isinstance(guard, FileTypes) for guard in guards):
        if tool.function.signature.flow in ("sync", "generator"):
            raise UsageError(
                f"tool {tool.name!r} takes an Upload, which only async code can read",
                where=tool.where,
                fix=f"write async def {tool.name}",
            )
        made.append(check_noted_uploads)
    return tuple(made)


def _own_check(tool: Tool, validator: Validator) -> ArgumentCheck:
    """The author's own validator. It sees the default of an argument that the caller left out."""
    parameters = {parameter.name: parameter.default for parameter in tool.function.signature.parameters}
    defaults = {name: default for name, default in parameters.items() if default is not inspect.Parameter.empty}
    for wanted in inspect.signature(validator.function).parameters.values():
        is_optional = wanted.default is not wanted.empty or wanted.kind in (wanted.VAR_KEYWORD, wanted.VAR_POSITIONAL)
        if wanted.name not in parameters and not is_optional:
            raise UsageError(
                f"tool {tool.name!r} has no argument {wanted.name!r}, which its validator {validator.name!r} looks at",
                where=tool.where,
                fix=f"name one of {', '.join(sorted(parameters)) or 'its arguments'}, or take them all: **arguments",
            )

    async def check(egress: Egress | None, arguments: dict[str, Any]) -> None:
        await validator.judge_arguments({**defaults, **arguments})

    return check


def _meant(tool: Tool, name: str, found: Mapping[str, list[ArgumentGuard]], *, others: bool) -> list[str]:
    """The unguarded parameters that a standard validator looks at: those whose names it knows.

    If there are none: with `others` all, otherwise none.
    """
    texts = [p.name for p in tool.function.signature.parameters if p.name not in found]
    meant = [text for text in texts if text in STANDARD_VALIDATORS[name][1]] or (texts if others else [])
    if others and not meant:
        raise UsageError(
            f"tool {tool.name!r}: validator={name!r} has no argument to look at",
            where=tool.where,
            fix="drop it, or say validator='none'",
        )
    return meant


def _standard_check(name: str, meant: list[str]) -> ArgumentCheck:
    judge, _ = STANDARD_VALIDATORS[name]

    async def check(egress: Egress | None, arguments: dict[str, Any]) -> None:
        judged = [judge(text) for parameter in meant for text in _texts(arguments.get(parameter))]
        await _check_hosts(egress, [(one, Url()) for one in judged if isinstance(one, PublicUrl)])

    return check


async def check_noted_urls(egress: Egress | None, arguments: dict[str, Any]) -> None:
    """Look at the URLs that were noted while the arguments were validated. Raises Rejected."""
    await _check_hosts(egress, VALIDATED_URLS.get() or ())


async def check_noted_uploads(egress: Egress | None, arguments: dict[str, Any]) -> None:
    """Judge the links of the files that were noted while the arguments were validated. Raises Rejected."""
    for upload in VALIDATED_UPLOADS.get() or ():
        await upload.judge_link(egress)


async def _check_hosts(egress: Egress | None, urls: Iterable[tuple[PublicUrl, Url]]) -> None:
    """Look each host up once. Raises Rejected if one of its addresses is not public, or if there are too many hosts."""
    from defserve.guard.network import parse_authority

    hosts = {(parse_authority(url), guard): url for url, guard in urls}
    if len(hosts) > MAX_URL_HOSTS:
        violation = f"they name more than {MAX_URL_HOSTS} hosts in one call"
        raise Rejected("URLs refused", [violation], guard=PublicUrl.validator)
    for (_, guard), url in hosts.items():
        await _check_addresses(egress, url, guard)


async def _check_addresses(egress: Egress | None, url: PublicUrl, guard: Url) -> None:
    """Raises Rejected if one of the host's addresses is not public."""
    from defserve.guard.network import Egress, judge_url_and_addresses

    private = (*guard.private, *(egress.private if egress else ()))
    verdict = await judge_url_and_addresses(url, Egress(schemes=guard.schemes, ports=None, private=private))
    require_allowed(verdict, "URL refused", guard.validator)


def _texts(value: Any) -> Iterator[str]:
    """Every text in an argument, at any depth and in any type."""
    waiting: list[Any] = [value]
    while waiting:
        one: Any = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, bytes | bytearray):
            yield one.decode(errors="replace")
        elif is_mapping(one):
            waiting += [*one.keys(), *one.values()]
        elif is_array(one) or isinstance(one, set | frozenset):
            waiting += cast("Collection[Any]", one)
        elif hasattr(one, "get_secret_value"):
            waiting.append(one.get_secret_value())
        elif one is not None and not isinstance(one, int | float | complex | ShellCommand):
            # A pydantic URL or a path is judged as text; numbers and times hold none.
            if (members := _members(one)) is not None:
                waiting += members
            elif type(one).__module__ not in ("datetime", "decimal", "fractions", "uuid"):
                yield str(one)


def _members(one: Any) -> list[Any] | None:
    """What an object holds. None if that is unknown."""
    fields: Any = getattr(one, "__dataclass_fields__", None)
    if fields is not None:
        return [getattr(one, name, None) for name in fields]
    if not hasattr(one, "__dict__"):
        return None
    extra: Any = getattr(one, "__pydantic_extra__", None) or {}
    return [*cast("dict[str, Any]", vars(one)).values(), *extra.values()]
