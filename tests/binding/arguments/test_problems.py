"""Bad arguments are told to a model: one line a field, no secrets."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, Field, HttpUrl, SecretBytes, SecretStr, create_model, field_validator

from defserve.binding.arguments import ArgumentsSchema
from defserve.binding.signature import read_signature
from defserve.errors import BadArguments
from tests.rows import for_each_row


def arguments(function: Any) -> ArgumentsSchema:
    return ArgumentsSchema.from_signature(read_signature(function, lambda annotation: None))


def told(annotation: Any, *values: Any) -> list[str]:
    """What is said of the value of a parameter `x`; without a value, of its absence."""
    return str(refusal(annotation, *values)).split("\n")


def refusal(annotation: Any, *values: Any) -> BadArguments:
    def tool(x): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["x"] = annotation
    with pytest.raises(BadArguments) as caught:
        arguments(tool).validate(dict(zip("x", values, strict=False)))
    return caught.value


class Item(BaseModel):
    qty: int


class Order(BaseModel):
    items: list[Item]


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int


class Strict(BaseModel, extra="forbid"):
    name: str = ""


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd; give an even number")
        return value


def positive(value: int) -> int:
    if value < 0:
        raise AssertionError("must be\npositive")
    return value


PetByKind = Annotated[Cat | Dog, Field(discriminator="kind")]

LINES: list[tuple[Any, Any, str]] = [
    (int, "x", 'x: expected integer, got "x"'),
    (int, 1.5, "x: expected integer, got 1.5"),
    (float, [], "x: expected number, got []"),
    (bool, "maybe", 'x: expected boolean, got "maybe"'),
    (str, 3, "x: expected string, got 3"),
    (str, None, "x: expected string, got null"),
    (list[int], 3, "x: expected array, got 3"),
    (list[int], [1, "b"], 'x[1]: expected integer, got "b"'),
    (dict[str, int], {"a": "b"}, 'x.a: expected integer, got "b"'),
    (dict[str, int], {"a b": "c"}, 'x["a b"]: expected integer, got "c"'),
    (tuple[int, int], [1], "x[1]: missing"),
    (Item, [], "x: expected object, got []"),
    (Item, {}, "x.qty: missing"),
    (Order, {"items": [{"qty": "x"}]}, 'x.items[0].qty: expected integer, got "x"'),
    (list[Item], '[{"qty": "y"}]', 'x[0].qty: expected integer, got "y"'),
    (list[Item], "[oops", 'x: expected array, got "[oops"'),
    (Literal["a", "b"], "c", 'x: expected "a" or "b", got "c"'),
    (Literal[True, "None", None], 2, 'x: expected true, "None" or null, got 2'),
    (Annotated[int, Field(ge=0)], -1, "x: must be at least 0, got -1"),
    (Annotated[int, Path(ge=0)], -1, "x: must be at least 0, got -1"),
    (Annotated[str, Query(max_length=1)], "ab", 'x: must have at most 1 character, got "ab"'),
    (Annotated[int, Field(gt=0)], 0, "x: must be greater than 0, got 0"),
    (Annotated[int, Field(le=9)], 10, "x: must be at most 9, got 10"),
    (Annotated[int, Field(lt=9)], 9, "x: must be less than 9, got 9"),
    (Annotated[int, Field(multiple_of=2)], 3, "x: must be a multiple of 2, got 3"),
    (Annotated[str, Field(min_length=2)], "a", 'x: must have at least 2 characters, got "a"'),
    (Annotated[str, Field(max_length=1)], "ab", 'x: must have at most 1 character, got "ab"'),
    (Annotated[str, Field(pattern="^a$")], "b", 'x: must match the pattern ^a$, got "b"'),
    (Annotated[list[int], Field(min_length=1)], [], "x: must have at least 1 item, got 0"),
    (datetime.date, "soon", 'x: expected date (YYYY-MM-DD), got "soon"'),
    (int | list[str], {"a": 1}, 'x: expected integer or array, got {"a":1}'),
    (int | list[int], ["a"], 'x[0]: expected integer, got "a"'),
    (int | Order, {"items": [{}]}, "x.items[0].qty: missing"),
    (Cat | Dog | int, {"kind": "cow"}, 'x.kind: expected "cat" or "dog", got "cow"'),
    (list[Cat | Dog], [{"kind": 1}], 'x[0].kind: expected "cat" or "dog", got 1'),
    (int | Annotated[str, Field(min_length=3)], "a", 'x: must have at least 3 characters, got "a"'),
    (PetByKind, {"kind": "cow"}, 'x.kind: expected "cat" or "dog", got "cow"'),
    (PetByKind, {}, "x.kind: missing"),
    (PetByKind, {"kind": "dog"}, "x.age: missing"),
    (Strict, {"nam": 1}, 'x.nam: unknown field; did you mean "name"?'),
    (Strict, {"zzz": 1}, "x.zzz: unknown field"),
    (Even, {"number": 3}, "x.number: 3 is odd; give an even number"),
    (Annotated[int, AfterValidator(positive)], -1, "x: must be positive"),
]


@for_each_row(("annotation", "value", "line"), LINES, ids=[line[2] for line in LINES])
def test_each_problem_is_one_line(annotation: Any, value: Any, line: str) -> None:
    assert told(annotation, value) == [line]


def test_what_is_missing_is_named() -> None:
    assert told(int) == ["x: missing"]

    def tool(a: int) -> None: ...

    # No arguments at all, and null, which some clients send for them.
    for none in ({}, None):
        with pytest.raises(BadArguments, match="^a: missing$"):
            arguments(tool).validate(none)


@for_each_row("given", [[1], "text", 3, True])
def test_arguments_that_are_no_object_are_refused(given: Any) -> None:
    def tool(a: int = 1) -> None: ...

    with pytest.raises(BadArguments, match="^arguments must be an object, got "):
        arguments(tool).validate(given)


@for_each_row(
    ("name", "line"),
    [
        ("limt", 'unknown argument "limt"; did you mean "limit"?'),
        ("zzz", 'unknown argument "zzz"; known: query, limit'),
    ],
)
def test_an_unknown_argument_is_refused_with_a_hint(name: str, line: str) -> None:
    def tool(query: str, limit: int = 3) -> None: ...

    with pytest.raises(BadArguments) as caught:
        arguments(tool).validate({"query": "a", name: 1})
    assert str(caught.value) == line


def test_an_injected_parameter_cannot_be_given() -> None:
    def tool(ctx: object) -> None: ...

    made = ArgumentsSchema.from_signature(read_signature(tool, lambda annotation: lambda call: call))
    with pytest.raises(BadArguments, match='unknown argument "ctx"; there are none'):
        made.validate({"ctx": 1})


def test_long_values_are_cut() -> None:
    (line,) = told(int, "x" * 1000)
    assert line.endswith("…") and len(line) < 75


def test_many_problems_are_counted_not_listed() -> None:
    lines = told(list[int], ["x"] * 1000)
    assert len(lines) == 6 and lines[-1] == "and more problems"
    problems = refusal(list[int], ["x"] * 1000).problems
    assert len(problems) == 21 and str(problems[-1]) == "and 980 more problems"


def test_so_many_problems_that_telling_them_takes_long_are_only_counted() -> None:
    wide = create_model("Wide", **{f"f{n}": (int, ...) for n in range(11)})  # type: ignore[call-overload]
    assert told(list[wide], [{}] * 1000) == ["11000 problems: the arguments do not have the shape of the schema"]


def test_of_large_arguments_the_first_problem_is_told() -> None:
    assert told(list[int], [1, "x"] * 1001) == ['x[1]: expected integer, got "x"', "and perhaps more"]


class Login(BaseModel):
    user: str
    password: SecretStr = Field(min_length=8)
    key: SecretBytes | None = None


class Account(BaseModel):
    logins: list[Login]


@for_each_row(
    ("annotation", "value", "line"),
    [
        (SecretStr, 777, "x: expected string, got a number"),
        (SecretStr | int, ["777"], "x: expected string or integer, got an array"),
        (Login, {"user": "u", "password": "777"}, "x.password: must have at least 8 characters, got 3"),
        (Login, {"user": "u", "password": ["777"]}, "x.password: expected string, got an array"),
        (Login, "password=777", "x: expected object, got a string"),
        (Account, {"logins": {"password": "777"}}, "x.logins: expected array, got an object"),
        (Annotated[int, Field(json_schema_extra={"writeOnly": True})], "777x", "x: expected integer, got a string"),
        (Annotated[str, Field(json_schema_extra={"format": "password"}, pattern="a")], "777", None),
    ],
)
def test_a_secret_is_never_shown(annotation: Any, value: Any, line: str | None) -> None:
    lines = told(annotation, value)
    assert "777" not in str(lines)
    assert line is None or lines == [line]


def test_what_is_beside_a_secret_is_shown() -> None:
    assert told(Login, {"user": 777, "password": "long enough"}) == ["x.user: expected string, got 777"]


class Shade(enum.Enum):
    DARK = "dark"
    LIGHT = "light"
    NONE = "none"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Shape(enum.Enum):
    SQUARE = (1, 1)
    NAMED = {"a": 1}
    DATED = datetime.date(2026, 1, 31)


class Mode(enum.Enum):
    READ = ("r",)

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls.READ if value == "read" else None


class Bits(enum.Flag):
    A = 1
    B = 2


class Size2D(NamedTuple):
    width: int
    height: int


class Night(BaseModel):
    shade: Literal[Shade.DARK]
    hours: int


class Day(BaseModel):
    shade: Literal[Shade.LIGHT]


@for_each_row(
    ("annotation", "value", "problem"),
    [
        (Literal[Shade.DARK], "light", 'x: expected "dark", got "light"'),
        (Literal[Shade.DARK, Shade.LIGHT], "DARK", 'x: expected "dark" or "light", got "DARK"'),
        (Literal[Shade.DARK, "odd", 3], "light", 'x: expected "dark", "odd" or 3, got "light"'),
        (Literal[Size.SMALL], 2, "x: expected 1, got 2"),
        (Literal[Size.SMALL], [], "x: expected 1, got []"),
        (Annotated[Night | Day, Field(discriminator="shade")], {"shade": "odd"}, 'x.shade: expected "dark" or "light"'),
        (Annotated[Night | Day, Field(discriminator="shade")], {"shade": "dark"}, "x.hours: missing"),
        (Shape, [1], 'x: expected [1,1], {"a":1} or "2026-01-31", got [1]'),
        (Literal["a", "b"] | int, "c", 'x: expected "a", "b" or integer, got "c"'),
        (Shade | int | Literal[True], "c", 'x: expected "dark", "light", "none", integer or true, got "c"'),
        (Literal["it's", 'a "b"', "c, d"], "e", 'x: expected "it\'s", "a \\"b\\"" or "c, d", got "e"'),
    ],
)
def test_choices_are_named_as_a_caller_writes_them(annotation: Any, value: Any, problem: str) -> None:
    [said] = told(annotation, value)
    assert said.startswith(problem)


@for_each_row(
    ("annotation", "sent", "value"),
    [
        (Literal[Shade.DARK], "dark", Shade.DARK),
        (Shape, [1, 1], Shape.SQUARE),
        (list[Shape], [{"a": 1}, "2026-01-31"], [Shape.NAMED, Shape.DATED]),
        (Shape, Shape.NAMED, Shape.NAMED),
        (Mode, ["r"], Mode.READ),
        (Mode, "read", Mode.READ),
        (Literal[Shade.DARK, "dark"], "dark", "dark"),
        (Literal[b"a"], "a", b"a"),
        (Bits, 3, Bits.A | Bits.B),
        (Literal[Size.LARGE, "odd"], 2, Size.LARGE),
        (Literal[Size.LARGE, "odd"], "odd", "odd"),
        (list[Literal[Shade.DARK]] | None, ["dark"], [Shade.DARK]),
        (Annotated[Night | Day, Field(discriminator="shade")], {"shade": "light"}, Day(shade=Shade.LIGHT)),
        (Annotated[Night | Day, Field(discriminator="shade")], Day(shade=Shade.LIGHT), Day(shade=Shade.LIGHT)),
    ],
)
def test_a_choice_is_taken_as_the_schema_lists_it(annotation: Any, sent: Any, value: Any) -> None:
    def tool(x): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["x"] = annotation
    assert arguments(tool).validate({"x": sent}) == {"x": value}


def test_flags_that_are_combined_fit_their_schema() -> None:
    def tool(x: Bits) -> None: ...

    assert arguments(tool).publish_schema()["properties"]["x"] == {
        "type": "integer",
        "title": "Bits",
        "description": "A sum of 1 = A, 2 = B",
    }


class Batch(BaseModel):
    items: Iterable[Item]


@for_each_row(
    ("annotation", "value", "problem"),
    [
        (Iterable[Item] | None, [{"qty": "x"}], 'x[0].qty: expected integer, got "x"'),
        (list[Iterable[Item]], [[{}]], "x[0][0].qty: missing"),
        (Batch, {"items": [{"qty": 1}, 2]}, "x.items[1]: expected object, got 2"),
    ],
)
def test_the_items_of_an_iterable_are_checked_before_the_function_runs(
    annotation: Any, value: Any, problem: str
) -> None:
    assert told(annotation, value) == [problem]


@for_each_row(
    ("annotation", "value", "problem"),
    [
        (Night | Day, {"shade": "odd"}, 'x.shade: expected "dark" or "light", got "odd"'),
        (Cat | Dog, {}, "x.kind: missing"),
        (Item | Dog, {}, "x: expected Item or Dog, got {}"),
        (IPv4Address | IPv6Address, "here", 'x: expected IPv4 address or IPv6 address, got "here"'),
        (HttpUrl, "ftp://a", "x: URL scheme should be 'http' or 'https', got \"ftp://a\""),
        (Size2D, "wide", 'x: expected array, got "wide"'),
    ],
)
def test_what_no_member_of_a_union_takes_is_named(annotation: Any, value: Any, problem: str) -> None:
    assert told(annotation, value) == [problem]
