from __future__ import annotations

import httpx2
import pytest

from defserve import Limits, ToolError
from defserve.client import Client, connect_url
from defserve.serve.session_opener import serve_on_loopback
from defserve.testing import SyncClient
from examples.cookbook import fastapi_app

TEA = {"number": 7, "item": "tea", "status": "shipped"}


@pytest.mark.anyio
async def test_one_process_answers_browsers_and_models():
    async with serve_on_loopback(fastapi_app.app, Limits()) as url, httpx2.AsyncClient(base_url=url) as web:
        assert (await web.get("/orders/7")).json() == TEA
        missing = await web.get("/orders/9")
        assert (missing.status_code, missing.json()) == (404, {"detail": "There is no order 9."})
        assert (await web.get("/orders/0")).status_code == 422
        async with Client(await connect_url(f"{url}mcp")) as client:
            assert await client.call("get_order", number=7) == TEA


def test_the_tool_refuses_what_the_operation_refuses(client: SyncClient):
    with pytest.raises(ToolError, match="There is no order 9."):
        client.call("get_order", number=9)
    with pytest.raises(ToolError, match="number: must be at least 1"):
        client.call("get_order", number=0)
