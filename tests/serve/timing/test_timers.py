"""Timers of one length, on a clock of our own: as the loop's own, with one timer of the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from defserve.serve.asyncio_engine import Timers


class Loop:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.armed: list[tuple[float, Callable[[], None]]] = []
        self.most = 0

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, action: Callable[[], None], *, context: Any) -> None:
        self.armed.append((at, action))
        self.most = max(self.most, len(self.armed))

    def move(self, seconds: float) -> None:
        end = self.now + seconds
        while self.armed and min(self.armed, key=lambda one: one[0])[0] <= end:
            first = min(self.armed, key=lambda one: one[0])
            self.armed.remove(first)
            self.now = first[0]
            first[1]()
        self.now = end


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from([1.0, 5.0])),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("move"), st.sampled_from([0.25, 1.0, 4.0])),
    ),
    max_size=30,
)


@given(STEPS)
def test_each_is_called_once_at_its_time_unless_it_was_cancelled(steps: list[tuple[str, Any]]) -> None:
    loop: Any = Loop()
    timers, made, expected, called = Timers(loop), list[Any](), dict[int, float](), dict[int, float]()

    def note(number: int) -> None:
        assert number not in called
        called[number] = loop.now

    for verb, value in steps:
        if verb == "start":
            expected[len(made)] = loop.now + value
            made.append(timers.call_later(value, partial(note, len(made))))
        elif verb == "cancel" and value < len(made):
            made[value].cancel()
            if value not in called:
                expected.pop(value, None)
        elif verb == "move":
            loop.move(value)
    loop.move(10)
    assert called == expected
    assert loop.most <= 2  # one for each length
    assert not timers._rows and not loop.armed  # pyright: ignore[reportPrivateUsage]


def test_one_that_fails_does_not_stop_those_behind_it() -> None:
    loop: Any = Loop()
    timers, called = Timers(loop), list[int]()

    def fail() -> None:
        raise ZeroDivisionError

    timers.call_later(1.0, fail)
    timers.call_later(1.0, lambda: called.append(1))
    try:
        loop.move(1)
    except ZeroDivisionError:
        loop.move(0)
    assert called == [1]
