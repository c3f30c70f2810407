"""`typing.TypedDict` on Python 3.11 rebuilt with typing_extensions, because pydantic refuses the former there."""

from __future__ import annotations

import typing
from types import GenericAlias, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typing_extensions


def modern(annotation: Any, made: dict[Any, Any] | None = None) -> Any:
    """The annotation with every old TypedDict replaced. A recursive one stays, and pydantic refuses it."""
    made = {} if made is None else made
    if typing.is_typeddict(annotation):
        return _rebuilt(annotation, made) if type(annotation).__module__ == "typing" else annotation
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is None or not args:
        return annotation
    if origin is Annotated:
        return Annotated[(modern(annotation.__origin__, made), *annotation.__metadata__)]  # type: ignore[return-value]
    changed = tuple(modern(arg, made) for arg in args)
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return annotation
    if origin in (Union, UnionType):
        return Union[changed]  # type: ignore[return-value]  # noqa: UP007
    if isinstance(annotation, GenericAlias):
        return origin[changed]
    return annotation.copy_with(changed)


def _rebuilt(old: Any, made: dict[Any, Any]) -> Any:
    if old in made:
        return made[old]
    made[old] = old
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(old, include_extras=True).items():
        hint, said = _unqualified(hint)
        # Python read no qualifier in an annotation that was still a text.
        optional = said is typing.NotRequired if said is not None else name in old.__optional_keys__
        fields[name] = (typing.NotRequired if optional else typing.Required)[modern(hint, made)]
    new: Any = typing_extensions.TypedDict(old.__name__, fields)  # type: ignore[misc]
    new.__module__, new.__qualname__, new.__doc__ = old.__module__, old.__qualname__, old.__doc__
    if (config := getattr(old, "__pydantic_config__", None)) is not None:
        new.__pydantic_config__ = config
    made[old] = new
    return new


def _unqualified(hint: Any) -> tuple[Any, Any]:
    """A field's type without `Required` or `NotRequired`, and which of the two it had. `Annotated` may be around it."""
    origin = get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return _unqualified(get_args(hint)[0])[0], origin
    if origin is Annotated:
        inner, said = _unqualified(hint.__origin__)
        return (Annotated[(inner, *hint.__metadata__)] if said is not None else hint), said  # type: ignore[return-value]
    return hint, None
