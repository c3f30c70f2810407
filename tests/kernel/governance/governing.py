"""A kernel over one server whose tools a test chooses, and changes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.kernel.running import Running, running
from tests.protocols.mgp.callers import Trail

SERVER = Path(__file__).with_name("governed_server.py")
Json = dict[str, Any]


def tool(name: str, description: str = "Does something.", /, *arguments: str, **more: Any) -> Json:
    """A tool as its server lists it."""
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties}
    return {"name": name, "description": description, "inputSchema": schema, **more}


class Governed(NamedTuple):
    here: Running
    trail: Trail
    path: Path

    def offers(self, *tools: Json) -> None:
        """The server has these tools from now on. It says so."""
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(tools))
        os.replace(draft, self.path)

    async def listed(self) -> dict[str, Json]:
        found: Sequence[Json] = await self.here.client.tools()
        return {one["name"]: one for one in found}


def entry(path: Path, mgp: str = "", more: str = "", id: str = "s", prefix: str = 'prefix = "s"') -> str:
    words = ", ".join(f'"{word}"' for word in ("-I", "-S", SERVER, path))
    return f'[[servers]]\nid = "{id}"\n{prefix}\ncommand = "{sys.executable}"\nargs = [{words}]\n{more}\n{mgp}\n'


@asynccontextmanager
async def governed(
    folder: Path, *tools: Json, mgp: str = "", kernel: str = "", more: str = "", prefix: str = 'prefix = "s"'
) -> AsyncGenerator[Governed]:
    path = folder / "tools.json"
    path.write_text(json.dumps(tools))
    trail = Trail()
    text = f"[kernel]\n{kernel}\n{entry(path, mgp, more, prefix=prefix)}"
    async with running(folder, text, audit=trail) as here:
        yield Governed(here, trail, path)
