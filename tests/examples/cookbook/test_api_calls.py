from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from defserve import ToolError, UsageError
from defserve.testing import SyncClient
from examples.cookbook import api_calls

pytestmark = pytest.mark.serves(api_calls.server)


class Weather:
    """An API of this machine, which answers with `statuses` first."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.keys: list[str | None] = []

    def answer(self, path: str, key: str | None) -> tuple[int, Any]:
        self.keys.append(key)
        if self.statuses:
            return self.statuses.pop(0), {}
        url = urlsplit(path)
        city = parse_qs(url.query)["city"][0]
        return (200, {"city": city, "degrees": -3.5}) if url.path == "/v1/forecast" and city == "Oslo" else (404, {})


@pytest.fixture
def weather(monkeypatch: pytest.MonkeyPatch) -> Iterator[Weather]:
    made = Weather()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, value = made.answer(self.path, self.headers["X-Api-Key"])
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        monkeypatch.setenv("WEATHER_URL", f"http://127.0.0.1:{listening.server_port}/v1")
        monkeypatch.setenv("WEATHER_KEY", "k-123")
        monkeypatch.setattr(api_calls, "PAUSES", [0, 0, 0])
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        listening.shutdown()
        thread.join()


def test_an_api_that_fails_twice_is_asked_a_third_time_with_the_key(weather: Weather, client: SyncClient):
    weather.statuses = [503, 429]
    assert client.call("forecast", city="Oslo") == {"city": "Oslo", "degrees": -3.5}
    assert weather.keys == ["k-123"] * 3


def test_what_the_model_can_mend_it_is_told_and_nothing_else(weather: Weather, client: SyncClient):
    with pytest.raises(ToolError, match="There is no city 'Atlantis'"):
        client.call("forecast", city="Atlantis")
    weather.statuses = [503] * 4
    with pytest.raises(ToolError, match="does not answer. Try again in a few minutes"):
        client.call("forecast", city="Oslo")
    weather.statuses = [401]
    with pytest.raises(ToolError, match=r"^internal error \(id \w+\)") as masked:
        client.call("forecast", city="Oslo")
    assert "k-123" not in str(masked.value)


def test_without_a_key_it_does_not_start(client: SyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WEATHER_KEY", raising=False)
    with pytest.raises(UsageError, match="WEATHER_KEY is not set"):
        client.tools()
