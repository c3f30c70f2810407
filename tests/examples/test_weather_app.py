from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from defserve.client.replies import Json
from defserve.errors import UsageError

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio


async def test_the_view_is_rendered_with_the_result_and_its_button_works(connect_to: ConnectTo):
    async with connect_to("weather_app", apps=True) as client:
        app = await client.render("forecast", city="Oslo")
        assert (app.uri, app.border, app.permissions) == ("ui://weather-app/forecast", True, [])
        assert app.html.startswith("<!doctype html>") and "window.host" in app.html
        assert "connect-src 'none'" in app.policy
        assert (await app.value())["days"][0] == {"name": "Mon", "degrees": 4}
        assert '"city":"Oslo"' in app.text
        assert (await app.call("convert", city="Oslo", unit="F"))["days"][0]["degrees"] == 39


async def test_a_tool_that_fails_still_shows_its_view(connect_to: ConnectTo):
    async with connect_to("weather_app", apps=True) as client:
        app = await client.render("forecast", city="Atlantis")
        assert app.result["isError"] and "no forecast for Atlantis" in app.text


async def test_a_client_without_views_sees_plain_tools(connect_to: ConnectTo):
    async with connect_to("weather_app") as client:
        tools: list[Json] = await client.tools()
        assert [tool["name"] for tool in tools] == ["forecast"]
        assert "ui" not in tools[0].get("_meta", {})
        assert await client.resources() == []
        assert (await client.call("forecast", city="Lagos"))["days"][1]["degrees"] == 31
        with pytest.raises(UsageError, match="has no view"):
            await client.render("forecast", city="Lagos")
