"""One function, two doors: an operation of a FastAPI app, and a tool of the MCP server that is mounted beside it."""

from typing import Annotated

from fastapi import FastAPI, Path, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from defserve import Server, ToolError, safe

app = FastAPI(title="Shop")
server = Server("shop", "1.0.0")


class Order(BaseModel):
    number: int
    item: str
    status: str


ORDERS = {7: Order(number=7, item="tea", status="shipped"), 8: Order(number=8, item="cups", status="packed")}


@app.get("/orders/{number}")
@server.tool
@safe
async def get_order(number: Annotated[int, Path(ge=1, description="The number of the order.")]) -> Order:
    """Find an order by its number."""
    if number not in ORDERS:
        raise ToolError(f"There is no order {number}.")
    return ORDERS[number]


@app.exception_handler(ToolError)
async def not_found(request: Request, error: Exception) -> JSONResponse:
    """What a model reads as a failed call is a 404 for a browser."""
    return JSONResponse({"detail": str(error)}, status_code=404)


app.mount("/mcp", server.asgi(allowed_hosts=["localhost", "127.0.0.1", "shop.example.com"]))
