from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.rates import Rate, RateBuckets
from defserve.errors import UsageError
from tests.rows import for_each_row


class Clock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_admitted_and_then_the_pace_is_kept() -> None:
    clock = Clock()
    buckets = RateBuckets(Rate(per_second=10, burst=3), clock=clock)
    assert [buckets.take_token("a") for _ in range(3)] == [0, 0, 0]
    assert buckets.take_token("a") == pytest.approx(0.1)
    clock.now += 0.05
    assert buckets.take_token("a") == pytest.approx(0.05)
    clock.now += 0.05
    assert buckets.take_token("a") == 0
    assert buckets.take_token("a") > 0


def test_a_refused_take_takes_nothing() -> None:
    clock = Clock()
    buckets = RateBuckets(Rate(per_second=1, burst=1), clock=clock)
    buckets.take_token("a")
    waits = [buckets.take_token("a") for _ in range(100)]
    assert waits == [pytest.approx(1.0)] * 100


def test_keys_do_not_share_a_bucket() -> None:
    buckets = RateBuckets(Rate(per_second=1, burst=1), clock=Clock())
    assert [
        buckets.take_token(("alice", "add")),
        buckets.take_token(("alice", "run")),
        buckets.take_token(("bob", "add")),
    ] == [0, 0, 0]
    assert buckets.take_token(("alice", "add")) > 0


def test_a_key_may_have_a_tighter_rate_of_its_own() -> None:
    buckets = RateBuckets(clock=Clock())
    tight = Rate(per_second=1, burst=2)
    assert [buckets.take_token("run", tight) > 0 for _ in range(3)] == [False, False, True]
    assert [buckets.take_token("add") > 0 for _ in range(101)] == [False] * 100 + [True]


def test_peeking_says_what_a_take_would_and_takes_nothing() -> None:
    buckets = RateBuckets(Rate(per_second=1, burst=1), clock=Clock())
    assert [buckets.get_wait_seconds("a"), buckets.get_wait_seconds("a"), len(buckets)] == [0, 0, 0]
    buckets.take_token("a")
    assert buckets.get_wait_seconds("a") == pytest.approx(1.0)


def test_rest_fills_a_bucket_no_further_than_its_burst() -> None:
    clock = Clock()
    buckets = RateBuckets(Rate(per_second=10, burst=2), clock=clock)
    buckets.take_token("a")
    clock.now += 3600
    assert [buckets.take_token("a") > 0 for _ in range(3)] == [False, False, True]


def test_full_buckets_make_room_first() -> None:
    clock = Clock()
    buckets = RateBuckets(Rate(per_second=1, burst=2), capacity=16, clock=clock)
    for number in range(15):
        buckets.take_token(number)
    clock.now += 5
    buckets.take_token("busy"), buckets.take_token("busy")
    buckets.take_token("new")
    assert len(buckets) == 2
    assert buckets.take_token("busy") > 0


def test_the_table_stays_bounded_and_forgets_the_emptiest_bucket_last() -> None:
    buckets = RateBuckets(Rate(per_second=1, burst=2), capacity=64, clock=Clock())
    buckets.take_token("busy"), buckets.take_token("busy")
    for number in range(1000):
        assert buckets.take_token(number) == 0
        assert len(buckets) <= 64
    assert buckets.take_token("busy") > 0


def test_a_table_for_one_holds_one() -> None:
    buckets = RateBuckets(Rate(per_second=1, burst=1), capacity=1, clock=Clock())
    assert [buckets.take_token("a"), buckets.take_token("b"), len(buckets)] == [0, 0, 1]


@given(
    per_second=st.floats(0.01, 1000),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 10), max_size=100),
)
def test_no_more_than_the_burst_and_the_pace_ever_get_through(
    per_second: float, burst: int, pauses: list[float]
) -> None:
    clock = Clock()
    buckets = RateBuckets(Rate(per_second, burst), clock=clock)
    start, admitted = clock.now, 0
    for pause in pauses:
        clock.now += pause
        admitted += buckets.take_token("a") == 0
        assert admitted <= burst + (clock.now - start) * per_second + 0.01


@given(per_second=st.floats(0.01, 1000), burst=st.integers(1, 50))
def test_waiting_as_long_as_told_is_enough(per_second: float, burst: int) -> None:
    clock = Clock()
    buckets = RateBuckets(Rate(per_second, burst), clock=clock)
    while not (wait := buckets.take_token("a")):
        pass
    clock.now += wait
    assert buckets.take_token("a") == 0


@for_each_row(("per_second", "burst"), [(0, 1), (-1, 1), (math.inf, 1), (math.nan, 1), (1, 0)])
def test_a_rate_that_is_none_is_refused(per_second: float, burst: int) -> None:
    with pytest.raises(UsageError, match="Rate"):
        Rate(per_second, burst)


def test_a_table_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="capacity"):
        RateBuckets(capacity=0)
