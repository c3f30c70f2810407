"""`defserve inspect` and `defserve list`: a server at a glance, and what it offers, for people or as JSON."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Final

from defserve.cli.content import WHEN, first_line, item_lines
from defserve.cli.parser import WEB_OPTIONS, Argument, CommandParser, flag
from defserve.cli.progress import ASKING, Working
from defserve.cli.screen import show, show_stderr
from defserve.cli.screen_blocks import Block, Data, Line
from defserve.cli.target import COMMAND, TARGET_HELP, WAYS, ServerTarget, quiet, resolve_only, split_command
from defserve.cli.target_connection import CONNECTION_OPTIONS, connect
from defserve.cli.target_listing import (
    KINDS,
    danger,
    eras,
    lists_of,
    not_connected,
    suppress_repeated_logs,
    tag_parts,
    tags,
    target_listing,
)
from defserve.client.targets import Installed, find_installed_servers
from defserve.core.json_values import is_array, is_mapping
from defserve.protocols.mgp.terms import SECTIONS
from defserve.tooling.client_settings import FILE, list_configured_servers
from defserve.tooling.lint.definitions import tokens
from defserve.tooling.listing import LISTING_OFFER, ServerListing

EXAMPLES: Final = """  defserve inspect server.py
  defserve inspect server.py --web                    a page in the browser
  defserve inspect server.py --json
  defserve inspect http://127.0.0.1:8000/mcp
  defserve inspect -- python server.py
  defserve inspect .mcp.json:weather
"""


def run_inspect(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser(
        "defserve inspect", "Show a server at a glance: what it speaks, offers, may do and costs.", EXAMPLES
    )
    options = parser.parse_options(
        before,
        Argument("target", nargs="*", help=TARGET_HELP),
        flag("--json", help="print what goes over the wire: the initialize result and the lists"),
        *CONNECTION_OPTIONS,
        *WEB_OPTIONS,
    )
    words = words_of(options.target, options.module, command)
    with quiet(), Working(ASKING):
        target = resolve_only(options.target, options.module, command)
    if options.web:
        from defserve.cli.inspector_launch import inspect_in_browser

        return inspect_in_browser(target, words, options)
    with quiet():
        listed = target_listing(target, options)
        spoken = [] if options.json else asyncio.run(eras(target, options))
    show(*([Data(wire(listed))] if options.json else page(listed, spoken)))
    show_stderr(*(f"note: {note}" for note in listed.notes))
    return 0


def words_of(named: list[str], module: str | None, command: list[str] | None) -> list[str]:
    """How another command names the same server."""
    if command is not None:
        return ["--", *command]
    return ["-m", module] if module is not None else list(named)


def wire(listed: ServerListing) -> dict[str, Any]:
    """The results as they came: `initialize`, and each list under its wire name."""
    return {
        "initialize": listed.initialize,
        "tools": listed.tools,
        "resources": listed.resources,
        "resourceTemplates": listed.templates,
        "prompts": listed.prompts,
    }


def page(listed: ServerListing, spoken: list[str]) -> Iterator[Line]:
    """A server for a terminal, line by line."""
    info = listed.info
    title = " ".join(str(info[key]) for key in ("name", "version") if info.get(key))
    yield Line((title or "unnamed server", "heading"))
    for text in (info.get("title"), info.get("description"), listed.initialize.get("instructions")):
        if text:
            yield Line(f"  {str(text).strip().partition(chr(10))[0]}", hang=0)
    yield from _heading("Speaks")
    yield _make_protocol_line("MCP", ", ".join(spoken) or str(listed.initialize.get("protocolVersion")))
    yield from _extensions(listed)
    yield from _live(listed.mcpl)
    cost = f"about {sum(map(tokens, listed.tools))} tokens {WHEN[listed.is_searched]}: characters/4"
    yield from _heading(f"Tools ({len(listed.tools)}, {cost})")
    for tool in listed.tools:
        yield from item_lines(tool, (f"  ~{tokens(tool)}", "faint"), *tag_parts(tags(tool)))
    for heading, items in (
        ("Resources", listed.resources),
        ("Templates", listed.templates),
        ("Prompts", listed.prompts),
    ):
        yield from _items(f"{heading} ({len(items)})", items)


def _extensions(listed: ServerListing) -> Iterator[Line]:
    mgp, mcpl = listed.mgp, listed.mcpl
    if mgp:
        # A name of several sections would only repeat them.
        offered = [str(name) for name in mgp.get("extensions") or () if SECTIONS.get(name) in (None, {name})]
        needed = ", ".join(mgp.get("permissions_required") or ()) or "nothing"
        yield _make_protocol_line("MGP", f"{mgp.get('version')}: {', '.join(offered)}")
        yield Line(f"        needs {needed}; trust level {mgp.get('trust_level', 'not declared')}", hang=0)
    if mcpl:
        other = [name for name, value in mcpl.items() if value and name not in ("version", "featureSets")]
        yield _make_protocol_line("MCPL", f"{mcpl.get('version')}: {', '.join(other) or 'tools'}")


def _make_protocol_line(protocol: str, about: str) -> Line:
    return Line("  ", (f"{protocol:4}", "title"), f"  {about}", hang=6)


def _heading(text: str) -> Iterator[Line]:
    yield Line()
    yield Line((text, "heading"), hang=0)


def _live(mcpl: Mapping[str, Any]) -> Iterator[Line]:
    sets: Any = mcpl.get("featureSets") or {}
    named: Mapping[str, Any] = {one.get("name"): one for one in sets} if is_array(sets) else sets
    if named:
        yield from _heading(f"Feature sets ({len(named)})")
    for name, one in named.items():
        flags = [flag for flag in ("scoped", "rollback") if one.get(flag)]
        told = ", ".join([*(one.get("uses") or ()), *flags])
        yield Line("  ", (str(name), "title"), (f"  [{told}]", "faint"), hang=4)
        yield Line(f"      {first_line(one)}", hang=0)
    if channels := mcpl.get("channels"):
        yield from _heading("Channels")
        told = ", ".join(name for name, value in channels.items() if value) if is_mapping(channels) else ""
        yield Line(f"  {told or 'any type'}")


def _items(heading: str, items: list[dict[str, Any]]) -> Iterator[Line]:
    if not items:
        return
    yield from _heading(heading)
    for item in items:
        yield from item_lines(item)


# -- `defserve list`: what a server offers, for people or as JSON.


LIST_EXAMPLES: Final = """  defserve list server.py
  defserve list -m shop --json
  defserve list http://127.0.0.1:8000/mcp
  defserve list -- python server.py --flag
  defserve list weather                    an installed server, or one in .mcp.json
  defserve list                            the names you can use
"""
ALONE: Final = "or nothing, for the names you can use (if there are none: the server of the project)"


def run_list(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser("defserve list", "Show the tools, resources and prompts of a server.", LIST_EXAMPLES)
    options = parser.parse_options(
        before,
        Argument("target", nargs="*", help=f"{WAYS}; {ALONE}, or with {COMMAND}"),
        flag("--json", help="print the server's answers as JSON"),
        *CONNECTION_OPTIONS,
    )
    words: list[str] = options.target
    if not (words or options.module or command) and (
        servers := [*find_installed_servers(), *_list_configured_servers()]
    ):
        show(*([Data([each._asdict() for each in servers])] if options.json else servers_page(servers)))
        return 0
    with quiet(), nullcontext() if options.verbose else suppress_repeated_logs(), Working(ASKING):
        found = asyncio.run(inventory(resolve_only(words, options.module, command), options))
    show(*([Data(found)] if options.json else inventory_page(found)))
    show_stderr(*(f"note: {note}" for note in found.get("notes", ())))
    return 0


def _list_configured_servers() -> list[Installed]:
    """The servers of the nearest `.mcp.json`, which belong to no distribution."""
    return [Installed(name, how, "", "") for name, how in list_configured_servers().items()]


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


def inventory_page(found: dict[str, Any]) -> Iterator[Line]:
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
