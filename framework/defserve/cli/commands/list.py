"""`defserve list`: what a server offers, for people or as JSON."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any, Final

from defserve.cli.parser import CommandParser
from defserve.cli.target.connection import add_connection_options, connect
from defserve.cli.target.target import TARGET_HELP, ServerTarget, quiet, resolve, split_command
from defserve.host.client import Client
from defserve.host.fields import object_of
from defserve.host.targets import Installed, installed
from defserve.redaction import printable
from defserve.tooling.clients.configured import FILE, known

EXAMPLES: Final = """  defserve list server.py
  defserve list -m shop --json
  defserve list http://127.0.0.1:8000/mcp
  defserve list -- python server.py --flag
  defserve list weather                    a server that is installed here, or one in .mcp.json
  defserve list                            the names that there are
"""

# heading -> (capability that has it, verb of the client)
KINDS: Final[dict[str, tuple[str, Callable[[Client], Any]]]] = {
    "tools": ("tools", Client.tools),
    "resources": ("resources", Client.resources),
    "templates": ("resources", Client.templates),
    "prompts": ("prompts", Client.prompts),
}


def main(argv: list[str]) -> int:
    before, command = split_command(argv)
    parser = CommandParser("defserve list", "Show the tools, resources and prompts of a server.", EXAMPLES)
    parser.add_argument("target", nargs="*", help=TARGET_HELP)
    parser.add_argument("--json", action="store_true", help="print what the server said, as JSON")
    add_connection_options(parser)
    options = parser.parse_args(before)
    words: list[str] = options.target
    if not (words or options.module or command) and (servers := [*installed(), *_configured()]):
        print(json.dumps([each._asdict() for each in servers], indent=2) if options.json else servers_page(servers))
        return 0
    with quiet():
        target = resolve(words, options.module, command)
    if words:
        parser.error(f"one server at a time: what is {words[0]!r}?")
    with quiet():
        found = asyncio.run(inventory(target, options))
    print(json.dumps(found, indent=2, ensure_ascii=False) if options.json else "\n".join(page(found)))
    return 0


def _configured() -> list[Installed]:
    """The servers of the nearest `.mcp.json`; no distribution brings those."""
    return [Installed(name, how, "", "") for name, how in known().items()]


def servers_page(servers: list[Installed]) -> str:
    """The servers that a name is enough for, for a terminal."""
    width = max(len(each.name) for each in servers)
    rows: dict[str, list[str]] = {}
    for name, target, distribution, version in servers:
        told = f"{distribution} {version}  {target}" if distribution else target
        rows.setdefault("Installed servers" if distribution else f"Servers of {FILE}", []).append(
            f"  {printable(name):{width}}  {printable(told)}"
        )
    return "\n".join(line for heading, lines in rows.items() for line in (heading, *lines))


async def inventory(target: ServerTarget, options: Namespace) -> dict[str, Any]:
    """Everything the server lists, and who it says it is."""
    async with connect(target, options) as client:
        found: dict[str, Any] = {
            "server": client.server_info,
            "version": client.version,
            "instructions": client.instructions,
        }
        for heading, (capability, verb) in KINDS.items():
            found[heading] = await verb(client) if capability in client.capabilities else []
        return found


def page(found: dict[str, Any]) -> Iterator[str]:
    """The inventory for a terminal, line by line."""
    server = found["server"]
    title = " ".join(str(server[key]) for key in ("name", "version") if server.get(key))
    yield f"{title or 'a server without a name'} (protocol {found['version']})"
    for heading in KINDS:
        if not found[heading]:
            continue
        yield f"\n{heading.capitalize()}"
        for item in found[heading]:
            yield f"  {signature(item)}"
            if about := first_line(item):
                yield f"      {about}"
    if not any(found[heading] for heading in KINDS):
        yield "It offers nothing."


def signature(item: dict[str, Any]) -> str:
    """`add(a: integer, b: integer = 1)` for a tool, `hi(name, style?)` for a prompt, the URI of a resource."""
    if "inputSchema" in item:
        return f"{item['name']}({', '.join(parameters(item['inputSchema']))})"
    if "uri" in item or "uriTemplate" in item:
        return f"{item.get('uri') or item.get('uriTemplate')}  {item.get('title') or item.get('name') or ''}".rstrip()
    arguments: list[dict[str, Any]] = item.get("arguments") or []
    names = [f"{argument['name']}{'' if argument.get('required') else '?'}" for argument in arguments]
    return f"{item['name']}({', '.join(names)})"


def parameters(schema: dict[str, Any]) -> Iterator[str]:
    required: list[str] = schema.get("required") or []
    properties: dict[str, Any] = schema.get("properties") or {}
    for name, property in properties.items():
        shown = f"{name}: {type_name(property)}"
        if "default" in property:
            yield f"{shown} = {json.dumps(property['default'], ensure_ascii=False)}"
        else:
            yield shown if name in required else f"{shown} = …"


def type_name(schema: Any) -> str:
    """A schema in a word or two."""
    known = object_of(schema)
    if "enum" in known:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in known["enum"])
    if "$ref" in known:
        return str(known["$ref"]).rpartition("/")[2]
    if known.get("type") == "array":
        return f"{type_name(known.get('items'))}[]"
    if isinstance(known.get("type"), list):
        return " | ".join(known["type"])
    members: list[Any] = known.get("anyOf") or known.get("oneOf") or []
    return " | ".join(map(type_name, members)) or str(known.get("type", "any"))


def first_line(item: dict[str, Any]) -> str:
    return str(item.get("description") or "").strip().partition("\n")[0]
