"""`make events` in small: a few kills, a few hundred events."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.events.campaign import MAX_SUBSCRIPTION_MB, Campaign, ReceiverProcess, measure_subscriptions
from tests.faults.process import Broken

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="kills and memory as Linux has them"),
    pytest.mark.slow,
    pytest.mark.timeout(400),
]


def test_all_that_was_acknowledged_comes_in_order_though_workers_receivers_and_redis_are_killed():
    tally = asyncio.run(Campaign(events=800, kills=4, seed=1, redis_kills=1).run())
    assert (tally.worker_kills, tally.receiver_kills, tally.redis_kills) == (2, 2, 1)
    assert tally.delivered == tally.logged >= tally.acknowledged > 0
    assert tally.slow_behind > 0


def test_subscriptions_take_little_memory():
    megabytes, _ = asyncio.run(measure_subscriptions(300, callers=3))
    assert megabytes < MAX_SUBSCRIPTION_MB * 0.3


class Recorded(ReceiverProcess):
    """Says that it received these ids."""

    def __init__(self, *ids: str) -> None:
        self.lane, self.subscription, self._ids = "north", "sub", ids

    def read_received(self) -> list[list[str]]:
        return [[id.strip("!"), id, "sub", "0"] for id in self._ids]


@pytest.mark.parametrize(
    ("received", "problem"),
    [(["a", "c", "b"], "came where the log has"), (["a", "b", "b!", "c"], "came as b!")],
)
def test_the_checker_finds_what_must_never_happen(received: list[str], problem: str):
    with pytest.raises(Broken, match=problem):
        asyncio.run(Campaign(1, 0, 1).check_receiver(Recorded(*received), ["a", "b", "c"]))


def test_the_checker_takes_duplicates_with_their_id():
    campaign = Campaign(1, 0, 1)
    asyncio.run(campaign.check_receiver(Recorded("a", "a", "b", "a", "c"), ["a", "b", "c"]))
    assert (campaign.tally.delivered, campaign.tally.duplicates) == (3, 2)
