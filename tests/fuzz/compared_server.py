"""The server whose answers are compared: results and failures of every kind, and nothing that differs by itself."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, Field

from defserve import Context, Image, Server, ToolError

server = Server("compared", "1")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str = Field(min_length=1)
    count: Annotated[int, Field(ge=1, le=9)] = 1
    colour: Colour = Colour.RED


class Order(BaseModel):
    items: list[Item]
    note: str | None = None


@server.tool
async def echo(ctx: Context, text: str = "", count: int = 1) -> str:
    """Say it again."""
    ctx.progress(1)
    return text * min(count, 10)


@server.tool
async def order(order: Order, gift: bool = False) -> Order:
    """A model in, a model out."""
    return order.model_copy(update={"note": f"{len(order.items)} items, {gift}"})


@server.tool(structured=True)
async def sums(numbers: list[float], by: dict[str, int] | None = None) -> dict[str, Any]:
    """Structured content."""
    return {"sum": sum(numbers), "by": by or {}}


@server.tool
def blocking(text: str = "é") -> list[str]:
    """Runs in a thread."""
    return [text, text[::-1]]


@server.tool
async def drawn() -> Image:
    """An image."""
    return Image(b"\x89PNG\r\n\x1a\n", "image/png")


@server.tool
async def fails(how: str = "told") -> str:
    """Fails, in words for the model or not."""
    if how == "told":
        raise ToolError("this is not possible", data={"how": how})
    raise RuntimeError(f"secret {how}")


@server.resource("note://{name}")
async def note(name: str) -> str:
    return name


@server.resource("bytes://all", mime_type="application/octet-stream")
async def every_byte() -> bytes:
    return bytes(range(256))


@server.prompt
async def greet(name: str, loud: str = "no") -> str:
    return f"Hello {name}{'!' if loud == 'yes' else ''}"


def call(method: str, **params: Any) -> tuple[str, dict[str, Any]]:
    return method, params


def tool(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return call("tools/call", name=name, arguments=arguments)


CALLS = (
    call("tools/list"),
    call("resources/list"),
    call("resources/templates/list"),
    call("prompts/list", cursor="x"),
    tool("echo", text="a", count=2),
    tool("order", order={"items": [{"sku": "a", "count": 2, "colour": "blue"}], "note": None}, gift=True),
    tool("sums", numbers=[1, 2.5], by={"a": 1}),
    tool("blocking", text="é\u2028"),
    tool("drawn"),
    tool("fails", how="told"),
    tool("fails", how="masked"),
    tool("nobody", a=1),
    call("tools/call", name="sums", arguments=None),
    call("prompts/get", name="greet", arguments=None),
    call("resources/read", uri="note://a"),
    call("resources/read", uri="bytes://all"),
    call("resources/read", uri="note://no/such"),
    call("prompts/get", name="greet", arguments={"name": "Ada", "loud": "yes"}),
    call("completion/complete", ref={"type": "ref/prompt", "name": "greet"}, argument={"name": "name", "value": "A"}),
    call(
        "completion/complete",
        ref={"type": "ref/resource", "uri": "note://{name}"},
        argument={"name": "name", "value": ""},
    ),
    call("ping"),
    call("no/such"),
)
