"""FastMCP's client signs in with its own helper, which opens a browser. The argument is the server's URL."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from fastmcp import Client


async def main(url: str) -> None:
    client: Any = Client(url, auth="oauth")
    async with client:
        print((await client.call_tool("who", {})).content[0].text)


asyncio.run(main(sys.argv[1]))
