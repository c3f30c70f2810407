"""Code mode: the model writes Python that calls the tools, and only the result comes back."""

from pydantic import BaseModel

from defserve import Context, Server, ToolError, dangerous
from defserve.code_mode import CodeMode

server = Server("shop", "1.0.0", code_mode=CodeMode(calls=50, seconds=20), granted=["memory.write"])


class Article(BaseModel):
    name: str
    price: float
    stock: int


SHELF = {
    article.name: article
    for article in (
        Article(name="kettle", price=30.0, stock=4),
        Article(name="mug", price=7.5, stock=120),
        Article(name="teapot", price=45.0, stock=0),
    )
}


@server.tool
def articles() -> list[str]:
    """The names of everything that is sold."""
    return list(SHELF)


@server.tool
def look(name: str) -> Article:
    """One article, with its price and how many are left."""
    if name not in SHELF:
        raise ToolError(f"there is no {name}")
    return SHELF[name]


@server.tool
@dangerous("memory.write")
def order(name: str, count: int) -> str:
    """Order an article. A person confirms every order, also those that code makes."""
    SHELF[name].stock += count
    return f"ordered {count} × {name}"


@server.tool
async def customer(ctx: Context) -> str:
    """Ask whom this is for."""
    return await ctx.ask("Whom is it for?", str)


if __name__ == "__main__":
    server.main()
