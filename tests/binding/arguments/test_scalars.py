"""Scalar annotations are built by hand, and agree with what pydantic would have made."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, Optional

import annotated_types as at
from pydantic import Field, TypeAdapter
from pydantic_core import SchemaValidator, ValidationError

from defserve.binding.core_schemas import build_scalar_schemas
from defserve.binding.json_schemas import make_portable_schema
from defserve.binding.models import TitlelessSchemaGenerator
from tests.rows import for_each_row


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


UserId = NewType("UserId", int)

SCALARS: list[Any] = [
    str,
    int,
    float,
    bool,
    bytes,
    None,
    Any,
    Literal["a"],
    Literal["a", "b"],
    Literal[1, 2],
    Colour,
    Level,
    UserId,
    list[int],
    set[int],
    frozenset[str],
    tuple[int, str],
    tuple[int, ...],
    dict[str, int],
    int | None,
    Optional[str],  # noqa: UP045
    int | str,
    int | list[str] | None,
    dict[str, list[int | None]],
    Annotated[int, at.Ge(0), at.Lt(10)],
    Annotated[int, at.Interval(ge=1, le=3)],
    Annotated[str, at.Len(1, 3)],
    Annotated[list[int], at.MaxLen(2)],
    Annotated[int, Field(ge=0, le=5)],
    Annotated[float, Field(multiple_of=0.5)],
    Annotated[str, Field(pattern="^a+$", max_length=5)],
    Annotated[dict[str, int], Field(min_length=1)],
    list[Annotated[int, Field(gt=0)]],
    Annotated[int, Field(description="d", examples=[1], title="T")],
]

VALUES: list[Any] = [
    *(None, True, 0, 1, 2, -1, 7, 1.0, 1.5, "", "a", "red", "aaaa", "1", "nan", "b", 10**30),
    *([], [1], [1, 2], ["a"], [1, 1, 1], [1, "a"], [None], {}, {"a": 1}, {"a": "x"}, {"a": [1, None]}),
]


def outcome(validator: Any, value: Any) -> Any:
    try:
        found = validator.validate_python(value)
    except ValidationError as error:
        return [(one["type"], one["loc"]) for one in error.errors(include_url=False)]
    return type(found), repr(found)


@for_each_row("annotation", SCALARS, ids=str)
def test_the_hand_built_validator_agrees_with_pydantic(annotation: Any) -> None:
    built = build_scalar_schemas(annotation)
    assert built is not None
    ours, theirs = SchemaValidator(built[0]), TypeAdapter(annotation).validator
    for value in VALUES:
        assert outcome(ours, value) == outcome(theirs, value), value


@for_each_row("annotation", SCALARS, ids=str)
def test_the_hand_built_schema_agrees_with_pydantic(annotation: Any) -> None:
    built = build_scalar_schemas(annotation)
    assert built is not None
    theirs = make_portable_schema(TypeAdapter(annotation).json_schema(schema_generator=TitlelessSchemaGenerator))
    if not (isinstance(annotation, type) and issubclass(annotation, enum.Enum)):
        assert built[1] == theirs


class Parsed(enum.Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Parsed:
        return cls.A


@for_each_row(
    "annotation",
    [
        Parsed,
        list[Parsed],
        enum.Flag("Bits", "A B"),
        Annotated[int, Field(strict=True)],
        Annotated[int, Field(json_schema_extra={"x": 1})],
        Annotated[int | None, at.Ge(0)],
        Annotated[int, at.Predicate(bool)],
        Annotated[tuple[int, ...], at.MinLen(1)],
        dict[Colour, int],
        tuple[()],
    ],
    ids=str,
)
def test_what_is_not_known_exactly_is_left_to_pydantic(annotation: Any) -> None:
    assert build_scalar_schemas(annotation) is None


@for_each_row(
    ("abstract", "concrete"),
    [(Iterable[int], list[int]), (Sequence[int], list[int]), (Mapping[str, int], dict[str, int])],
)
def test_an_abstract_container_is_checked_as_a_concrete_one(abstract: Any, concrete: Any) -> None:
    assert build_scalar_schemas(abstract) == build_scalar_schemas(concrete)


def test_unknown_metadata_means_nothing() -> None:
    assert build_scalar_schemas(Annotated[int, object()]) == build_scalar_schemas(int)


def test_a_scalar_server_never_imports_pydantic() -> None:
    code = """
import sys, enum
from typing import Annotated, Any, Literal, Optional
from defserve.binding.injection import InjectionPlan
from defserve.binding.results import ResultPacker
from defserve.binding.arguments import ArgumentsSchema
from defserve.binding.signature import read_signature
from defserve.errors import BadArguments

class Colour(enum.Enum):
    RED = "red"

def tool(
    a: int, b: Annotated[str, "the b"], c: list[float], d: dict[str, Any], e: Literal["x"], f: Colour,
    g: Optional[tuple[int, ...]] = None, h: bool | str = False, i: bytes = b"",
) -> list[int]: ...

signature = read_signature(tool, lambda annotation: None)
arguments, returns = ArgumentsSchema.from_signature(signature), ResultPacker.from_signature(signature)
assert InjectionPlan.from_parameters(signature.injected) is None
assert arguments.schema["properties"]["b"] == {"type": "string", "description": "the b"}
given = {"a": 1, "b": "", "c": [1], "d": {}, "e": "x", "f": "red"}
assert arguments.validate(given)["f"] is Colour.RED
try:
    arguments.validate({"a": "x", "zz": 1})
except BadArguments as error:
    assert "a: expected integer" in str(error)
assert returns.pack([1]).structured == [1] and returns.schema["type"] == "array"
for module in ("pydantic", "jsonschema", "docstring_parser", "importlib.metadata", "annotated_types"):
    assert module not in sys.modules, module
"""
    subprocess.run([sys.executable, "-c", code], check=True)
