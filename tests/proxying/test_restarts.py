"""When a server that ended is started again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import UsageError
from defserve.proxying.mounted import (
    JITTER,
    MAX_RESTARTS,
    RESTART_STRATEGIES,
    RestartCounter,
    RestartCountersByKey,
    RestartPolicy,
    RestartRefusal,
    RestartRefusalReason,
    ServerExit,
)
from tests.rows import for_each_row


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def restarts(chance: float = 0.0, **policy: Any) -> tuple[RestartCounter, Clock]:
    clock = Clock()
    return RestartCounter(RestartPolicy(**policy), clock, lambda: chance), clock


TABLE = {
    ("never", ServerExit.CLEAN): RestartRefusalReason.POLICY,
    ("never", ServerExit.FAILED): RestartRefusalReason.POLICY,
    ("never", ServerExit.STOPPED): RestartRefusalReason.STOPPED,
    ("on_failure", ServerExit.CLEAN): RestartRefusalReason.POLICY,
    ("on_failure", ServerExit.FAILED): None,
    ("on_failure", ServerExit.STOPPED): RestartRefusalReason.STOPPED,
    ("always", ServerExit.CLEAN): None,
    ("always", ServerExit.FAILED): None,
    ("always", ServerExit.STOPPED): RestartRefusalReason.STOPPED,
}


@pytest.mark.req("MGP-11.5p")
@for_each_row(("strategy", "exit"), TABLE)
def test_the_policy_says_which_ends_are_followed_by_a_restart(strategy: str, exit: ServerExit) -> None:
    verdict = restarts(strategy=strategy)[0].plan_restart(exit)
    expected = TABLE[strategy, exit]
    assert verdict == 1.0 if expected is None else isinstance(verdict, RestartRefusal) and verdict.reason is expected


@pytest.mark.req("MGP-11.5w")
def test_the_sixth_restart_within_the_window_is_refused_even_if_each_start_succeeded() -> None:
    counted, clock = restarts()
    for _ in range(5):
        assert isinstance(counted.plan_restart(ServerExit.FAILED), float)
        clock.now += 50
    refusal = counted.plan_restart(ServerExit.FAILED)
    assert isinstance(refusal, RestartRefusal)
    assert refusal.reason is RestartRefusalReason.LIMIT
    assert refusal.reason == "restart_limit_exceeded"


@pytest.mark.req("MGP-11.5w")
def test_restarts_fall_out_of_the_window_one_by_one() -> None:
    counted, clock = restarts(max_restarts=2, window=100)
    counted.plan_restart(ServerExit.FAILED)
    clock.now = 60
    counted.plan_restart(ServerExit.FAILED)
    clock.now = 99
    assert isinstance(counted.plan_restart(ServerExit.FAILED), RestartRefusal)
    clock.now = 100
    assert counted.recent == 1
    assert isinstance(counted.plan_restart(ServerExit.FAILED), float)
    assert isinstance(counted.plan_restart(ServerExit.FAILED), RestartRefusal)


@pytest.mark.req("MGP-11.5b")
def test_the_wait_doubles_up_to_the_cap() -> None:
    counted, _ = restarts(max_restarts=8)
    assert [counted.plan_restart(ServerExit.FAILED) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_the_wait_is_short_again_when_the_window_is_empty() -> None:
    counted, clock = restarts()
    counted.plan_restart(ServerExit.FAILED)
    counted.plan_restart(ServerExit.FAILED)
    clock.now = 300
    assert counted.plan_restart(ServerExit.FAILED) == 1


def test_an_operators_start_clears_the_count() -> None:
    counted, _ = restarts(max_restarts=1)
    counted.plan_restart(ServerExit.FAILED)
    assert isinstance(counted.plan_restart(ServerExit.FAILED), RestartRefusal)
    counted.clear()
    assert counted.plan_restart(ServerExit.FAILED) == 1


def test_a_refused_restart_is_not_counted() -> None:
    counted, _ = restarts(max_restarts=0)
    counted.plan_restart(ServerExit.FAILED)
    assert counted.recent == 0


def test_without_a_limit_it_waits_at_most_the_cap_for_ever() -> None:
    counted, _ = restarts(max_restarts=None)
    waits = [counted.plan_restart(ServerExit.FAILED) for _ in range(3 * MAX_RESTARTS)]
    assert waits[-1] == 30
    assert counted.recent == MAX_RESTARTS


@for_each_row(
    "wrong",
    [
        {"strategy": "sometimes"},
        {"max_restarts": -1},
        {"max_restarts": MAX_RESTARTS + 1},
        {"window": 0},
        {"base": -1},
        {"base": 31},
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="fix:"):
        RestartPolicy(**wrong)


STEPS = st.lists(st.tuples(st.floats(0, 200), st.sampled_from(ServerExit)), max_size=60)


@pytest.mark.req("MGP-11.5w", "MGP-11.5b")
@given(
    st.sampled_from(RESTART_STRATEGIES), st.integers(0, 6), st.floats(1, 300), st.floats(0, 1, exclude_max=True), STEPS
)
def test_no_window_ever_holds_more_restarts_than_allowed_and_no_wait_leaves_its_bounds(
    strategy: str, most: int, window: float, chance: float, steps: list[tuple[float, ServerExit]]
) -> None:
    counted, clock = restarts(chance, strategy=strategy, max_restarts=most, window=window)
    granted: list[float] = []
    for passed, exit in steps:
        clock.now += passed
        verdict = counted.plan_restart(exit)
        inside = [moment for moment in granted if moment > clock.now - window]
        if isinstance(verdict, float):
            backoff = min(30, 2 ** len(inside))
            assert (1 - JITTER) * backoff <= verdict <= backoff
            assert len(inside) < most
            granted.append(clock.now)
        elif isinstance(verdict, RestartRefusal) and verdict.reason is RestartRefusalReason.LIMIT:
            assert len(inside) == most


# ------------------------------------------------------------------------------------------------- one for each client


def by_key(most: int = 2, window: float = 100) -> tuple[RestartCountersByKey, Clock]:
    clock = Clock()
    return RestartCountersByKey(lambda: RestartPolicy(max_restarts=most, window=window), clock), clock


def test_a_client_that_has_met_the_limit_may_go_on_when_there_is_none_any_more() -> None:
    policies = [RestartPolicy(max_restarts=0), RestartPolicy(max_restarts=None)]
    counted = RestartCountersByKey(lambda: policies[0])
    counted.record_failure("a")
    assert isinstance(counted.get_restart_delay("a"), RestartRefusal)
    del policies[0]
    assert counted.get_restart_delay("a") == 0


@pytest.mark.req("MGP-11.5w")
def test_failures_of_one_client_count_for_that_client_alone() -> None:
    counted, clock = by_key()
    assert counted.get_restart_delay("a") == 0
    for backoff in (1, 2):
        counted.record_failure("a")
        wait = counted.get_restart_delay("a")
        assert isinstance(wait, float)
        assert (1 - JITTER) * backoff <= wait <= backoff
        clock.now += backoff
        assert counted.get_restart_delay("a") == 0
    counted.record_failure("a")
    refusal = counted.get_restart_delay("a")
    assert isinstance(refusal, RestartRefusal)
    assert refusal.reason is RestartRefusalReason.LIMIT
    assert counted.get_restart_delay("b") == 0


def test_a_refused_client_may_start_again_when_the_window_has_passed() -> None:
    counted, clock = by_key(most=1)
    counted.record_failure("a")
    counted.record_failure("a")
    assert isinstance(counted.get_restart_delay("a"), RestartRefusal)
    clock.now += 101
    assert counted.get_restart_delay("a") == 0


def test_who_left_is_forgotten_and_the_number_of_clients_is_bounded() -> None:
    counted, _ = by_key(most=0)
    for key in range(3000):
        counted.record_failure(key)
    assert counted.get_restart_delay(0) == 0
    assert isinstance(counted.get_restart_delay(2999), RestartRefusal)
    counted.drop_failures(lambda key: key == 2999)
    assert counted.get_restart_delay(2999) == 0
    counted.drop_failures()
    assert counted.get_restart_delay(2998) == 0
