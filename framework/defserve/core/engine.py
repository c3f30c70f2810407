"""What a conversation needs of an event loop (`serve.asyncio_engine` implements it), and coroutines stepped by hand."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from asyncio import Future

    from defserve.core.call import Call
    from defserve.errors import TimedOut


T = TypeVar("T")


class CancellableTask(Protocol):
    def cancel(self) -> object: ...


class CallTimer(Protocol):
    """The time a call has left. It stands still while paused."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def extend(self, most: float) -> None:
        """There is news of the work: all of its time begins again, up to `most` seconds in all."""

    @property
    def error(self) -> TimedOut:
        """What the caller is told when the time is up."""
        ...


CallLater: TypeAlias = Callable[[float, Callable[[], None]], CancellableTask]
"""Runs an action on the loop in so many seconds, unless what it gives is cancelled before."""


class Engine(Protocol):
    @property
    def ready(self) -> bool:
        """Whether an event loop runs; until then only immediate methods are answered."""
        ...

    def start_call(self, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        """Run the handler of a call as a task, and settle the call with its result or error. Perhaps at once.

        If notifications of the call have just been sent, it is settled a moment after they left.
        """

    def run_call_here(self, call: Call, work: Coroutine[Any, Any, Any]) -> Awaitable[None] | None:
        """Like `start_call`, but in the running task, which must be for this call alone. The first step runs at once.

        Returns the rest, for that task to await; it never raises. None when the call is settled.
        """
        ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> CancellableTask:
        """Run something that belongs to no call."""
        ...

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop, after everything that is ready to run now."""

    def time(self) -> float:
        """The clock of the loop, in seconds."""
        ...

    def call_later(self, seconds: float, action: Callable[[], None]) -> CancellableTask:
        """Run `action` on the loop in so many seconds, unless the task is cancelled before."""
        ...

    def create_future(self) -> Future[Any]:
        """What is awaited until somebody sets its result."""
        ...

    async def wait_for(self, pending: Future[Any], timeout: float | None) -> Any:
        """Raises TimeoutError when `timeout` seconds pass first."""
        ...

    def run_with_timeout(self, call: Call, seconds: float, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run `work`; if it is still running after `seconds`, cancel it and raise TimedOut.

        Work that was cancelled so may raise a TimedOut of its own, which says more.
        """
        ...

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run blocking code in a worker thread, with the caller's context variables."""
        ...

    def clean_up_in_thread(self, function: Callable[[], None]) -> Awaitable[None]:
        """Like `in_thread`. Inside `run_in_one_thread` it runs even if the call was cancelled."""
        ...

    async def run_in_one_thread(self, work: Coroutine[Any, Any, T], *, wholly: bool) -> T:
        """Run `work`. Whatever it runs with `in_thread` runs in one thread, which nobody else uses meanwhile.

        Work that awaits nothing else runs there `wholly`: that costs one change of threads in all.
        """
        ...

    def is_on_loop(self) -> bool:
        """Whether the current thread is the event loop's."""
        ...

    def post_to_loop(self, action: Callable[[], None]) -> bool:
        """Run `action` on the loop, in order with the results of worker threads. For any thread.

        False when the loop has ended and nothing will run.
        """
        ...

    def call_after_current_step(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop when the code that runs now is done. For any thread.

        On the loop that is its next wait, in a worker thread the end of its function, or its next wait. In a thread of
        somebody else nobody knows: `action` runs soon.
        """

    def wait_from_thread(self, call: Call, work: Coroutine[Any, Any, T]) -> T:
        """Block a worker thread until `work`, run on the loop, is done."""
        ...


class NoLoopEngine:
    """Used until a loop runs: immediate methods are answered, other messages wait."""

    ready = False

    def is_on_loop(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} needs the event loop, which has not started")


# -- Coroutines stepped by hand: one that never waits needs no task and no timer. Every layer may use it.


def iter_started_coroutine(
    steps: Generator[Any, Any, T] | Coroutine[Any, Any, T], waiting_for: Any
) -> Generator[Any, Any, T]:
    """The rest of an awaitable that was stepped once and then waited for `waiting_for`."""
    while True:
        try:
            yield waiting_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            thrown = error
        else:
            waiting_for = None  # if it failed, its error's traceback refers to this frame: a circle
            # Whoever runs coroutines sends nothing but None. From here on the interpreter steps them itself.
            return (yield from steps)  # pyright: ignore
        # Not while it is being handled: it would become the `__context__` of whatever the coroutine raises, and anyio
        # takes a cancellation with such a context for its own.
        try:
            waiting_for = None
            waiting_for = steps.throw(thrown)
        except StopIteration as done:
            return done.value
        finally:
            del thrown


await_started_coroutine = types.coroutine(iter_started_coroutine)
"""The same, to be awaited."""
