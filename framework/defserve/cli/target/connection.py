"""A client of the server that a command is pointed at."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from defserve.cli.target.target import ServerTarget, headers_of
from defserve.errors import PeerGone, PeerTimeout, UsageError
from defserve.host.addresses import connect_url
from defserve.host.answers import Answers
from defserve.host.client import Client
from defserve.host.eras import ERAS
from defserve.host.link import Link
from defserve.host.links.stdio import ProcessLink
from defserve.transports.refusals import Challenged, HttpRefusal, Unreachable
from defserve.transports.websocket.client import LOOPBACK

# What a challenge says is wrong -> what helps.
TOKENS: Final[Mapping[str | None, str]] = {
    "": "give --token …",
    "invalid_token": "give another --token: this one is unknown or expired, or meant for another server",
    "insufficient_scope": "give a --token that has them",
}


def add_connection_options(parser: ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", metavar="PACKAGE", help="a package whose server it is, instead of TARGET")
    parser.add_argument("--era", help='protocol: "handshake", "stateless" or a version; negotiated unless given')
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for each answer (60)")
    parser.add_argument("--token", help="a bearer token for a server at an address")
    parser.add_argument(
        "-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="a header for a server at an address"
    )
    told = "show what a started server writes to stderr, and whole tracebacks"
    parser.add_argument("-v", "--verbose", action="store_true", help=told)


@asynccontextmanager
async def connect(
    target: ServerTarget, options: Namespace, *, offer: Mapping[str, Any] | None = None, answers: Answers | None = None
) -> AsyncGenerator[Client, None]:
    """A client of `target` for as long as the block runs, with the capabilities of `offer` beside its own.

    Without `answers` the person at the terminal is asked, if there is one.
    Raises PeerGone when there is nobody, PeerTimeout and UsageError with the option that helps.
    """
    chosen: dict[str, Any] = {
        "version": ERAS.get(options.era, options.era),
        "timeout": options.timeout,
        "answers": answers or _answers(),
        **({"capabilities": offer} if offer else {}),
    }
    try:
        if target.server is not None:
            async with target.server.connect(**chosen) as client:
                yield client
        else:
            async with Client(await _link(target, options), **chosen) as client:
                yield client
    except PeerTimeout as error:
        look = "-v shows what it writes to stderr; " if target.command and not options.verbose else ""
        raise PeerTimeout(f"{error.message}\n  fix: {look}--timeout waits longer") from None
    except Unreachable as error:
        raise PeerGone(f"{error.message}\n  fix: {_absent(target.address)}") from None
    except Challenged as error:
        raise UsageError(error.message, fix=TOKENS.get(error.error, "give -H 'Authorization: …'")) from None
    except HttpRefusal as error:
        fix = "check the address; it mostly ends with /mcp" if error.data["status"] in (404, 405) else ""
        raise UsageError(error.message, fix=fix) from None


def _absent(address: str) -> str:
    if urlsplit(address).hostname in LOOPBACK:
        return f"nothing listens there: start it with defserve run FILE --on {address}"
    return "check the address, and that the server runs there"


async def _link(target: ServerTarget, options: Namespace) -> Link:
    if target.address:
        given = {**target.headers, **headers_of(options.header)}
        headers = {name.lower(): value for name, value in given.items()}
        return await connect_url(target.address, headers=headers, token=options.token)
    program, *args = target.command
    return await ProcessLink.spawn(program, args, env=target.env, cwd=target.cwd, echo=options.verbose)


def _answers() -> Answers:
    """A person answers where there is one at the terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return Answers()
    from defserve.cli.answers.terminal import terminal_answers

    return terminal_answers()
