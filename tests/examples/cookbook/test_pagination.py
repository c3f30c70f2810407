from __future__ import annotations

import pytest

from defserve import ToolError
from defserve.testing import SyncClient


def test_the_pages_together_are_the_table(client: SyncClient):
    after, seen = 0, list[int]()
    while after is not None:
        page = client.call("list_orders", after=after, limit=100)
        seen += [order["id"] for order in page["orders"]]
        after = page["next_after"]
    assert seen == list(range(1, 10_001))


def test_a_page_is_bounded_and_the_last_one_says_so(client: SyncClient):
    first = client.call("list_orders")
    assert len(first["orders"]) == 50
    assert first["next_after"] == 50
    assert client.call("list_orders", after=9_950) == {**client.call("list_orders", after=9_950), "next_after": None}
    assert client.call("list_orders", after=10_000) == {"orders": [], "next_after": None}
    with pytest.raises(ToolError, match="limit: must be at most 100"):
        client.call("list_orders", limit=101)
