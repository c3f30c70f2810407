"""A server with every kind of argument and result, for documents and those who read them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from defserve import Server, ToolError, dangerous

server = Server("shop", "1.2.0", title="The shop", description="Orders and their prices.")


class Size(Enum):
    small = "small"
    large = "large"


class Item(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=20)]
    quantity: Annotated[int, Field(gt=0, le=100)] = 1
    size: Size | None = None


class Order(BaseModel):
    items: Annotated[list[Item], Field(min_length=1, max_length=5)]
    due: date | None = None
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}-\d{3,5}$")] = "AB-123"


class Branch(BaseModel):
    """A tree, so that a schema refers to itself."""

    name: str
    branches: list[Branch] = []


@dataclass
class Receipt:
    lines: int
    first: str
    paid: bool


@server.tool(tags=["orders", "write"], meta={"author": "Ada", "deprecated": True})
def order(order: Order, express: bool = False) -> Receipt:
    """Take an order.

    Args:
        order: What is wanted, and by when.
        express: Whether it hurries.
    """
    return Receipt(len(order.items), order.items[0].name, express)


@server.tool(tags=["prices"])
def price(
    ticker: Annotated[str, Field(pattern="^[A-Z]{1,5}$")], days: Annotated[int, Field(ge=1, le=365)] = 90
) -> float:
    """The price of something in the last days."""
    return len(ticker) * days / 2


@server.tool
def depth(tree: Branch) -> int:
    """How deep a tree is."""
    return 1 + max((depth(branch) for branch in tree.branches), default=0)


@server.tool
def stock(
    kinds: list[Literal["pen", "ink"]], at: date | None = None, ratio: float | int | None = None
) -> dict[str, int]:
    """What is in stock."""
    return {kind: len(kind) for kind in kinds}


@server.tool
def greet(name: str = "you") -> str:
    """Say hello."""
    return f"hello {name}"


@server.tool
def refuse(reason: str) -> str:
    """Never works."""
    raise ToolError(f"refused: {reason}")


@server.tool
@dangerous("shell.execute")
def restock() -> None:
    """Needs a permission that nobody over the network has."""
