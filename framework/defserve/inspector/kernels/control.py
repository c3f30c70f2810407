"""A kernel of this user, over its control socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from defserve.inspector.kernels.inspected import COMMANDS
from defserve.inspector.protocol import Json
from defserve.kernel.control.asking import asking

PAUSE: Final = 1.0
LOOK: Final = ("status", "ps", "history")
REQUESTS: Final[Mapping[str, Json]] = {
    "restart now": {"verb": "restart", "now": True},
    "accept": {"verb": "pins accept"},
}


class KernelControl:
    """The kernel that serves a file; the one with this process, if there are several."""

    name, pause, verbs = "control", PAUSE, COMMANDS

    def __init__(self, config: Path, process: int | None = None) -> None:
        self.config, self.process = config, process

    async def look(self) -> Json:
        status, servers, history = await asyncio.gather(*(self._ask({"verb": verb}) for verb in LOOK))
        steps = {one["id"]: one for one in history}
        rows = [{**row, "history": steps.get(row["id"])} for row in servers]
        return {"status": status[0], "servers": rows}

    async def logs(self, id: str) -> AsyncGenerator[Json]:
        async with aclosing(asking(self.config, {"verb": "logs", "id": id, "follow": True}, self.process)) as lines:
            async for line in lines:
                yield line

    async def held(self, id: str) -> list[Json]:
        return await self._ask({"verb": "pins list", "id": id})

    async def do(self, verb: str, fields: Mapping[str, str | bool]) -> list[Json]:
        return await self._ask({**REQUESTS.get(verb, {"verb": verb}), **fields})

    async def _ask(self, request: Json) -> list[Any]:
        return [answer async for answer in asking(self.config, request, self.process)]
