"""A client of the server that a command is pointed at."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from defserve.cli.targets import Target, headers_of
from defserve.host.addresses import connect_url
from defserve.host.answers import Answers
from defserve.host.client import Client
from defserve.host.eras import ERAS
from defserve.host.links import Link
from defserve.host.stdio import ProcessLink


def add_connection_options(parser: ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", metavar="PACKAGE", help="a package whose server it is, instead of TARGET")
    parser.add_argument("--era", help='protocol: "handshake", "stateless" or a version; negotiated unless given')
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for each answer (60)")
    parser.add_argument("--token", help="a bearer token for a server at an address")
    parser.add_argument(
        "-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="a header for a server at an address"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show what a started server writes to stderr")


@asynccontextmanager
async def connect(
    target: Target, options: Namespace, *, offer: Mapping[str, Any] | None = None
) -> AsyncGenerator[Client, None]:
    """A client of `target` for as long as the block runs, with the capabilities of `offer` beside its own.

    Raises PeerGone when there is nobody.
    """
    chosen: dict[str, Any] = {
        "version": ERAS.get(options.era, options.era),
        "timeout": options.timeout,
        "answers": _answers(),
        **({"capabilities": offer} if offer else {}),
    }
    if target.server is not None:
        async with target.server.connect(**chosen) as client:
            yield client
    else:
        async with Client(await _link(target, options), **chosen) as client:
            yield client


async def _link(target: Target, options: Namespace) -> Link:
    if target.address:
        return await connect_url(target.address, headers=headers_of(options.header), token=options.token)
    return await ProcessLink.spawn(target.command[0], target.command[1:], echo=options.verbose)


def _answers() -> Answers:
    """A person answers where there is one at the terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return Answers()
    from defserve.cli.questions import terminal_answers

    return terminal_answers()
