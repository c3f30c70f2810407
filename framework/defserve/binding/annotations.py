"""Reading annotations without importing pydantic: the types in them, and the descriptions beside the types."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin


def peel(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type inside `Annotated`, and the metadata beside it."""
    if not isinstance(annotation, type) and get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; any other annotation is its own only member."""
    if not isinstance(annotation, type) and get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)
    return (annotation,)


def accepts_none(annotation: Any) -> bool:
    inner, _ = peel(annotation)
    if inner in (Any, object, None, NoneType):
        return True
    options = members(inner)
    return len(options) > 1 and any(map(accepts_none, options))


def kind_of(value: Any) -> type[Any]:
    return value.__class__


def is_field(metadata: Any) -> bool:
    """Whether this is what pydantic's `Field(…)` returns, or FastAPI's `Path(…)`. Then pydantic is imported already."""
    return any(
        kind.__name__ == "FieldInfo" and kind.__module__ == "pydantic.fields" for kind in kind_of(metadata).__mro__
    )


def is_doc(metadata: Any) -> bool:
    """Whether this is `typing_extensions.Doc`."""
    return type(metadata).__name__ == "Doc" and isinstance(getattr(metadata, "documentation", None), str)


def described(metadata: tuple[Any, ...]) -> str | None:
    """The description written beside a type: `Field(description=…)`, `Doc(…)` or a bare string."""
    for item in reversed(metadata):
        if isinstance(item, str):
            return item
        if is_doc(item):
            return item.documentation
        if is_field(item) and item.description:
            return item.description
    return None


def spelled(annotation: Any) -> str:
    """The annotation as the author would write it."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")
