from datetime import date, timedelta

import pytest

from defserve import Server, ToolError
from defserve.testing import SyncClient
from examples.cookbook import clock


class FakeDay:
    """What day it is, in a test."""

    def __init__(self) -> None:
        self.now = date(2026, 2, 1)

    def passes(self, days: int) -> None:
        self.now += timedelta(days=days)


@pytest.fixture
def server() -> Server:
    clock.loans.clear()
    return clock.server


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> FakeDay:
    fake = FakeDay()
    monkeypatch.setattr(clock, "today", lambda: fake.now)
    return fake


def test_a_book_is_overdue_the_day_after_it_was_due(client: SyncClient, day: FakeDay) -> None:
    assert client.call("lend", title="Emma") == "2026-02-15"
    day.passes(days=14)
    assert client.call("overdue") == []
    day.passes(days=1)
    assert client.call("overdue") == ["Emma, days late: 1"]


def test_a_book_is_lent_once(client: SyncClient, day: FakeDay) -> None:
    client.call("lend", title="Emma", days=60)
    with pytest.raises(ToolError, match="Emma is lent until 2026-04-02"):
        client.call("lend", title="Emma")
