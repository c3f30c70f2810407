"""A client of the server that a command is pointed at."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from defserve.cli.targets import Target
from defserve.host.answers import Answers
from defserve.host.client import Client
from defserve.host.eras import ERAS
from defserve.host.stdio import ProcessLink


def add_connection_options(parser: ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", metavar="PACKAGE", help="a package whose server it is, instead of TARGET")
    parser.add_argument("--era", help='protocol: "handshake", "stateless" or a version; negotiated unless given')
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for each answer (60)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what a started server writes to stderr")


@asynccontextmanager
async def connect(target: Target, options: Namespace) -> AsyncGenerator[Client, None]:
    """A client of `target` for as long as the block runs. Raises PeerGone when there is nobody."""
    chosen: dict[str, Any] = {
        "version": ERAS.get(options.era, options.era),
        "timeout": options.timeout,
        "answers": _answers(),
    }
    if target.command:
        link = await ProcessLink.spawn(target.command[0], target.command[1:], echo=options.verbose)
        async with Client(link, **chosen) as client:
            yield client
    else:
        async with target.server.connect(**chosen) as client:
            yield client


def _answers() -> Answers:
    """A person answers where there is one at the terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return Answers()
    from defserve.cli.questions import terminal_answers

    return terminal_answers()
