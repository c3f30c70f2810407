"""`make demo`: starts `hello.py` as a process, talks to it as a client of each era, and prints what happened.

Not an example of a server. It is what an MCP client does with one.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from defserve.client import Client, ProcessLink
from defserve.errors import ToolError

SERVER = Path(__file__).with_name("hello.py")
ERAS = {"2025-11-25": "a session, opened by a handshake", "2026-07-28": "stateless, every request stands alone"}
CALLS: list[dict[str, Any]] = [{"a": 2, "b": 3}, {"a": 2, "b": "three"}, {"a": 2, "bb": 3}]


async def main() -> None:
    print(f"The server, {SERVER.parent.name}/{SERVER.name}:\n")
    print(indented(SERVER.read_text(encoding="utf-8").strip()))
    for version, how in ERAS.items():
        print(f"\nA client of {version} ({how}) runs `python {SERVER.parent.name}/{SERVER.name}`:\n")
        await talk(version)
    print("\nThe same file, no change: that is what defserve is for. Now read README.md, or run `make test`.")


async def talk(version: str) -> None:
    link = await ProcessLink.spawn(sys.executable, [str(SERVER)])
    async with Client(link, version=version) as client:
        print(f"  connected    {client.server_info['name']}, speaking {client.version}")
        for tool in await client.tools():
            print(f"  tools/list   {signature(tool)}   {tool['description'].splitlines()[0]}")
        for arguments in CALLS:
            given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            print(f"  tools/call   add({given})  →  {await outcome(client, arguments)}")


async def outcome(client: Client, arguments: dict[str, Any]) -> str:
    try:
        return repr(await client.call("add", **arguments))
    except ToolError as error:
        return "refused, and the model is told why:\n" + indented(str(error), " " * 17)


def signature(tool: dict[str, Any]) -> str:
    properties: dict[str, dict[str, Any]] = tool["inputSchema"].get("properties", {})
    parameters = (f"{name}: {schema.get('type', 'any')}" for name, schema in properties.items())
    return f"{tool['name']}({', '.join(parameters)})"


def indented(text: str, margin: str = "    ") -> str:
    return "\n".join(f"{margin}{line}".rstrip() for line in text.splitlines())


if __name__ == "__main__":
    asyncio.run(main())
