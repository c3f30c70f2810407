from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from defserve.cli.call import fit
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
CALCULATOR = str(Path(__file__).parents[1] / "testing" / "calculator.py")


@pytest.mark.parametrize(
    "arguments",
    [["a:=1", "b:=2"], ["--json", '{"a": 1, "b": 2}'], ["b:=2", "--json", '{"a": 1, "b": 7}'], ["--era", "handshake"]],
)
def test_the_result_is_printed(defserve: Run, arguments: list[str]):
    if arguments[0] == "--era":
        arguments = [*arguments, "a:=1", "b:=2"]
    code, out, err = defserve("call", "tests.testing.toy", "add", *arguments)
    assert (code, out, err) == (0, "3\n", "")


def test_a_command_is_called_over_stdio_and_text_fits_its_schema(defserve: Run):
    code, out, _ = defserve("call", "add", "a=1", "b=2", "--", sys.executable, CALCULATOR)
    assert (code, out) == (0, "3\n")


def test_the_raw_result_can_be_had(defserve: Run):
    raw = json.loads(defserve("call", "tests.testing.toy", "add", "a:=1", "b:=2", "--raw").out)
    assert raw == {"content": [{"type": "text", "text": "3"}]}


def test_what_a_server_prints_is_kept_out_of_the_result(defserve: Run, tmp_path: Path):
    file = tmp_path / "talkative.py"
    file.write_text(
        "from defserve import Server\nprint('loading')\nserver = Server('talkative')\n"
        "@server.tool\ndef one() -> int:\n    print('working')\n    return 1\n"
    )
    assert defserve("call", str(file), "one") == (0, "1\n", "loading\nworking\n")


def test_a_tool_that_asks_where_nobody_is_says_what_to_do(defserve: Run):
    code, _, err = defserve("call", CALCULATOR, "greet")
    assert code == 1
    assert "offers elicitation" in err and "fix: run it at a terminal" in err


def test_a_failed_tool_has_an_exit_code_of_its_own(defserve: Run):
    code, out, err = defserve("call", "add", "a=one", "b=2", "--", sys.executable, CALCULATOR)
    assert (code, out) == (5, "")
    assert "expected integer" in err


def test_an_unknown_tool_is_met_with_a_suggestion(defserve: Run):
    code, _, err = defserve("call", "ad", "--", sys.executable, CALCULATOR)
    assert code == 5
    assert "calculator has no tool 'ad'" in err and "did you mean 'add'?" in err


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "1", 1),
        ({"type": "string"}, "1", "1"),
        ({}, "1", "1"),
        ({"type": "array"}, "[1]", [1]),
        ({"type": "boolean"}, "maybe", "maybe"),
    ],
)
def test_text_becomes_what_the_schema_wants(schema: dict[str, object], text: str, value: object):
    assert fit({"a": text}, {"a": schema}) == {"a": value}


def test_arguments_can_be_validated_without_a_call(defserve: Run):
    assert defserve("call", "tests.export.shop", "price", "ticker=ABC", "--validate").out == "valid\n"
    code, _, err = defserve("call", "tests.export.shop", "price", "ticker=abc", "days=0", "--validate")
    assert code == 5
    assert err == 'error: ticker: must match the pattern ^[A-Z]{1,5}$, got "abc"\ndays: must be at least 1, got 0\n'
    assert "did you mean 'price'?" in defserve("call", "tests.export.shop", "prices", "--validate").err


@pytest.mark.req("MCP-10.3")
def test_a_server_that_validates_nothing_is_judged_by_its_list(defserve: Run):
    code, _, err = defserve("call", "tests.testing.toy", "greet", "nme=x", "--validate")
    assert (code, "nme" in err) == (5, True)
