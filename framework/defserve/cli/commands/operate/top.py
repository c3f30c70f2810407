"""`defserve top`: watch a server or kernel that runs."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentTypeError, Namespace
from contextlib import AsyncExitStack
from typing import Final

from defserve.cli.option_types import positive
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data
from defserve.cli.screen.screen import is_drawn, show
from defserve.cli.target.connection import add_connection_options
from defserve.cli.top.page import page
from defserve.cli.top.sources import source_of

ABOUT: Final = """Watch a server or kernel that runs: calls a second, errors, latencies, sessions.

At a terminal it fills the screen until you press q. Elsewhere it prints one table. A server shows its calls and
latencies if it was started with --metrics, and its processes if it has several (--workers). Latencies are read from a
histogram, so they are not exact."""
EXAMPLES: Final = """  defserve top http://127.0.0.1:8000/mcp
  defserve top unix:/run/shop.sock
  defserve top                              the kernel of ./mgp.toml
  defserve top shop/mgp.toml --every 5
  defserve top http://127.0.0.1:8000/mcp --json --count 10
"""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve top", ABOUT, EXAMPLES)
    parser.add_argument(
        "target",
        nargs="?",
        metavar="ADDRESS",
        help="http://host:port/mcp, ws://…, unix:/path, or a kernel's mgp.toml (default: found)",
    )
    parser.add_argument("--every", type=_seconds, default=2.0, metavar="SECONDS", help="how often (default: 2)")
    parser.add_argument("--count", type=positive, metavar="N", help="print N tables and end; no full screen")
    parser.add_argument("--pid", type=positive, metavar="PID", help="which kernel, if several serve this file")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    add_connection_options(parser)
    options = parser.parse_args(argv)
    return asyncio.run(_watch(options))


async def _watch(options: Namespace) -> int:
    async with AsyncExitStack() as stack:
        source = source_of(options.target, options, stack)
        if is_drawn(sys.stdout) and not options.json and options.count is None:
            from defserve.cli.top.live import watch

            await watch(source, options.every)
            return 0
        before = None
        for number in range(options.count or 1):
            if number:
                await asyncio.sleep(options.every)
            now = await source()
            show(*([Data(now.wire(before), compact=True)] if options.json else page(now, before)))
            sys.stdout.flush()
            before = now
    return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds
