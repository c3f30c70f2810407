"""The figures of a server's calls."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import DefserveError
from defserve.kernel.members import STEP_SECONDS, STEPS, make_call_figures, summarize_call_history
from defserve.proxying.calls import TIMES_KEPT, BackendCallSlots
from tests.kernel.running import entry, running

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def room_of(*calls: tuple[float, float, bool]) -> BackendCallSlots:
    """A room whose calls ended so many seconds ago, took so many ms, and failed or did not."""
    room, now = BackendCallSlots("a", 8), perf_counter()
    for ago, ms, failed in calls:
        room.times.append((now - ago - ms / 1000, now - ago, failed))
        room.errors += failed
    return room


def test_without_calls_there_are_no_times():
    assert make_call_figures(BackendCallSlots("a", 8)) == {
        "errors_total": 0,
        "calls_per_second": 0.0,
        "median_ms": None,
        "p95_ms": None,
    }
    assert summarize_call_history(BackendCallSlots("a", 8))["steps"] == [[0, 0, None]] * STEPS


def test_calls_a_second_are_those_of_the_last_ten():
    room = room_of(*[(300.0, 1.0, False)] * 50, *[(2.0, 1.0, False)] * 30)
    assert make_call_figures(room)["calls_per_second"] == 3.0


def test_a_room_that_forgets_calls_within_ten_seconds_counts_over_a_shorter_time():
    room = room_of(*[(4.0 - number / 1000, 1.0, False) for number in range(TIMES_KEPT + 10)])
    assert make_call_figures(room)["calls_per_second"] == pytest.approx(TIMES_KEPT / 4, rel=0.5)  # pyright: ignore[reportUnknownMemberType]


def test_median_and_p95_are_of_all_remembered_calls():
    room = room_of(*[(5.0, float(ms), False) for ms in range(1, 101)])
    told = make_call_figures(room)
    assert (round(told["median_ms"]), round(told["p95_ms"])) == (51, 96)


def test_steps_are_calls_errors_and_the_median():
    half = STEP_SECONDS / 2
    steps = summarize_call_history(room_of((STEP_SECONDS + half, 8.0, False), (half, 2.0, True), (half, 4.0, False)))[
        "steps"
    ]
    assert [step[:2] for step in steps[-2:]] == [[1, 0], [2, 1]]
    assert steps[-2][2] == pytest.approx(8.0, abs=0.01)  # pyright: ignore[reportUnknownMemberType]


def test_what_is_forgotten_is_not_told_as_no_calls():
    steps = summarize_call_history(room_of(*[(20.0, 1.0, False)] * (TIMES_KEPT + 5)))["steps"]
    assert steps[0] is None
    assert steps[-2][0] == TIMES_KEPT


@given(
    st.lists(st.tuples(st.floats(0, 2000), st.floats(0, 60_000), st.booleans()), max_size=60).map(
        lambda calls: sorted(calls, reverse=True)
    )
)
def test_whatever_the_times_are_the_figures_are_whole(calls: list[tuple[float, float, bool]]):
    room = room_of(*calls)
    told, steps = make_call_figures(room), summarize_call_history(room)["steps"]
    assert told["calls_per_second"] >= 0
    assert (told["median_ms"] is None) == (not calls)
    assert len(steps) == STEPS
    assert sum(step[0] for step in steps) <= len(calls)


async def test_calls_through_a_kernel_are_timed_and_failures_counted(tmp_path: Path):
    async with running(tmp_path, entry("a")) as here:
        for _ in range(3):
            await here.call("a_add", a=1, b=2)
        await here.call("a_slow", seconds=0.2)
        with pytest.raises(DefserveError):
            await here.call("a_leave", code=0)
        (row,) = here.kernel.ps()
        assert (row["calls_total"], row["errors_total"]) == (5, 1)
        assert row["p95_ms"] >= 200
        assert row["median_ms"] > 0
        assert row["calls_per_second"] > 0
