"""A scripted server that streams and has a lifecycle, and clients of it and of `flowing`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from defserve.client import Client, Mgp
from defserve.testing.transports import connect_test_client
from tests.client.pretend import SILENCE, PretendServer

ERAS = ("2025-11-25", "2026-07-28")
CHUNK, GAP, PACE = (f"notifications/mgp.stream.{name}" for name in ("chunk", "gap", "pace"))


@asynccontextmanager
async def flowing(
    road: str, version: str, server: Any = "tests.client.mgp.flowing:server", **options: Any
) -> AsyncGenerator[Client]:
    settings: dict[str, Any] = {"version": version, "mgp": Mgp(audit=[]), "timeout": 20, **options}
    async with asyncio.timeout(25), connect_test_client(road, server, settings) as client:
        yield client


class Table(PretendServer):
    """Streams what it is told to; the call is answered when it is."""

    def __init__(self, replies: dict[str, Any] | None = None, extensions: tuple[str, ...] = ("streaming",)) -> None:
        super().__init__(
            {
                "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
                "tools/call": SILENCE,
                **(replies or {}),
            }
        )
        self.extensions = extensions
        self.replies["initialize"] = self._initialize

    def _initialize(self, request: dict[str, Any]) -> dict[str, Any]:
        mgp = {"version": "0.3.0", "extensions": list(self.extensions), "server_id": "table"}
        return {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}, "mgp": mgp},
            "serverInfo": {"name": "table", "version": "1"},
        }

    async def called(self, times: int = 1) -> str:
        def is_call(message: dict[str, Any]) -> bool:
            return message.get("method") == "tools/call" and len(self.asked("tools/call")) >= times

        await self.told(is_call)
        return [message["id"] for message in self.sent if message.get("method") == "tools/call"][times - 1]

    def chunk(self, id: Any, index: Any, text: str = "", **more: Any) -> None:
        content = {"type": "text", "text": text}
        self.say({"method": CHUNK, "params": {"request_id": id, "index": index, "content": content, **more}})

    def answer(self, id: str, *texts: str, **more: Any) -> None:
        content = [{"type": "text", "text": text} for text in texts]
        self.say({"id": id, "result": {"content": content, **more}})


@asynccontextmanager
async def talking(table: Table, **options: Any) -> AsyncGenerator[Client]:
    settings: dict[str, Any] = {"version": ERAS[0], "mgp": Mgp(audit=[]), "timeout": 5, **options}
    async with asyncio.timeout(10), Client(table, **settings) as client:
        yield client
