"""What functions return becomes parts, structured content and schemas, by rules fixed at registration."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Never, TypedDict

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, PlainSerializer, SecretStr, computed_field, field_serializer, model_serializer

from defserve.binding.results import (
    NO_STRUCTURED_CONTENT,
    ContentPart,
    Embedded,
    File,
    Image,
    Link,
    PackedResult,
    ResultMismatch,
    ResultPacker,
    Text,
    ToolResult,
)
from defserve.binding.signature import empty, read_signature
from defserve.errors import UsageError
from tests.rows import for_each_row

PICTURE = Image(b"p", format="png")


class Report(BaseModel):
    name: str
    day: datetime.date = datetime.date(2020, 1, 2)


class Aliased(BaseModel):
    snake_case: int = Field(alias="camelCase")

    @computed_field
    @property
    def double(self) -> int:
        return self.snake_case * 2


class Tree(BaseModel):
    children: list[Tree] = []


@dataclasses.dataclass
class Point:
    x: int


class Movie(TypedDict):
    name: str


class Shade(enum.Enum):
    DARK = "dark"


class Rank(enum.IntEnum):
    LOW = 1


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


class Key(BaseModel, frozen=True):
    x: int

    def __str__(self) -> str:
        return f"key {self.x}"


class Priced(BaseModel):
    price: float

    @field_serializer("price")
    def rounded(self, value: float):  # type: ignore[no-untyped-def]
        return f"{value:.2f}"


class Renamed(BaseModel):
    x: int

    @model_serializer
    def other(self):  # type: ignore[no-untyped-def]
        return {"y": self.x}


class Said(BaseModel):
    x: int

    @field_serializer("x")
    def text(self, value: int) -> str:
        return str(value)


def returns(annotation: Any, structured: bool | None = None, *, generator: bool = False) -> ResultPacker:
    def tool(): ...  # type: ignore[no-untyped-def]
    def yielding():  # type: ignore[no-untyped-def]
        yield

    function = yielding if generator else tool
    if annotation is not empty:
        function.__annotations__["return"] = annotation
    return ResultPacker.from_signature(read_signature(function, lambda _: None), structured)


def text_of(outcome: PackedResult) -> list[str]:
    return [part.text if isinstance(part, Text) else type(part).__name__ for part in outcome.parts]


# annotation, value, texts, structured
PACKED: list[tuple[Any, Any, list[str], Any]] = [
    (str, "hi", ["hi"], NO_STRUCTURED_CONTENT),
    (str | None, None, [], NO_STRUCTURED_CONTENT),
    (str | None, "hi", ["hi"], NO_STRUCTURED_CONTENT),
    (int, 3, ["3"], NO_STRUCTURED_CONTENT),
    (int | None, None, [], NO_STRUCTURED_CONTENT),
    (bool, True, ["true"], NO_STRUCTURED_CONTENT),
    (float, 1.5, ["1.5"], NO_STRUCTURED_CONTENT),
    (float, 2, ["2.0"], NO_STRUCTURED_CONTENT),
    (None, None, [], NO_STRUCTURED_CONTENT),
    (Literal["a", "b"], "a", ["a"], NO_STRUCTURED_CONTENT),
    (Literal[1, 2], 1, ["1"], NO_STRUCTURED_CONTENT),
    (Shade, Shade.DARK, ["dark"], NO_STRUCTURED_CONTENT),
    (datetime.date, datetime.date(2020, 1, 2), ["2020-01-02"], NO_STRUCTURED_CONTENT),
    (Annotated[int, Field(ge=0)], 3, ["3"], NO_STRUCTURED_CONTENT),
    (Report, Report(name="n"), ['{"name":"n","day":"2020-01-02"}'], {"name": "n", "day": "2020-01-02"}),
    (Report, {"name": "n"}, ['{"name":"n","day":"2020-01-02"}'], {"name": "n", "day": "2020-01-02"}),
    (Aliased, Aliased(camelCase=2), ['{"camelCase":2,"double":4}'], {"camelCase": 2, "double": 4}),
    (Report | None, None, ["null"], None),
    (Point, Point(1), ['{"x":1}'], {"x": 1}),
    (Movie, {"name": "ü"}, ['{"name":"ü"}'], {"name": "ü"}),
    (dict[str, Any], {"a": [1, datetime.date(2020, 1, 2)]}, ['{"a":[1,"2020-01-02"]}'], {"a": [1, "2020-01-02"]}),
    (list[int], [1, 2], ["[1,2]"], [1, 2]),
    (list[str], ["a"], ['["a"]'], ["a"]),
    (list[Report], [], ["[]"], []),
    (list[str], ["caf\udce9"], ['["caf\ufffd"]'], ["caf\udce9"]),
    (Movie, {"name": "caf\udce9"}, ['{"name":"caf\ufffd"}'], {"name": "caf\udce9"}),
    (tuple[float, str], (1.5, "\udce9"), ['[1.5,"\ufffd"]'], [1.5, "\udce9"]),
    (tuple[int, str], (1, "a"), ['[1,"a"]'], [1, "a"]),
    (str | Point, "bare", ["bare"], "bare"),
    (Image, PICTURE, ["Image"], NO_STRUCTURED_CONTENT),
    (Image | None, None, [], NO_STRUCTURED_CONTENT),
    (Image | str, "none left", ["none left"], NO_STRUCTURED_CONTENT),
    (list[Image | str], ["a", PICTURE], ["a", "Image"], NO_STRUCTURED_CONTENT),
    (list[Image] | str, "none", ["none"], NO_STRUCTURED_CONTENT),
    (tuple[str, Image], ("a", PICTURE), ["a", "Image"], NO_STRUCTURED_CONTENT),
    (ContentPart, Text("t"), ["t"], NO_STRUCTURED_CONTENT),
    (File, File(data="x", name="x.txt"), ["File"], NO_STRUCTURED_CONTENT),
    (Image | Report, Report(name="n"), ['{"name":"n","day":"2020-01-02"}'], {"name": "n", "day": "2020-01-02"}),
]
# Not annotated, Any or a bare list: the value decides.
LOOSE: list[tuple[Any, list[str], Any]] = [
    (None, [], NO_STRUCTURED_CONTENT),
    ("hi", ["hi"], NO_STRUCTURED_CONTENT),
    (3, ["3"], NO_STRUCTURED_CONTENT),
    (True, ["true"], NO_STRUCTURED_CONTENT),
    (datetime.date(2020, 1, 2), ["2020-01-02"], NO_STRUCTURED_CONTENT),
    ({"a": 1}, ['{"a":1}'], {"a": 1}),
    ([1], ["[1]"], [1]),
    (["a", "b"], ['["a","b"]'], ["a", "b"]),
    (["\udce9"], ['["\ufffd"]'], ["\udce9"]),
    ({"\udce9": 1}, ['{"\ufffd":1}'], {"\ufffd": 1}),
    (Report(name="n"), ['{"name":"n","day":"2020-01-02"}'], {"name": "n", "day": "2020-01-02"}),
    (Point(1), ['{"x":1}'], {"x": 1}),
    (PICTURE, ["Image"], NO_STRUCTURED_CONTENT),
    (["a", PICTURE, {"k": 1}], ["a", "Image", '{"k":1}'], NO_STRUCTURED_CONTENT),
    (Link("a:b"), ["Link"], NO_STRUCTURED_CONTENT),
]


@for_each_row(("annotation", "value", "texts", "structured"), PACKED, ids=str)
def test_a_value_is_packed_as_its_annotation_says(
    annotation: Any, value: Any, texts: list[str], structured: Any
) -> None:
    outcome = returns(annotation).pack(value)
    assert text_of(outcome) == texts
    assert (
        outcome.structured == structured
        if structured is not NO_STRUCTURED_CONTENT
        else outcome.structured is NO_STRUCTURED_CONTENT
    )


@for_each_row(("value", "texts", "structured"), LOOSE, ids=str)
@for_each_row("annotation", [empty, Any], ids=["unannotated", "Any"])
def test_without_an_annotation_the_value_decides(
    annotation: Any, value: Any, texts: list[str], structured: Any
) -> None:
    made = returns(annotation)
    assert (made.schema, made.bare_scalar_schema) == (None, None)
    outcome = made.pack(value)
    assert text_of(outcome) == texts
    assert outcome.structured == structured


@for_each_row(
    ("annotation", "schema", "scalar"),
    [
        (str, None, None),
        (None, None, None),
        (Never, None, None),
        (str | None, None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (str | int, None, None),
        (int, None, {"type": "integer"}),
        (Literal["a"], None, {"type": "string", "enum": ["a"]}),
        (datetime.date, None, {"type": "string", "format": "date"}),
        (int | None, None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Image, None, None),
        (list[Image], None, None),
        (list, None, None),
        (list[int], {"type": "array", "items": {"type": "integer"}}, None),
        (Point, {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, None),
    ],
    ids=str,
)
def test_schemas_are_published_where_they_help(annotation: Any, schema: Any, scalar: Any) -> None:
    made = returns(annotation)
    assert (made.schema, made.bare_scalar_schema) == (schema, scalar)


@for_each_row(
    ("annotation", "value", "schema"),
    [
        (dict[Rank, int], {Rank.LOW: 1}, {"propertyNames": {"enum": ["1"]}}),
        (dict[Key, int], {Key(x=1): 1}, {"additionalProperties": {"type": "integer"}}),
        (list[Right], [Right.READ | Right.WRITE], {"items": {"title": "Right", "type": "integer"}}),
        (dict[Right, int], {Right.READ | Right.WRITE: 1}, {"additionalProperties": {"type": "integer"}}),
        (Priced, Priced(price=1), {"properties": {"price": {}}}),
        (Renamed, Renamed(x=1), {}),
        (list[Annotated[int, PlainSerializer(repr)]], [1], {"items": {}}),
        (Said, Said(x=1), {"properties": {"x": {"type": "string"}}}),
        (Mapping[str, SecretStr], {"a": SecretStr("b")}, {}),
        (list[socket.AddressFamily], [socket.AF_INET], {}),
    ],
    ids=str,
)
def test_a_result_fits_its_own_schema(annotation: Any, value: Any, schema: Any) -> None:
    made = returns(annotation)
    assert made.schema is not None and {key: made.schema.get(key) for key in schema} == schema
    Draft202012Validator(made.schema).validate(made.pack(value).structured)


def test_the_output_schema_describes_what_is_written_not_what_is_read() -> None:
    schema = returns(Aliased).schema
    assert schema is not None and sorted(schema["properties"]) == ["camelCase", "double"]


def test_the_schema_of_a_recursive_model_is_an_object_at_its_root() -> None:
    schema = returns(Tree).schema
    assert schema is not None and schema["type"] == "object"
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


class TestStructured:
    @pytest.mark.parametrize(
        ("annotation", "value", "texts"), [(int, 3, ["3"]), (str, "a", ["a"]), (int | None, None, ["null"])]
    )
    def test_true_makes_a_scalar_structured_as_it_is(self, annotation: Any, value: Any, texts: list[str]) -> None:
        made = returns(annotation, structured=True)
        outcome = made.pack(value)
        assert (text_of(outcome), outcome.structured) == (texts, value)
        assert made.schema is not None and made.bare_scalar_schema is None

    @pytest.mark.parametrize("annotation", [Report, empty])
    def test_false_leaves_only_the_text(self, annotation: Any) -> None:
        made = returns(annotation, structured=False)
        assert made.pack(Report(name="n")) == PackedResult([Text('{"name":"n","day":"2020-01-02"}')])
        assert made.schema is None

    @pytest.mark.parametrize("annotation", [empty, Any, Image, list[Image], Image | Report])
    def test_true_needs_something_to_describe(self, annotation: Any) -> None:
        with pytest.raises(UsageError, match="structured=True, but"):
            returns(annotation, structured=True)


@for_each_row(
    ("annotation", "value", "said"),
    [
        (int, "x", "str was returned where int was promised"),
        (str, 3, "int was returned where str was promised"),
        (None, 3, "int was returned where None was promised"),
        (Report, {"nam": "n"}, "dict was returned where Report was promised: name: Field required"),
        (Report, Point(1), "Point was returned where Report was promised"),
        (list[Point], [Point("x")], "list was returned where list"),  # type: ignore[arg-type]
        (Image, "x", "str was returned where Image was promised"),
        (list[Image], [3], "int was returned where content"),
        (list[Image], PICTURE, "Image was returned where list"),
        (dict[str, Any], {"a": socket}, "dict was returned, which has no JSON form: Unable"),
        (empty, socket, "which has no JSON form"),
        (empty, b"bytes", "return File"),
        (int, None, "None was returned where int was promised"),
    ],
    ids=str,
)
def test_a_value_that_breaks_the_promise_is_a_type_error(annotation: Any, value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        returns(annotation).pack(value)


@for_each_row("annotation", [str, int, Report, empty])
def test_a_coroutine_is_taken_for_a_missing_await(annotation: Any) -> None:
    async def answer() -> str: ...  # type: ignore[empty-body]

    forgotten = answer()
    with pytest.raises(TypeError, match=r"`await` is missing before .*answer\("):
        returns(annotation).pack(forgotten)
    forgotten.close()


def test_a_value_that_holds_itself_is_a_type_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for annotation in (empty, list[list[Any]], dict[str, Any]):
        with pytest.raises(TypeError):
            returns(annotation).pack({"a": loop} if annotation == dict[str, Any] else loop)


@for_each_row(
    ("annotation", "said"),
    [
        (socket.socket, "socket has no JSON form"),
        (Callable[[], int], "no JSON form"),
        (bytes, "says nothing about what the bytes are"),
        (bytes | None, "says nothing about what the bytes are"),
    ],
)
def test_a_return_type_without_a_json_form_is_refused(annotation: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        returns(annotation)
    assert "test_results.py" in caught.value.where and "tool: return" in caught.value.problem


class TestGenerators:
    def test_adjacent_text_is_merged(self) -> None:
        made = returns(Iterator[str | Text | Image], generator=True)
        assert made.join_yielded_values(["a", "b", PICTURE, "c", Text("d"), Text("e", meta={"k": 1})]) == PackedResult(
            [Text("ab"), PICTURE, Text("cd"), Text("e", meta={"k": 1})]
        )

    def test_each_value_can_be_packed_as_it_comes(self) -> None:
        assert returns(Iterator[str], generator=True).pack("a") == PackedResult([Text("a")])

    def test_structured_values_become_a_list(self) -> None:
        made = returns(Iterator[Point], generator=True)
        assert made.join_yielded_values([Point(1), Point(2)]) == PackedResult(
            [Text('{"x":1}'), Text('{"x":2}')], [{"x": 1}, {"x": 2}]
        )
        assert made.join_yielded_values([]) == PackedResult([], [])
        assert made.schema is not None and made.schema["type"] == "array"

    def test_scalars_stay_apart(self) -> None:
        made = returns(Iterator[int], generator=True)
        assert made.join_yielded_values([1, 2]) == PackedResult([Text("1"), Text("2")])
        assert (made.schema, made.bare_scalar_schema) == (None, None)

    def test_without_an_annotation_the_values_decide(self) -> None:
        made = returns(empty, generator=True)
        assert made.join_yielded_values(["a", {"k": 1}]) == PackedResult([Text("a"), Text('{"k":1}')])
        assert made.join_yielded_values([{"k": 1}]) == PackedResult([Text('{"k":1}')], [{"k": 1}])
        assert made.join_yielded_values([]) == PackedResult([])

    def test_asynchronous_generators_are_read_alike(self) -> None:
        async def tool() -> AsyncIterator[Embedded | str]:
            yield "a"

        assert ResultPacker.from_signature(read_signature(tool, lambda _: None)).join_yielded_values(
            ["a", "b"]
        ) == PackedResult([Text("ab")])


@for_each_row(
    "annotation, value, structured",
    [
        (dict, {1: "a", 2.5: "b", None: "c", False: "d"}, {"1": "a", "2.5": "b", "None": "c", "false": "d"}),
        (dict[Any, int], {1: 2}, {"1": 2}),
        (Mapping, {1: "a"}, {"1": "a"}),
        (list[dict], [{1: {2: "a"}}], [{"1": {"2": "a"}}]),
        (dict[int, str], {1: "a"}, {"1": "a"}),
    ],
)
def test_keys_of_which_nothing_is_said_become_texts_as_in_json(annotation: Any, value: Any, structured: Any):
    def f() -> Any: ...

    f.__annotations__["return"] = annotation
    assert ResultPacker.from_signature(read_signature(f, lambda _: None)).pack(value).structured == structured


def test_a_key_that_is_no_text_where_texts_are_promised_is_named_with_what_to_write():
    def f() -> dict[str, dict[str, str]]: ...

    with pytest.raises(TypeError) as refused:
        ResultPacker.from_signature(read_signature(f, lambda _: None)).pack({"a": {7: "x"}})
    assert str(refused.value) == (
        "dict was returned where dict[str, dict[str, str]] was promised: a: the key 7 is no text: "
        "use str(7), or declare dict[int, …]"
    )


def in_list() -> list[str]:  # pyright: ignore
    yield "a"


def alone() -> str:  # pyright: ignore
    yield "a"


async def in_set() -> set[int]:  # pyright: ignore
    yield 1


def in_dict() -> dict[str, int]:  # pyright: ignore
    yield {}


def in_bare_list() -> list:  # pyright: ignore
    yield 1


@for_each_row(
    "function, problem, fix",
    [
        (in_list, "not list[str]", "write -> Iterator[str], or return a list"),
        (alone, "not str", "write -> Iterator[str], or return the value"),
        (in_set, "not set[int]", "write -> AsyncIterator[int], or return a set"),
        (in_dict, "not dict[str, int]", "write -> Iterator[dict[str, int]], or return the value"),
        (in_bare_list, "not list", "write -> Iterator[Any], or return a list"),
    ],
)
def test_a_function_that_yields_has_the_return_type_of_an_iterator(function: Any, problem: str, fix: str):
    with pytest.raises(UsageError) as refused:
        ResultPacker.from_signature(read_signature(function, lambda _: None))
    name = function.__name__
    assert refused.value.problem == f"{name}: return: {name} yields, so it returns an iterator, {problem}"
    assert refused.value.fix == fix


def of_any() -> Any:
    yield "a"


def of_nothing():  # pyright: ignore
    yield "a"


@for_each_row("function", [of_any, of_nothing])
def test_a_generator_that_promises_nothing_may_yield_anything(function: Any):
    assert ResultPacker.from_signature(read_signature(function, lambda _: None)).join_yielded_values(
        ["a", "b"]
    ).said == [Text("ab")]


class Orders(BaseModel):
    orders: int


def result_of_model() -> ToolResult:
    return ToolResult("two", data=Orders(orders=2))


def result_of_parts() -> ToolResult:
    return ToolResult(["two", Text("more")], data={"orders": 2})


def result_or_text() -> ToolResult | str:
    return ToolResult("two", data={"orders": 2})


def result_unsaid():  # pyright: ignore
    return ToolResult("two")


@for_each_row(
    "function texts data",
    [
        (result_of_model, ["two"], {"orders": 2}),
        (result_of_parts, ["two", "more"], {"orders": 2}),
        (result_or_text, ["two"], {"orders": 2}),
        (result_unsaid, ["two"], NO_STRUCTURED_CONTENT),
    ],
)
def test_a_tool_result_has_its_text_beside_its_data(function: Any, texts: list[str], data: Any):
    packer = ResultPacker.from_signature(read_signature(function, lambda _: None))
    packed = packer.pack(function())
    assert packer.schema is None
    assert packed.parts == [Text(text) for text in texts]
    assert packed.structured == data


def test_the_data_of_a_tool_result_is_an_object():
    packer = ResultPacker.from_signature(read_signature(result_of_model, lambda _: None))
    with pytest.raises(ResultMismatch, match="the data of a ToolResult"):
        packer.pack(ToolResult("two", data=[1]))
