"""`defserve logout`: end a sign-in, at its issuer and here."""

from __future__ import annotations

import asyncio
from typing import Final

from defserve.cli.parser import CommandParser
from defserve.cli.screen.screen import show, tell
from defserve.cli.signing.states import all_states
from defserve.errors import UsageError
from defserve.host.signin.account import sign_out

EXAMPLES: Final = """  defserve logout https://mcp.example.com/mcp
  defserve logout --all
"""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve logout", "End a sign-in: the tokens are revoked, and forgotten here.", EXAMPLES)
    parser.add_argument("url", nargs="?", help="the address of the server; needless if there is only one sign-in")
    parser.add_argument("--all", action="store_true", help="end all sign-ins")
    options = parser.parse_args(argv)
    for url in _urls(options.url, is_all=options.all):
        problem = asyncio.run(sign_out(url))
        show(f"Signed out of {url}")
        if problem:
            tell(f"note: {problem}")
    return 0


def _urls(given: str | None, *, is_all: bool) -> list[str]:
    if given is not None and not is_all:
        return [given]
    servers = [state.server for state in asyncio.run(all_states(None, is_asked=False))]
    if not is_all and len(servers) > 1:
        raise UsageError(
            f"you are signed in to {len(servers)} servers: {', '.join(servers)}", fix="name one of them, or give --all"
        )
    if not servers:
        raise UsageError("you are not signed in anywhere", fix="sign in first: defserve login URL")
    return servers
