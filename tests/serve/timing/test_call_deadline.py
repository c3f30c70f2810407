"""The deadline of a call, on a clock of our own: it stops while it is paused, and begins again where there is news."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from defserve.serve.asyncio_engine import CallDeadline


class Loop:
    """Time that passes when it is told to, and one timer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.at: float | None = None
        self.action: Callable[[], None] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, action: Callable[[], None]) -> Any:
        self.at, self.action = self.now + seconds, action
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.at = None

    def move(self, seconds: float, call: Any) -> None:
        end = self.now + seconds
        while self.at is not None and self.at <= end and not call.timed_out:
            self.now, action = self.at, self.action
            assert action is not None
            action()
        self.now = end


def begun(seconds: float) -> tuple[Loop, Any, CallDeadline]:
    loop, call = Loop(), SimpleNamespace(questions=0, timed_out=False, stop=lambda: None)
    engine: Any = SimpleNamespace(loop=loop, timers=loop)
    return loop, call, CallDeadline(engine, call, seconds)  # pyright: ignore[reportArgumentType]


def test_news_begin_the_time_again() -> None:
    loop, call, deadline = begun(10)
    for _ in range(5):
        loop.move(9, call)
        deadline.extend(1_000)
    loop.move(9, call)
    assert not call.timed_out
    loop.move(2, call)
    assert call.timed_out


def test_all_of_it_has_a_maximum() -> None:
    loop, call, deadline = begun(10)
    for _ in range(20):
        loop.move(1, call)
        deadline.extend(15)
    assert call.timed_out


def test_a_pause_does_not_count() -> None:
    loop, call, deadline = begun(10)
    loop.move(9, call)
    deadline.extend(15)
    deadline.pause()
    loop.move(1_000, call)
    deadline.resume()
    loop.move(5, call)
    assert not call.timed_out
    loop.move(2, call)
    assert call.timed_out


@given(st.lists(st.tuples(st.floats(0, 12), st.booleans()), max_size=30))
def test_it_ends_when_nothing_was_heard_for_its_time_or_all_of_it_is_over(steps: list[tuple[float, bool]]) -> None:
    loop, call, deadline = begun(10)
    begin = heard = loop.now
    for seconds, is_news in steps:
        if call.timed_out:
            break
        loop.move(seconds, call)
        is_over = loop.now >= min(heard + 10, begin + 50)
        assert call.timed_out == is_over or abs(loop.now - min(heard + 10, begin + 50)) < 1e-6
        if is_news and not call.timed_out:
            deadline.extend(50)
            heard = loop.now


def test_news_while_a_person_is_asked_give_all_of_the_time_and_count_once() -> None:
    loop, call, deadline = begun(10)
    loop.move(8, call)
    deadline.pause()
    deadline.extend(1_000)
    loop.move(500, call)
    deadline.resume()
    loop.move(1, call)
    deadline.pause()
    loop.move(500, call)
    deadline.resume()
    loop.move(8.5, call)
    assert not call.timed_out
    loop.move(1, call)
    assert call.timed_out


def test_news_while_a_person_is_asked_do_not_pass_the_maximum() -> None:
    loop, call, deadline = begun(10)
    loop.move(8, call)
    deadline.pause()
    deadline.extend(12)
    loop.move(500, call)
    deadline.resume()
    loop.move(3.9, call)
    assert not call.timed_out
    loop.move(0.2, call)
    assert call.timed_out
