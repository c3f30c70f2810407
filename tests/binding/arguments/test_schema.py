"""A function's arguments: their JSON Schema, and what validation lets through."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import re
import socket
import sys
import uuid
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, EmailStr, Field, Json, RootModel, SecretStr

from defserve.base.hidden_characters import has_hidden_characters
from defserve.binding.arguments import ArgumentsSchema, require_annotation_schemas
from defserve.binding.signature import read_signature
from defserve.errors import BadArguments, UsageError
from tests.effort import examples
from tests.rows import for_each_row


def arguments(function: Any) -> ArgumentsSchema:
    return ArgumentsSchema.from_signature(read_signature(function, lambda annotation: None))


def one(annotation: Any, default: Any = ...) -> ArgumentsSchema:
    """The arguments of a function with one parameter `x`."""

    def tool(x): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["x"] = annotation
    if default is not ...:
        tool.__defaults__ = (default,)
    return arguments(tool)


def named(value: object) -> str:
    """A case's name, without addresses: parallel runs have to collect the same tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


class Item(BaseModel):
    qty: int = Field(ge=1)
    title: str = ""


class Order(BaseModel):
    items: list[Item]
    gift: Item | None = None


class Tree(BaseModel):
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict, total=False):
    name: str
    points: list[Point]


class Pair(NamedTuple):
    a: int
    b: str


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    inside: T


class Shade(enum.Enum):
    DARK = "dark"
    LIGHT = "light"


class TestSchema:
    def test_without_parameters_it_is_an_empty_object(self) -> None:
        def tool() -> None: ...

        assert arguments(tool).schema == {"type": "object", "properties": {}, "additionalProperties": False}

    def test_it_names_types_descriptions_defaults_and_what_is_required(self) -> None:
        def tool(a: int, b: Annotated[str, "the b"] = "x", c: float | None = None) -> None:
            """Do.

            Args:
                a: The a.
            """

        assert arguments(tool).schema == {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The a."},
                "b": {"type": "string", "description": "the b", "default": "x"},
                "c": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            },
            "required": ["a"],
            "additionalProperties": False,
        }

    def test_generated_titles_are_dropped_and_the_authors_kept(self) -> None:
        class Titled(BaseModel):
            model_config = ConfigDict(title="My title")
            title: str
            named: int = Field(title="A name")

        def tool(a: Titled, b: Item, c: Point, d: Movie) -> None: ...

        properties = arguments(tool).schema["properties"]
        assert properties["a"]["title"] == "My title"
        assert properties["a"]["properties"] == {
            "title": {"type": "string"},
            "named": {"type": "integer", "title": "A name"},
        }
        assert properties["b"]["properties"]["title"] == {"type": "string", "default": ""}
        assert [name for name in "bcd" if "title" in properties[name]] == []

    def test_a_definition_used_once_is_written_in_place(self) -> None:
        assert one(Item).schema["properties"]["x"] == {
            "type": "object",
            "properties": {"qty": {"type": "integer", "minimum": 1}, "title": {"type": "string", "default": ""}},
            "required": ["qty"],
        }

    def test_a_definition_used_twice_or_recursive_stays(self) -> None:
        def tool(a: Order, b: Tree, c: Item) -> None: ...

        schema = arguments(tool).schema
        assert sorted(schema["$defs"]) == ["Item", "Tree"]
        assert schema["properties"]["c"] == {"$ref": "#/$defs/Item"}
        assert schema["properties"]["a"]["properties"]["items"]["items"] == {"$ref": "#/$defs/Item"}

    def test_two_models_of_one_name_are_told_apart(self) -> None:
        def another() -> Any:
            class Tree(BaseModel):
                leaf: Tree | None = None

            return Tree

        def tool(a, b): ...  # type: ignore[no-untyped-def]

        tool.__annotations__.update(a=Tree, b=another())
        schema = arguments(tool).schema
        assert schema["properties"] == {"a": {"$ref": "#/$defs/Tree"}, "b": {"$ref": "#/$defs/Tree2"}}
        assert "leaf" in schema["$defs"]["Tree2"]["properties"]
        assert schema["$defs"]["Tree2"]["properties"]["leaf"]["anyOf"][0] == {"$ref": "#/$defs/Tree2"}

    def test_two_models_of_one_name_that_differ_only_in_what_they_hold_are_told_apart(self) -> None:
        def make(kind: Any) -> Any:
            class Inner(BaseModel):
                value: kind

            class Outer(BaseModel):
                one: Inner
                more: list[Inner]

            return Outer

        def tool(a, b, c): ...  # type: ignore[no-untyped-def]

        tool.__annotations__.update(a=make(int), b=make(str), c=make(str))
        schema = arguments(tool).schema
        assert schema["properties"]["b"] == schema["properties"]["c"] == {"$ref": "#/$defs/Outer2"}
        assert schema["properties"]["a"]["properties"]["one"] == {"$ref": "#/$defs/Inner"}
        assert schema["$defs"]["Outer2"]["properties"]["one"] == {"$ref": "#/$defs/Inner2"}
        kinds = {name: made["properties"]["value"] for name, made in schema["$defs"].items() if "Inner" in name}
        assert kinds == {"Inner": {"type": "integer"}, "Inner2": {"type": "string"}}

    def test_a_renamed_model_takes_the_name_of_no_other(self) -> None:
        def make(name: str, **fields: Any) -> Any:
            return type(name, (BaseModel,), {"__annotations__": fields, "__module__": __name__})

        def tool(a, b): ...  # type: ignore[no-untyped-def]

        first, second, numbered = make("Model", x=int), make("Model", y=int), make("Model2", z=int)
        pair = make("Pair", p=list[second], q=list[numbered], r=second, s=numbered)
        tool.__annotations__.update(a=tuple[first, list[first]], b=pair)
        defs = arguments(tool).schema["$defs"]
        assert {name: list(made["properties"]) for name, made in defs.items()} == {
            "Model": ["x"],
            "Model2": ["z"],
            "Model3": ["y"],
        }

    def test_an_enum_member_with_two_names_is_one_choice(self) -> None:
        class Size(enum.Enum):
            SMALL = "s"
            LITTLE = "s"  # noqa: PIE796
            LARGE = "l"

        class Shirt(BaseModel):
            size: Size

        def tool(size, shirt): ...  # type: ignore[no-untyped-def]

        tool.__annotations__.update(size=Size, shirt=Shirt)
        properties = arguments(tool).schema["properties"]
        assert properties["size"]["enum"] == properties["shirt"]["properties"]["size"]["enum"] == ["s", "l"]
        assert arguments(tool).validate({"size": "s", "shirt": {"size": "s"}})["size"] is Size.LITTLE

    def test_unions_of_the_same_types_in_another_order_are_told_apart(self) -> None:
        assert one(bool | int).validate({"x": "1"})["x"] is True
        assert one(int | bool).validate({"x": "1"}) == {"x": 1}
        assert type(one(int | bool).validate({"x": "1"})["x"]) is int

    def test_unions_of_two_types_with_one_name_are_told_apart(self) -> None:
        def make(kind: type) -> Any:
            class Part(BaseModel):
                value: kind

            return Part

        first, second = make(bool), make(int)
        assert one(first | second).validate({"x": {"value": "1"}}) == {"x": first(value=True)}
        assert one(second | first).validate({"x": {"value": "1"}}) == {"x": second(value=1)}

    def test_what_stands_beside_a_type_need_not_be_printable(self) -> None:
        class Silent:
            def __repr__(self) -> str:
                raise NotImplementedError

        assert one(Annotated[int, Silent()]).validate({"x": 1}) == {"x": 1}

    @pytest.mark.parametrize(
        ("annotation", "default", "shown"),
        [
            (Point, Point(1), {"x": 1, "y": 0}),
            (datetime.date, datetime.date(2020, 1, 2), "2020-01-02"),
            (Shade, Shade.DARK, "dark"),
            (list[int], [1], [1]),
            (float, float("nan"), ...),
            (Any, object(), ...),
            (SecretStr, SecretStr("s3cret"), ...),
            (SecretStr | None, None, None),
        ],
        ids=named,
    )
    def test_a_default_is_shown_if_it_has_a_json_form_and_is_no_secret(
        self, annotation: Any, default: Any, shown: Any
    ) -> None:
        assert one(annotation, default).schema["properties"]["x"].get("default", ...) == shown

    def test_openapi_discriminators_are_dropped(self) -> None:
        assert "discriminator" not in one(Pet).schema["properties"]["x"]


class TestValidation:
    @pytest.mark.parametrize(
        ("annotation", "value", "found"),
        [
            (int, "3", 3),
            (list[int], ["1"], [1]),
            (Item, {"qty": 2}, Item(qty=2)),
            (Point, {"x": 1}, Point(1)),
            (Movie, {"name": "n", "points": [{"x": 1}]}, {"name": "n", "points": [Point(1)]}),
            (Pair, [1, "b"], Pair(1, "b")),
            (Pet, {"kind": "cat", "lives": 9}, Cat(kind="cat", lives=9)),
            (Box[int], {"inside": "4"}, Box[int](inside=4)),
            (Tree, {"children": [{"children": []}]}, Tree(children=[Tree()])),
            (datetime.datetime, "2020-01-02T03:04:05", datetime.datetime(2020, 1, 2, 3, 4, 5)),
            (uuid.UUID, "00000000-0000-0000-0000-000000000001", uuid.UUID(int=1)),
            (Path, "/tmp", Path("/tmp")),
            (Decimal, "1.5", Decimal("1.5")),
            (SecretStr, "s", SecretStr("s")),
            (Iterable[Point], [{"x": 1}], [Point(1)]),
            (Iterable[Point] | None, [{"x": 1}], [Point(1)]),
            (Collection[Point], [{"x": 1}], [Point(1)]),
            (RootModel[list[int]], [1], RootModel[list[int]]([1])),
            (Annotated[int, AfterValidator(lambda n: n + 1)], 1, 2),
        ],
        ids=named,
    )
    def test_values_become_what_the_annotation_says(self, annotation: Any, value: Any, found: Any) -> None:
        assert one(annotation).validate({"x": value}) == {"x": found}

    @pytest.mark.parametrize(
        ("annotation", "text", "found"),
        [
            (list[int], "[1, 2]", [1, 2]),
            (dict[str, int], ' {"a": 1}', {"a": 1}),
            (Item, '{"qty": 2}', Item(qty=2)),
            (Point, '{"x": 1}', Point(1)),
            (Movie, '{"name": "n"}', {"name": "n"}),
            (list[int] | None, "[1]", [1]),
            (Tree, '{"children": [{}]}', Tree(children=[Tree()])),
            (list[int] | str, "[1, 2]", "[1, 2]"),
            (Any, "[1, 2]", "[1, 2]"),
        ],
        ids=named,
    )
    def test_a_json_string_is_a_container_where_no_string_is_wanted(
        self, annotation: Any, text: str, found: Any
    ) -> None:
        assert one(annotation).validate({"x": text}) == {"x": found}

    @pytest.mark.parametrize("text", ["[NaN]", "[Infinity]", "[1,]"])
    def test_a_json_string_is_read_as_strictly_as_a_message(self, text: str) -> None:
        with pytest.raises(BadArguments, match="x: expected array"):
            one(list[float]).validate({"x": text})

    def test_what_is_left_out_is_left_to_the_functions_own_default(self) -> None:
        assert one(int, 3).validate({}) == {}
        assert one(int, 3).validate(None) == {}

    @pytest.mark.parametrize("default", [[1], {"a": [1]}, {1}, Point(1), Item(qty=1)], ids=named)
    def test_a_default_that_a_call_could_change_is_new_in_every_call(self, default: Any) -> None:
        made = one(type(default), default)
        first, second = made.validate({})["x"], made.validate({})["x"]
        assert first == second == default
        assert len({id(first), id(second), id(default)}) == 3

    def test_a_default_inside_Field_is_filled_in(self) -> None:
        def tool(
            a: int = Field(3),
            b: Annotated[int, Field(default=4)] = 5,
            c: list[int] = Field(default_factory=list),  # noqa: B008
        ) -> None: ...

        assert arguments(tool).validate({}) == {"a": 3, "c": []}
        assert arguments(tool).schema["properties"]["a"]["default"] == 3
        assert "required" not in arguments(tool).schema

    @pytest.mark.filterwarnings("ignore:A 'default_factory' taking validated data")
    def test_a_default_may_be_made_of_the_arguments_before_it(self) -> None:
        def tool(a: int, b: int = Field(default_factory=lambda data: data["a"] + 1)) -> None: ...

        assert arguments(tool).validate({"a": 1}) == {"a": 1, "b": 2}
        assert arguments(tool).validate({"a": 1, "b": 5}) == {"a": 1, "b": 5}
        with pytest.raises(BadArguments) as caught:
            arguments(tool).validate({"a": "x"})
        assert str(caught.value) == 'a: expected integer, got "x"'

    @pytest.mark.filterwarnings("ignore:A 'default_factory' taking validated data")
    def test_a_default_may_be_made_of_the_defaults_before_it(self) -> None:
        def tool(a: int = 3, b: int = Field(default_factory=lambda data: data["a"] + 1)) -> None: ...

        assert arguments(tool).validate({}) == {"a": 3, "b": 4}
        assert arguments(tool).validate({"a": 1}) == {"a": 1, "b": 2}
        assert arguments(tool).schema["properties"]["a"]["default"] == 3

    def test_an_alias_is_the_name_in_json(self) -> None:
        def tool(from_: Annotated[str, Field(alias="from")]) -> None: ...

        assert arguments(tool).schema["required"] == ["from"]
        assert arguments(tool).validate({"from": "a"}) == {"from_": "a"}
        with pytest.raises(BadArguments, match='unknown argument "from_"; did you mean "from"?'):
            arguments(tool).validate({"from": "a", "from_": "b"})

    def test_a_default_of_none_accepts_null(self) -> None:
        assert one(int, None).validate({"x": None}) == {"x": None}

    def test_one_model_in_many_places_does_not_clash(self) -> None:
        def tool(a: Order, b: list[Order], c: Tree, d: dict[str, Tree]) -> None: ...

        order: dict[str, Any] = {"items": [{"qty": 1}]}
        found = arguments(tool).validate({"a": order, "b": [order], "c": {}, "d": {"k": {}}})
        assert (found["a"], found["d"]) == (Order(items=[Item(qty=1)]), {"k": Tree()})


class TestRegistration:
    @pytest.mark.parametrize("annotation", [socket.socket, Callable[[], int], list[socket.socket], object.__init__])
    def test_a_type_without_a_json_form_is_refused(self, annotation: Any) -> None:
        with pytest.raises(UsageError) as caught:
            one(annotation)
        assert "tool: parameter 'x'" in caught.value.problem and "no JSON form" in caught.value.problem
        assert "test_schema.py" in caught.value.where and caught.value.fix

    @pytest.mark.parametrize(
        "annotation",
        [
            Annotated[int, Field(ge=1.5)],
            Annotated[int, Field(multiple_of=0)],
            Annotated[str, Field(max_length=-1)],
            Annotated[list[int], Field(max_length=10**30)],
        ],
    )
    def test_a_bound_that_nothing_can_be_held_to_is_refused(self, annotation: Any) -> None:
        with pytest.raises(UsageError, match=r"tool: parameter 'x': .* cannot be checked \(") as caught:
            one(annotation)
        assert caught.value.fix == "correct the bound"

    def test_a_model_with_an_unknown_name_is_refused(self) -> None:
        class Broken(BaseModel):
            x: Nowhere  # type: ignore[name-defined]  # noqa: F821

        with pytest.raises(UsageError, match="Nowhere"):
            one(Broken)

    def test_two_parameters_with_one_name_in_json_are_refused(self) -> None:
        def tool(a: int, b: Annotated[int, Field(alias="a")]) -> None: ...

        with pytest.raises(UsageError, match="'a' is the name of two parameters"):
            arguments(tool)

    def test_fragments_are_shared_between_functions(self) -> None:
        assert require_annotation_schemas(Order) is require_annotation_schemas(Order)
        assert require_annotation_schemas(Annotated[int, {"unhashable": 1}]).json == {"type": "integer"}


def everything(
    a: int,
    b: list[int | None],
    c: dict[str, float],
    d: Order | int,
    e: Pet,
    f: Movie | list[str],
    g: Annotated[str, Field(max_length=3)] = "",
    h: datetime.datetime | uuid.UUID | None = None,
    i: tuple[int, str] | set[int] = (1, ""),
    j: Decimal | bytes = b"",
    k: Tree | None = None,
    m: SecretStr | None = None,
    n: Shade | Pair | bool = False,
) -> None: ...


keys = st.sampled_from(["qty", "items", "kind", "children", "a", "\ud800"]) | st.text(max_size=3)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [10**400, -(10**400), 2**63, float("nan"), float("inf"), "nan", "1e999", "[" * 500, "\ud800", "{}"]
    )
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
TOOLS = [arguments(everything), one(Tree), one(list[Item] | dict[str, Item]), one(int | list[int] | Item), one(Any)]


@settings(max_examples=examples(20), deadline=None, database=None)
@given(st.dictionaries(st.sampled_from("abcdefghijkmnx") | st.text(max_size=3), json_values) | json_values)
def test_any_json_gives_arguments_or_bad_arguments(value: Any) -> None:
    for tool in TOOLS:
        try:
            assert isinstance(tool.validate(value), dict)
        except BadArguments as error:
            assert error.problems
            assert not any(map(has_hidden_characters, str(error).split("\n")))
            assert str(error).encode()


@for_each_row("depth", [100, 5_000])
def test_deep_values_are_told_apart_or_refused(depth: int) -> None:
    value: Any = {}
    for _ in range(depth):
        value = {"children": [value]}
    for tool in TOOLS:
        try:
            tool.validate({"x": value})
        except BadArguments as error:
            assert error.problems


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def wide(members: int) -> str:
    return "{" + ",".join(f'"{n}":1' for n in range(members)) + "}"


@for_each_row(
    ("annotation", "text", "reason"),
    [
        (list[Any], deep(65), "nested deeper than 64 levels"),
        (dict[str, Any], wide(10_001), "an object has more than 10000 members"),
        (list[Any], f"[[{wide(10_001)}]]", "an object has more than 10000 members"),
        (list[Any], "[1, [-1e999]]", "a number is too large"),
        (dict[str, Any], '{"a": 1e999}', "a number is too large"),
    ],
    ids=["deep", "wide", "wide below", "infinite item", "infinite member"],
)
def test_json_in_a_string_is_held_to_the_limits_of_a_message(annotation: Any, text: str, reason: str) -> None:
    with pytest.raises(BadArguments) as caught:
        one(annotation).validate({"x": text})
    assert str(caught.value).endswith(f"x: the JSON in this string: {reason}")


@for_each_row("text", [deep(64), f"[{wide(10_000)}]", "[1e300]"], ids=["deep", "wide", "large"])
def test_json_in_a_string_at_the_limits_is_taken(text: str) -> None:
    assert isinstance(one(list[Any]).validate({"x": text})["x"], list)


@for_each_row("text", ["[NaN]", "[Infinity]"])
def test_json_in_a_string_has_no_names_for_what_is_no_number(text: str) -> None:
    with pytest.raises(BadArguments, match="expected array"):
        one(list[Any]).validate({"x": text})


@for_each_row("value", ["inf", "-Infinity", "nan", "1e999", float("inf"), float("nan")])
@for_each_row("annotation", [float, float | None, Annotated[float, Field(ge=0)]], ids=named)
def test_what_is_no_finite_number_is_no_number(annotation: Any, value: Any) -> None:
    with pytest.raises(BadArguments, match="x: expected number, got "):
        one(annotation).validate({"x": value})


class Reading(BaseModel):
    value: float


class Measured(TypedDict):
    reading: Reading


@for_each_row("value", ["inf", "-Infinity", "nan", float("nan")])
def test_what_is_no_finite_number_is_none_inside_a_model_either(value: Any) -> None:
    reading = {"value": value}
    for annotation, argument in ((Reading, reading), (list[Measured], [{"reading": reading}])):
        with pytest.raises(BadArguments, match=r"value: expected number, got "):
            one(annotation).validate({"x": argument})


def test_a_model_may_allow_what_is_no_finite_number() -> None:
    class Loose(BaseModel):
        model_config = ConfigDict(allow_inf_nan=True)
        value: float

    class LooseField(BaseModel):
        value: Annotated[float, Field(allow_inf_nan=True)]

    for annotation in (Loose, LooseField):
        assert one(annotation).validate({"x": {"value": "inf"}})["x"].value == float("inf")


def test_an_infinite_item_is_told_with_its_place() -> None:
    with pytest.raises(BadArguments, match=r'x\[1\]: expected number, got "inf"'):
        one(list[float]).validate({"x": [1, "inf"]})


class OpenReading(BaseModel, extra="allow"):
    about: Any = None


@for_each_row(
    "annotation, value, place",
    [
        (Any, math.inf, "x"),
        (object, [1, -math.inf], "x[1]"),
        (list, [[math.inf]], "x[0][0]"),
        (dict, {"a b": math.inf}, 'x["a b"]'),
        (dict[str, Any] | None, {"a": {"b": [0.5, math.inf]}}, "x.a.b[1]"),
        (OpenReading, {"about": {"n": math.inf}}, "x.about.n"),
        (OpenReading, {"more": math.inf}, "x.more"),
    ],
)
def test_a_number_that_is_too_large_is_refused_where_any_value_is_taken(annotation: Any, value: Any, place: str):
    with pytest.raises(BadArguments) as refused:
        one(annotation).validate({"x": value})
    assert [(found.field, found.reason) for found in refused.value.problems] == [(place, "the number is too large")]
    assert one(Any).validate({"x": [1.5, {"a": "inf"}, None]})["x"] == [1.5, {"a": "inf"}, None]


class Boxed(BaseModel):
    data: Json[Any] | None = None


@for_each_row("text", ["NaN", "[-Infinity]", '{"a": [1e400]}'])
def test_what_json_does_not_have_is_not_read_from_a_json_text_either(text: str):
    for annotation, value in ((Json[Any], text), (Json, text), (dict[str, Json[list[Any]]], {"a": f"[{text}]"})):
        with pytest.raises(BadArguments, match="JSON has no NaN, and no number that is too large"):
            one(annotation).validate({"x": value})
    with pytest.raises(BadArguments, match="JSON has no NaN"):
        one(Boxed).validate({"x": {"data": text}})
    assert one(Json[Any]).validate({"x": '{"a": ["NaN", 1.5]}'}) == {"x": {"a": ["NaN", 1.5]}}


def test_an_infinite_default_is_the_authors_own_affair() -> None:
    assert one(float, float("inf")).validate({}) == {}


@for_each_row(
    ("annotation", "default", "problem"),
    [
        (int, "x", "its default 'x' is not int"),
        (str, 3, "its default 3 is not str"),
        (bool, "maybe", "its default 'maybe' is not bool"),
        (int | None, 1.5, "its default 1.5 is not int | None"),
        (Literal["a", "b"], "c", "its default 'c' is not Literal['a', 'b']"),
        (Annotated[int, Field(ge=1)], 0, "its default 0 is not "),
    ],
    ids=named,
)
def test_a_scalar_default_that_no_caller_could_give_is_refused(annotation: Any, default: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=f"tool: parameter 'x': {re.escape(problem)}"):
        one(annotation, default)


@for_each_row(
    ("annotation", "default"),
    [
        *((float, 1), (int, "3"), (bool, 0), (str, None), (int | str, "x"), (Any, "x"), (object, 1)),
        *((int, object()), (Shade, "dark"), (Shade, Shade.DARK), (Item, "odd"), (Literal[1], 1)),
    ],
    ids=named,
)
def test_a_default_that_fits_or_is_no_scalar_is_taken(annotation: Any, default: Any) -> None:
    assert one(annotation, default).validate({}) == {}


class Bounded(BaseModel):
    x: float = Field(gt=0, lt=math.inf)


@for_each_row(
    ("annotation", "schema"),
    [
        (Annotated[float, Field(gt=0, lt=math.inf)], {"type": "number", "exclusiveMinimum": 0}),
        (Annotated[float, Field(ge=-math.inf)], {"type": "number"}),
        (Bounded, {"type": "number", "exclusiveMinimum": 0.0}),
    ],
    ids=named,
)
def test_an_infinite_bound_is_left_out_of_the_schema_because_json_has_none(annotation: Any, schema: Any) -> None:
    published = one(annotation).publish_schema()["properties"]["x"]
    assert published.get("properties", {"x": published})["x"] == schema


@for_each_row(
    ("annotation", "problem"),
    [
        (enum.Enum("Empty", {}), "the enum Empty has no members"),
        (Annotated[int, Field(examples=[object()])], "Unable to serialize unknown type"),
    ],
    ids=named,
)
def test_a_schema_that_no_client_could_read_is_refused_before_it_breaks_the_list_of_all(
    annotation: Any, problem: str
) -> None:
    with pytest.raises(UsageError, match=rf"tool: parameter 'x': .* has no JSON form \({problem}"):
        one(annotation)


def test_a_type_that_needs_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "email_validator", None)
    with pytest.raises(UsageError, match=r"email-validator is not installed\n  fix: run `pip install"):
        one(EmailStr)
