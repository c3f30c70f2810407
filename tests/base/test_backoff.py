"""Waits between attempts: they grow, they have an end, and they are not all the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.base.backoff import Backoff, compute_backoff

seconds = st.floats(min_value=0.001, max_value=1000)


@given(first=seconds, more=seconds, failures=st.integers(min_value=0, max_value=10**6))
def test_a_wait_doubles_with_each_failure_up_to_the_longest(first: float, more: float, failures: int) -> None:
    longest = first + more
    wait, next_wait = (compute_backoff(each, first, longest) for each in (failures, failures + 1))
    assert first <= wait <= longest and next_wait in (2 * wait, longest)
    assert compute_backoff(0, first, longest) == first and compute_backoff(100, first, longest) == longest


@given(first=seconds, more=seconds, tries=st.integers(min_value=1, max_value=40))
def test_a_loop_waits_as_long_as_the_number_of_its_failures_says(first: float, more: float, tries: int) -> None:
    backoff = Backoff(first, first + more)
    assert [backoff.next_wait() for _ in range(tries)] == [
        compute_backoff(failures, first, first + more) for failures in range(tries)
    ]
    assert not backoff.is_reset
    backoff.reset()
    assert backoff.is_reset and backoff.next_wait() == first


@given(first=seconds, more=seconds, low=st.floats(0.1, 1.0), high=st.floats(1.0, 2.0))
def test_jitter_keeps_a_wait_within_its_range(first: float, more: float, low: float, high: float) -> None:
    backoff = Backoff(first, first + more, jitter=(low, high))
    for failures in range(12):
        bound = compute_backoff(failures, first, first + more)
        assert bound * low * 0.999 <= backoff.next_wait() <= bound * high * 1.001


def test_with_jitter_two_loops_hardly_ever_wait_as_long() -> None:
    assert len({Backoff(1, 8, jitter=(0.5, 1.0)).next_wait() for _ in range(100)}) > 90
