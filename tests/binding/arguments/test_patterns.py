"""Patterns of parameters: what pydantic's engine cannot match is told at the decorator, never at a call."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from defserve import Server, UsageError
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

LOOK = r"^(?=.*\d).{8,}$"


class Late(BaseModel):
    model_config = ConfigDict(defer_build=True)
    code: Annotated[str, Field(pattern=LOOK)]


class ByPython(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    code: Annotated[str, Field(pattern=LOOK)]


@dataclasses.dataclass
class Record:
    code: Annotated[str, Field(pattern=LOOK)]


def declared(annotation: Any, returns: Any = str) -> Server:
    def f(given: Any) -> Any:
        return "fits"

    f.__annotations__ = {"given": annotation, "return": returns}
    server = Server("t")
    server.tool(f)
    return server


@for_each_row(
    "annotation",
    [
        Annotated[str, Field(pattern=LOOK)],
        Annotated[str, Field(pattern=LOOK)] | None,
        list[Annotated[str, Field(pattern=LOOK)]],
        Annotated[str, StringConstraints(pattern=LOOK)],
        Record,
        Late,
    ],
)
def test_a_pattern_that_looks_around_is_refused_with_what_to_write(annotation: Any):
    with pytest.raises(UsageError) as refused:
        declared(annotation)
    assert refused.value.problem.startswith(f"f: parameter 'given': its pattern {LOOK!r} cannot be used: look-around")
    assert refused.value.fix == f'let Python match it: pattern=re.compile(r"{LOOK}"), or check it in the function'
    assert refused.value.where.startswith("tests/binding/arguments/test_patterns.py:")


@for_each_row(
    "pattern, problem, fix",
    [
        ("(", r"its pattern '(' cannot be used: unclosed group", "correct the pattern"),
        ("[z-a]", "its pattern '[z-a]' cannot be used: invalid character class range", "correct the pattern"),
        (r'(")\1', "its pattern '(\")\\\\1' cannot be used: backreferences", "pattern=re.compile('(\")\\\\1')"),
        ("(?x)\n(", "its pattern cannot be used", "give pattern=re.compile(…)"),
    ],
)
def test_a_pattern_that_is_wrong_is_named(pattern: str, problem: str, fix: str):
    with pytest.raises(UsageError) as refused:
        declared(Annotated[str, Field(pattern=pattern)])
    assert problem in refused.value.problem
    assert fix in refused.value.fix


def test_a_pattern_of_a_result_is_checked_too():
    with pytest.raises(UsageError, match="f: return: its pattern"):
        declared(str, list[Annotated[str, Field(pattern="(")]])


@for_each_row(
    "annotation, good, bad",
    [
        (Annotated[str, Field(pattern=re.compile(LOOK))], "abcdefg1", "abcdefgh"),
        (Annotated[str, Field(pattern="^a+$")], "aaa", "b"),
        (ByPython, {"code": "abcdefg1"}, {"code": "abcdefgh"}),
    ],
)
async def test_what_the_fix_says_works(annotation: Any, good: Any, bad: Any):
    async with declared(annotation).connect() as client:
        assert await client.call("f", given=good) == "fits"
        with pytest.raises(Exception, match="must match the pattern"):
            await client.call("f", given=bad)
