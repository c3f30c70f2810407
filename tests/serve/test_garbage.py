"""What a call has brought is freed when the call is over.

A circle of references would keep it until the garbage collector runs: after so many objects, however large they are.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest

from defserve import Context, Depends, Server, ToolError
from tests.raw import ERAS, raw, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

LARGE = 100_000


def returns(text: str) -> int:
    return len(text)


def says(text: str) -> str:
    return text + "!"


def refuses(text: str) -> str:
    raise ToolError(f"not {text[:9]}")


def breaks(text: str) -> str:
    try:
        raise KeyError(text)
    except KeyError as error:
        raise ValueError("a mistake") from error


def exits(text: str) -> str:
    raise SystemExit(text)


def stops(text: str) -> str:
    raise StopIteration(text)


async def says_async(text: str) -> str:
    await asyncio.sleep(0)
    return text + "!"


async def refuses_async(text: str) -> str:
    await asyncio.sleep(0)
    raise ToolError(f"not {text[:9]}")


async def breaks_async(text: str) -> str:
    await asyncio.sleep(0)
    raise ValueError(text)


def opened() -> Iterator[str]:
    yield "opened"


def depends(text: str, opened: Annotated[str, Depends(opened)]) -> str:
    return text + opened


def depends_and_refuses(text: str, opened: Annotated[str, Depends(opened)]) -> str:
    raise ToolError(f"not {text[:9]}")


async def depends_async(text: str, opened: Annotated[str, Depends(opened)]) -> str:
    return text + opened


async def depends_and_refuses_async(text: str, opened: Annotated[str, Depends(opened)]) -> str:
    raise ToolError(f"not {text[:9]}")


def waits(text: str, ctx: Context) -> str:
    ctx.wait(asyncio.sleep(0))
    return text + "!"


async def borrows(text: str, ctx: Context) -> str:
    return await asyncio.to_thread(lambda: text + "!")


TOOLS: list[Callable[..., Any]] = [
    returns, says, refuses, breaks, exits, stops, says_async, refuses_async, breaks_async, depends, depends_and_refuses,
    depends_async, depends_and_refuses_async, waits, borrows,
]  # fmt: skip


def large_in_garbage() -> list[str]:
    """What the garbage collector finds that holds a large text."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    garbage, found = list(gc.garbage), list[str]()
    gc.garbage.clear()
    for each in garbage:
        for held in gc.get_referents(each):
            if isinstance(held, str | bytes | bytearray) and len(held) >= LARGE:
                found.append(f"{type(each).__qualname__} {str(each)[:80]}")
    return found


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    # What is alive now need not be looked through after each row.
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


@for_each_row("version", ERAS)
@for_each_row("tool", TOOLS)
@pytest.mark.usefixtures("no_collection")
async def test_what_a_call_brought_does_not_wait_for_the_garbage_collector(version: str, tool: Callable[..., Any]):
    server = Server("s", "1")
    server.add_tool(tool)
    async with raw(server, version) as peer:
        for number in range(3):
            await peer.call(tool.__name__, {"text": f"{number}" * LARGE})
        assert large_in_garbage() == []


@pytest.mark.usefixtures("no_collection")
async def test_nor_does_what_was_cancelled_while_it_waited_for_a_thread():
    from defserve import Limits

    server, free, running = Server("s", "1", limits=Limits(threads=1)), threading.Event(), threading.Event()

    @server.tool
    def block() -> str:
        running.set()
        free.wait(30)
        return "over"

    server.add_tool(says)
    async with raw(server) as peer:
        first = await peer.begin("tools/call", {"name": "block", "arguments": {}})
        await until(running.is_set)
        waiting = await peer.begin("tools/call", {"name": "says", "arguments": {"text": "x" * LARGE}})
        await peer.ask("ping")
        await peer.tell("notifications/cancelled", {"requestId": waiting})
        await peer.ask("ping")
        free.set()
        await peer.reply_to(first)
        assert large_in_garbage() == []
