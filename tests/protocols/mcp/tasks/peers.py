"""Peers that take tasks, and a server of task tools for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel

from defserve import Context, Limits, Server, ToolError
from defserve.client import Client, connect_url
from defserve.errors import ProtocolError
from tests.at_address import at_address
from tests.raw import Json, Raw

EXTENSION = "io.modelcontextprotocol/tasks"
TAKES: Json = {"extensions": {EXTENSION: {}}}
ASKABLE: Json = {**TAKES, "elicitation": {}}
OVER = ("completed", "failed", "cancelled")
YES: Json = {"action": "accept", "content": {"confirm": True}}


class Sure(BaseModel):
    confirm: bool


class Job:
    """What the tools of a server did."""

    def __init__(self) -> None:
        self.began, self.ended, self.undone = list[str](), list[str](), list[str]()
        self.go_on = asyncio.Event()


def shop(store: Any = None, limits: Limits | None = None, auth: Any = None, **task: Any) -> tuple[Server, Job]:
    server, job = Server("shop", "1", store=store, limits=limits or Limits(), auth=auth), Job()
    options: dict[str, Any] = {"task": "optional", "poll": 0.1, **task}
    required: Any = {**options, "task": "required"}

    @server.tool(**options)
    async def wait(name: str = "x", ctx: Context | None = None) -> str:
        job.began.append(name)
        try:
            await job.go_on.wait()
        except asyncio.CancelledError:
            job.undone.append(name)
            raise
        job.ended.append(name)
        return f"{name} done"

    @server.tool(**options)
    async def sure(ctx: Context) -> str:
        first, second = await ctx.gather(ctx.ask("First?", Sure, key="a"), ctx.ask("Second?", Sure, key="b"))
        return f"{first.confirm} {second.confirm}"

    @server.tool(**required)
    async def fail(how: str) -> str:
        if how == "error":
            raise ToolError("for the model")
        if how == "protocol":
            raise ProtocolError("not for the model", code=-32005, data={"a": 1})
        raise KeyError("secret")

    @server.tool(**options)
    async def big(size: int) -> str:
        return "x" * size

    @server.tool
    async def plain() -> str:
        return "plain"

    return server, job


async def get(peer: Raw, id: str) -> Json:
    """A task as it is; an error reply is an assertion failure."""
    reply = await peer.ask("tasks/get", {"taskId": id})
    assert "result" in reply, reply
    return reply["result"]


async def ended(peer: Raw, id: str, seconds: float = 30) -> Json:
    """A task when it is over."""
    return await becomes(peer, id, lambda task: task["status"] in OVER, seconds)


async def becomes(peer: Raw, id: str, is_so: Callable[[Json], bool], seconds: float = 30) -> Json:
    async with asyncio.timeout(seconds):
        while not is_so(task := await get(peer, id)):  # noqa: ASYNC110 (the other side sets no event)
            await asyncio.sleep(0.005)
    return task


async def asks(peer: Raw, id: str, *keys: str) -> Json:
    """A task when exactly these questions are open."""
    return await becomes(peer, id, lambda task: set(task.get("inputRequests", ())) == set(keys))


@asynccontextmanager
async def callers(server: Server, *tokens: str | None, offers: Any = ASKABLE) -> AsyncGenerator[list[Client]]:
    """A client without a session for each token, all at one address. Each of its requests stands for itself."""
    async with at_address(server) as url:
        made: list[Client] = []
        try:
            for token in tokens:
                client = Client(await connect_url(url, token=token), version="2026-07-28", capabilities=offers)
                made.append(await client.__aenter__())
            yield made
        finally:
            for client in made:
                await client.__aexit__(None, None, None)
