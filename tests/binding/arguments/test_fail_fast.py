"""What validation costs when everything is wrong: little, whatever the shape of the arguments."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter
from pydantic_core import SchemaValidator, ValidationError
from typing_extensions import TypedDict

from defserve.binding.arguments import ArgumentsSchema, get_annotation_schemas
from defserve.binding.core_schemas import MAX_HASHED, MAX_NUMBERS, make_fail_fast_schema, make_fail_fast_validator
from defserve.binding.signature import read_signature
from defserve.errors import BadArguments
from tests.effort import examples
from tests.rows import for_each_row


class Row(BaseModel):
    a: int
    b: int
    c: list[int] = []


class Node(BaseModel):
    v: int
    left: Node | None = None
    right: Node | None = None


class Twin(BaseModel):
    v: int
    left: list[Twin] = []
    right: list[Twin] = []


class Ring(BaseModel):
    v: int
    links: Links


class Links(BaseModel):
    one: Ring | None = None
    two: Ring | None = None


class Bag(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Bag]  # type: ignore[assignment]
    v: int = Field(alias="the v")


class Chain(BaseModel):
    v: int
    rest: list[Chain] = []


@dataclasses.dataclass
class Point:
    x: int
    rows: list[Row]


class Pair(NamedTuple):
    left: int
    rows: list[Row]


class Movie(TypedDict, total=False):
    rows: dict[str, Row]


class Rows(RootModel[list[Row]]):
    pass


def errors(annotation: Any, value: Any) -> int:
    with pytest.raises(ValidationError) as caught:
        make_fail_fast_validator(TypeAdapter(annotation)).validate_python(value)
    return caught.value.error_count()


BAD = [{} for _ in range(100)]
NAMED = {str(n): {} for n in range(100)}


@for_each_row(
    ("annotation", "value", "count"),
    [
        (list[Row], BAD, 2),
        (list[list[Row]], [BAD] * 9, 2),
        (set[int], ["x"] * 9, 1),
        (frozenset[int], ["x"] * 9, 1),
        (tuple[int, ...], ["x"] * 9, 1),
        (tuple[int, int], ["x", "y"], 1),
        (dict[str, Row], NAMED, 2),
        (dict[str, list[Row]], {"a": BAD, "b": BAD}, 2),
        (Rows, BAD, 2),
        (Point, {"x": "x", "rows": BAD}, 3),
        (Pair, {"left": "x", "rows": BAD}, 3),
        (Movie, {"rows": NAMED}, 2),
        (list[Row] | dict[str, Row] | None, BAD, 3),
        (Annotated[list[Row], Field(max_length=1000)], BAD, 2),
        (list[Row | Point], BAD, 4),
    ],
    ids=str,
)
def test_a_container_tells_of_its_first_bad_item(annotation: Any, value: Any, count: int) -> None:
    assert errors(annotation, value) == count


def grown(depth: int, make: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    return make(grown(depth - 1, make)) if depth else {}


@for_each_row(
    ("annotation", "make", "count"),
    [
        (Node, lambda below: {"left": below, "right": below}, 3),
        (Twin, lambda below: {"left": [below], "right": [below]}, 3),
        (Ring, lambda below: {"links": {"one": below, "two": below}}, 3),
        (Bag, lambda below: {"a": below, "b": below}, 3),
    ],
    ids=["fields", "lists", "through another", "extras"],
)
def test_a_tree_of_branches_tells_of_each_at_the_root(annotation: Any, make: Any, count: int) -> None:
    assert errors(annotation, grown(8, make)) == count


def test_a_chain_is_told_to_its_end() -> None:
    assert errors(Chain, grown(8, lambda below: {"rest": [below]})) == 9


def test_a_default_that_looks_like_a_schema_is_left_alone() -> None:
    class Odd(BaseModel):
        x: dict[str, Any] = {"type": "list", "schema": {"type": "list"}}

    assert make_fail_fast_validator(TypeAdapter(Odd)).validate_python({}) == Odd()


def test_the_schema_of_a_model_is_not_changed() -> None:
    before = repr(Row.__pydantic_core_schema__)
    make_fail_fast_schema(Row.__pydantic_core_schema__)
    assert repr(Row.__pydantic_core_schema__) == before


def test_a_validator_that_a_plugin_listens_to_is_kept() -> None:
    adapter = TypeAdapter(list[Row])
    adapter.validator = object()  # type: ignore[assignment]
    assert make_fail_fast_validator(adapter) is adapter.validator


KINDS = [list[Row], Node, Twin, Ring, Bag, Chain, Point, Pair, Movie, Rows, Row | Point | list[Chain], dict[int, Row]]
names = st.sampled_from(["a", "b", "c", "v", "the v", "left", "right", "links", "one", "rest", "x", "rows", "1"])
values = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["1", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=examples(20), deadline=None, database=None)
@given(values)
def test_what_is_accepted_and_made_is_the_same(value: Any) -> None:
    for kind in KINDS:
        made = get_annotation_schemas(kind)
        assert result(SchemaValidator(made.fail_fast_schema), value) == result(made.validator, value)


def result(validator: Any, value: Any) -> Any:
    try:
        return validator.validate_python(value)
    except ValidationError:
        return ValidationError


def list_of_models(xs: list[Row]) -> None: ...
def mapping_of_models(xs: dict[str, dict[str, Row]]) -> None: ...
def union_of_lists(xs: list[Row] | list[list[Row]] | Node | None) -> None: ...
def tree(xs: Node) -> None: ...
def integers(xs: list[int]) -> None: ...


MANY = 100_000
WRONG: dict[str, tuple[Callable[..., None], Callable[[], Any]]] = {
    "list": (list_of_models, lambda: [{} for _ in range(MANY)]),
    "mapping": (mapping_of_models, lambda: {str(n): {str(m): {} for m in range(1000)} for n in range(MANY // 1000)}),
    "union": (union_of_lists, lambda: [{} for _ in range(MANY)]),
    "tree": (tree, lambda: grown(60, lambda below: {"left": below}) | {"right": wide_tree(16)}),
    "scalars": (integers, lambda: ["x"] * MANY),
}


def wide_tree(depth: int) -> dict[str, Any]:
    return {"left": wide_tree(depth - 1), "right": wide_tree(depth - 1)} if depth else {}


def cost(case: str) -> None:
    """Run in a process of its own: print the seconds of processor time and mebibytes that one refusal takes."""
    import resource
    from time import process_time

    function, make = WRONG[case]
    arguments, value = ArgumentsSchema.from_signature(read_signature(function, lambda annotation: None)), {"xs": make()}
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, process_time()
    with pytest.raises(BadArguments):
        arguments.validate(value)
    print(process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit")
@pytest.mark.parametrize("case", WRONG)
def test_a_large_refusal_costs_little_time_and_memory(case: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, __file__, case], env=environment, capture_output=True, text=True, check=True)
    seconds, mebibytes = map(float, run.stdout.split())
    assert seconds < 10 and mebibytes < 20


if __name__ == "__main__":
    cost(sys.argv[1])


_PRIME = 2**61 - 1  # Python's hash of an integer is its remainder by this


class Chosen(BaseModel):
    ids: set[int]


_COLLIDING: dict[str, tuple[Any, Any]] = {
    "set[int]": (set[int], lambda n: [_PRIME * i for i in range(n)]),
    "set": (set, lambda n: [_PRIME * i for i in range(n)]),
    "set[int | str]": (set[int | str], lambda n: [_PRIME * i for i in range(n)]),
    "frozenset[int]": (frozenset[int], lambda n: [_PRIME * i for i in range(n)]),
    "set[Decimal]": (set[Decimal], lambda n: [str(_PRIME * i) for i in range(n)]),
    "set[UUID]": (set[UUID], lambda n: [str(UUID(int=_PRIME * i)) for i in range(n)]),
    "set[tuple[int]]": (set[tuple[int]], lambda n: [[_PRIME * i] for i in range(n)]),
    "dict[int, int]": (dict[int, int], lambda n: {str(_PRIME * i): 0 for i in range(n)}),
    "Counter[int]": (Counter[int], lambda n: {str(_PRIME * i): 0 for i in range(n)}),
    "defaultdict[int, int]": (defaultdict[int, int], lambda n: {str(_PRIME * i): 0 for i in range(n)}),
    "OrderedDict[int, int]": (OrderedDict[int, int], lambda n: {str(_PRIME * i): 0 for i in range(n)}),
    "Mapping[int, int]": (Mapping[int, int], lambda n: {str(_PRIME * i): 0 for i in range(n)}),
    "a set in a model": (Chosen, lambda n: {"ids": [_PRIME * i for i in range(n)]}),
    "a set in a list": (list[set[int]], lambda n: [[_PRIME * i for i in range(n)]]),
}


def _taking(annotation: Any) -> ArgumentsSchema:
    def f(given: Any) -> None: ...

    f.__annotations__["given"] = annotation
    return ArgumentsSchema.from_signature(read_signature(f, lambda _: None))


@for_each_row("name", _COLLIDING)
def test_values_whose_hashes_a_caller_can_choose_are_few(name: str):
    annotation, make = _COLLIDING[name]
    arguments = _taking(annotation)
    assert arguments.validate({"given": make(MAX_HASHED)})
    with pytest.raises(BadArguments, match=r"at most [12]000 items"):
        arguments.validate({"given": make(MAX_NUMBERS + 1)})


@for_each_row(
    ("annotation", "given"),
    [
        (set[str], [str(number) for number in range(MAX_NUMBERS + 1)]),
        (dict[str, int], {str(number): 0 for number in range(MAX_NUMBERS + 1)}),
        (dict, {str(number): 0 for number in range(MAX_NUMBERS + 1)}),
        (list[int], list(range(MAX_NUMBERS + 1))),
        (Annotated[set[int], Field(max_length=10_000)], list(range(MAX_NUMBERS + 1))),
    ],
    ids=["set[str]", "dict[str, int]", "dict", "list[int]", "as the author says"],
)
def test_what_no_caller_can_choose_or_the_author_bounds_may_be_more(annotation: Any, given: Any):
    assert len(_taking(annotation).validate({"given": given})["given"]) == MAX_NUMBERS + 1
