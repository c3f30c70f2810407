"""Shared buckets give as many tokens as buckets of one process would, whoever asks and in whichever order."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from defserve.stores.shared.shared_tables import TAKE_TOKENS

SLOW = 10**9
"""Microseconds for a token: a test is over before one comes back."""


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(bursts=st.lists(st.integers(1, 6), min_size=1, max_size=3), times=st.integers(1, 8))
def test_a_bucket_gives_its_burst_and_several_give_that_of_the_smallest(redis: Any, bursts: list[int], times: int):
    redis.flushall()
    args = [part for place, burst in enumerate(bursts) for part in (f"b{place}", SLOW, burst)]
    found = [redis.eval(TAKE_TOKENS, 0, "p:", *args) for _ in range(times)]
    given = sum(place == 0 for place, _ in found)
    assert given == min(times, *bursts)
    assert all(place == 0 or bursts[place - 1] == min(bursts) for place, _ in found)
    assert [redis.ttl(f"p:rate:b{place}") > 0 for place in range(len(bursts))] == [True] * len(bursts)


def test_who_waits_as_long_as_it_was_told_gets_a_token_and_a_full_bucket_takes_no_room(redis: Any):
    redis.flushall()
    assert redis.eval(TAKE_TOKENS, 0, "p:", "quick", 1000, 1) == [0, 0]
    place, wait = redis.eval(TAKE_TOKENS, 0, "p:", "slow", SLOW, 1, "slow", SLOW, 1)
    assert place == 0
    place, wait = redis.eval(TAKE_TOKENS, 0, "p:", "slow", SLOW, 1)
    assert place == 1 and 0 < int(wait) <= SLOW
    # The bucket as it will be after that time.
    redis.set("p:rate:slow", int(redis.get("p:rate:slow")) - int(wait))
    assert redis.eval(TAKE_TOKENS, 0, "p:", "slow", SLOW, 1) == [0, 0]
    assert 0 <= redis.pttl("p:rate:quick") <= 1 or not redis.exists("p:rate:quick")


def test_a_clock_that_went_back_empties_no_bucket_for_longer_than_its_burst_lasts(redis: Any):
    redis.flushall()
    redis.set("p:rate:k", 10**18)
    place, wait = redis.eval(TAKE_TOKENS, 0, "p:", "k", 1000, 5)
    assert place == 1 and int(wait) <= 5000
