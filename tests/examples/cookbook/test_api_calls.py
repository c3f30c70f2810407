from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from defserve import ToolError, UsageError
from defserve.testing import SyncClient
from examples.cookbook import api_calls
from tests.examples.cookbook.local_api import Asked, local_api

pytestmark = pytest.mark.serves(api_calls.server)


class Weather:
    """An API that answers with `statuses` first."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.keys: list[str | None] = []

    def answer(self, asked: Asked) -> tuple[int, Any]:
        self.keys.append(asked.headers.get("x-api-key"))
        if self.statuses:
            return self.statuses.pop(0), {}
        known = (asked.path, asked.query) == ("/v1/forecast", {"city": "Oslo"})
        return (200, {"city": "Oslo", "degrees": -3.5}) if known else (404, {})


@pytest.fixture
def weather(monkeypatch: pytest.MonkeyPatch) -> Iterator[Weather]:
    made = Weather()
    with local_api(made.answer) as url:
        monkeypatch.setenv("WEATHER_URL", f"{url}/v1")
        monkeypatch.setenv("WEATHER_KEY", "k-123")
        monkeypatch.setattr(api_calls, "PAUSES", [0, 0, 0])
        yield made


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
