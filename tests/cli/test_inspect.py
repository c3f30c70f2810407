from __future__ import annotations

import asyncio
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
    assert any(re.fullmatch(r"  restock\(\)  ~\d+  \[dangerous, shell.execute, confirmed\]", line) for line in lines)
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
