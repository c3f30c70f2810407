"""An inspector on a loop of its own, in a thread beside the test and its browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.errors import DefserveError
from defserve.inspector.inspection import Inspection
from defserve.inspector.running import inspecting
from defserve.inspector.target import Target

if TYPE_CHECKING:
    from .chromium import Browser

T = TypeVar("T")
SECONDS = 30.0
# The pictures in docs/inspector.md: `DEFSERVE_PICTURES=1 make apps` takes them again.
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
FITS = "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"


class InspectorBeside:
    """`url` has the token. `inspection` lives on the other loop: use it in what is given to `run`."""

    def __init__(self, url: str, inspection: Inspection, loop: asyncio.AbstractEventLoop) -> None:
        self.url, self.inspection, self._loop = url, inspection, loop

    @property
    def origin(self) -> str:
        return self.url.partition("?")[0]

    def run(self, work: Callable[[Inspection], Awaitable[T]]) -> T:
        """Do something on the inspector's loop, and wait for it."""

        async def done() -> T:
            return await work(self.inspection)

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(SECONDS)

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool in the first conversation, as another page would."""

        async def work(inspection: Inspection) -> Any:
            return await (await inspection.client()).call(tool, **arguments)

        return self.run(work)


@contextmanager
def inspector_of(target: Target) -> Generator[InspectorBeside]:
    """An inspector of `target` while the block runs."""
    started, made = threading.Event(), list[InspectorBeside]()
    ending: list[asyncio.Event] = []

    async def main() -> None:
        ending.append(asyncio.Event())
        async with inspecting(target) as running:
            made.append(InspectorBeside(running.url, running.inspection, asyncio.get_running_loop()))
            started.set()
            await ending[0].wait()

    def serve() -> None:
        try:
            asyncio.run(main())
        finally:
            started.set()

    thread = threading.Thread(target=serve, name="inspector")
    thread.start()
    assert started.wait(SECONDS)
    assert made, "the inspector did not start"
    try:
        yield made[0]
    finally:
        made[0]._loop.call_soon_threadsafe(ending[0].set)  # pyright: ignore[reportPrivateUsage]
        thread.join(SECONDS)


@contextmanager
def inspector_in(browser: Browser, target: Target) -> Generator[InspectorBeside]:
    """An inspector of `target`. At its end, the browser has complained of nothing, and asked nobody else."""
    with inspector_of(target) as inspector:
        yield inspector
        assert browser.complaints() == []
        assert [each for each in browser.asked() if not each.startswith(inspector.origin)] == []
        browser.open("about:blank")


class Calling:
    """A call that another thread waits for."""

    def __init__(self, inspector: InspectorBeside, tool: str, **arguments: Any) -> None:
        self.outcome: Any = None

        def work() -> None:
            try:
                self.outcome = inspector.call(tool, **arguments)
            except DefserveError as error:
                self.outcome = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(SECONDS)
        return self.outcome
