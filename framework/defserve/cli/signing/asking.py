"""Signs in with the person at the terminal: a browser is opened, or addresses are copied by hand."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from threading import Thread
from typing import Final, NamedTuple

from defserve.cli.screen.blocks import Line
from defserve.cli.screen.screen import prompt_for, tell
from defserve.cli.target.refusals import explained
from defserve.host.signin import account
from defserve.host.signin.redirects.browser import Browser, has_browser, open_browser

LONGEST_LINE: Final = 16_384


class LoginOptions(NamedTuple):
    """What a command line says about a sign-in."""

    scopes: Sequence[str] = ()
    client_id: str | None = None
    client_secret: str | None = None
    opens_browser: bool = True
    port: int = 0
    issuer: str | None = None


async def sign_in(url: str, options: LoginOptions) -> str:
    """Sign in to a server, and give its name. Raises PeerError, UsageError."""
    is_typed = sys.stdin.isatty() or not options.opens_browser
    redirect = Browser(
        opens=open_browser if options.opens_browser else lambda url: False,
        show=lambda there: _show(there, is_opened=options.opens_browser and has_browser()),
        typed=_typed if is_typed else None,
        port=options.port,
    )
    client = {"client_id": options.client_id, "client_secret": options.client_secret, "issuer": options.issuer}
    with explained(url):
        return await account.sign_in(url, redirect, scopes=options.scopes, **client)


def _show(url: str, *, is_opened: bool) -> None:
    said = "Your browser opens to sign in. If it does not, open" if is_opened else "To sign in, open"
    tell(Line(f"{said} this address:"), Line(f"  {url}"))


async def _typed(is_again: bool) -> str:
    """A line that the person types. Raises EOFError."""
    told = "That is not the address that belongs to this sign-in. " if is_again else ""
    prompt_for(Line(f"{told}If your browser is on another machine, paste the address that it ends at: "))
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        # Not by sys.stdin: a thread that waits for it would hold its lock when the interpreter ends.
        try:
            line = os.read(sys.stdin.fileno(), LONGEST_LINE)
        except (OSError, ValueError):
            line = b""
        try:
            loop.call_soon_threadsafe(lambda: None if typed.done() else typed.set_result(line))
        except RuntimeError:
            return  # the browser came first, and the loop has ended

    Thread(target=read, daemon=True, name="defserve typed").start()
    line = await typed
    if not line:
        raise EOFError
    return line.decode(errors="replace")
