"""The full screen: drawn again and again until somebody quits."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from defserve.cli.screen.blocks import Block, Line
from defserve.cli.screen.screen import console
from defserve.cli.top.page import KEYS, page
from defserve.cli.top.snapshot import TopSnapshot
from defserve.cli.top.sources import Source
from defserve.errors import PeerError

QUIT: Final = frozenset("qQ\x03\x04\x1b")


async def watch(source: Source, every: float) -> None:
    """Draw until `q`. A server that is gone is looked for again; the screen says so meanwhile."""
    from rich.live import Live

    from defserve.cli.screen.drawing import rendered

    screen = console(sys.stdout)
    before = await source()  # fails before the screen is taken
    seen: TopSnapshot = before
    with _keys() as pressed, Live(rendered([], screen.width), console=screen, screen=True, auto_refresh=False) as live:
        problem = ""
        while not pressed.is_set():
            blocks: list[Block] = [*page(seen, before if seen is not before else None), ""]
            if problem:
                blocks.append(Line((problem.partition("\n")[0], "error")))
            blocks.append(Line((f"every {every:g} s, {KEYS}", "faint")))
            live.update(rendered(blocks, screen.width), refresh=True)
            try:
                await asyncio.wait_for(pressed.wait(), every)
            except TimeoutError:
                pass
            else:
                return
            try:
                before, seen, problem = seen, await source(), ""
            except PeerError as error:
                problem = error.message


@contextmanager
def _keys() -> Generator[asyncio.Event]:
    """Set when a key that quits is pressed. Keys are not shown meanwhile."""
    pressed, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        import termios
        import tty
    except ImportError:  # Windows: Ctrl-C quits
        yield pressed
        return
    if not sys.stdin.isatty():
        yield pressed
        return
    keyboard = sys.stdin.fileno()
    was = termios.tcgetattr(keyboard)

    def read() -> None:
        if not QUIT.isdisjoint(os.read(keyboard, 64).decode(errors="replace")):
            pressed.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, was)
