"""Run by the rows as a process of its own: a server that writes down which calls it ran, before it answers them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from defserve import Context, Limits, Server, ToolError

MARKS = Path(os.environ["ATTACK_MARKS"])

server = Server("marking", "1", limits=Limits(header=3, body=5, question=10, drain=3))


@server.tool
def mark(word: str) -> str:
    """Write a word down, and say so."""
    # One write to a file that is only appended to: what is answered is there, whatever happens next.
    file = os.open(MARKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{word}\n".encode())
    finally:
        os.close(file)
    return f"marked {word}"


@server.tool
async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "slept"


@server.tool
async def count(n: int, ctx: Context) -> str:
    """Report progress n times."""
    for number in range(n):
        ctx.progress(number, n)
        await asyncio.sleep(0.01)
    return "counted"


@server.tool
def fill(megabytes: int) -> int:
    """Take so much memory, and give it back."""
    return len(bytearray(megabytes << 20))


@server.tool
def long(size: int) -> str:
    """A long text."""
    return "x" * size


@server.tool
def open_file(path: str) -> str:
    """Open a file, as tools do."""
    try:
        with Path(path).open() as file:
            return file.readline()
    except OSError as error:
        raise ToolError(f"{path} cannot be opened: {error.strerror}") from error


if __name__ == "__main__":
    server.main()
