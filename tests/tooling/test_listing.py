"""A listing that was saved is read as it was, and what is none is refused with what helps."""

from __future__ import annotations

import json

import pytest

from defserve import Server
from defserve.errors import UsageError
from defserve.tooling.listing import MAX_SNAPSHOT_BYTES, parse_snapshot, server_listing, to_snapshot
from tests.rows import for_each_row


def test_a_snapshot_holds_the_whole_listing():
    server = Server("shop", "1", instructions="Look first.")

    @server.tool
    def find(text: str) -> str:
        """Find things."""
        return text

    listed = server_listing(server.composition)
    assert listed is not None
    assert parse_snapshot(json.dumps(to_snapshot(listed)).encode(), "shop.json") == listed


def test_what_list_prints_and_the_result_of_tools_list_are_read_too():
    tool = {"name": "find", "inputSchema": {"type": "object"}}
    printed = {
        "server": {"name": "shop"},
        "version": "2025-11-25",
        "instructions": None,
        "tools": [tool],
        "templates": [],
    }
    assert parse_snapshot(json.dumps(printed).encode(), "a").info == {"name": "shop"}
    assert parse_snapshot(json.dumps({"tools": [tool]}).encode(), "a").tools == [tool]


REFUSED = {
    "is not JSON": b"{",
    "holds no list of tools": b"[]",
    "tools is not a list of objects": b'{"tools": [1]}',
    "name is missing": b'{"tools": [{}]}',
    "capabilities is not an object": b'{"tools": [], "initialize": {"capabilities": 3}}',
    "nested deeper": b'{"tools": ' + b"[" * 90 + b"]" * 90 + b"}",
    "MiB": b" " * (MAX_SNAPSHOT_BYTES + 1),
}


@for_each_row("why", REFUSED)
def test_what_is_no_snapshot_is_refused(why: str):
    with pytest.raises(UsageError, match=why) as raised:
        parse_snapshot(REFUSED[why], "old.json")
    assert "old.json" in str(raised.value) and "defserve inspect" in str(raised.value)
