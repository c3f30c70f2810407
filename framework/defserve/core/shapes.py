"""Shapes of messages: the members of an object on the wire, declared once, for who writes it and for who reads it.

How it works: a shape is a frozen dataclass whose fields are made by `wire_member`. From them come the reader
(`WireShape.from_wire`) and the writer (`to_wire`), so that a server and a client of one protocol cannot disagree.

    @wire_shape
    class Usage(WireShape):
        input_tokens: int = wire_member("inputTokens", INTEGER, default=0)
        output_tokens: int = wire_member("outputTokens", INTEGER, default=0)

A reader is strict by default: a member that must be there and is not, or that has another kind, is an InvalidParams
that names it. A *lenient* member with the wrong kind has its default, as if it were missing: real peers send much that
the texts do not say, and what only informs must not break a conversation.

Params of which one or two members matter need no shape: `read_member` reads one by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, dataclass_transform, overload

from defserve.core.json_values import is_array, is_object
from defserve.errors import InvalidParams

JsonObject = dict[str, Any]
ShapeClass = TypeVar("ShapeClass", bound=type)
Value = TypeVar("Value")
Default = TypeVar("Default")
ShapeT = TypeVar("ShapeT", bound="WireShape")


@dataclass(frozen=True, slots=True)
class MemberKind(Generic[Value]):
    """What a member may hold. `read` gives the value for the program; `write` is its inverse.

    `read` raises ValueError for another value: with a text about the member ("must have at most 9 characters"), or
    without one if the description says it all.
    """

    description: str
    read: Callable[[Any], Value]
    write: Callable[[Any], Any] = lambda value: value


def make_checked_kind(description: str, is_valid: Callable[[Any], bool]) -> MemberKind[Any]:
    """A value that is read as it is, if it is valid. The description says what it must be."""

    def read(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError
        return value

    return MemberKind(description, read)


def restrict_kind(kind: MemberKind[Value], is_valid: Callable[[Value], object], problem: str = "") -> MemberKind[Value]:
    """The same kind, without values that have a problem: "must not be empty". By default, the description says it."""

    def read(value: Any) -> Value:
        if not is_valid(found := kind.read(value)):
            raise ValueError(problem)
        return found

    return replace(kind, read=read)


def bounded_text(length: int) -> MemberKind[str]:
    """A text that is short enough to remember."""
    return restrict_kind(TEXT, lambda text: len(text) <= length, f"must have at most {length} characters")


def one_of(*values: str) -> MemberKind[str]:
    """One of these texts."""
    return make_checked_kind(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


def list_of_texts(description: str) -> MemberKind[list[str]]:
    """A list of nothing but texts: "a list of names"."""
    return make_checked_kind(
        description, lambda value: is_array(value) and all(isinstance(item, str) for item in value)
    )


def bounded_list_of(kind: MemberKind[Value], most: int) -> MemberKind[tuple[Value, ...]]:
    """A list of a few texts, read as a tuple. An item of another kind is refused, with the text of its kind."""

    def read(value: Any) -> tuple[Value, ...]:
        if not is_array(value) or len(value) > most:
            raise ValueError
        try:
            return tuple(map(kind.read, value))
        except ValueError as error:
            raise ValueError(str(error) or f"must be {kind.description}") from None

    return MemberKind(f"a list of at most {most} texts", read)


def distinct_list_of(kind: MemberKind[Any]) -> MemberKind[tuple[Any, ...]]:
    """A list of a kind, with each item once."""
    return MemberKind(kind.description, lambda value: tuple(dict.fromkeys(kind.read(value))), list)


def list_of(kind: MemberKind[Value]) -> MemberKind[tuple[Value, ...]]:
    """A list, read as a tuple. Items of another kind are left out."""

    def read(value: Any) -> tuple[Value, ...]:
        if not is_array(value):
            raise ValueError
        items: list[Value] = []
        for item in value:
            try:
                items.append(kind.read(item))
            except ValueError:
                continue
        return tuple(items)

    return MemberKind("a list", read, lambda items: [kind.write(item) for item in items])


def nested_shape(made: type[ShapeT]) -> MemberKind[ShapeT]:
    """An object that has a shape of its own. What is wrong in it is told by its own reader."""

    def read(value: Any) -> ShapeT:
        if not is_object(value):
            raise ValueError
        return made.from_wire(value)

    return MemberKind("an object", read, lambda value: value.to_wire())


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number. In Python, true and false are, too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


ANY_VALUE: MemberKind[Any] = MemberKind("any value", lambda value: value)
TEXT: MemberKind[str] = make_checked_kind("a string", lambda value: isinstance(value, str))
INTEGER: MemberKind[int] = make_checked_kind(
    "an integer", lambda value: isinstance(value, int) and not isinstance(value, bool)
)
NUMBER: MemberKind[float] = make_checked_kind("a number", is_number)
BOOLEAN: MemberKind[bool] = make_checked_kind("true or false", lambda value: isinstance(value, bool))
OBJECT: MemberKind[JsonObject] = replace(make_checked_kind("an object", is_object), write=dict)
TEXT_LIST = list_of(TEXT)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    kind: MemberKind[Any]
    lenient: bool
    nullable: bool
    label: str
    omit: bool


def wire_member(
    name: str,
    kind: MemberKind[Any],
    default: Any = MISSING,
    *,
    default_factory: Any = MISSING,
    lenient: bool = False,
    nullable: bool = True,
    label: str = "",
    omit: bool = True,
) -> Any:
    """A member of a shape: its name on the wire and its kind. The rest is as for `read_member`.

    A member that has its default is not written, unless `omit` is False.
    """
    metadata = {"member": _Member(name, kind, lenient, nullable, label or name, omit)}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@overload
def wire_shape(made: ShapeClass) -> ShapeClass: ...
@overload
def wire_shape(*, kw_only: bool) -> Callable[[ShapeClass], ShapeClass]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(wire_member, field))
def wire_shape(made: Any = None, *, kw_only: bool = False) -> Any:
    """Make a frozen dataclass of a `WireShape`, with its members in the order in which they are written."""

    def make(cls: Any) -> Any:
        frozen: Any = dataclass(frozen=True, kw_only=kw_only)(cls)
        frozen._members = tuple((one, one.metadata["member"]) for one in fields(frozen) if "member" in one.metadata)
        frozen._has_raw = any(one.name == "raw" for one in fields(frozen))
        return frozen

    return make if made is None else make(made)


class WireShape:
    """The base of every shape. A field that is no `member` is for the program alone, and has a default.

    A field `raw` gets the object as it came.
    """

    __slots__ = ()
    _members: ClassVar[tuple[tuple[Field[Any], _Member], ...]] = ()
    _has_raw: ClassVar[bool] = False

    @classmethod
    def from_wire(cls, value: Mapping[str, Any], **own: Any) -> Self:
        """What a peer sent. `own` are fields that are no members. Raises InvalidParams for what is wrong."""
        if cls._has_raw:
            own["raw"] = value
        for one, its in cls._members:
            own[one.name] = read_member(
                value,
                its.name,
                its.kind,
                _default_of(one),
                lenient=its.lenient,
                nullable=its.nullable,
                label=its.label,
            )
        made = cls(**own)
        made.check_members()
        return made

    @classmethod
    def extend(cls, other: WireShape, **more: Any) -> Self:
        """This shape with the members of one that it is a subclass of, and more."""
        return cls(**{one.name: getattr(other, one.name) for one, _ in other._members}, **more)

    def check_members(self) -> None:
        """What a peer must get right about several members together. Raises InvalidParams."""

    def to_wire(self) -> JsonObject:
        """The object for the wire, with its members in the order of the fields."""
        written: JsonObject = {}
        for one, its in self._members:
            value = getattr(self, one.name)
            if not (its.omit and value == _default_of(one)):
                written[its.name] = its.kind.write(value)
        return written


@overload
def read_member(value: Mapping[str, Any], name: str, kind: MemberKind[Value], *, label: str = "") -> Value: ...
@overload
def read_member(
    value: Mapping[str, Any],
    name: str,
    kind: MemberKind[Value],
    default: Default,
    *,
    lenient: bool = False,
    nullable: bool = True,
    label: str = "",
) -> Value | Default: ...
def read_member(
    value: Mapping[str, Any],
    name: str,
    kind: MemberKind[Any],
    default: Any = MISSING,
    *,
    lenient: bool = False,
    nullable: bool = True,
    label: str = "",
) -> Any:
    """One member of an object. Raises InvalidParams for one of another kind, by its name or `label`.

    Without a default it must be there. With one, a missing member has it; so has null if it is `nullable`, and a member
    of another kind if it is `lenient`.
    """
    has_default = default is not MISSING
    found = value.get(name)
    if found is None and has_default and (nullable or name not in value):
        return default
    try:
        return kind.read(found)
    except ValueError as error:
        if lenient and has_default:
            return default
        problem = str(error) or f"must be {kind.description}"
        raise InvalidParams(f"Invalid params: {label or name} {problem}") from None


def _default_of(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else cast(Any, one.default)
