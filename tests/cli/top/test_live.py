"""The full screen of `defserve top`."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from types import SimpleNamespace

import pytest

from defserve import Server
from defserve.cli import keyboard
from defserve.cli.commands import top
from defserve.cli.commands.top import ToolFigures, TopSnapshot
from defserve.errors import PeerGone, UsageError
from tests.cli.goldens import Terminal
from tests.listening import listening
from tests.waiting import until

pty = pytest.importorskip("pty")
pytestmark = pytest.mark.anyio


async def test_it_is_drawn_again_and_again_until_somebody_quits(monkeypatch: pytest.MonkeyPatch):
    screen, pressed, looks = Terminal(), asyncio.Event(), list[int]()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(top, "sys", SimpleNamespace(stdout=screen))

    @contextmanager
    def keys() -> Generator[asyncio.Event]:
        yield pressed

    async def source() -> TopSnapshot:
        looks.append(len(looks))
        if len(looks) == 3:
            raise PeerGone("the server has left")
        if len(looks) == 4:
            raise UsageError("the proxy refuses", fix="wait")
        if len(looks) == 6:
            pressed.set()
        return TopSnapshot(float(len(looks)), "shop", tools={"add": ToolFigures({"ok": 10 * len(looks)})})

    monkeypatch.setattr(top, "_keys", keys)
    await top.watch_server(source, 0.01)
    text = screen.getvalue()
    assert text.startswith("\x1b[?1049h") and text.endswith("\x1b[?1049l")  # its own screen, and back
    assert "10.0 calls/s" in text and "q quits" in text
    assert "the server has left" in text and "the proxy refuses" in text


async def test_a_server_on_a_websocket_is_found_again_after_it_has_left():
    options = Namespace(era=None, token=None, header=[], verbose=False, timeout=10)
    async with AsyncExitStack() as stack:
        async with listening(Server("shop", "1"), "ws://127.0.0.1:0/mcp") as first:
            address = f"ws://{first.authority}/mcp"
            source = top.open_snapshot_source(address, options, stack)
            assert (await source()).name == "shop"
        with pytest.raises(PeerGone):
            await source()
        async with listening(Server("shop", "1"), address):
            assert (await source()).name == "shop"


@pytest.mark.parametrize("key", ["q", "Q", "\x03", "\x1b"])
async def test_a_key_quits_and_the_terminal_is_as_before(monkeypatch: pytest.MonkeyPatch, key: str):
    import termios

    mine, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as stdin:
        monkeypatch.setattr(keyboard, "sys", SimpleNamespace(stdin=stdin))
        before = termios.tcgetattr(stdin)
        with top._keys() as pressed:  # pyright: ignore[reportPrivateUsage]
            assert termios.tcgetattr(stdin) != before
            os.write(mine, b"x")
            os.write(mine, key.encode() if key != "\x03" else b"q")
            await until(pressed.is_set)
        assert termios.tcgetattr(stdin) == before
    os.close(mine)


async def test_without_a_keyboard_only_an_interrupt_quits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        keyboard, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: False), platform=sys.platform)
    )
    with top._keys() as pressed:  # pyright: ignore[reportPrivateUsage]
        assert not pressed.is_set()
