"""Events: tell everybody who subscribed, or only the one who called, what happens; from async code or from a thread.

A client that speaks MGP subscribes to channels by name or pattern. Every server also has `tool.*` and `security.*`.
"""

from pydantic import BaseModel

from defserve import Context, Server

server = Server("kitchen", "1.0.0")


class Stock(BaseModel):
    item: str
    left: int


class Dish(BaseModel):
    name: str
    table: int


stock = server.event_channel("com.example.stock", Stock)
dishes = server.event_channel("com.example.dish_ready", Dish)
pantry = {"flour": 3, "eggs": 12}


@server.tool
async def take(item: str, amount: int = 1) -> int:
    """Take something out of the pantry; all subscribers hear what is left."""
    pantry[item] -= amount
    await stock.emit(item=item, left=pantry[item], severity="warning" if pantry[item] < 3 else "info")
    return pantry[item]


@server.tool
def cook(dishes_of_table: list[str], table: int, ctx: Context) -> str:
    """Cook in a thread; only this caller hears that a dish is ready."""
    for name in dishes_of_table:
        dishes.emit_now(Dish(name=name, table=table), to=ctx.session)
    return f"{len(dishes_of_table)} dishes"


@server.tool
def is_heard(ctx: Context) -> bool:
    """Whether this client can be sent events."""
    return ctx.can("events")


if __name__ == "__main__":
    server.main()
