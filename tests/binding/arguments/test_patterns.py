"""Patterns: a caller's text meets only linear time. What cannot be matched so is refused at the decorator."""

from __future__ import annotations

import dataclasses
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NewType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, StringConstraints
from typing_extensions import TypedDict

from defserve import Server, UsageError
from defserve.binding.explicit_schema import ExplicitArgumentsSchema, is_valid_instance
from defserve.binding.patterns import (
    NonLinearPattern,
    PatternProblem,
    TextTooLong,
    compile_pattern,
    find_pattern_problem,
    is_pattern_found,
)
from defserve.errors import BadArguments
from defserve.protocols.mcp.asking.client_features import ElicitationForm
from defserve.protocols.mcpl.state.states import StateValues
from tests.effort import cpu_within, examples
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
    assert refused.value.fix.startswith("check it in a function: Annotated[str, AfterValidator(check)]")
    assert refused.value.where.startswith("tests/binding/arguments/test_patterns.py:")


@for_each_row(
    "pattern, problem, fix",
    [
        ("(", r"its pattern '(' cannot be used: unclosed group", "correct the pattern"),
        ("[z-a]", "its pattern '[z-a]' cannot be used: invalid character class range", "correct the pattern"),
        (r'(")\1', "its pattern '(\")\\\\1' cannot be used: backreferences", "check it in a function"),
        ("(?x)\n(", "its pattern cannot be used", "check it in a function"),
        ("(a{1000}){1000}", "too large for the engine", "repeat less"),
        ("(?:ab{200}){30}", "positions, more than 5000", "repeat less"),
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


class Inner(BaseModel):
    code: Annotated[str, Field(pattern=re.compile(r"^(a+)+$"))]


class Outer(BaseModel):
    inner: list[Inner]


@dataclasses.dataclass
class OfPython:
    code: Annotated[str, Field(pattern=re.compile("a"))]


class Typed(TypedDict):
    code: Annotated[str, Field(pattern=re.compile("a"))]


SLOW = Annotated[str, Field(pattern=re.compile(r"^(a+)+$"))]


@for_each_row(
    "annotation",
    [
        SLOW,
        SLOW | None,
        list[SLOW],
        dict[str, SLOW],
        dict[SLOW, int],
        tuple[int, SLOW],
        Annotated[str, StringConstraints(pattern=re.compile("a"))],  # pyright: ignore
        Json[SLOW],
        Annotated[SLOW, AfterValidator(str.strip)],
        Annotated[Path, Field(pattern=re.compile("a"))],
        NewType("Named", SLOW),  # pyright: ignore
        OfPython,
        Typed,
        Inner,
        Outer,
        ByPython,
        list[ByPython] | None,
    ],
)
def test_no_text_of_a_caller_meets_pythons_engine(annotation: Any):
    with pytest.raises(UsageError, match="is matched by Python, which a text can keep busy for ever") as refused:
        declared(annotation)
    assert "AfterValidator" in refused.value.fix or "give the text: pattern=r" in refused.value.fix
    assert "re.compile" not in refused.value.fix


def test_a_question_and_a_state_refuse_pythons_engine_too():
    with pytest.raises(UsageError, match="question: its pattern"):
        ElicitationForm.from_type(Inner)
    with pytest.raises(UsageError, match="state: WithDefault: its pattern"):
        StateValues(WithDefault, "state")


class WithDefault(BaseModel):
    code: Annotated[str, Field(pattern=re.compile("a"))] = "a"


async def test_what_the_fix_says_works():
    def check(text: str) -> str:
        if len(text) < 8 or not any(letter.isdigit() for letter in text):
            raise ValueError("needs 8 characters and a digit")
        return text

    async with declared(Annotated[str, AfterValidator(check)]).connect() as client:
        assert await client.call("f", given="abcdefg1") == "fits"
        with pytest.raises(Exception, match="needs 8 characters and a digit"):
            await client.call("f", given="abcdefgh")


class Bounded(BaseModel):
    code: Annotated[str, Field(pattern="(?:a|b)*a(?:a|b){300}[cd]")]


@for_each_row(
    "annotation, wrap",
    [(Annotated[str, Field(pattern="(?:a|b)*a(?:a|b){300}[cd]")], lambda t: t), (Bounded, lambda t: {"code": t})],
)
def test_a_text_is_bounded_by_the_size_of_its_pattern(annotation: Any, wrap: Any):
    arguments = declared(annotation).mcp.tools.registry.get("f").function.arguments  # pyright: ignore
    with pytest.raises(BadArguments, match="must have at most 33003"):
        arguments.validate({"given": wrap("ab" * 1_000_000)})
    assert arguments.validate({"given": wrap("a" * 301 + "c")})


@for_each_row(
    ("pattern", "text", "expected"),
    [
        (r"^\w+$", "é", False),
        (r"^\d$", "٣", False),
        (r"^a$", "a\n", False),
        (r"^\s$", "\ufeff", True),
        (r"^\s$", "\x85", False),
        (r"^.$", "\u2028", False),
        (r"^.$", "\x85", True),
        (r"^.$", "😀", True),
        (r"b", "abc", True),
        (r"^\/a\-b\.c$", "/a-b.c", True),
        (r"\cJ", "\n", True),
        (r"^[\cA\b]+$", "\x01\b", True),
        (r"^\u0041\x42\0$", "AB\0", True),
        (r"^\u{1F600}\ud83d\ude00[😀-😂]$", "😀😀😁", True),
        (r"^(?<year>\d{4})$", "2026", True),
        (r"^[^]$", "\n", True),
        (r"[]", "a", False),
        (r"^[\w.-]+$", "a-b.c", True),
        (r"^[\w-z]+$", "-", True),
        (r"^[&~|[-]+$", "&~|[-", True),
        (r"^[a&&b]$", "&", True),
        (r"^a{,3}$", "a{,3}", True),
        (r"^{}]$", "{}]", True),
        (r"\bfoo\b", "éfoo", True),
        (r"\Bo", "foo", True),
        (r"^\p{Lu}\P{Lu}$", "Éé", True),
        (r"^x{2,3}?$", "xxxx", False),
        (r"^(?:a|)$", "", True),
        (r"", "", True),
    ],
)
def test_a_pattern_of_a_schema_means_what_ecmascript_means(pattern: str, text: str, expected: bool):
    assert is_pattern_found(pattern, text) is expected


@for_each_row(
    ("pattern", "is_right"),
    [
        (r"^(?=a)b", True),
        (r"(?<!a)b", True),
        (r"(a)\1", True),
        (r"(?<n>a)\k<n>", True),
        (r"(a{1000}){1000}", True),
        ("a" * 5_000, True),
        ("(" * 101 + ")" * 101, True),
        (r"\p{Nothing}", True),
        ("(", False),
        (")", False),
        ("(?=a", False),
        ("*", False),
        ("a**", False),
        ("^*", False),
        ("[b-a]", False),
        ("[a", False),
        ("a{2,1}", False),
        (r"a\Z", False),
        (r"\u{110000}", False),
        (r"\u12", False),
        (r"\c1", False),
        ("(?i)a", False),
        ("(?P<n>a)", False),
        ("\\", False),
    ],
)
def test_a_pattern_that_cannot_be_run_is_told_from_one_that_is_wrong(pattern: str, is_right: bool):
    problem = find_pattern_problem(pattern)
    assert problem is not None and isinstance(problem, NonLinearPattern) is is_right


@settings(max_examples=examples(200))
@given(st.text(alphabet="ab01()[]{}|*+?.^$\\-,dDwWsSbB^:=!<>/nux é😀", max_size=24), st.text(max_size=12))
def test_any_text_is_a_pattern_or_a_problem(pattern: str, text: str):
    try:
        compiled = compile_pattern(pattern)
    except PatternProblem as problem:
        assert problem.reason
    else:
        assert isinstance(compiled.search(text), bool) and compiled.size >= 1


HARD = [
    (r"^\w*\d*\w*\d*\w*$", "a", "!"),
    ("^" + "a?" * 26 + "a" * 26 + "$", "a", ""),
    ("^(a+)+$", "a", "!"),
    (r"^(\w+\s?)*$", "a", "!"),
    (r"(.*)*x", "a", ""),
    (r"(?:a|b)*a(?:a|b){60}[cd]", "ab", ""),
]


@for_each_row(("pattern", "part", "end"), HARD)
def test_the_time_of_a_match_grows_no_faster_than_the_text(pattern: str, part: str, end: str):
    compiled = compile_pattern(pattern)
    # Python's engine would take longer than the sun has.
    assert cpu_within(2.0, lambda: compiled.search(part * 10_000 + end))
    with pytest.raises(TextTooLong):
        compiled.search("a" * (compiled.max_length + 1))


HELD = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20_000, "pattern": r"^\w*\d*\w*\d*\w*$"}}}


@for_each_row(
    "schema",
    [
        HELD,
        {**HELD, "$schema": "http://json-schema.org/draft-07/schema#"},
        {"type": "object", "patternProperties": {r"^(a+)+$": {"type": "integer"}}},
        {"type": "object", "patternProperties": {r"^(a+)+$": {}}, "additionalProperties": False},
        {"type": "object", "propertyNames": {"maxLength": 20_000, "pattern": r"^(a|aa)+$"}},
        {"type": "object", "dependentSchemas": {"a": HELD}},
        {"type": "object", "anyOf": [HELD, HELD]},
    ],
)
def test_every_keyword_with_a_pattern_is_checked_in_linear_time(schema: Any):
    def check() -> None:
        for name in ("a" * 10_000 + "!", "a"):
            with suppress(BadArguments):
                ExplicitArgumentsSchema(schema).validate({name: "a" * 10_000 + "!"})

    assert cpu_within(3.0, check)


@for_each_row(
    ("schema", "value", "expected"),
    [
        ({"patternProperties": {"^a": {"type": "integer"}}}, {"ab": 1, "b": ""}, True),
        ({"patternProperties": {"^a": {"type": "integer"}}}, {"ab": ""}, False),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"ab": ""}, True),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"b": ""}, False),
        ({"patternProperties": {"^a": {}}, "additionalProperties": {"type": "integer"}}, {"b": ""}, False),
        ({"properties": {"b": {}}, "additionalProperties": False}, {"b": ""}, True),
        ({"propertyNames": {"pattern": "^a$"}}, {"a\n": 1}, False),
        ({"pattern": "^a$"}, "b", False),
        # What cannot be run is not enforced.
        ({"pattern": "^(?=a)b"}, "b", True),
        ({"patternProperties": {"(?=a)": {}}, "additionalProperties": False}, {"b": ""}, True),
    ],
)
def test_patterns_of_a_schema_are_judged_by_our_engine(schema: Any, value: Any, expected: bool):
    assert is_valid_instance(value, schema) is expected


def test_the_time_to_compile_the_patterns_of_a_schema_is_bounded():
    # More than are remembered, and each takes some 30 ms: for ten values it would be a minute.
    costly = [{"pattern": rf"\p{{L}}{{50}}{number}", "maxLength": 10} for number in range(200)]
    schema = {"type": "array", "items": {"allOf": costly}}
    assert cpu_within(5, lambda: is_valid_instance(["a"] * 10, schema))


def test_a_pattern_that_cannot_be_run_is_read_once_for_all_values():
    pattern = "(?=a)" + "b" * 4_000  # some 15 ms to read
    assert cpu_within(2, lambda: is_valid_instance(["a"] * 500, {"items": {"pattern": pattern}}))
