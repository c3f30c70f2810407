import json

import pytest
from defserve import ToolError
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{{ cookiecutter.package_name }}.server:server")


def test_search_finds_by_a_part_of_the_name(client: SyncClient) -> None:
    assert [product["number"] for product in client.call("search", query="tea")] == [1, 2, 3]
    assert [product["name"] for product in client.call("search", query="GREEN", limit=1)] == ["Green tea"]


def test_order_adds_up_and_tells_its_progress(client: SyncClient) -> None:
    ordered = client.call("order", lines=[{"number": 1, "quantity": 2}, {"number": 3}])
    assert ordered["total"] == 28.0
    assert [done for done, _, _ in client.progress] == [1, 2]


def test_a_number_that_is_not_there_is_explained(client: SyncClient) -> None:
    with pytest.raises(ToolError, match="no product 9; there are"):
        client.call("order", lines=[{"number": 9}])


def test_a_quantity_out_of_bounds_is_refused(client: SyncClient) -> None:
    with pytest.raises(ToolError, match="quantity"):
        client.call("order", lines=[{"number": 1, "quantity": 0}])


def test_a_product_is_a_resource(client: SyncClient) -> None:
    assert json.loads(client.read_text("catalogue://products/2"))["name"] == "Black tea"


def test_the_prompt_mentions_the_taste(client: SyncClient) -> None:
    (message,) = client.prompt("recommend", taste="smoke")["messages"]
    assert "likes smoke" in message["content"]["text"]
