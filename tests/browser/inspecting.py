"""An inspector on a loop of its own, in a thread beside the test and its browser; and how its panels are looked at."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.errors import DefserveError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.page_server import serve_inspector
from defserve.serve.lifespans import connect_in_memory

from .accessibility import serious

if TYPE_CHECKING:
    from defserve import Server

    from .chromium import Browser

T = TypeVar("T")
SECONDS = 30.0
ROOT = Path(__file__).parents[2]
# The pictures in docs/inspector.md: `make pictures` takes them again.
PICTURES = ROOT / "docs" / "pictures"
TAKES_PICTURES = bool(os.environ.get("DEFSERVE_PICTURES"))
# Every kind of window, and both themes in the widest: colours do not depend on the size.
LOOKS = ((360, 780, "dark"), (768, 900, "light"), (1440, 900, "light"), (1440, 900, "dark"))[2 * TAKES_PICTURES :]
ROWS = "document.querySelectorAll('.t-list [role=option]').length"
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
def inspector_of(target: InspectionTarget) -> Generator[InspectorBeside]:
    """An inspector of `target` while the block runs."""
    started, made = threading.Event(), list[InspectorBeside]()
    ending: list[asyncio.Event] = []

    async def main() -> None:
        ending.append(asyncio.Event())
        async with serve_inspector(target) as running:
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
def inspector_process(
    *target: str, command: str = "inspect", cwd: Path = ROOT
) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """The address of `defserve inspect --web` in a process of its own, and that process. It ends with the block.

    `command="dev"`: that of `defserve dev --web`, which serves too, and reloads what has changed.
    """
    words = (sys.executable, "-m", "defserve", command, "--web", "--no-browser", *target)
    process = subprocess.Popen(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.terminate()
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def inspector_in(browser: Browser, target: InspectionTarget, *origins: str) -> Generator[InspectorBeside]:
    """An inspector of `target`. At its end, the browser has complained of nothing, and asked nobody else.

    `origins`: whom else it may ask, by how the addresses begin.
    """
    with inspector_of(target) as inspector:
        yield inspector
        assert browser.complaints() == []
        assert [each for each in browser.asked() if not each.startswith((inspector.origin, *origins))] == []
        browser.open("about:blank")


def target_of(server: Server, name: str = "it.py", era: str = "stateless") -> InspectionTarget:
    """A server in this process, to be inspected."""
    return InspectionTarget(name, (name,), lambda: connect_in_memory(server.composition), era)


def open_at(
    browser: Browser, inspector: InspectorBeside, place: str, era: str = "stateless", ready: str = f"{ROWS} > 1"
) -> None:
    """Open a panel in a wide window and wait until it is `ready`, in an era."""
    browser.look(1440, 900)
    browser.open(f"{inspector.url}#{place}")
    assert browser.page(ready)
    if era == "handshake":
        browser.key("e")
        assert browser.page("document.querySelector('.top .seg .on')?.textContent === 'Handshake'")
        assert browser.page(ready)


class Look:
    """A panel in one window and theme."""

    def __init__(self, browser: Browser, width: int, scheme: str) -> None:
        self._browser, self.width, self.scheme = browser, width, scheme

    @property
    def is_phone(self) -> bool:
        return self.width < 720

    def fits(self) -> None:
        assert self._browser.page(FITS), (self.width, self.scheme)

    def is_fine(self) -> None:
        """It fits its window, and axe finds nothing grave."""
        self.fits()
        assert serious(self._browser) == [], (self.width, self.scheme)

    def picture(self, name: str) -> None:
        """For the docs in `make pictures`, and into the folder `DEFSERVE_SHOTS` to look at."""
        path = PICTURES / f"inspector-{name}{'-dark' if self.scheme == 'dark' else ''}.png"
        if TAKES_PICTURES and self.width == 1440 and path.exists():
            self._browser.shot(path)
        elif shots := os.environ.get("DEFSERVE_SHOTS"):
            self._browser.shot(Path(shots) / f"{name}-{self.width}-{self.scheme}.png")


def looks(browser: Browser, url: str, ready: str = "true") -> Generator[Look]:
    """Open an address in every window and theme, one after the other, and wait until it is `ready`."""
    for width, height, scheme in LOOKS:
        browser.look(width, height, scheme)
        browser.open(url)
        assert browser.page(f"document.documentElement.dataset.theme === {scheme!r} && ({ready})"), (width, scheme)
        yield Look(browser, width, scheme)


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
