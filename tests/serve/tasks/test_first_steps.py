"""Work that begins at once runs as if it had a task of its own."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.serve.asyncio_engine import EagerTaskStarter
from tests.effort import examples
from tests.serve.tasks.programs import PROGRAMS, VARIABLE, Program, Run, settled

STRANGE: contextvars.ContextVar[Any] = contextvars.ContextVar("strange")
before_312 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="there are eager tasks instead")


async def nothing() -> None:
    pass


async def warmed_up() -> EagerTaskStarter:
    """With a spare task."""
    steps = EagerTaskStarter(asyncio.get_running_loop())
    steps.start(nothing(), contextvars.copy_context())
    for _ in range(4):
        await asyncio.sleep(0)
    return steps


async def told_by(programs: list[Program], cancelled: int, *, plainly: bool, at_once: bool = False) -> list[Any]:
    """What programs tell that run one after the other. One is cancelled from outside: at once, or when it waits."""
    steps, told = await warmed_up(), list[Any]()
    for place, program in enumerate(programs):
        run, context = Run(), contextvars.copy_context()
        if plainly:
            task: asyncio.Task[None] | None = asyncio.create_task(run.run(program), context=context)
            await asyncio.sleep(0)  # its first step
        else:
            task = steps.start(run.run(program), context)
            if not run.told[0]:
                await asyncio.sleep(0)
        if place == cancelled and task is not None:
            if not at_once:
                await settled()
            task.cancel("from outside")
        await run.end()
        if task is not None:
            await asyncio.wait((task,))
        assert VARIABLE.get() == "unset"
        told.append(run.told)
    await steps.close()
    return told


@settings(max_examples=examples(12))
@given(st.lists(PROGRAMS, min_size=1, max_size=3), st.integers(0, 5))
def test_programs_tell_the_same_as_in_tasks_of_their_own(programs: list[Program], cancelled: int) -> None:
    plain, stepped = (asyncio.run(told_by(programs, cancelled, plainly=plainly)) for plainly in (True, False))
    assert stepped == plain


# What is cancelled from outside between its first step and the next turn of the loop.
CANCELLED_AT_ONCE: list[Program] = [
    [],
    [("turn",), ("look",)],
    [("wait",), ("look",)],
    [("child", [("wait",)])],
    [("child", [("catch", [("wait",)])])],
    [("catch", [("wait",)]), ("look",), ("wait",)],
    [("catch", [("turn",)]), ("turn",)],
    [("timeout long", [("wait",)])],
    [("scope", [("wait",)])],
    [("scope", [("pause",)])],
    [("shielded", [("wait",)]), ("pause",)],
    [("group", [("wait",)])],
    [("cancel self",), ("wait",)],
    [("cancel self", "first"), ("catch", [("turn",)]), ("turn",)],
    [("finally", [("wait",)])],
    [("set", "a"), ("wait",)],
]


def test_work_that_is_cancelled_before_its_task_has_it_is_cancelled_as_in_a_task_of_its_own() -> None:
    for program in CANCELLED_AT_ONCE:
        programs = [[], program, [("look",)]]
        plain, stepped = (asyncio.run(told_by(programs, 1, plainly=plainly, at_once=True)) for plainly in (True, False))
        assert stepped == plain, program


def test_work_that_does_not_wait_is_done_at_once() -> None:
    async def main() -> None:
        steps, done = await warmed_up(), list[int]()

        async def work(number: int) -> None:
            done.append(number)

        for number in range(3):
            assert steps.start(work(number), contextvars.copy_context()) is None
        assert done == [0, 1, 2]
        await steps.close()

    asyncio.run(main())


TRACES: dict[str, Callable[[], Any]] = {
    "a reference": lambda: asyncio.current_task(),
    "a weak reference": lambda: weakref.WeakKeyDictionary({asyncio.current_task(): 1}),
    "a callback": lambda: asyncio.current_task().add_done_callback(lambda _: None),  # pyright: ignore
    "a name": lambda: asyncio.current_task().set_name("mine"),  # pyright: ignore
    "a cancellation": lambda: asyncio.current_task().cancel(),  # pyright: ignore
    "a variable": lambda: VARIABLE.set("mine") and None,
}


@before_312
def test_a_task_on_which_work_left_a_trace_is_not_used_again() -> None:
    async def main() -> None:
        for name, leave_trace in TRACES.items():
            steps, kept, names = await warmed_up(), list[Any](), list[str]()

            async def work(leave: Callable[[], Any], kept: list[Any], names: list[str]) -> None:
                names.append(str(id(asyncio.current_task())))
                kept.append(leave())
                assert VARIABLE.get() in ("unset", "mine" if leave is not nothing_left else "unset")

            for each in (nothing_left, leave_trace, nothing_left):
                steps.start(work(each, kept, names), contextvars.copy_context())
            first, second, *_ = names
            assert first == second, name
            # The third has to wait for a task of its own.
            assert len(names) == 2, name
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(names) == 3, name
            await steps.close()

    asyncio.run(main())


def nothing_left() -> None:
    pass


class Unequal:
    """Equal to everything, as far as it answers; numpy's arrays are of this kind."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody may ask")

    __hash__ = object.__hash__


def test_contexts_are_compared_without_asking_their_values() -> None:
    async def main() -> None:
        STRANGE.set(Unequal())
        steps, seen = await warmed_up(), list[Any]()

        async def work(value: Any) -> None:
            seen.append(STRANGE.get())
            STRANGE.set(value)

        for _ in range(3):
            before = STRANGE.get()
            task = steps.start(work(Unequal()), contextvars.copy_context())
            if task is not None:
                await asyncio.wait((task,))
            assert seen[-1] is before is STRANGE.get()
        await steps.close()

    asyncio.run(main())


def test_work_sees_the_context_it_was_started_in() -> None:
    async def main() -> None:
        steps, seen = await warmed_up(), list[Any]()

        async def work() -> None:
            seen.append(VARIABLE.get())
            VARIABLE.set("changed")

        for value in ("a", "b", "a"):
            VARIABLE.set(value)
            task = steps.start(work(), contextvars.copy_context())
            if task is not None:
                await asyncio.wait((task,))
        assert seen == ["a", "b", "a"]
        await steps.close()

    asyncio.run(main())


@before_312
def test_work_that_always_waits_leaves_no_spare_task_behind() -> None:
    async def main() -> None:
        steps = await warmed_up()
        before = asyncio.all_tasks()
        for _ in range(8):
            task = steps.start(asyncio.sleep(0), contextvars.copy_context())
            assert task is not None
            await asyncio.wait((task,))
        assert len(asyncio.all_tasks()) <= len(before)
        await steps.close()

    asyncio.run(main())


def test_work_that_starts_other_work_is_not_confused_with_it() -> None:
    async def main() -> None:
        steps, tasks = await warmed_up(), dict[str, Any]()

        async def inner() -> None:
            tasks["inner"] = asyncio.current_task()

        async def outer() -> None:
            tasks["outer"] = asyncio.current_task()
            started = steps.start(inner(), contextvars.copy_context())
            assert asyncio.current_task() is tasks["outer"]
            if started is not None:
                await started
            assert asyncio.current_task() is tasks["outer"]

        task = steps.start(outer(), contextvars.copy_context())
        if task is not None:
            await asyncio.wait((task,))
        assert tasks["inner"] is not tasks["outer"]
        await steps.close()

    asyncio.run(main())


def test_the_task_that_starts_work_goes_on_as_itself() -> None:
    async def main() -> None:
        steps, me = await warmed_up(), asyncio.current_task()

        async def waits() -> None:
            assert asyncio.current_task() is not me
            async with asyncio.timeout(60):
                await asyncio.sleep(0)

        left: list[Awaitable[None] | None] = []
        left.append(steps.start(waits(), contextvars.copy_context()))
        assert asyncio.current_task() is me
        async with asyncio.timeout(60):
            for each in left:
                if each is not None:
                    await each
        await steps.close()

    asyncio.run(main())


def test_several_calls_may_begin_to_wait_for_the_same_future():
    async def main() -> list[str]:
        steps, told = await warmed_up(), list[str]()
        loaded = asyncio.get_running_loop().create_future()

        async def load(name: str) -> None:
            told.append(f"{name} {await loaded}")

        plain = asyncio.create_task(load("plain"))  # its first step comes before the rest of the other
        begun = steps.start(load("begun"), contextvars.copy_context())
        await settled()
        loaded.set_result("value")
        await asyncio.wait({plain, begun} - {None})
        plain.result()
        await steps.close()
        return sorted(told)

    assert asyncio.run(main()) == ["begun value", "plain value"]
