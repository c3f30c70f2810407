from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from defserve import Code, PublicUrl, Server, ShellCommand, Within, dangerous, moderate, safe
from defserve.sandbox import monty
from tests.rows import for_each_row
from tests.tooling.lint.reading import broken, only, read, wire

TEXT = {"type": "string", "description": "What it is."}


def taking(name: str, schema: dict[str, Any] = TEXT, **more: Any) -> dict[str, Any]:
    return {"name": "look_at_it", "inputSchema": {"type": "object", "properties": {name: schema}}, **more}


@for_each_row(
    ("parameter", "guard"),
    [
        ("command", "ShellCommand"),
        ("shell_cmd", "ShellCommand"),
        ("url", "PublicUrl"),
        ("webhookUrl", "PublicUrl"),
        ("code", "Code()"),
        ("python_code", "Code()"),
        ("path", "Within(root)"),
        ("output_file", "Within(root)"),
    ],
)
def test_a_dangerous_argument_that_nothing_judges_is_an_error(parameter: str, guard: str):
    (found,) = only(wire(taking(parameter)), "unguarded-parameter")
    assert found.level == "error"
    assert guard in found.finding.fix


@pytest.mark.skipif(not monty.is_installed(), reason="pydantic-monty is not installed in the tested version")
def test_what_the_framework_offers_by_itself_has_no_problems():
    assert broken(read(Server("s", code_mode=True, search="always"))) == []


@for_each_row(
    "tool",
    [
        taking("country_code"),
        taking("url_id"),
        taking("file_type"),
        taking("command", {"enum": ["start", "stop"], "description": "What to do."}),
        taking("path", {"type": "integer", "description": "Which one."}),
        taking("command", security={"risk_level": "dangerous", "validator": "sandbox"}),
        taking("command", _meta={"dev.defserve/security": {"risk_level": "dangerous", "validator": "sandbox"}}),
    ],
)
def test_what_only_sounds_dangerous_or_is_judged_is_left_alone(tool: dict[str, Any]):
    assert broken(wire(tool)) == []


def test_guards_of_a_server_of_ours_are_known_one_by_one():
    server = Server("guarded", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @server.tool
        @moderate("network.outbound")
        def fetch_page(url: PublicUrl, path: str) -> str:
            """Fetch a page into a file."""
            return ""

    @server.tool
    @dangerous("shell.execute")
    def run_all(command: ShellCommand, code: Annotated[str, Code()], path: Annotated[Path, Within("/tmp")]) -> str:
        """Run what was judged."""
        return ""

    @server.tool
    @moderate("filesystem.read", validator="none")
    def show_file(path: str) -> str:
        """Show a file; the author looks after it."""
        return ""

    @server.tool
    @dangerous("shell.execute", validator="sandbox")
    def run_command(command: str) -> str:
        """Run what the named validator lets pass."""
        return ""

    @server.tool
    def set_mode(command: Literal["start", "stop"]) -> str:
        """Start or stop."""
        return ""

    (found,) = only(read(server), "unguarded-parameter")
    assert found.finding.subject == "tool 'fetch_page'"
    assert "'path'" in found.finding.problem


@for_each_row(
    ("name", "harmful"),
    [
        ("delete_order", True),
        ("removeUser", True),
        ("run_command", True),
        ("exec", True),
        ("drop_table", True),
        ("list_deleted_orders", False),
        ("run_report", False),
        ("undelete_order", False),
    ],
)
def test_a_tool_that_does_harm_by_its_name_has_to_be_marked(name: str, harmful: bool):
    assert ("unmarked-danger" in broken(wire({"name": name}))) is harmful
    assert "unmarked-danger" not in broken(wire({"name": name, "annotations": {"destructiveHint": True}}))
    assert "unmarked-danger" not in broken(wire({"name": name, "security": {"risk_level": "moderate"}}))


@for_each_row(
    "tool",
    [
        {"name": "look_up", "annotations": {"readOnlyHint": True, "destructiveHint": True}},
        {"name": "update_order", "annotations": {"readOnlyHint": True}},
        {"name": "look_up", "annotations": {"readOnlyHint": True}, "security": {"risk_level": "dangerous"}},
        {"name": "look_up", "annotations": {"readOnlyHint": True}, "security": {"side_effects": ["network"]}},
        {"name": "delete_order", "security": {"risk_level": "safe"}},
        {"name": "look_up", "annotations": {"destructiveHint": False}, "security": {"risk_level": "dangerous"}},
        {
            "name": "look_up",
            "annotations": {"openWorldHint": False},
            "security": {"risk_level": "moderate", "permissions_required": ["network.outbound"]},
        },
    ],
)
def test_marks_annotations_and_names_that_disagree(tool: dict[str, Any]):
    assert broken(wire(tool)) == ["security-contradiction"]


def test_marks_that_agree_with_the_name_are_left_alone():
    server = Server("honest", "1")

    @server.tool
    @dangerous("filesystem.write")
    def delete_order(number: int) -> str:
        """Delete an order.

        Args:
            number: Which one.
        """
        return ""

    @server.tool
    @safe
    def count_orders() -> int:
        """How many there are."""
        return 0

    assert broken(read(server)) == []


def test_a_safe_mark_on_something_that_deletes_is_a_contradiction():
    server = Server("dishonest", "1")

    @server.tool
    @safe
    def delete_orders() -> str:
        """Delete all orders."""
        return ""

    (found,) = only(read(server), "security-contradiction")
    assert found.finding.where


def test_a_feature_set_on_which_nothing_is_declared_is_unused():
    server = Server("live", "1")
    server.feature_set("idle.one", "Does nothing")
    server.feature_set("pushing.one", "Pushes from elsewhere", uses=["pushEvents"])
    busy = server.feature_set("busy.one", "Has a tool")

    @busy.tool
    def count_orders() -> int:
        """How many there are."""
        return 0

    assert [found.finding.subject for found in only(read(server), "unused-feature-set")] == ["feature set 'idle.one'"]


def test_a_tool_that_asks_by_itself_is_told_how_to_be_marked():
    (complaint,) = only(wire({"name": "delete_order"}), "unmarked-danger")
    assert complaint.finding.fix.endswith("if it asks by itself, use @dangerous(…, confirm=False)")
