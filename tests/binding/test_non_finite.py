"""Infinities and NaN in results: null where the schema takes it, and otherwise a mismatch that names the place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from defserve.binding.results import ResultMismatch, ResultPacker
from defserve.binding.signature import read_signature
from tests.rows import for_each_row


class Point(BaseModel):
    x: float
    y: float | None = None


class Line(BaseModel):
    points: list[Point]
    next: Line | None = None
    more: Any = None


@dataclass
class Range:
    least: float = -math.inf


def packed(annotation: Any) -> Callable[[Any], Any]:
    def f() -> Any: ...

    f.__annotations__["return"] = annotation
    return ResultPacker.from_signature(read_signature(f, lambda _: None)).pack


FIX = "has no JSON form: return None, and declare float | None"


@for_each_row(
    "annotation, value, problem",
    [
        (dict[str, float], {"x": 1.0, "y": math.inf}, "y: inf"),
        (dict[str, float], {"x": -math.inf}, "x: -inf"),
        (list[float], [1.0, math.nan], "1: nan"),
        (tuple[int, float], (1, math.nan), "1: nan"),
        (list[dict[str, list[float]]], [{}, {"a": [0.5, math.nan]}], "1.a.1: nan"),
        (list[float] | None, [math.nan], "0: nan"),
        (Point, Point(x=math.nan), "x: nan"),
        (Line, Line(points=[], next=Line(points=[Point(x=1, y=math.nan), Point(x=math.inf)])), "next.points.1.x: inf"),
        (Range, Range(), "least: -inf"),
        (float, math.nan, "nan"),
    ],
)
def test_a_number_that_json_does_not_have_is_a_mismatch_where_a_number_is_promised(
    annotation: Any, value: Any, problem: str
):
    with pytest.raises(ResultMismatch) as refused:
        packed(annotation)(value)
    assert str(refused.value).endswith(f" was promised: {problem} {FIX}")


@for_each_row(
    "annotation, value, text",
    [
        (dict[str, float | None], {"y": math.inf}, '{"y":null}'),
        (dict[str, Any], {"y": math.inf}, '{"y":null}'),
        (dict, {"y": [math.nan]}, '{"y":[null]}'),
        (list[float | None], [math.nan, 1.5], "[null,1.5]"),
        (Point, Point(x=1, y=math.nan), '{"x":1.0,"y":null}'),
        (Line, Line(points=[], more=[{"a": math.nan}]), '{"points":[],"next":null,"more":[{"a":null}]}'),
        (float | None, math.nan, "null"),
    ],
)
def test_it_is_null_where_null_fits(annotation: Any, value: Any, text: str):
    assert packed(annotation)(value).said == text


@for_each_row(
    "annotation, value, text",
    [
        (dict[str, str], {"NaN": "Infinity"}, '{"NaN":"Infinity"}'),
        (dict[str, float], {"-Infinity": 1.5}, '{"-Infinity":1.5}'),
        (float, 1.5, "1.5"),
    ],
)
def test_the_words_in_a_text_are_no_numbers(annotation: Any, value: Any, text: str):
    assert packed(annotation)(value).said == text


def test_a_union_of_models_is_searched_in_each_of_them():
    with pytest.raises(ResultMismatch, match="x: nan"):
        packed(Point | Range)(Point(x=math.nan))
