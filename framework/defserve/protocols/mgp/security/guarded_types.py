"""MGP §4.5: guards in the types of parameters, however deep, and unions that would bypass them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, Union, get_args, get_origin

from defserve.binding.arguments.schema import Arguments, fragment
from defserve.errors import UsageError
from defserve.guard.argument_types import GUARDED_TYPES, GUARDS, Code, Shell, Url, Within
from defserve.protocols.mgp.security.union_bypass import UnionCheck
from defserve.wire.jsonvalue import is_mapping

if TYPE_CHECKING:
    from defserve.protocols.mcp.function import Function
    from defserve.protocols.mcp.tools.tools import Tool

Guard: TypeAlias = Shell | Url | Within | Code

_HAVE_FIELDS = ("__dataclass_fields__", "__total__", "_fields")
# Types that accept any text.
_TEXTS = (str, bytes, bytearray, PurePath)


class Guardable(Protocol):
    """What a function is served as: a tool, a resource, a prompt or a completion."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str: ...

    @property
    def function(self) -> Function: ...


def find_guards(item: Guardable) -> dict[str, list[Guard]]:
    """The guards in the types of an item's parameters. Raises UsageError for a union that would bypass one.

    They are those of pydantic's core schema, which is what judges: it knows generics, aliases, and all that a class may
    say of its fields. A class may also say something else than it is: what is in its annotations counts as well.
    """
    found: dict[str, list[Guard]] = {}
    for parameter in item.function.signature.parameters:
        guards = list(_walk(parameter.annotation, {}))
        subject = f"{item.name}: parameter {parameter.name!r}"
        if (core := _core(item, parameter.annotation, subject)) is not None:
            check = UnionCheck(core)
            guards += [guard for guard in check.guards() if guard not in guards]
            if guards:
                _refuse_bypass(check, subject, item.where)
        if guards:
            found[parameter.name] = guards
    return found


def _core(item: Guardable, annotation: Any, subject: str) -> Any:
    """The core schema of a parameter. None beside a schema of the author's own, if the type has no JSON form."""
    try:
        return fragment(annotation, where=item.where, subject=subject).described
    except UsageError:
        if isinstance(item.function.arguments, Arguments):
            raise
        return None


def guards_of(tool: Tool) -> dict[str, list[Guard]]:
    """See `find_guards`. Raises UsageError as well for guards beside a schema of the author's own."""
    found = find_guards(tool)
    if found and not isinstance(tool.function.arguments, Arguments):
        raise UsageError(
            f"{tool.name}: parameter {next(iter(found))!r}: a guarded type judges nothing beside schema=, which"
            " replaces what is made from the types",
            where=tool.where,
            fix="remove schema=, or the guarded type and name a validator= for the tool",
        )
    return found


def _walk(annotation: Any, seen: dict[int, Any]) -> Iterator[Guard]:
    """Every guard in a type. A type that is in it twice is entered once."""
    if id(annotation) in seen:
        return
    seen[id(annotation)] = annotation  # kept alive, so that no other object gets its id
    # What `type Name = …` or a NewType stands for.
    meant = getattr(annotation, "__value__", None) or getattr(annotation, "__supertype__", None)
    if meant is not None:
        yield from _walk(meant, seen)
        return
    if (guard := _own_guard(annotation)) is not None:
        yield guard
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        own = [metadata for metadata in arguments[1:] if isinstance(metadata, GUARDS)]
        yield from own or _walk(arguments[0], seen)
        return
    for inner in arguments or _fields(annotation):
        if not isinstance(inner, str):
            yield from _walk(inner, seen)


def _own_guard(annotation: Any) -> Guard | None:
    """The guard of a type that is judged by itself, or of one that is made from it."""
    bases = annotation.__mro__ if isinstance(annotation, type) else ()
    return next((GUARDED_TYPES[base]() for base in bases if base in GUARDED_TYPES), None)


def _is_guarded(annotation: Any) -> bool:
    # Nothing seen so far counts: a type that was met before is guarded in each of its places.
    return any(True for _ in _walk(annotation, {}))


def _fields(annotation: Any) -> list[Any]:
    """The types of a model's, dataclass', TypedDict's or NamedTuple's fields."""
    if not isinstance(annotation, type):
        return []
    fields = getattr(annotation, "model_fields", None)
    if is_mapping(fields):
        return [Annotated[f.annotation, *f.metadata] if f.metadata else f.annotation for f in fields.values()]
    if any(hasattr(annotation, mark) for mark in _HAVE_FIELDS):
        from typing import get_type_hints

        try:
            return list(get_type_hints(annotation, include_extras=True).values())
        except (NameError, TypeError):
            return []
    return []


def _refuse_bypass(check: UnionCheck, subject: str, place: str) -> None:
    """Refuse a union that lets through, by one branch, what another one would have judged."""
    if (other := check.find_bypass()) is not None:
        raise UsageError(
            f"{subject}: a guarded type is in a union with {other}, which accepts what the guard refuses",
            where=place,
            fix="remove that type from the union, or guard it too",
        )
    if check.has_late_guard():
        raise UsageError(
            f"{subject}: a guarded type is in an Iterable, which is judged only while the function reads it",
            where=place,
            fix="write list[…] instead of Iterable[…]",
        )


def _unguarded(given: Any, within: tuple[Any, ...] = ()) -> Any:
    """The JSON that a type accepts, as a type without guards: `str` for any text, `dict` for guarded fields.

    `within`: the `type Name = …` that it is a part of. Such a name may hold itself.
    """
    if given in within:
        return given
    if (annotation := getattr(given, "__value__", None)) is not None:
        return _unguarded(annotation, (*within, given))
    annotation = getattr(given, "__supertype__", given)
    if inspect.isclass(annotation) and (_own_guard(annotation) or issubclass(annotation, _TEXTS)):
        return str
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _unguarded(arguments[0], within)
    if origin is dict or (origin is None and _is_guarded(annotation)):
        return dict
    if origin is None:
        return annotation
    return (origin, *(inner if isinstance(inner, str) else _unguarded(inner, within) for inner in arguments))


def takes_text(annotation: Any) -> bool:
    """Whether a value may be plain text."""
    branches = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return any(_unguarded(branch) is str for branch in branches)
