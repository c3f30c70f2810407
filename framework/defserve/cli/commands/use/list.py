"""`defserve list`: what a server offers, for people or as JSON."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final

from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Block, Data, Line
from defserve.cli.screen.progress import ASKING, Working
from defserve.cli.screen.screen import show, tell
from defserve.cli.signatures import item_lines
from defserve.cli.target.connection import add_connection_options, connect
from defserve.cli.target.listing import KINDS, lists_of
from defserve.cli.target.marks import danger, tag_parts
from defserve.cli.target.mounts import not_connected, told_once
from defserve.cli.target.target import COMMAND, WAYS, ServerTarget, quiet, resolve_only, split_command
from defserve.host.targets import Installed, installed
from defserve.tooling.clients.configured import FILE, known
from defserve.tooling.listing import LISTING_OFFER

EXAMPLES: Final = """  defserve list server.py
  defserve list -m shop --json
  defserve list http://127.0.0.1:8000/mcp
  defserve list -- python server.py --flag
  defserve list weather                    an installed server, or one in .mcp.json
  defserve list                            the names you can use
"""
ALONE: Final = "or nothing, for the names you can use (if there are none: the server of the project)"


def main(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser("defserve list", "Show the tools, resources and prompts of a server.", EXAMPLES)
    parser.add_argument("target", nargs="*", help=f"{WAYS}; {ALONE}, or with {COMMAND}")
    parser.add_argument("--json", action="store_true", help="print the server's answers as JSON")
    add_connection_options(parser)
    options = parser.parse_args(before)
    words: list[str] = options.target
    if not (words or options.module or command) and (servers := [*installed(), *_configured()]):
        show(*([Data([each._asdict() for each in servers])] if options.json else servers_page(servers)))
        return 0
    with quiet(), nullcontext() if options.verbose else told_once(), Working(ASKING):
        found = asyncio.run(inventory(resolve_only(words, options.module, command), options))
    show(*([Data(found)] if options.json else page(found)))
    tell(*(f"note: {note}" for note in found.get("notes", ())))
    return 0


def _configured() -> list[Installed]:
    """The servers of the nearest `.mcp.json`, which belong to no distribution."""
    return [Installed(name, how, "", "") for name, how in known().items()]


def servers_page(servers: list[Installed]) -> Iterator[Block]:
    """The servers that have a name, for a terminal."""
    width = max(len(each.name) for each in servers)
    rows: dict[str, list[Line]] = {}
    for name, target, distribution, version in servers:
        told = f"{distribution} {version}  {target}" if distribution else target
        rows.setdefault("Installed servers" if distribution else f"Servers in {FILE}", []).append(
            Line("  ", (f"{name:{width}}", "title"), f"  {told}", hang=width + 2)
        )
    for heading, lines in rows.items():
        yield Line((heading, "heading"))
        yield from lines


async def inventory(target: ServerTarget, options: Namespace) -> dict[str, Any]:
    """Everything that the server lists, and what it says about itself."""
    async with connect(target, options, offer=LISTING_OFFER) as client:
        about = {"server": client.server_info, "version": client.version, "instructions": client.instructions}
        notes: list[str] = []
        found = about | await lists_of(client, notes)
        # Others are not asked twice: only what runs here is still being started.
        absent = await not_connected(client) if target.server is not None else {}
        return found | ({"notConnected": absent} if absent else {}) | ({"notes": notes} if notes else {})


def page(found: dict[str, Any]) -> Iterator[Line]:
    """The inventory for a terminal, line by line."""
    server = found["server"]
    title = " ".join(str(server[key]) for key in ("name", "version") if server.get(key))
    yield Line((title or "unnamed server", "heading"), (f" (protocol {found['version']})", "faint"))
    for heading in KINDS:
        if not found[heading]:
            continue
        yield Line()
        yield Line((heading.capitalize(), "heading"))
        for item in found[heading]:
            yield from item_lines(item, *(tag_parts(danger(item)) if heading == "tools" else ()))
    absent: dict[str, str] = found.get("notConnected", {})
    if absent:
        yield Line()
        yield Line(("Not connected", "heading"))
        for name, note in absent.items():
            yield Line("  ", (name, "title"), f"  {note}", hang=4)
    elif not any(found[heading] for heading in KINDS):
        yield Line("It has no tools, resources or prompts.")
