"""Shapes of messages: the members of an object on the wire, declared once, for who writes it and for who reads it.

How it works: a shape is a frozen dataclass whose fields are made by `member`. From them come the reader
(`Shape.from_wire`) and the writer (`wire`), so that a server and a client of one protocol cannot disagree.

    @shape
    class Usage(Shape):
        input_tokens: int = member("inputTokens", INTEGER, 0)
        output_tokens: int = member("outputTokens", INTEGER, 0)

A reader is strict by default: a member that must be there and is not, or that has another kind, is an InvalidParams
that names it. A *lenient* member with the wrong kind has its default, as if it were missing: real peers send much that
the texts do not say, and what only informs must not break a conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform, overload

from defserve.core.json_values import is_array, is_object
from defserve.errors import InvalidParams

Json = dict[str, Any]
ShapeClass = TypeVar("ShapeClass", bound=type)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a member may hold. `read` gives the value for the program; `write` is its inverse.

    `read` raises ValueError for another value: with a text about the member ("must have at most 9 characters"), or
    without one if the description says it all.
    """

    description: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value


def text_up_to(length: int) -> Kind:
    """A text that is short enough to remember."""

    def read(value: Any) -> Any:
        if len(TEXT.read(value)) > length:
            raise ValueError(f"must have at most {length} characters")
        return value

    return Kind("a string", read)


def one_of(*values: str) -> Kind:
    """One of these texts."""
    return Kind(f"one of {', '.join(values)}", _accept(lambda value: isinstance(value, str) and value in values))


def list_of(kind: Kind) -> Kind:
    """A list, read as a tuple. Items of another kind are left out."""

    def read(value: Any) -> Any:
        if not is_array(value):
            raise ValueError
        items: list[Any] = []
        for item in value:
            try:
                items.append(kind.read(item))
            except ValueError:
                continue
        return tuple(items)

    return Kind("a list", read, lambda items: [kind.write(item) for item in items])


def nested(made: type[Shape]) -> Kind:
    """An object that has a shape of its own. What is wrong in it is told by its own reader."""

    def read(value: Any) -> Any:
        if not is_object(value):
            raise ValueError
        return made.from_wire(value)

    return Kind("an object", read, lambda value: value.wire())


def _accept(is_valid: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError
        return value

    return read


ANYTHING = Kind("any value", lambda value: value)
TEXT = Kind("a string", _accept(lambda value: isinstance(value, str)))
INTEGER = Kind("an integer", _accept(lambda value: isinstance(value, int) and not isinstance(value, bool)))
NUMBER = Kind("a number", _accept(lambda value: isinstance(value, int | float) and not isinstance(value, bool)))
FLAG = Kind("true or false", _accept(lambda value: isinstance(value, bool)))
OBJECT = Kind("an object", _accept(is_object), dict)
TEXTS = list_of(TEXT)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    kind: Kind
    lenient: bool
    omit: bool


def member(
    name: str,
    kind: Kind,
    default: Any = MISSING,
    *,
    default_factory: Any = MISSING,
    lenient: bool = False,
    omit: bool = True,
) -> Any:
    """A member of a shape: its name on the wire and its kind.

    Without a default it must be there. With one, a missing or null member has it, and it is not written unless `omit`
    is False.
    """
    metadata = {"member": _Member(name, kind, lenient, omit)}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@overload
def shape(made: ShapeClass) -> ShapeClass: ...
@overload
def shape(*, kw_only: bool) -> Callable[[ShapeClass], ShapeClass]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(member, field))
def shape(made: Any = None, *, kw_only: bool = False) -> Any:
    """Make a frozen dataclass of a `Shape`, with its members in the order in which they are written."""

    def make(cls: Any) -> Any:
        frozen: Any = dataclass(frozen=True, kw_only=kw_only)(cls)
        frozen.members = tuple((one, one.metadata["member"]) for one in fields(frozen) if "member" in one.metadata)
        frozen.has_raw = any(one.name == "raw" for one in fields(frozen))
        return frozen

    return make if made is None else make(made)


class Shape:
    """The base of every shape. A field that is no `member` is for the program alone, and has a default.

    A field `raw` gets the object as it came.
    """

    __slots__ = ()
    members: ClassVar[tuple[tuple[Field[Any], _Member], ...]] = ()
    has_raw: ClassVar[bool] = False

    @classmethod
    def from_wire(cls, value: Mapping[str, Any], **own: Any) -> Self:
        """What a peer sent. `own` are fields that are no members. Raises InvalidParams for what is wrong."""
        if cls.has_raw:
            own["raw"] = value
        return cls(**{one.name: _read_member(one, its, value) for one, its in cls.members}, **own)

    def wire(self) -> Json:
        """The object for the wire, with its members in the order of the fields."""
        written: Json = {}
        for one, its in self.members:
            value = getattr(self, one.name)
            if not (its.omit and value == _default_of(one)):
                written[its.name] = its.kind.write(value)
        return written


def _read_member(one: Field[Any], its: _Member, value: Mapping[str, Any]) -> Any:
    found, default = value.get(its.name), _default_of(one)
    if found is None and default is not MISSING:
        return default
    try:
        return its.kind.read(found)
    except ValueError as error:
        if its.lenient and default is not MISSING:
            return default
        raise InvalidParams(f"Invalid params: {its.name} {str(error) or f'must be {its.kind.description}'}") from None


def _default_of(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else cast(Any, one.default)
