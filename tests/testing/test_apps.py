"""A test's client renders views over every transport, and can do without."""

from __future__ import annotations

import pytest

from defserve import UsageError
from defserve.errors import PeerError
from defserve.testing import SyncClient
from tests.rows import for_each_row

SERVER = "examples/weather_app.py:server"


@pytest.mark.slow
@for_each_row("era", ["handshake", "stateless"])
@for_each_row("over", ["memory", "stdio", "http", "ws"])
def test_a_view_is_rendered_and_used(era: str, over: str):
    with SyncClient(SERVER, era, over=over) as client:
        app = client.render("forecast", city="Oslo")
        assert app.uri == "ui://weather-app/forecast" and app.border and app.permissions == []
        assert "<title>Forecast</title>" in app.html and "connect-src 'none'" in app.policy
        assert app.value["city"] == app.result["structuredContent"]["city"] == "Oslo" and "Oslo" in app.text
        assert app.call("convert", city="Oslo", unit="F")["unit"] == "F"
        (pong,) = app.answer({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert pong["result"] == {} and app.received == [("ping", {})]
        with pytest.raises(UsageError, match="may not call"):
            app.call("missing")


def test_a_client_that_offers_no_apps_is_one_without_views():
    with SyncClient(SERVER) as client:
        client.offers("ask")
        assert [tool["name"] for tool in client.tools()] == ["forecast"]
        with pytest.raises(PeerError, match="Unknown tool"):
            client.call("convert", city="Oslo", unit="F")
        with pytest.raises(UsageError, match="has no view"):
            client.render("forecast", city="Oslo")
