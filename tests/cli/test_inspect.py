from __future__ import annotations

import asyncio
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve.tooling.listing import FULL_OFFER, LISTING_OFFER
from tests.cli.running import Run
from tests.export import shop
from tests.raw import raw

LIVE = '''
from defserve import Server

server = Server("live", "1", instructions="Ask about notes.\\nTwice.", feature_sets="strict")
notes = server.feature_set("notes.edit", "Manage notes", uses=["pushEvents"])


@notes.tool(annotations={"readOnlyHint": True})
def find_notes() -> str:
    """Find notes."""
    return ""


@server.resource("note://today")
def today() -> str:
    """The note of today."""
    return ""
'''


def test_a_server_at_a_glance(defserve: Run):
    code, out, err = defserve("inspect", "tests.export.shop")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == ["shop 1.2.0", "  The shop", "  Orders and their prices."]
    assert "  MCP   2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25, 2026-07-28" in lines
    assert any(line.startswith("  MGP   0.3.0: permissions, tool_security") for line in lines)
    assert "        needs shell.execute; trust level standard" in lines
    assert any(re.fullmatch(r"  restock\(\)  ~\d+  \[dangerous, shell.execute, asks first\]", line) for line in lines)
    assert any(line.startswith("Tools (7, about ") and line.endswith("characters/4)") for line in lines)


def test_feature_sets_resources_and_hints_are_shown(defserve: Run, folder: Path):
    (folder / "live.py").write_text(LIVE)
    out = defserve("inspect", "live.py").out
    assert "  MCPL  0.4: pushEvents" in out
    assert "Feature sets (1)\n  notes.edit  [pushEvents, tools]\n      Manage notes\n" in out
    assert re.search(r"  find_notes\(\)  ~\d+  \[unmarked, read-only\]\n      Find notes.\n", out)
    assert "Resources (1)\n  note://today  today\n      The note of today." in out
    assert "  Ask about notes.\n" in out
    assert "Twice" not in out


async def wire_of(server: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with raw(server, "2025-11-25", FULL_OFFER) as peer:
        found["initialize"] = peer.opening
    async with raw(server, "2025-11-25", LISTING_OFFER) as peer:
        for method in ("tools", "resources", "prompts"):
            found |= (await peer.ask(f"{method}/list"))["result"]
        found |= (await peer.ask("resources/templates/list"))["result"]
    return found


def test_json_is_the_wire(defserve: Run):
    told = json.loads(defserve("inspect", "tests.export.shop", "--json").out)
    assert told == asyncio.run(wire_of(shop.server))


@pytest.mark.slow
def test_over_a_connection_it_is_the_same(defserve: Run, folder: Path):
    (folder / "live.py").write_text(LIVE + "\nif __name__ == '__main__':\n    server.main()\n")
    here = json.loads(defserve("inspect", "live.py", "--json").out)
    there = json.loads(defserve("inspect", "--era", "handshake", "--json", "--", sys.executable, "live.py").out)
    assert there == here
    page = defserve("inspect", "--", sys.executable, "live.py").out
    assert "  MCP   2025-11-25, 2026-07-28\n" in page
    assert "find_notes()" in page


def test_one_server_at_a_time(defserve: Run):
    assert defserve("inspect", "tests.export.shop", "another").code == 1


# -- a saved session -----------------------------------------------------------------------------------------

NASTY = "tea\x1b[2J\u202e"
SESSION: list[dict[str, Any]] = [
    {"defsession": {"version": 1, "maker": "defserve 1.0", "time": 1_700_000_000, "words": ["shop.py"]}},
    {
        "definitions": {
            "era": "stateless",
            "initialize": {
                "protocolVersion": "2026-07-28",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "shop", "version": "2.1"},
            },
            "tools": [{"name": "price", "description": NASTY, "inputSchema": {"type": "object"}}],
        }
    },
    {
        "message": {
            "seq": 0,
            "time": 1_700_000_000,
            "era": "stateless",
            "direction": "sent",
            "kind": "request",
            "method": "tools/call",
            "id": 1,
            "size": 2,
            "about": "price",
            "ms": 7,
        }
    },
    {
        "message": {
            "seq": 1,
            "time": 1_700_000_001,
            "era": "stateless",
            "direction": "received",
            "kind": "answer",
            "method": "tools/call",
            "id": 1,
            "size": 2,
            "about": "price",
            "of": 0,
            "ms": 7,
            "error": True,
        }
    },
    {"end": True},
]


END: dict[str, Any] = {"end": True}
ODD: list[dict[str, Any]] = [
    {"mgp": {"extensions": 5, "permissions_required": {"a": 1}}},
    {"experimental": {"mcpl": {"featureSets": [5, {"name": 5}], "channels": 5}}},
    {"experimental": {"mcpl": {"featureSets": {"a": 5, "b": {"uses": 5}}}}},
    {"experimental": 5, "extensions": 5},
]


def write_session(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in records).encode()))
    return str(path)


def test_a_saved_session_is_shown_at_a_glance(defserve: Run, tmp_path: Path):
    path = write_session(tmp_path / "shop.defsession", SESSION)
    out = defserve("inspect", path).out
    assert "shop 2.1" in out and "2026-07-28" in out and "2 messages, 1 call, 1 error, 0 checkpoints" in out
    assert "\x1b[2J" not in out and "\u202e" not in out
    assert f"defserve inspect {path} --web" in out
    told = json.loads(defserve("inspect", path, "--json").out)
    assert told["session"]["tools"] == [{"tool": "price", "calls": 1, "errors": 1, "median": 7}]
    assert told["tools"][0]["name"] == "price"


WRONG: list[tuple[list[dict[str, Any]], str]] = [
    (SESSION[:-1], "its end is missing"),
    ([{"defsession": {"version": 9}}], "version 9"),
    ([SESSION[0], {"definitions": {"era": "stateless", "tools": [{"name": 1}]}}, END], "is wrong"),
]


@pytest.mark.parametrize(("records", "problem"), WRONG)
def test_a_session_that_is_wrong_is_refused(defserve: Run, tmp_path: Path, records: list[dict[str, Any]], problem: str):
    done = defserve("inspect", write_session(tmp_path / "shop.defsession", records))
    assert done.code != 0 and problem in done.err and "Traceback" not in done.err


@pytest.mark.parametrize("capabilities", ODD)
def test_capabilities_that_mean_nothing_are_left_out(defserve: Run, tmp_path: Path, capabilities: dict[str, Any]):
    listed = {"definitions": {"era": "stateless", "initialize": {"capabilities": capabilities, "instructions": 5}}}
    done = defserve("inspect", write_session(tmp_path / "odd.defsession", [SESSION[0], listed, END]))
    assert done.code == 0 and "Session, saved" in done.out
