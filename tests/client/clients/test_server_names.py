"""A server's name is a key in the settings of other programs; one that could mean something else is refused."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.client.known_clients import (
    KNOWN_CLIENTS,
    MAX_SERVER_NAME,
    RESERVED_NAMES,
    check_server_name,
    make_server_name,
)
from defserve.errors import UsageError
from defserve.tooling.listing import format_mgp_entry
from defserve.tooling.project_template import load_template_questions
from tests.rows import for_each_row

REFUSED = [
    *("__proto__", "constructor", "prototype", "hasOwnProperty", "toString", "valueOf", "__defineGetter__", "__init__"),
    *("", " ", "a b", "a\n", "a\0b", "\x1b[31m", "a\u202eb", "ünïcode", "a\u0301", "\udcff"),
    *("../x", "a/b", "a\\b", "..", ".", "~", "C:", "con", "NUL", "com1"),
    *("x" * (MAX_SERVER_NAME + 1), "x" * 1_000_000),
    *(
        "a.b",
        "a]",
        '"',
        "a'b",
        "a#b",
        "a=b",
        "[x]",
        "{{x}}",
        "a:b",
        "- a",
        "-a",
        "--name",
        "&a",
        "*a",
        "!a",
        "%a",
        "|",
        ">",
    ),
    *("null", "true", "False", "yes", "No", "on", "off", "1", "1e5", "0x10", "2026-11-15", ".inf", "NaN"),
    *("$(id)", "`id`", "a;b", "a&&b", "$HOME", "a|b", "${X}", "%PATH%", "a\tb"),
]
ALLOWED = ["weather", "My-Server_2", "a", "x" * MAX_SERVER_NAME, "constructors", "proto"]


@for_each_row("name", REFUSED, ids=lambda name: ascii(name)[:30])
def test_a_name_that_could_mean_something_else_is_refused_with_an_example(name: str):
    with pytest.raises(UsageError) as refused:
        check_server_name(name)
    assert "--name weather" in refused.value.fix
    assert len(str(refused.value)) < 400 and str(refused.value).replace("\n  fix", "").isprintable()


@for_each_row("name", ALLOWED)
def test_a_plain_name_is_taken(name: str):
    assert check_server_name(name) == name


@given(st.text(max_size=200) | st.sampled_from(REFUSED))
def test_whatever_a_server_calls_itself_there_is_a_name_for_it(own: str):
    assert check_server_name(make_server_name(own))


@for_each_row("client", KNOWN_CLIENTS)
@for_each_row("name", ["__proto__", "constructor", "a/b", "", "x" * 1_000_000, "a\n[x]"], ids=range(6))
def test_no_client_gets_such_a_name(client: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from defserve.cli import main

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.chdir(tmp_path)
    assert main(["install", f"--name={name}", "--client", client, "--", sys.executable, "x.py"]) != 0
    assert [*tmp_path.rglob("*")] == []


def test_what_a_file_has_under_such_a_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from defserve.cli import main

    monkeypatch.chdir(tmp_path)
    servers = '{"__proto__": {"command": "evil"}, "constructor": {"url": "http://x"}}'
    before = f'{{"mcpServers": {servers}, "__proto__": {{"a": 1}}}}\n'
    path = tmp_path / ".mcp.json"
    path.write_text(before)
    assert main(["install", "--name", "mine", "--", sys.executable, "x.py"]) == 0
    held: dict[str, Any] = json.loads(path.read_text())
    mine = held["mcpServers"].pop("mine")
    assert held == json.loads(before) and mine["args"] == ["x.py"]
    assert main(["uninstall", "__proto__"]) == 0
    assert [*json.loads(path.read_text())["mcpServers"]] == ["constructor", "mine"]


def test_the_template_refuses_the_same_names():
    asked = load_template_questions()
    assert {*asked.settings["_reserved_names"]} == RESERVED_NAMES
    for name in ("constructor", "prototype", "con", "null", "__proto__", "../x", "a\0b", "x" * 1_000_000):
        with pytest.raises(UsageError):
            asked.complete({"project_name": name})


@for_each_row("name", ["__proto__", "a\nb", "x" * 1_000 + "-", "\x7f", "a-b\0"])
def test_no_document_has_such_an_id(name: str):
    with pytest.raises(UsageError, match="cannot be an id"):
        format_mgp_entry({"name": name}, {}, command=["python"])
    with pytest.raises(UsageError, match="not the name of a variable"):
        format_mgp_entry({"name": "shop"}, {}, command=["python"], env=[name.replace("__proto__", "A = 1\n[x]")])
    assert tomllib.loads(format_mgp_entry({"name": "My Shop"}, {}, command=["python"]))["servers"][0]["id"] == "My Shop"
