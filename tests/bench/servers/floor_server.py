"""The floor: what a careful author writes by hand for exactly these tools, with no framework at all.

It answers initialize, tools/list and tools/call, validates arguments, runs calls concurrently (sync tools in the
loop's executor) and writes once behind the tasks of a read. It has no cancellation, limits, masking, version
gates or extensions: a framework can come near its rate, not honestly pass it by much.
"""

from __future__ import annotations

import asyncio
import sys

from pydantic_core import SchemaValidator, core_schema, from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeAlias

    Handler: TypeAlias = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

INTEGERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
CATALOGUE_SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 20}},
    "required": ["query"],
}
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def scalar_tools() -> dict[str, tuple[Handler, dict[str, Any]]]:
    from arithmetic import add, add_inline, add_sync

    field = core_schema.typed_dict_field(core_schema.int_schema())
    arguments = SchemaValidator(core_schema.typed_dict_schema({"a": field, "b": field}, extra_behavior="forbid"))
    loop = asyncio.get_running_loop()

    async def call_async(given: dict[str, Any]) -> dict[str, Any]:
        return text_result(str(await add(**arguments.validate_python(given))))

    async def call_sync(given: dict[str, Any]) -> dict[str, Any]:
        valid = arguments.validate_python(given)
        return text_result(str(await loop.run_in_executor(None, lambda: add_sync(**valid))))

    async def call_inline(given: dict[str, Any]) -> dict[str, Any]:
        return text_result(str(add_inline(**arguments.validate_python(given))))

    handlers: dict[str, Handler] = {"add": call_async, "add_sync": call_sync, "add_inline": call_inline}
    return {name: (handler, {"inputSchema": INTEGERS}) for name, handler in handlers.items()}


def model_tools() -> dict[str, tuple[Handler, dict[str, Any]]]:
    from orders import Order, Receipt, price_order, price_order_inline, price_order_sync
    from pydantic import TypeAdapter

    orders = TypeAdapter(Order)
    receipts = TypeAdapter(Receipt)
    loop = asyncio.get_running_loop()

    def result(receipt: Receipt) -> dict[str, Any]:
        plain = receipts.dump_python(receipt, mode="json")
        return {"content": [{"type": "text", "text": to_json(plain).decode()}], "structuredContent": plain}

    async def call_async(given: dict[str, Any]) -> dict[str, Any]:
        return result(await price_order(orders.validate_python(given["order"])))

    async def call_sync(given: dict[str, Any]) -> dict[str, Any]:
        return result(await loop.run_in_executor(None, price_order_sync, orders.validate_python(given["order"])))

    async def call_inline(given: dict[str, Any]) -> dict[str, Any]:
        return result(price_order_inline(orders.validate_python(given["order"])))

    schemas = {
        "inputSchema": {"type": "object", "properties": {"order": orders.json_schema()}, "required": ["order"]},
        "outputSchema": receipts.json_schema(),
    }
    handlers: dict[str, Handler] = {
        "price_order": call_async,
        "price_order_sync": call_sync,
        "price_order_inline": call_inline,
    }
    return {name: (handler, schemas) for name, handler in handlers.items()}


def tools_of(shape: str) -> dict[str, tuple[Handler | None, dict[str, Any]]]:
    if shape.isdecimal():
        return {f"tool_{number:04}": (None, {"inputSchema": CATALOGUE_SCHEMA}) for number in range(int(shape))}
    tools = scalar_tools()
    if shape == "scalar":
        return {**tools}
    models = model_tools()
    if shape == "model":
        return {"add": tools["add"], "add_sync": tools["add_sync"], "price_order": models["price_order"]}
    return {**tools, **models}


class Floor(asyncio.Protocol):
    def __init__(self, shape: str, closed: asyncio.Future[None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = closed
        self.partial = b""
        self.replies: list[bytes] = []
        self.flushing = False
        self.tasks: set[asyncio.Task[None]] = set()
        tools = tools_of(shape)
        self.handlers = {name: handler for name, (handler, _) in tools.items() if handler is not None}
        self.listed = [{"name": name, "description": "A tool.", **schemas} for name, (_, schemas) in tools.items()]
        self.out: asyncio.WriteTransport | None = None

    def data_received(self, data: bytes) -> None:
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            self.receive(from_json(line))
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)

    def receive(self, message: dict[str, Any]) -> None:
        method, id = message["method"], message.get("id")
        if id is None:
            return
        if method == "tools/call":
            task = self.loop.create_task(self.call(id, message["params"]))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif method == "tools/list":
            self.reply(id, {"result": {"tools": self.listed}})
        elif method == "initialize":
            asked = message["params"]["protocolVersion"]
            version = asked if asked in VERSIONS else VERSIONS[-1]
            info = {"name": "bench", "version": "1"}
            self.reply(id, {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}})
        else:
            self.reply(id, {"error": {"code": -32601, "message": f"unknown method {method}"}})

    async def call(self, id: Any, params: dict[str, Any]) -> None:
        try:
            answer = {"result": await self.handlers[params["name"]](params["arguments"])}
        except Exception as error:
            answer = {"result": {**text_result(str(error)), "isError": True}}
        self.reply(id, answer)

    def reply(self, id: Any, answer: dict[str, Any]) -> None:
        self.replies.append(to_json({"jsonrpc": "2.0", "id": id, **answer}))
        self.flush_soon()

    def flush_soon(self) -> None:
        if not self.flushing:
            self.flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self.flushing = False
        if self.replies and self.out is not None:
            self.replies.append(b"")
            self.out.write(b"\n".join(self.replies))
            self.replies = []


async def main(shape: str) -> None:
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[None] = loop.create_future()
    floor = Floor(shape, closed)
    floor.out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
    transport, _ = await loop.connect_read_pipe(lambda: floor, sys.stdin.buffer)
    # asyncio's own 256 KB makes the rate bimodal: each read allocates, and frees, that much.
    transport.max_size = 65536  # pyright: ignore[reportAttributeAccessIssue]
    await closed


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
