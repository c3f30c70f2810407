"""MGP §4.5: validators, applied by the server itself before the function runs; and the author's own beside them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from defserve.errors import Rejected, UsageError
from defserve.guard.arguments import Code, PublicUrl, Shell, ShellCommand, Url, checked
from defserve.guard.verdict import Verdict
from defserve.protocols.mgp.security.guarded_types import Guard, takes_text
from defserve.protocols.mgp.security.security import Security
from defserve.wire.jsonvalue import is_array, is_mapping

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.extension import MGP

Watch: TypeAlias = Callable[["MGP", dict[str, Any]], Awaitable[None]]
Judge: TypeAlias = Callable[[str], object]

_COMMANDS = frozenset({"command", "cmd", "shell", "script", "commandline"})

# A standard validator, what it makes of a text, and the parameters it is meant for.
STANDARD: Mapping[str, tuple[Judge, frozenset[str]]] = {
    "sandbox": (Shell().command, _COMMANDS),
    "readonly": (Shell(mode="readonly").command, _COMMANDS),
    "network_restricted": (Url().url, frozenset({"url", "uri", "endpoint", "href", "link", "address"})),
    "code_safety": (Code().source, frozenset({"code", "source", "script", "program", "snippet"})),
}
# Parameters whose name alone says that somebody should look at them.
TELLING = {"command": "ShellCommand", "cmd": "ShellCommand", "url": "PublicUrl", "code": "Annotated[str, Code()]"}


class UnguardedParameter(UserWarning):
    """A parameter that is usually dangerous, and that no guard looks at."""


# -- the author's own ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Validator:
    """A function of the author's that judges the arguments of a call; see `@validator`."""

    function: Callable[..., Any]
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def judge(self, mgp: MGP, arguments: dict[str, Any]) -> None:
        """Raises Rejected where the function objects."""
        wanted = inspect.signature(self.function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted.values())
        given = arguments if takes_all else {name: arguments[name] for name in wanted if name in arguments}
        found = self.function(**given)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, Verdict):
            if not found.allowed:
                raise Rejected(f"{self.name} refused the call", found.violations, found.hints, guard=self.name)
        elif isinstance(found, str):
            raise Rejected(f"{self.name} refused the call", [found], guard=self.name)
        elif found is False:
            raise Rejected(f"{self.name} refused the call", ["not allowed"], guard=self.name)


@overload
def validator(function: Callable[..., Any], /) -> Validator: ...
@overload
def validator(*, name: str) -> Callable[[Callable[..., Any]], Validator]: ...
def validator(function: Any = None, /, *, name: str | None = None) -> Any:
    """Make a function a validator for `@dangerous(…, validator=[…])`.

    It takes those arguments of the tool that it names (or all, with `**arguments`), and objects by returning a text,
    False or a `Verdict` that does not allow; None, True and an allowing verdict let the call pass. Async works too.
    """

    def make(function: Callable[..., Any]) -> Validator:
        if not callable(function):
            raise UsageError(f"@validator marks functions, not {function!r}", fix='give the name: @validator(name="…")')
        return Validator(function, name or function.__name__)

    return make(function) if function is not None else make


# -- reading a tool --------------------------------------------------------------------------------------


def in_effect(tool: Tool, declared: Security | None, found: Mapping[str, list[Guard]]) -> Security:
    """The declaration completed by what the types of the arguments say. Raises UsageError where the two disagree."""
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
    block: dict[str, Any] = {"level": code.level, "language": "python"}
    if code.max_bytes is not None:
        block["max_code_size_bytes"] = code.max_bytes
    if code.allow is not None:
        block["allowed_imports"] = sorted(code.allow)
    if code.block is not None:
        block["blocked_imports"] = sorted(code.block)
    return block


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


def watches(
    tool: Tool, declared: Security | None, security: Security, found: Mapping[str, list[Guard]]
) -> tuple[Watch, ...]:
    """Who looks at the validated arguments, in order. The guards in the types have looked already.

    A standard validator that the author named looks at what it is meant for, also beside a guarded type.
    """
    made: list[Watch] = []
    named = declared.validators if declared is not None else ()
    covered = {guard.validator for several in found.values() for guard in several}
    for one in security.validators:
        if isinstance(one, Validator):
            made.append(_own(tool, one))
        elif one != "none" and (one not in covered or one in named):
            meant = _meant(tool, one, found, others=one not in covered)
            made += [_over_texts(one, meant)] if meant else []
    if any(isinstance(guard, Url) for several in found.values() for guard in several):
        made.append(_resolving(found))
    return tuple(made)


def _own(tool: Tool, validator: Validator) -> Watch:
    """A validator of the author's, which sees defaults where the caller left something out."""
    defaults = {
        p.name: p.default for p in tool.function.signature.parameters if p.default is not inspect.Parameter.empty
    }
    known = {p.name for p in tool.function.signature.parameters}
    for wanted in inspect.signature(validator.function).parameters.values():
        is_optional = wanted.default is not wanted.empty or wanted.kind in (wanted.VAR_KEYWORD, wanted.VAR_POSITIONAL)
        if wanted.name not in known and not is_optional:
            raise UsageError(
                f"tool {tool.name!r} has no argument {wanted.name!r}, which its validator {validator.name!r} looks at",
                where=tool.where,
                fix=f"name one of {', '.join(sorted(known)) or 'its arguments'}, or take them all: **arguments",
            )

    async def watch(mgp: MGP, arguments: dict[str, Any]) -> None:
        await validator.judge(mgp, {**defaults, **arguments})

    return watch


def _meant(tool: Tool, name: str, found: Mapping[str, list[Guard]], *, others: bool) -> list[str]:
    """The parameters a standard validator looks at: by their names, or, where none has such a name, all `others`."""
    texts = [p.name for p in tool.function.signature.parameters if p.name not in found]
    meant = [text for text in texts if text in STANDARD[name][1]] or (texts if others else [])
    if others and not meant:
        raise UsageError(
            f"tool {tool.name!r}: validator={name!r} has no argument to look at",
            where=tool.where,
            fix="drop it, or say validator='none'",
        )
    return meant


def _over_texts(name: str, meant: list[str]) -> Watch:
    judge, _ = STANDARD[name]

    async def watch(mgp: MGP, arguments: dict[str, Any]) -> None:
        for parameter in meant:
            for text in _texts(arguments.get(parameter)):
                judged = judge(text)
                if isinstance(judged, PublicUrl):
                    await _resolved(mgp, judged, Url())

    return watch


def _texts(value: Any) -> Iterator[str]:
    """Every text in an argument, wherever it is nested and whatever type holds it."""
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
            # A URL of pydantic's or a path is its text; numbers and times have none to judge.
            members = _members(one)
            if members is not None:
                waiting += members
            elif type(one).__module__ not in ("datetime", "decimal", "fractions", "uuid"):
                yield str(one)


def _members(one: Any) -> list[Any] | None:
    """What an object holds; None where it does not say."""
    fields: Any = getattr(one, "__dataclass_fields__", None)
    if fields is not None:
        return [getattr(one, name, None) for name in fields]
    if not hasattr(one, "__dict__"):
        return None
    extra: Any = getattr(one, "__pydantic_extra__", None) or {}
    return [*cast("dict[str, Any]", vars(one)).values(), *extra.values()]


def _resolving(found: Mapping[str, list[Guard]]) -> Watch:
    options = {name: [g for g in guards if isinstance(g, Url)] for name, guards in found.items()}

    async def watch(mgp: MGP, arguments: dict[str, Any]) -> None:
        for name, (guard, *_) in ((name, guards) for name, guards in options.items() if guards):
            for url in _texts(arguments.get(name)):
                if isinstance(url, PublicUrl):
                    await _resolved(mgp, url, guard)

    return watch


async def _resolved(mgp: MGP, url: PublicUrl, guard: Url) -> None:
    """Raises Rejected where one of the host's addresses is not public."""
    from defserve.net.egress import Egress
    from defserve.net.resolve import check

    private = (*guard.private, *(mgp.options.egress.private if mgp.options.egress else ()))
    egress = Egress(schemes=guard.schemes, ports=None, private=private)
    checked(await check(url, egress), "URL refused", guard.validator)
