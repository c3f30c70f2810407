"""Frontmatter means the same here as to every other implementation, and hostile frontmatter costs little."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcp.skill_files import (
    MAX_FRONTMATTER_LENGTH,
    MAX_YAML_DEPTH,
    BadFrontmatter,
    is_same_json,
    parse_frontmatter,
    read_frontmatter,
)
from tests.effort import cpu_within
from tests.rows import for_each_row

# Plain words and what the core schema of YAML 1.2 makes of them. YAML 1.1 reads many of them otherwise.
CORE: list[tuple[str, Any]] = [
    ("2026-01-01", "2026-01-01"),
    ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
    ("yes", "yes"),
    ("No", "No"),
    ("on", "on"),
    ("y", "y"),
    ("true", True),
    ("FALSE", False),
    ("tRUE", "tRUE"),
    ("null", None),
    ("~", None),
    ("", None),
    ("017", 17),
    ("0o17", 15),
    ("0x1F", 31),
    ("0b11", "0b11"),
    ("1_000", "1_000"),
    ("12:30", "12:30"),
    ("-7", -7),
    ("+7", 7),
    ("1.50", 1.5),
    (".5", 0.5),
    ("1e3", 1000.0),
    ("1.", 1.0),
    (".", "."),
    ("1.2.3", "1.2.3"),
    ("'12'", "12"),
    ('"true"', "true"),
    ("!!str 12", "12"),
    ("! 12", "12"),
    ("=", "="),
    ("<<", "<<"),
    ('"\\u2028"', "\u2028"),
]


# Block texts at the end, where the file may or may not have a line break before the closing line.
BLOCKS = [
    ("|\n  x\n  y", "x\ny\n"),
    ("|\n  x\n  y\n", "x\ny\n"),
    ("|-\n  x", "x"),
    ("|+\n  x\n\n", "x\n\n"),
    ("|+\n  x\n\n ", "x\n\n"),
    (">\n  x\n  y", "x y\n"),
    ("|\r\n  x\r\n  y", "x\ny\n"),
]


@for_each_row(("written", "value"), CORE + BLOCKS)
def test_plain_words_are_read_by_the_core_schema(written: str, value: Any) -> None:
    found = parse_frontmatter(f"a: {written}")["a"]
    assert found == value and type(found) is type(value)


@for_each_row(
    ("written", "problem"),
    [
        ("a: &x 1\nb: *x", "line 3: the alias \\*x is not supported"),
        ("a: !!python/object/apply:os.getcwd []", "line 2: the tag .*python.* is not supported"),
        ("a: !!binary aGk=", "the tag .*binary is not supported"),
        ("a: !!timestamp 2026-01-01", "the tag .*timestamp is not supported"),
        ("a: !!set {b}", "the tag .*set is not supported"),
        ("1: x", "line 2: a name that is not a text"),
        ("? [a]\n: x", "a name that is not a text"),
        ("null: x", "a name that is not a text"),
        ("a: 1\nb: 2\na: 3", "line 4: 'a' is there twice"),
        ("a: .inf", "JSON has no .inf"),
        ("a: .NaN", "JSON has no .NaN"),
        ("a: 1e999", "too large for JSON"),
        (f"a: {'9' * 9999}", "too large for JSON"),
        ("a: [", "the frontmatter is not YAML: line 3"),
        ("a: 1\n---\nb: 2", "more than one YAML document"),
        ("a: b: c", 'line 2: mapping values .* \\(put a text with ": " in it into "quotes"\\)'),
        ("a:\tb", "write blanks instead of tabs"),
        ("a: \x07", "the frontmatter is not YAML"),
        ('a: "\\ud800"', "half a character"),
        ('"\\udc00\\ud800": 1', "half a character"),
        ("a: x\u2028y", "U\\+2028"),
        ("[" * (MAX_YAML_DEPTH + 1), "nested deeper than"),
        ("a" * (MAX_FRONTMATTER_LENGTH + 1), "longer than"),
    ],
)
def test_what_json_cannot_say_or_what_could_grow_is_refused_with_its_place(written: str, problem: str) -> None:
    with pytest.raises(BadFrontmatter, match=problem):
        parse_frontmatter(written)


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: a\n---\nbody",
        "---\r\nname: a\r\n---\r\nbody",
        "\ufeff---\nname: a\n---\n",
        "---\nname: a\n---",
        "---\nname: a\n--- \t\nbody\n---\n",
    ],
)
def test_the_block_is_found_with_any_line_ends_and_a_byte_order_mark(text: str) -> None:
    assert read_frontmatter(text) == {"name": "a"}


@for_each_row(
    ("text", "problem"),
    [
        ("", "does not begin with frontmatter"),
        ("# Title\n---\nname: a\n---\n", "does not begin with frontmatter"),
        (" ---\nname: a\n---\n", "does not begin with frontmatter"),
        ("---\nname: a\n", "no closing line"),
        ("---\nname: a\n---x\n", "no closing line"),
        (f"---\nname: {'a' * MAX_FRONTMATTER_LENGTH}\n---\n", "no closing line"),
        ("---\n---\n", "not a YAML mapping"),
        ("---\n- a\n---\n", "not a YAML mapping"),
    ],
)
def test_a_text_without_frontmatter_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadFrontmatter, match=problem):
        read_frontmatter(text)


def test_a_closing_line_at_the_bound_is_not_read_from_half_a_line() -> None:
    for length in range(MAX_FRONTMATTER_LENGTH - 16, MAX_FRONTMATTER_LENGTH + 16):
        with pytest.raises(BadFrontmatter):
            read_frontmatter(f"---\n{'#' * length}\n---and more on this line\n" + "x" * 64)


# YAML itself allows no longer ones.
KEYS = st.text(max_size=80)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_json_is_yaml_and_comes_back_unchanged(value: dict[str, Any]) -> None:
    assert is_same_json(parse_frontmatter(json.dumps(value)), value)


@given(st.text() | st.text(alphabet="-?:,[]{}#&*!|>'\"%@` \n\tabc0.~<=", max_size=300))
def test_any_text_gives_a_json_value_or_a_clear_refusal(text: str) -> None:
    try:
        value = parse_frontmatter(text)
    except BadFrontmatter as problem:
        assert str(problem)
    else:
        assert json.loads(json.dumps(value, allow_nan=False)) == value


@pytest.mark.slow
@for_each_row(
    "unit", ["[", "{", "[a,", "{a: ", "- ", "? ", "&a ", "a: ", "'a': ", "[\n", "- a\n", "# \n", "|", "\\\n", "!a "]
)
def test_hostile_yaml_of_the_greatest_length_costs_little(unit: str) -> None:
    text = unit * (MAX_FRONTMATTER_LENGTH // len(unit))

    def parse() -> None:
        try:
            parse_frontmatter(text)
        except BadFrontmatter:
            pass

    assert cpu_within(2.0, parse)


def test_aliases_cannot_multiply() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 64))
    with pytest.raises(BadFrontmatter, match="alias"):
        parse_frontmatter(bomb)


@for_each_row(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ("1", 1, False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ({"a": None}, {}, False),
        ([1, 2], [2, 1], False),
        ([], {}, False),
        (math.nan, math.nan, False),
    ],
)
def test_json_values_are_compared_as_json(one: Any, other: Any, same: bool) -> None:
    assert is_same_json(one, other) is same
    assert is_same_json(other, one) is same
