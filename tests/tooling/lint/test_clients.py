"""`defserve check --for`: what each client refuses, and what it does not tell its model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve.tooling.lint.client_rules import CLIENT_RULES, LINTED_CLIENTS, find_client_problems
from tests.rows import for_each_row
from tests.tooling.lint.reading import wire

pytestmark = pytest.mark.usefixtures("forked")

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(
    path.name
    for path in (ROOT / "examples").glob("*.py")
    # The official suite wants a tool with references and combiners from that server.
    if not path.name.startswith("_") and path.name != "conformance.py"
)


def find(client: str, tool: dict[str, Any], **info: Any) -> list[str]:
    """The rules that a tool breaks for a client."""
    found = wire({"name": "find", **tool}, serverInfo={"name": "shop", **info})
    return [one.rule for one in find_client_problems(found, client)]


def taking(schema: dict[str, Any], **root: Any) -> dict[str, Any]:
    return {"inputSchema": {"type": "object", "properties": {"value": schema}, **root}}


GOOD = taking({"type": "string"})


@for_each_row("client", list(LINTED_CLIENTS))
def test_a_plain_tool_suits_every_client(client: str):
    assert find(client, GOOD) == []


@for_each_row(
    ("tool", "rule", "clients"),
    [
        (taking({}, anyOf=[]), "root-combiner", "chatgpt claude copilot codex"),
        (taking({"type": "string"}, enum=[{}]), "root-combiner", "chatgpt copilot codex"),
        (taking({"$ref": "#/$defs/No"}), "missing-reference", "chatgpt claude gemini copilot cursor codex"),
        (taking({"$ref": "#/$defs/Yes"}, **{"$defs": {"Yes": {"type": "string"}}}), "reference", "gemini"),
        (taking({"$ref": "#/$defs/A"}, **{"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}), "recursion", "codex"),
        (taking({"type": "array"}), "items", "chatgpt copilot codex"),
        (taking({"type": "object"}), "properties", "chatgpt copilot codex"),
        (taking({"type": "array", "items": {}, "enum": [[]]}), "array-enum", "gemini copilot"),
        (taking({"type": "string", "$dynamicRef": "#x"}), "dynamic-reference", "copilot"),
        (taking({"type": "string"}, additionalProperties=False), "closed-object", "gemini"),
        (taking({"oneOf": [{"type": "string"}]}), "one-of", "codex"),
        (taking({"description": "Anything."}), "untyped", "codex"),
        (taking({"type": "integer", "minimum": 3}), "untold", "codex"),
        (taking({"type": "string", "enum": [str(n) for n in range(1001)]}), "too-large", "chatgpt"),
        ({**GOOD, "outputSchema": {"type": "array"}}, "output-type", "claude gemini copilot cursor"),
        ({**GOOD, "name": "shop.find"}, "client-name", "chatgpt claude copilot codex"),
        ({**GOOD, "name": "f" * 65}, "client-name", "chatgpt gemini copilot cursor codex"),
        ({**GOOD, "name": "f" * 57}, "client-name", "cursor"),
        ({**GOOD, "name": "f" * 119}, "client-name", "chatgpt claude gemini copilot cursor codex"),
    ],
    ids=str,
)
def test_a_rule_is_broken_for_the_clients_that_have_it(tool: dict[str, Any], rule: str, clients: str):
    assert [client for client in LINTED_CLIENTS if rule in find(client, tool)] == clients.split()
    assert rule in CLIENT_RULES


def test_what_every_tool_has_is_reported_once():
    tool = taking({"type": "string"}, additionalProperties=False)
    found = wire({"name": "find", **tool}, {"name": "keep", **tool})
    assert [one.rule for one in find_client_problems(found, "gemini")] == ["closed-object"]


@for_each_row(("client", "level"), [("cursor", "warning"), ("copilot", "error"), ("claude", "")])
def test_too_many_tools_are_reported_where_a_client_has_a_limit(client: str, level: str):
    found = wire(*({"name": f"tool_{n}", **GOOD} for n in range(130)))
    levels = [one.level for one in find_client_problems(found, client) if one.rule == "too-many-tools"]
    assert levels == ([level] if level else [])


def test_long_instructions_are_reported_for_chatgpt():
    found = wire({"name": "find", **GOOD}, instructions="a" * 600)
    assert [one.rule for one in find_client_problems(found, "chatgpt")] == ["long-instructions"]


def run_check(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "500"}
    command = [sys.executable, "-m", "defserve", "check", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_suits_every_client(example: str):
    words = [word for client in LINTED_CLIENTS for word in ("--for", client)]
    ran = run_check(f"examples/{example}", *words)
    broken = [line for line in ran.stdout.splitlines() if any(f"error: {rule}" in line for rule in ("tool", "the"))]
    assert not [line for line in broken if line.rpartition("[")[2].rstrip("]") in CLIENT_RULES], ran.stdout
    assert ran.returncode in (0, 1), ran.stderr


def test_a_finding_has_its_file_line_and_fix(tmp_path: Path):
    path = tmp_path / "shop.py"
    path.write_text(
        'from defserve import Server\n\nserver = Server("shop", "1")\n\n\n'
        '@server.tool(name="shop.find")\ndef find(text: str) -> str:\n    """Find.\n\n    Args:\n        text: What.\n'
        '    """\n    return text\n'
    )
    ran = run_check(str(path), "--for", "chatgpt")
    assert ran.returncode == 1
    assert "shop.py:6: error: tool 'shop.find': ChatGPT refuses its name" in ran.stdout
    assert 'fix: give it another: @server.tool(name="shop_find")' in ran.stdout
    assert run_check(str(path), "--for", "chatgpt", "--ignore", "client-name").returncode == 0
