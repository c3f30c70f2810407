from __future__ import annotations

import tomllib

import pytest

from defserve.tooling.listing import MGP_OFFER, format_mgp_entry, server_listing
from tests.export import shop
from tests.raw import raw


@pytest.mark.req("MGP-15.3")
@pytest.mark.anyio
async def test_what_is_told_before_connecting_is_what_initialize_tells():
    found = server_listing(shop.server.composition)
    assert found is not None
    entry = tomllib.loads(format_mgp_entry(found.info, found.mgp, command=["python", "shop.py"]))["servers"][0]
    async with raw(shop.server, "2025-11-25", capabilities={"mgp": dict(MGP_OFFER)}) as peer:
        told = peer.opening["capabilities"]["mgp"]
    assert entry["id"] == told["server_id"]
    assert entry["mgp"] == {name: told[name] for name in ("extensions", "permissions_required", "trust_level")}
    assert entry["mgp"]["permissions_required"] == ["shell.execute"]


def test_an_entry_says_how_the_server_is_started():
    text = format_mgp_entry({"name": "x"}, {}, command=["python", 'a "b"\\c\x7f.py'], env=["KEY"])
    assert tomllib.loads(text) == {
        "servers": [
            {
                "id": "x",
                "command": "python",
                "args": ['a "b"\\c\x7f.py'],
                "transport": "stdio",
                "env": {"KEY": "${KEY}"},
            }
        ]
    }


def test_a_server_at_an_address_has_its_address():
    server = tomllib.loads(format_mgp_entry({"name": "x"}, {}, url="http://127.0.0.1:8000/mcp"))["servers"][0]
    assert server == {"id": "x", "url": "http://127.0.0.1:8000/mcp", "transport": "http"}
