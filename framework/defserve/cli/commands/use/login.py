"""`defserve login`: sign in to a server, and show where one is signed in."""

from __future__ import annotations

import asyncio
import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Final

from defserve.auth.urls import is_loopback
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data
from defserve.cli.screen.screen import show, tell
from defserve.cli.signing.asking import LoginOptions, sign_in
from defserve.cli.signing.pages import sign_ins_page, signed_in_page
from defserve.cli.signing.states import all_states, state_of
from defserve.errors import UsageError
from defserve.host.addresses import HTTP, WEBSOCKET

EXAMPLES: Final = """  defserve login https://mcp.example.com/mcp
  defserve login https://mcp.example.com/mcp --no-browser     type the address that you are sent to
  defserve login https://mcp.example.com/mcp --client-id my-client --client-secret-file secret --issuer https://login.example.com
  defserve login https://mcp.example.com/mcp --scope "files:read files:write"
  defserve login --list
  defserve login --status https://mcp.example.com/mcp         asks the server whether it still takes the token
"""
LONGEST_SECRET: Final = 16_384
BARE: Final = re.compile(r"([\w.-]+)(:\d+)?/")
"""An address without its scheme."""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve login", "Sign in to a server. Other commands then use the token.", EXAMPLES)
    parser.add_argument("url", nargs="?", help="the address of the server: https://host/mcp")
    parser.add_argument("--scope", action="append", default=[], metavar="SCOPE", help="ask for this scope; repeatable")
    parser.add_argument(
        "--client-id", metavar="ID", help="a client that you registered with the issuer, or the URL of its metadata"
    )
    parser.add_argument("--client-secret-file", type=_secret, metavar="FILE", help="the file that holds its secret")
    parser.add_argument("--issuer", metavar="URL", help="the issuer that the client was registered with")
    parser.add_argument("--no-browser", action="store_true", help="open no browser: print the address, and read one")
    parser.add_argument("--port", type=_port, default=0, help="the local port to come back to (default: any)")
    parser.add_argument("--list", action="store_true", help="show where you are signed in")
    parser.add_argument("--status", action="store_true", help="show it, and ask the servers whether it still counts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    url: str | None = options.url
    if options.list or options.status:
        states = asyncio.run(all_states(url, is_asked=options.status))
        show(Data([state.shown() for state in states]) if options.json else sign_ins_page(states))
        return 0 if url is None or any(state.is_good for state in states) else 1
    url = _checked(url)
    scopes = [scope for given in options.scope for scope in given.split()]
    client, secret, issuer = options.client_id, options.client_secret_file, options.issuer
    how = LoginOptions(scopes, client, secret, not options.no_browser, options.port, issuer)
    name = asyncio.run(sign_in(url, how))
    state = state_of(url)
    show(*((Data(state.shown()),) if options.json else signed_in_page(name, state)))
    if lacking := [scope for scope in scopes if scope not in state.scopes]:
        tell(f"note: {state.issuer} did not grant {' '.join(lacking)}")
    return 0


def _checked(url: str | None) -> str:
    """The address of a server. Raises UsageError if it is none."""
    if url is not None and url.partition("://")[0].lower() in (*HTTP, *WEBSOCKET):
        return url
    bare = BARE.match(url or "")
    scheme = "http" if bare is not None and is_loopback(bare[1]) else "https"
    raise UsageError(
        "there is no address to sign in to" if url is None else f"{url!r} is not the address of a server",
        fix=f"defserve login {f'{scheme}://{url}' if bare is not None else 'https://mcp.example.com/mcp'}",
    )


def _secret(path: str) -> str:
    try:
        found = Path(path).read_bytes()[: LONGEST_SECRET + 1].decode("utf-8").strip()
    except OSError as error:
        raise ArgumentTypeError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        found = ""
    if not found or len(found) > LONGEST_SECRET or len(found.split()) > 1:
        raise ArgumentTypeError(f"{path} does not hold one secret")
    return found


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:6]) < 65_536:
        raise ArgumentTypeError(f"{text!r} is not a port; write one from 1 to 65535")
    return int(text)
