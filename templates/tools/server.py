"""{{ cookiecutter.description }}"""

from typing import Annotated

from defserve import Context, Server, ToolError, moderate, safe
from pydantic import BaseModel, Field

server = Server("{{ cookiecutter.project_slug }}", instructions="Search the catalogue first, then order by number.")


class Product(BaseModel):
    """Something that can be ordered."""

    number: int
    name: str
    price: float


class Line(BaseModel):
    """One line of an order."""

    number: Annotated[int, Field(description="The product's number.")]
    quantity: Annotated[int, Field(ge=1, le=100)] = 1


class Order(BaseModel):
    """What was ordered, and what it costs."""

    products: list[Product]
    total: float


# Yours will come from a database: see Depends and lifespan.
CATALOGUE = {
    each.number: each
    for each in (
        Product(number=1, name="Green tea", price=4.5),
        Product(number=2, name="Black tea", price=4.0),
        Product(number=3, name="Teapot", price=19.0),
    )
}


@server.tool(title="Search the catalogue")
@safe
def search(query: str, limit: int = 10) -> list[Product]:
    """Find products by a word in their name.

    Args:
        query: A word, or a part of one.
        limit: How many to give back at most.
    """
    return [product for product in CATALOGUE.values() if query.lower() in product.name.lower()][:limit]


@server.tool(title="Order products")
@moderate(effects=["database"])
def order(lines: list[Line], ctx: Context) -> Order:
    """Order products by their numbers.

    Args:
        lines: What to order, and how much of it.
    """
    products: list[Product] = []
    for line in ctx.track(lines):
        products += [find(line.number)] * line.quantity
    ctx.log.info("ordered", products=len(products))
    return Order(products=products, total=sum(product.price for product in products))


@server.resource("catalogue://products/{number}")
def product(number: int) -> Product:
    """A product of the catalogue."""
    return find(number)


@server.prompt
def recommend(taste: str) -> str:
    """Ask for a recommendation."""
    return f"Which product of the catalogue suits somebody who likes {taste}? Search it first."


def find(number: int) -> Product:
    """A product. Raises ToolError with what there is instead, so that a model can try again."""
    if number not in CATALOGUE:
        raise ToolError(f"There is no product {number}; there are {sorted(CATALOGUE)}.")
    return CATALOGUE[number]


if __name__ == "__main__":
    server.main()
