"""A connection to the server that a command is about."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from traceback import format_exception
from typing import Any

from defserve.auth.local_token.client import with_local_key
from defserve.cli.option_types import token as token_type
from defserve.cli.screen.progress import Working
from defserve.cli.target.refusals import explained
from defserve.cli.target.target import ServerTarget, headers_of
from defserve.cli.tracebacks import brief
from defserve.errors import DefserveError, PeerTimeout, UsageError
from defserve.host.addresses import connect_url
from defserve.host.answers import Answers
from defserve.host.client import Client
from defserve.host.link import Link
from defserve.host.links.stdio import ProcessLink
from defserve.host.older.silent_servers import SILENT_SERVERS, cache_file
from defserve.host.signin.keeping.places import is_kept


def add_connection_options(parser: ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", metavar="PACKAGE", help="a package with a server, instead of TARGET")
    parser.add_argument("--era", help='protocol era: "handshake", "stateless" or a version (default: negotiated)')
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for each answer (default: 60)")
    parser.add_argument(
        "--token", type=token_type, help="a bearer token for a server at an address, or @FILE that holds it"
    )
    parser.add_argument(
        "-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="a header for a server at an address"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show what the server writes to stderr, and full tracebacks"
    )


@asynccontextmanager
async def connect(
    target: ServerTarget,
    options: Namespace,
    *,
    offer: Mapping[str, Any] | None = None,
    answers: Answers | None = None,
    work: Working | None = None,
) -> AsyncGenerator[Client, None]:
    """A client of `target` while the block runs. `offer` adds capabilities to its own. `work` shows progress and logs.

    It says that it can show views: who looks at a server wants to see those too, and the tools that only they use.
    Without `answers`, questions go to the person at the terminal, if there is one.
    Raises PeerGone if nothing is there, PeerTimeout and UsageError with the option that helps.
    """
    chosen: dict[str, Any] = {
        "version": options.era,
        "timeout": options.timeout,
        "answers": answers or _answers(),
        "apps": True,
        **({"capabilities": offer} if offer else {}),
        **({"on_progress": work.progress, "on_log": work.log} if work is not None else {}),
    }
    SILENT_SERVERS.use_file(cache_file())
    try:
        with explained(target.address, is_signed_in=_is_signed_in(target, options)):
            if target.server is not None:
                async with AsyncExitStack() as stack:
                    starting = target.server.connect(**chosen)
                    yield await _started(stack, starting, options)
            else:
                async with Client(await link_to(target, options), **chosen) as client:
                    yield client
    except PeerTimeout as error:
        look = "-v shows what it writes to stderr; " if target.command and not options.verbose else ""
        raise PeerTimeout(f"{error.message}\n  fix: {look}--timeout waits longer") from None


async def _started(stack: AsyncExitStack, starting: AbstractAsyncContextManager[Client], options: Namespace) -> Client:
    """A client of a server of this process. Raises UsageError with the author's frames if its lifespan fails."""
    try:
        return await stack.enter_async_context(starting)
    except DefserveError:
        raise
    except Exception as error:
        if options.verbose:
            raise
        shown = brief("".join(format_exception(error)))
    raise UsageError(f"the server did not start\n{shown}")


async def link_to(target: ServerTarget, options: Namespace) -> Link:
    """A link to the server that a command line names. It is not a server of this process."""
    if target.address:
        given = {**target.headers, **headers_of(options.header)}
        headers = {name.lower(): value for name, value in given.items()}
        address, token = with_local_key(target.address, options.token, headers)
        auth = None
        if token is None and _is_signed_in(target, options) and is_kept(address):
            from defserve.host.signin.options import StoredSignIn

            auth = StoredSignIn()
        return await connect_url(address, headers=headers, token=token, auth=auth)
    program, *args = target.command
    return await ProcessLink.spawn(program, args, env=target.env, cwd=target.cwd, echo=options.verbose)


def _is_signed_in(target: ServerTarget, options: Namespace) -> bool:
    """Whether a command uses the token of `defserve login`. One that its command line gives wins over it."""
    given = {name.lower() for name in (*target.headers, *headers_of(options.header))}
    return bool(target.address) and not options.token and "authorization" not in given and is_kept(target.address)


def _answers() -> Answers:
    """The person at the terminal answers, if there is one."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return Answers()
    from defserve.cli.answers.terminal import terminal_answers

    return terminal_answers()
