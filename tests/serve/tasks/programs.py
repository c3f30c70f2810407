"""Small programs for tasks, drawn at random, and what a task tells of its own run."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.lowlevel
from hypothesis import strategies as st

VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default="unset")

TURNS = 20
"""After so many turns of the loop nothing moves that waits for the test."""

Step = tuple[Any, ...]
Program = list[Step]

# What a task that runs beside another may do. It waits for nothing but the test, so it matters to nobody in which turn
# of the loop the other one goes on.
QUIET_LEAVES: list[Step] = [("look",), ("wait",), ("set", "a"), ("set", "b"), ("raise", "E"), ("keep",)]
QUIET_BLOCKS = ("timeout long", "scope", "shielded", "catch")

LEAVES: list[Step] = [
    *QUIET_LEAVES,
    ("turn",),
    ("pause",),
    ("cancel self",),
    ("cancel self", "with words"),
    ("uncancel",),
]
BLOCKS = (*QUIET_BLOCKS, "timeout over", "scope cancelled", "finally")


def _programs(leaves: list[Step], blocks: tuple[str, ...], *others: st.SearchStrategy[Step]) -> Any:
    def nested(inner: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
        return st.tuples(st.sampled_from(blocks), st.lists(inner, max_size=3))

    return st.lists(st.recursive(st.one_of(st.sampled_from(leaves), *others), nested, max_leaves=4), max_size=3)


BESIDE: st.SearchStrategy[Step] = st.tuples(st.sampled_from(("group", "child")), _programs(QUIET_LEAVES, QUIET_BLOCKS))
PROGRAMS: st.SearchStrategy[Program] = _programs(LEAVES, BLOCKS, BESIDE)


async def settled() -> None:
    """Return when nothing moves any more."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


@dataclass
class Run:
    """One program while it runs. `told` is what its task, and those it makes, have told; each has its own list."""

    told: list[list[Any]] = field(default_factory=lambda: [[]])
    kept: list[Any] = field(default_factory=list[Any])
    waiting: list[asyncio.Future[str]] = field(default_factory=list[Any])
    ended: bool = False

    async def end(self) -> None:
        """Whenever nothing moves any more, give those that wait what they wait for."""
        while not self.ended:
            await settled()
            for future in self.waiting:
                if not future.done():
                    future.set_result("given")

    async def run(self, program: Program) -> None:
        told = self.told[0]
        try:
            await self._steps(program, told, asyncio.current_task())
            told.append("returned")
        except BaseException as error:
            told.append(_worded(error))
        finally:
            task = asyncio.current_task()
            told.append(task.cancelling() if task is not None else None)
            self.ended = True

    async def _steps(self, program: Program, told: list[Any], task: asyncio.Task[Any] | None) -> None:
        for name, *given in program:
            told.append((name, asyncio.current_task() is task, task.cancelling() if task else None, VARIABLE.get()))
            await self._step(name, given, told, task)

    async def _step(self, name: str, given: list[Any], told: list[Any], task: Any) -> None:
        body: Callable[[], Any] = lambda: self._steps(given[0], told, task)  # noqa: E731
        match name:
            case "look":
                pass
            case "turn":
                await asyncio.sleep(0)
            case "pause":
                await anyio.lowlevel.checkpoint()
            case "wait":
                self.waiting.append(asyncio.get_running_loop().create_future())
                told.append(await self.waiting[-1])
            case "set":
                VARIABLE.set(given[0])
            case "raise":
                raise ValueError(given[0])
            case "cancel self":
                task.cancel(*given)
            case "uncancel":
                task.uncancel()
            case "keep":
                self.kept.append(task)
            case "catch":
                try:
                    await body()
                except (Exception, asyncio.CancelledError) as error:
                    told.append(_worded(error))
            case "finally":
                try:
                    await body()
                finally:
                    await asyncio.sleep(0)
            case "timeout over":
                async with asyncio.timeout(0):
                    await body()
            case "timeout long":
                async with asyncio.timeout(60):
                    await body()
            case "scope":
                with anyio.CancelScope() as scope:
                    await body()
                told.append(scope.cancelled_caught)
            case "scope cancelled":
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await body()
                told.append(scope.cancelled_caught)
            case "shielded":
                with anyio.CancelScope(shield=True):
                    await body()
            case "group":
                async with anyio.create_task_group() as group:
                    group.start_soon(self._child, given[0])
            case "child":
                told.append(await asyncio.create_task(self._child(given[0])))
            case _:
                raise AssertionError(name)

    async def _child(self, program: Program) -> str:
        self.told.append([])
        await self._steps(program, self.told[-1], asyncio.current_task())
        return "child"


def _worded(error: BaseException) -> Any:
    if isinstance(error, BaseExceptionGroup):
        return [_worded(each) for each in cast("BaseExceptionGroup[Exception]", error).exceptions]
    # anyio's words name the scope by its address.
    words = "" if isinstance(error, asyncio.CancelledError) and "scope" in str(error) else str(error)
    return type(error).__name__, words
