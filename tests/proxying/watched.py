"""A backend that refuses one subscription, and knows which it has."""

from __future__ import annotations

from typing import Any

from defserve import Server
from defserve.errors import InvalidParams
from defserve.extending import Call

server = Server("watched")
subscribed: set[str] = set()


@server.resource("note://live")
def live() -> str:
    return "live"


@server.resource("note://refused")
def refused() -> str:
    return "refused"


@server.tool
def change() -> None:
    server.resource_updated("note://live")


@server.tool
def fact(name: str) -> bool:
    return bool(subscribed) == (name == "subscribed")


@server.around("resources/subscribe")
async def taken(call: Call, params: dict[str, Any], next: Any) -> Any:
    if params["uri"] == "note://refused":
        raise InvalidParams("not this one")
    subscribed.add(params["uri"])
    return await next(call, params)


@server.around("resources/unsubscribe")
async def ended(call: Call, params: dict[str, Any], next: Any) -> Any:
    subscribed.discard(params["uri"])
    return await next(call, params)


if __name__ == "__main__":
    server.run()
