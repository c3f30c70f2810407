"""Models in and out, described arguments, hints and tags."""

from typing import Annotated, Literal

from fastmcp import FastMCP
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

mcp = FastMCP("Shop", version="1.2.0", on_duplicate="error")


class Item(BaseModel):
    name: str
    price: float = Field(gt=0)


class Receipt(BaseModel):
    total: float
    lines: int


@mcp.tool(
    tags={"money"},
    annotations=ToolAnnotations(title="Checkout", readOnlyHint=False, destructiveHint=False),
    meta={"team": "till"},
)
def checkout(
    items: Annotated[list[Item], Field(description="What is bought.")],
    currency: Literal["EUR", "USD"] = "EUR",
) -> Receipt:
    """Add up a basket.

    Args:
        currency: What it is paid in.
    """
    return Receipt(total=sum(item.price for item in items), lines=len(items))


@mcp.tool(annotations={"readOnlyHint": True})
def stock(name: Annotated[str, "The item."], minimum: Annotated[int, Field(ge=0)] = 0) -> dict[str, int]:
    """How many there are."""
    return {name: 3 if minimum <= 3 else 0}


if __name__ == "__main__":
    mcp.run("http", host="127.0.0.1", port=8123, path="/shop/mcp")
