from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from defserve.cli.commands.call import parse_argument_words
from defserve.inspector.call_code import SavedCall, format_call_command, format_call_test
from defserve.inspector.recording.masking import REDACTION_MASK, mask_value

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(min_size=1), values, max_size=4))
def test_the_line_gives_the_tool_the_same_arguments(arguments: dict[str, Any]):
    assume(REDACTION_MASK not in str(mask_value(arguments)))  # secrets are left to be filled in
    words = shlex.split(format_call_command(("server.py",), "tool", arguments))
    assert words[:4] == ["defserve", "call", "server.py", "tool"]
    if words[4:5] == ["--json"]:
        assert json.loads(words[5]) == arguments
    else:
        texts, given = parse_argument_words(words[4:], None)
        assert {**texts, **given} == arguments


def test_a_command_comes_last():
    assert format_call_command(("--", "node", "s.js"), "add", {"a": 1}) == "defserve call add a:=1 -- node s.js"


@pytest.mark.parametrize("tool", ["--token=@/etc/hostname", "-m", "--", "\x1b[201~", "a\nb", "a\u202eb"])
def test_no_line_is_made_of_a_name_that_would_be_something_else_there(tool: str):
    line = format_call_command(("http://127.0.0.1:8000/mcp",), tool, {"a": 1})
    assert line == "# defserve call cannot be told the names of this tool and its server"
    assert format_call_command(("--", "sh", "\x03"), "t", {}) == line


def test_a_line_holds_nothing_that_a_terminal_acts_on():
    arguments = {"a": "two\nlines", "b": "\x03\x1b[201~\u202e"}
    line = format_call_command(("s.py",), "t", arguments)
    assert line.isascii() and line.isprintable() and json.loads(shlex.split(line)[-1]) == arguments


def test_a_number_of_any_size_is_compared():
    found = format_call_test(("s.py",), [SavedCall("t", {}, {"structuredContent": {"n": 10**400}}, time=1.0)])
    assert str(10**400) in found


@pytest.mark.slow
@given(st.text(), st.dictionaries(st.text(), values, max_size=3), values)
def test_every_call_makes_a_test_that_python_can_read(tool: str, arguments: dict[str, Any], outcome: Any):
    for words in (("server.py",), ("--", "node", "s.js"), ()):
        ast.parse(format_call_test(words, [SavedCall(tool, arguments, outcome)]))
        ast.parse(format_call_test(words, [SavedCall(tool, arguments, {"error": {"message": f"no {outcome}"}})]))


SERVER = """
from defserve import Image, Server, ToolError

server = Server("s", "1")


@server.tool
def add(a: int, b: int) -> dict[str, int]:
    return {"sum": a + b}


@server.tool
def greet(name: str) -> str:
    return f"hello {name}"


@server.tool
def picture() -> Image:
    return Image(b"\\x89PNG\\r\\n\\x1a\\n")


@server.tool
def fail() -> str:
    raise ToolError("it is broken")
"""


PASSING: list[tuple[str, dict[str, Any], Any]] = [
    ("add", {"a": 1, "b": 2}, {"structuredContent": {"sum": 3}, "content": []}),
    ("greet", {"name": "you"}, {"content": [{"type": "text", "text": "hello you"}]}),
    ("fail", {}, {"isError": True, "content": [{"type": "text", "text": "it is broken"}]}),
    ("picture", {}, {"content": [{"type": "image", "data": "iVBORw0KGgo="}]}),
    ("missing", {}, {"error": {"message": "missing"}}),
    ("greet", {"name": "you"}, None),
]
FAILING: list[tuple[str, dict[str, Any], Any]] = [
    ("add", {"a": 1, "b": 2}, {"structuredContent": {"sum": 4}}),
    ("greet", {"name": "you"}, {"content": [{"type": "text", "text": "hello"}]}),
    ("fail", {}, {"content": []}),
    ("greet", {"name": "you"}, {"error": {"message": "no"}}),
]


@pytest.mark.slow
def test_a_saved_test_passes_where_the_result_is_the_same_and_only_there(pytester: pytest.Pytester):
    Path("server.py").write_text(SERVER)
    for number, (tool, arguments, outcome) in enumerate([*PASSING, *FAILING]):
        Path(f"test_{number}.py").write_text(format_call_test(("server.py",), [SavedCall(tool, arguments, outcome)]))
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    # Each runs in both eras.
    done.assert_outcomes(passed=2 * len(PASSING), failed=2 * len(FAILING))
    failed = {int(line.split("test_")[1].split(".")[0]) for line in done.outlines if line.startswith("FAILED")}
    assert failed == set(range(len(PASSING), len(PASSING) + len(FAILING)))
