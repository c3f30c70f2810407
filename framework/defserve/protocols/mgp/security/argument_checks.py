"""MGP §4.5: checks of the validated arguments of a call, before the function runs. Prepared at registration."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from defserve.errors import UsageError
from defserve.guard.argument_types import URLS, PublicUrl, ShellCommand, Url
from defserve.guard.verdict import checked
from defserve.protocols.mgp.security.guarded_types import Guard
from defserve.protocols.mgp.security.security import Security
from defserve.protocols.mgp.security.validators import STANDARD, Validator
from defserve.wire.jsonvalue import is_array, is_mapping

if TYPE_CHECKING:
    from defserve.net.egress import Egress
    from defserve.protocols.mcp.tools.tools import Tool

ArgumentCheck: TypeAlias = "Callable[[Egress | None, dict[str, Any]], Awaitable[None]]"
"""Takes the server's own egress rules and the arguments. Raises Rejected."""


def argument_checks(
    tool: Tool, declared: Security | None, security: Security, found: Mapping[str, list[Guard]]
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
    has_urls = any(isinstance(guard, Url) for guards in found.values() for guard in guards)
    return (*made, check_noted_urls) if has_urls else tuple(made)


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
        await validator.judge({**defaults, **arguments})

    return check


def _meant(tool: Tool, name: str, found: Mapping[str, list[Guard]], *, others: bool) -> list[str]:
    """The unguarded parameters that a standard validator looks at: those whose names it knows.

    If there are none: with `others` all, otherwise none.
    """
    texts = [p.name for p in tool.function.signature.parameters if p.name not in found]
    meant = [text for text in texts if text in STANDARD[name][1]] or (texts if others else [])
    if others and not meant:
        raise UsageError(
            f"tool {tool.name!r}: validator={name!r} has no argument to look at",
            where=tool.where,
            fix="drop it, or say validator='none'",
        )
    return meant


def _standard_check(name: str, meant: list[str]) -> ArgumentCheck:
    judge, _ = STANDARD[name]

    async def check(egress: Egress | None, arguments: dict[str, Any]) -> None:
        for parameter in meant:
            for text in _texts(arguments.get(parameter)):
                judged = judge(text)
                if isinstance(judged, PublicUrl):
                    await _check_addresses(egress, judged, Url())

    return check


async def check_noted_urls(egress: Egress | None, arguments: dict[str, Any]) -> None:
    """Look at the URLs that were noted while the arguments were validated. Raises Rejected."""
    for url, guard in dict.fromkeys(URLS.get() or ()):
        await _check_addresses(egress, url, guard)


async def _check_addresses(egress: Egress | None, url: PublicUrl, guard: Url) -> None:
    """Raises Rejected if one of the host's addresses is not public."""
    from defserve.net.egress import Egress
    from defserve.net.resolve import check

    private = (*guard.private, *(egress.private if egress else ()))
    verdict = await check(url, Egress(schemes=guard.schemes, ports=None, private=private))
    checked(verdict, "URL refused", guard.validator)


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
