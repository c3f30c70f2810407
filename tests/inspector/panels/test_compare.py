"""The Compare panel: the first listing and a file, each beside what the server lists now."""

from __future__ import annotations

import json

import pytest

from defserve import Server
from defserve.errors import UsageError
from defserve.tooling.listing import server_listing, to_snapshot
from tests.inspector.conftest import Inspect, Run

pytestmark = pytest.mark.anyio


def shop() -> Server:
    server = Server("shop", "1")

    @server.tool
    def find(text: str = "") -> str:
        """Find things."""
        return text

    return server


async def test_what_is_new_since_the_first_listing_is_told(inspect: Inspect, do: Run):
    server = shop()
    async with inspect(server) as inspection:
        since = await do(inspection, "compare.keep")
        assert (await do(inspection, "compare.run"))["changes"] == []

        @server.tool
        def lose() -> str:
            """Lose things."""
            return ""

        (change,) = (await do(inspection, "compare.run"))["changes"]
        assert (change["rule"], change["name"]) == ("added", "lose")
        assert await do(inspection, "compare.keep") == since


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_file_is_compared_in_the_era_it_was_saved_in(inspect: Inspect, do: Run, era: str):
    server = shop()
    listed = server_listing(server.composition)
    assert listed is not None
    listed.tools[0]["inputSchema"]["properties"]["gone"] = {"type": "string"}
    text = json.dumps(to_snapshot(listed))
    async with inspect(server) as inspection:
        found = await do(inspection, "compare.run", era=era, name="old.json", text=text)
    assert [(change["rule"], change["where"]) for change in found["changes"]] == [("parameter-removed", "gone")]


async def test_what_is_saved_is_what_is_compared(inspect: Inspect, do: Run):
    async with inspect(shop()) as inspection:
        saved = (await do(inspection, "compare.save"))["snapshot"]
        assert [tool["name"] for tool in saved["tools"]] == ["find"]
        assert (await do(inspection, "compare.run", text=json.dumps(saved)))["changes"] == []


async def test_a_file_that_is_none_is_refused_by_its_name(inspect: Inspect, do: Run):
    async with inspect(shop()) as inspection:
        with pytest.raises(UsageError, match="holiday.json is not JSON"):
            await do(inspection, "compare.run", name="holiday.json", text="Dear all")


async def test_tools_are_shown_as_each_vendor_is_sent_them(inspect: Inspect, do: Run):
    async with inspect(shop()) as inspection:
        tools = [tool["definition"] for tool in (await do(inspection, "tools.list"))["tools"]]
        shapes = {shape["vendor"]: shape for shape in await do(inspection, "tools.shapes", tools=tools)}
        assert [*shapes] == ["openai", "openai-chat", "anthropic", "gemini"]
        assert [tool["name"] for tool in shapes["anthropic"]["value"]] == ["find"]
        assert shapes["anthropic"]["tokens"] < shapes["openai"]["tokens"]
        assert shapes["openai"]["problems"] == []
        for wrong in (None, [1], [{"name": 3}]):
            with pytest.raises(UsageError, match="'tools' is missing"):
                await do(inspection, "tools.shapes", tools=wrong)
