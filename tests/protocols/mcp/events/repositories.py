"""A server of repositories that tells of pushes, and peers of both dialects."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from defserve import Context, Server
from defserve.server import EventSettings
from tests.raw import Json, Raw

EXTENSION = "io.modelcontextprotocol/events"
SEP: Json = {"extensions": {EXTENSION: {}}}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Push(BaseModel):
    commits: int


def make_server(store: Any = None, settings: EventSettings | None = None, **options: Any) -> Server:
    server = Server("git", "1", store=store, experimental=[settings or "events"], **options)

    @server.event
    def pushed(repository: str, branch: str | None = None) -> Push:
        """Somebody pushed commits."""
        ...  # noqa: PIE790  (type checkers want it)

    @server.tool
    async def push(ctx: Context, repository: str, branch: str = "main", commits: int = 1) -> str:
        return await ctx.emit_event(pushed, Push(commits=commits), repository=repository, branch=branch)

    return server


async def ask_result(peer: Raw, method: str, **params: Any) -> Json:
    """The result of a request, without what every result has."""
    reply = await peer.ask(method, params)
    assert "result" in reply, reply
    return {name: value for name, value in reply["result"].items() if name not in ("_meta", "resultType")}


async def poll(peer: Raw, cursor: str | None, name: str = "pushed", **params: Any) -> Json:
    return await ask_result(
        peer, "events/poll", **{"name": name, "arguments": {"repository": "x"}, **params}, cursor=cursor
    )


async def open_stream(peer: Raw, cursor: str | None = None, **params: Any) -> tuple[int, Json]:
    """Begin a stream: its id, and the params of the first notification."""
    about = {"name": "pushed", "arguments": {"repository": "x"}, "cursor": cursor, **params}
    id = await peer.begin("events/stream", about)
    first = await peer.hear()
    assert first.get("method") == "notifications/events/active", first
    return id, first["params"]


def numbers(events: list[Json]) -> list[int]:
    return [event["data"]["commits"] for event in events]
