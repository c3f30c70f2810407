"""An ASGI app on a loopback port, on the running loop and for as long as a block runs.

It listens as `run` does, with the same deadlines and limits, but without signals and an exit code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from defserve.limits import Limits
from defserve.runner.address import Address
from defserve.runner.network import NetworkOptions, make_listener
from defserve.runner.sockets import bound

HOST = "127.0.0.1"


@asynccontextmanager
async def loopback(
    app: Any, limits: Limits, *, scheme: str = "http", parser: str = "auto", port: int = 0
) -> AsyncGenerator[str]:
    """The address of an app that answers at its root. Clients that are still connected at the end are cut off.

    Without a `port`, the system chooses one. Raises UsageError when uvicorn is not installed, or the port is taken.
    """
    address = Address(scheme, HOST, port, "/")
    listener: Any = make_listener(app, address, NetworkOptions(parser), limits, lambda: None)
    config, state = listener.config, listener.server_state

    def connection() -> Any:
        return config.http_protocol_class(config=config, server_state=state, app_state={})

    with bound(address) as (socket,):
        # uvicorn's own loop checks ten times a second whether it should end. That would delay the end of a block.
        accepting = await asyncio.get_running_loop().create_server(connection, sock=socket)
        try:
            yield f"{scheme}://{HOST}:{socket.getsockname()[1]}/"
        finally:
            accepting.close()
            for one in list(state.connections):
                one.transport.abort()
            tasks: list[asyncio.Task[Any]] = list(state.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)
