"""The official Python client, of either major version and era, calls until its input ends, and writes the history.

Run by the interpreter of the client's package: only the writer of the history is ours. The only argument is the plan,
with `url`, `token`, `lane`, `name`, `version`, `seed`, `history` and `pause`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from importlib.metadata import version
from random import Random
from typing import Any

import mcp
from mcp.client.streamable_http import streamable_http_client

from tests.cluster.history import HistoryWriter

PLAN: dict[str, Any] = json.loads(sys.argv[1])
IS_OLD = version("mcp").startswith("1.")
httpx = import_module("httpx" if IS_OLD else "httpx2")
IS_STATELESS = PLAN["version"] == "2026-07-28"
CALL_SECONDS, OPEN_SECONDS = 25.0, 30.0
warnings.simplefilter("ignore")


class Official:
    def __init__(self) -> None:
        self._history = HistoryWriter(PLAN["history"], PLAN["name"])
        self._random = Random(f"{PLAN['seed']} {PLAN['name']}")
        self.over = asyncio.Event()
        self._names = 0

    async def work(self) -> None:
        """One client after another: the SDK gives a conversation up for good when a request fails."""
        while not self.over.is_set():
            try:
                async with AsyncExitStack() as stack:
                    session = await self._open(stack)
                    while not self.over.is_set():
                        if not await self._call_once(session):
                            break
                        await self._rest()
            except BaseException as error:
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
                print(f"opening again after {error!r}", file=sys.stderr, flush=True)
            await self._rest()

    async def _open(self, stack: AsyncExitStack) -> Any:
        headers = {"authorization": f"Bearer {PLAN['token']}"}
        network = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(CALL_SECONDS))
        way = streamable_http_client(PLAN["url"], http_client=network)
        if IS_OLD:
            streams = await stack.enter_async_context(way)
            session = await stack.enter_async_context(mcp.ClientSession(*streams[:2]))
            async with asyncio.timeout(OPEN_SECONDS):
                await session.initialize()
            return session
        mode: dict[str, Any] = {"mode": "auto"} if IS_STATELESS else {"mode": "legacy"}
        return await stack.enter_async_context(mcp.Client(way, **mode))

    async def _call_once(self, session: Any) -> bool:
        """Whether the conversation goes on."""
        kind = self._random.choice(("read", "append", "append", "echo"))
        self._names += 1
        name = f"{PLAN['name']}.{self._names}"
        arguments = {} if kind == "read" else {"name": name}
        about = {"session": PLAN["name"], **arguments} if kind == "echo" else {"lane": PLAN["lane"], **arguments}
        id = self._history.begin(kind, PLAN["name"], **about)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                result = await session.call_tool(kind, arguments)
        except BaseException as error:
            self._history.end(id, "unknown", self._say(kind, None, repr(error)[:200]))
            raise
        text = result.content[0].text if result.content else "[]"
        if result.isError if IS_OLD else result.is_error:
            self._history.end(id, "unknown", self._say(kind, None, text))
            return True
        value: Any = text
        if kind != "echo":
            value = json.loads(text)
        self._history.end(id, "ok", self._say(kind, value, ""))
        return True

    @staticmethod
    def _say(kind: str, value: Any, told: str) -> Any:
        if kind == "echo":
            return {"received": [], "text": value, "told": told, "cuts": 0}
        return told or value

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0, 2 * PLAN["pause"])):
                await self.over.wait()


async def main() -> None:
    client = Official()
    working = asyncio.create_task(client.work())
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    client.over.set()
    with suppress(TimeoutError):
        await asyncio.wait_for(working, CALL_SECONDS + OPEN_SECONDS)
    print("quiet", flush=True)


asyncio.run(main())
