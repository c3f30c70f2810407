"""`defserve inspect`: a server at a glance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data, Line
from defserve.cli.screen.progress import ASKING, Working
from defserve.cli.screen.screen import show, tell
from defserve.cli.signatures import WHEN, first_line, item_lines
from defserve.cli.target.connection import add_connection_options
from defserve.cli.target.listing import eras, target_listing
from defserve.cli.target.marks import tag_parts, tags
from defserve.cli.target.target import TARGET_HELP, quiet, resolve_only, split_command
from defserve.cli.web.options import add_web_options
from defserve.protocols.mgp.agreed import SECTIONS
from defserve.tooling.lint.definitions import tokens
from defserve.tooling.listing import ServerListing
from defserve.wire.jsonvalue import is_array, is_mapping

EXAMPLES: Final = """  defserve inspect server.py
  defserve inspect server.py --web                    a page in the browser
  defserve inspect server.py --json
  defserve inspect http://127.0.0.1:8000/mcp
  defserve inspect -- python server.py
  defserve inspect .mcp.json:weather
"""


def main(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser(
        "defserve inspect", "Show a server at a glance: what it speaks, offers, may do and costs.", EXAMPLES
    )
    parser.add_argument("target", nargs="*", help=TARGET_HELP)
    parser.add_argument(
        "--json", action="store_true", help="print what goes over the wire: the initialize result and the lists"
    )
    add_connection_options(parser)
    add_web_options(parser)
    options = parser.parse_args(before)
    words = words_of(options.target, options.module, command)
    with quiet(), Working(ASKING):
        target = resolve_only(options.target, options.module, command)
    if options.web:
        from defserve.cli.web.opening import inspect_in_browser

        return inspect_in_browser(target, words, options)
    with quiet():
        listed = target_listing(target, options)
        spoken = [] if options.json else asyncio.run(eras(target, options))
    show(*([Data(wire(listed))] if options.json else page(listed, spoken)))
    tell(*(f"note: {note}" for note in listed.notes))
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
    yield _spoken("MCP", ", ".join(spoken) or str(listed.initialize.get("protocolVersion")))
    yield from _extensions(listed)
    yield from _live(listed.mcpl)
    yield from _tools(listed.tools, WHEN[listed.is_searched])
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
        yield _spoken("MGP", f"{mgp.get('version')}: {', '.join(offered)}")
        yield Line(f"        needs {needed}; trust level {mgp.get('trust_level', 'not declared')}", hang=0)
    if mcpl:
        other = [name for name, value in mcpl.items() if value and name not in ("version", "featureSets")]
        yield _spoken("MCPL", f"{mcpl.get('version')}: {', '.join(other) or 'tools'}")


def _spoken(protocol: str, about: str) -> Line:
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


def _tools(tools: list[dict[str, Any]], when: str) -> Iterator[Line]:
    yield from _heading(f"Tools ({len(tools)}, about {sum(map(tokens, tools))} tokens {when}: characters/4)")
    for tool in tools:
        yield from item_lines(tool, (f"  ~{tokens(tool)}", "faint"), *tag_parts(tags(tool)))


def _items(heading: str, items: list[dict[str, Any]]) -> Iterator[Line]:
    if not items:
        return
    yield from _heading(heading)
    for item in items:
        yield from item_lines(item)
