from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve.cli.commands.inspect import inventory_page
from defserve.cli.content import format_object_example, format_signature, type_name
from tests.cli.running import Run
from tests.rows import for_each_row

pytestmark = pytest.mark.usefixtures("forked")

CALCULATOR = str(Path(__file__).parents[1] / "testing" / "calculator.py")


def test_a_python_server_is_listed_in_memory(defserve: Run):
    code, out, err = defserve("list", "tests.testing.toy")
    assert (code, err) == (0, "")
    assert out.startswith("pretend 2 (protocol 2026-07-28)\n\nTools\n  add()\n")


def test_the_era_can_be_chosen(defserve: Run):
    assert "protocol 2025-11-25" in defserve("list", "tests.testing.toy", "--era", "handshake").out
    assert "protocol 2025-03-26" in defserve("list", "tests.testing.toy", "--era", "2025-03-26").out


@pytest.mark.parametrize("module", ["shop_one", "shop_two"])
def test_a_package_is_searched_for_its_server(defserve: Run, folder: Path, module: str):
    (folder / "shop_one").mkdir()
    (folder / "shop_one" / "__init__.py").write_text("from tests.testing.toy import server")
    (folder / "shop_two").mkdir()
    (folder / "shop_two" / "__init__.py").write_text("")
    (folder / "shop_two" / "server.py").write_text("from tests.testing.toy import server")
    assert defserve("list", "-m", module).code == 0


def test_a_command_is_listed_over_stdio(defserve: Run):
    code, out, _ = defserve("list", "--", sys.executable, CALCULATOR)
    assert code == 0
    assert "  add(a: integer, b: integer = 2)\n      Add two numbers.\n" in out
    assert "Resources\n  note://today  note\n" in out
    assert "Prompts\n  hi(name)\n" in out


def test_json_is_what_the_server_said(defserve: Run):
    found = json.loads(defserve("list", "tests.testing.toy", "--json").out)
    assert found["server"]["name"] == "pretend"
    assert [tool["name"] for tool in found["tools"]] == ["add", "greet", "sign_in", "write", "look"]
    assert found["prompts"] == []


def test_only_tools_that_may_do_harm_have_a_mark():
    def tool(name: str, **more: object) -> dict[str, object]:
        return {"name": name, "inputSchema": {}, **more}

    dangerous = {"risk_level": "dangerous", "permissions_required": ["shell.execute"], "confirmation_required": True}
    tools = [
        tool("wipe", security=dangerous),
        tool("look", security={"risk_level": "safe"}),
        tool("plain"),
        tool("theirs", annotations={"destructiveHint": True}),
        tool("reads", annotations={"readOnlyHint": True}),
    ]
    found = {"server": {}, "version": "v", "tools": tools, "resources": [], "templates": [], "prompts": []}
    assert [line.strip() for line in inventory_page(found)][3:] == [
        "wipe()  [dangerous, shell.execute, asks first]",
        "look()",
        "plain()",
        "theirs()  [destructive]",
        "reads()",
    ]


def test_a_server_with_nothing_says_so():
    nothing = {"server": {}, "version": "v", "tools": [], "resources": [], "templates": [], "prompts": []}
    assert list(inventory_page(nothing)) == [
        "unnamed server (protocol v)",
        "It shows you no tools, resources or prompts.",
    ]


def test_what_a_server_wrote_cannot_move_the_cursor():
    tool = {"name": "a\x1b[2J", "inputSchema": {}, "description": "b\x1b[2J"}
    found = {"server": {"name": "c\x1b[2J"}, "version": "v", "tools": [tool], "resources": []}
    assert not any("\x1b" in line for line in inventory_page({**found, "templates": [], "prompts": []}))


@for_each_row(
    ("schema", "words"),
    [
        ({"type": "string"}, "string"),
        ({"type": "array", "items": {"type": "integer"}}, "integer[]"),
        ({"type": ["integer", "null"]}, "integer | null"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Point"}]}, "string | Point"),
        ({"enum": ["a", 1]}, '"a" | 1'),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a" | "b")[]'),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "(string | null)[]"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_a_schema_is_said_in_a_word_or_two(schema: object, words: str):
    assert type_name(schema) == words


def test_optional_parameters_show_their_default():
    properties = {"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}, "c": {"type": "boolean"}}
    tool = {"name": "t", "inputSchema": {"properties": properties, "required": ["a"]}}
    assert format_signature(tool) == 't(a: integer, b: string = "x", c: boolean = …)'


def test_optional_prompt_arguments_have_a_question_mark():
    prompt = {"name": "p", "arguments": [{"name": "a", "required": True}, {"name": "b"}]}
    assert format_signature(prompt) == "p(a, b?)"


@for_each_row(
    ("name", "schema", "shown"),
    [
        ("place", {"required": ["street", "floor"]}, """place:='{"street": …, "floor": …}'"""),
        ("place", {"$ref": "#/$defs/Place"}, """place:='{"town": …}'"""),
        ("place", {"$ref": "#/$defs/Nowhere"}, ""),
        ("place", {"required": ["a'; rm -rf ~; '"]}, ""),
        ("a'; rm", {"required": ["a"]}, ""),
        ("place", {"required": []}, ""),
        ("place", {"required": "street"}, ""),
        ("place", True, ""),
    ],
)
def test_an_object_is_shown_as_it_is_typed_unless_a_shell_would_read_it_otherwise(name: str, schema: Any, shown: str):
    assert format_object_example(name, schema, {"$defs": {"Place": {"required": ["town"]}}}) == shown


def test_mounted_servers_that_are_not_connected_are_named_below_the_lists():
    found = {"server": {}, "version": "v", "tools": [], "resources": [], "templates": [], "prompts": []}
    told = [*inventory_page({**found, "notConnected": {"wiki": "it is being started"}})]
    assert [str(line) for line in told[1:]] == ["", "Not connected", "  wiki  it is being started"]


def test_help_says_what_list_does_alone(defserve: Run):
    said = " ".join(defserve("list", "--help").out.split())
    assert "or nothing, for the names you can use (if there are none: the server of the project)" in said
    assert "or nothing, in a project with one server" not in said
    assert "or nothing, in a project with one server" in " ".join(defserve("call", "--help").out.split())
