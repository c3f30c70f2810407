"""A server for a kernel to run: it adds, and it misbehaves on request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from defserve import Server

server = Server("backend")


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def pid() -> int:
    """The process that answers."""
    return os.getpid()


@server.tool
def environment(name: str) -> str:
    """A variable of this process."""
    return os.environ.get(name, "")


@server.tool
def say(text: str) -> str:
    """Write to standard error."""
    print(text, file=sys.stderr, flush=True)
    return text


@server.tool
async def slow(seconds: float) -> int:
    """Answer late."""
    await asyncio.sleep(seconds)
    return os.getpid()


@server.tool
def fail(text: str) -> str:
    """Fail with a text."""
    raise RuntimeError(text)


@server.tool(inline=True)
def hang() -> None:
    """Stop answering anything, for good."""
    time.sleep(3600)


@server.tool(inline=True)
def leave(code: int) -> None:
    """End the process."""
    os._exit(code)


if __name__ == "__main__":
    if "--deaf" in sys.argv:
        # Goes on without its input, as a server does that does not notice that its client is gone.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--refuse" in sys.argv:
        sys.exit(f"cannot start with {sys.argv[-1]}")
    print(f"started with {' '.join(sys.argv[1:])}", file=sys.stderr, flush=True)
    server.run()
    if "--deaf" in sys.argv:
        time.sleep(3600)
