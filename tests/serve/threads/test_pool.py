from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from defserve.serve import threads as pool_module
from defserve.serve.threads import ABANDONED_PER_THREAD, MIN_SWITCH_SECONDS, ROUND, WorkerPool, lower_switch_interval
from tests.rows import for_each_row


class Loop:
    """Stands for the event loop: `turn` runs what it was woken for."""

    def __init__(self) -> None:
        self.woken: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.closed = False

    def wake(self, action: Callable[[], None]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.woken.put(action)

    def turn(self) -> None:
        self.woken.get(timeout=30)()


class Blocking:
    """A job that says when it runs and waits to be let go."""

    def __init__(self) -> None:
        self.running, self.free = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.running.set()
        assert self.free.wait(30)
        return "done"


@pytest.fixture
def loop() -> Loop:
    return Loop()


def ignore(result: Any, error: BaseException | None) -> None:
    pass


def test_results_and_errors_come_back_on_the_loop(loop: Loop):
    pool, outcomes = WorkerPool(1, loop.wake), []
    pool.submit(lambda: 1, lambda result, error: outcomes.append((result, error)))
    loop.turn()
    pool.submit(lambda: 1 / 0, lambda result, error: outcomes.append((result, type(error))))
    loop.turn()
    assert outcomes == [(1, None), (None, ZeroDivisionError)]


def test_many_results_wake_the_loop_once(loop: Loop):
    pool, outcomes = WorkerPool(1, loop.wake), []
    first = Blocking()
    pool.submit(first, lambda result, error: outcomes.append(0))
    for number in range(1, 10):
        pool.submit(lambda: None, lambda result, error, number=number: outcomes.append(number))
    last = Blocking()
    pool.submit(last, ignore)
    first.free.set()
    assert last.running.wait(30)
    loop.turn()
    assert outcomes == list(range(10)) and loop.woken.empty()
    last.free.set()


def test_an_action_that_fails_does_not_hold_up_those_behind_it(loop: Loop):
    pool, done = WorkerPool(1, loop.wake), []

    def fail() -> None:
        raise ValueError

    pool.post_to_loop(fail)
    pool.post_to_loop(lambda: done.append(1))
    with pytest.raises(ValueError):
        loop.turn()
    loop.turn()
    assert done == [1]


def test_a_job_does_not_wait_behind_a_thread_that_is_taken(loop: Loop):
    pool = WorkerPool(4, loop.wake)
    for _ in range(200):
        jobs = [Blocking() for _ in range(4)]
        for job in jobs:
            pool.submit(job, ignore)
        for job in jobs:
            assert job.running.wait(30), "a job was queued behind a busy thread although another was allowed"
        for job in jobs:
            job.free.set()


def test_no_more_threads_work_at_once_than_allowed(loop: Loop):
    pool = WorkerPool(2, loop.wake)
    jobs = [Blocking() for _ in range(3)]
    for job in jobs:
        pool.submit(job, ignore)
    assert jobs[0].running.wait(30) and jobs[1].running.wait(30)
    assert not jobs[2].running.wait(0.05)
    jobs[0].free.set()
    assert jobs[2].running.wait(30)
    jobs[1].free.set()
    jobs[2].free.set()


def test_an_abandoned_job_makes_room_for_one_that_waits_already(loop: Loop):
    pool = WorkerPool(1, loop.wake)
    stuck, waiting = Blocking(), Blocking()
    job = pool.submit(stuck, ignore)
    pool.submit(waiting, ignore)
    assert stuck.running.wait(30) and not waiting.running.is_set()
    pool.abandon(job)
    pool.abandon(job)
    assert waiting.running.wait(30)
    later = Blocking()
    pool.submit(later, ignore)
    assert not later.running.wait(0.05), "abandoning twice made room twice"
    stuck.free.set()
    waiting.free.set()
    assert later.running.wait(30)
    later.free.set()


def test_a_job_abandoned_before_its_turn_is_never_begun(loop: Loop):
    pool, began = WorkerPool(1, loop.wake), []
    first, last = Blocking(), Blocking()
    pool.submit(first, ignore)
    assert first.running.wait(30)
    pool.abandon(pool.submit(lambda: began.append(1), ignore))
    pool.submit(last, ignore)
    assert not last.running.wait(0.05), "a job that was not begun holds no thread"
    first.free.set()
    assert last.running.wait(30) and began == []
    last.free.set()


def test_threads_that_hang_are_replaced_only_so_often(loop: Loop):
    pool = WorkerPool(1, loop.wake)
    stuck = [Blocking() for _ in range(1 + ABANDONED_PER_THREAD)]
    for job in stuck:
        handle = pool.submit(job, ignore)
        assert job.running.wait(30)
        pool.abandon(handle)
    one_more = Blocking()
    pool.submit(one_more, ignore)
    assert not one_more.running.wait(0.05)
    stuck[0].free.set()
    assert one_more.running.wait(30)
    for job in [*stuck, one_more]:
        job.free.set()


def test_a_result_that_finds_no_loop_is_dropped_quietly(loop: Loop):
    pool, job = WorkerPool(1, loop.wake), Blocking()
    pool.submit(job, ignore)
    assert job.running.wait(30)
    loop.closed = True
    job.free.set()
    assert pool.post_to_loop(lambda: None) is False


def test_closing_lets_the_idle_threads_go(loop: Loop):
    before = set(threading.enumerate())
    pool = WorkerPool(3, loop.wake)
    jobs = [Blocking() for _ in range(3)]
    for job in jobs:
        pool.submit(job, ignore)
        assert job.running.wait(30)
        job.free.set()
    pool.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()


@for_each_row(("threads", "seconds"), [(1, 0.005), (32, ROUND / 32), (1_000_000, MIN_SWITCH_SECONDS)])
def test_turns_are_short_enough_for_all_threads_and_never_longer_than_before(threads: int, seconds: float):
    before = sys.getswitchinterval()
    with lower_switch_interval(threads):
        assert sys.getswitchinterval() == pytest.approx(min(seconds, before), rel=0.01)
    assert sys.getswitchinterval() == pytest.approx(before)


def test_one_call_after_the_other_needs_one_thread(loop: Loop):
    pool, threads = WorkerPool(8, loop.wake), set[Any]()
    for _ in range(200):
        pool.submit(threading.get_ident, lambda ident, error: threads.add(ident))
        loop.turn()
    assert len(threads) == 1


def has_run_at_once(pool: WorkerPool, loop: Loop, number: int) -> set[threading.Thread]:
    """So many threads of the pool, all idle again."""
    before, jobs, ended = set(threading.enumerate()), [Blocking() for _ in range(number)], list[Any]()
    for job in jobs:
        pool.submit(job, lambda result, error: ended.append(result))
    assert all(job.running.wait(30) for job in jobs)
    threads = set(threading.enumerate()) - before
    for job in jobs:
        job.free.set()
    while len(ended) < number:
        loop.turn()
    return threads


def test_a_job_goes_to_the_thread_that_became_idle_last(loop: Loop):
    pool, idents = WorkerPool(8, loop.wake), set[Any]()
    assert len(has_run_at_once(pool, loop, 8)) == 8
    for _ in range(50):
        pool.submit(threading.get_ident, lambda ident, error: idents.add(ident))
        loop.turn()
    assert len(idents) == 1


def test_threads_that_are_not_needed_end(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_module, "IDLE_SECONDS", 0.01)
    pool, outcomes = WorkerPool(4, loop.wake), list[Any]()
    for thread in has_run_at_once(pool, loop, 4):
        thread.join(30)
        assert not thread.is_alive()
    pool.submit(lambda: 1, lambda result, error: outcomes.append(result))
    loop.turn()
    assert outcomes == [1]


def test_a_job_waits_for_a_thread_when_the_system_has_no_more(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    pool, outcomes, first = WorkerPool(4, loop.wake), list[Any](), Blocking()
    pool.submit(first, ignore)
    assert first.running.wait(30)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.submit(lambda: 1, lambda result, error: outcomes.append(result))
    first.free.set()
    while not outcomes:
        loop.turn()
    with pytest.raises(RuntimeError, match="can't start"):
        WorkerPool(1, loop.wake).submit(lambda: 1, ignore)
