from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from defserve import Server, ToolError
from defserve.testing import Decline, SyncClient
from tests.at_address import fresh
from tests.examples.cookbook.local_api import Asked, local_api


@pytest.fixture
def asked() -> list[Asked]:
    """What the API was asked."""
    return []


@pytest.fixture
def server(asked: list[Asked], monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    def answer(request: Asked) -> tuple[int, Any]:
        asked.append(request)
        return (201, request.body) if request.method == "POST" else (200, [{"item": "tea"}])

    with local_api(answer) as url:
        monkeypatch.setenv("SHOP_API", f"{url}/v1")
        monkeypatch.setenv("SHOP_TOKEN", "t-123")
        yield fresh("cookbook.openapi.server")


def test_the_api_is_called_with_the_token_and_the_fixed_value(client: SyncClient, asked: list[Asked]):
    assert [tool["name"] for tool in client.tools()] == ["find_orders", "create_order"]
    assert client.call("find_orders", words="green tea") == [{"item": "tea"}]
    (request,) = asked
    assert (request.path, request.query) == ("/v1/orders", {"tenant": "main", "q": "green tea"})
    assert request.headers["authorization"] == "Bearer t-123"
    with pytest.raises(ToolError, match="tenant"):
        client.call("find_orders", tenant="other")


def test_a_person_agrees_before_something_is_ordered(client: SyncClient, asked: list[Asked]):
    client.will_answer(Decline)
    with pytest.raises(ToolError, match="not confirmed"):
        client.call("create_order", item="tea")
    assert asked == []
    client.will_answer({"value": True})
    assert client.call("create_order", item="tea", count=2) == {"item": "tea", "count": 2}
    with pytest.raises(ToolError, match="count: must be at least 1"):
        client.call("create_order", item="tea", count=0)
