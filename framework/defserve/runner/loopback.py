"""An ASGI app on a loopback port, in the loop that runs and for as long as a block runs: no signals, no exit code.

Listens as `run` does, deadlines and caps included; what is left out is the end that a process has.
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
async def loopback(app: Any, limits: Limits, *, scheme: str = "http", parser: str = "auto") -> AsyncGenerator[str]:
    """The address of an app that answers at its root. Who is still connected at the end is cut off.

    Raises UsageError when what it takes to serve is not installed.
    """
    address = Address(scheme, HOST, 0, "/")
    listener: Any = make_listener(app, address, NetworkOptions(parser), limits, lambda: None)
    config, state = listener.config, listener.server_state

    def connection() -> Any:
        return config.http_protocol_class(config=config, server_state=state, app_state={})

    with bound(address) as (socket,):
        # uvicorn's own loop looks ten times a second whether it should end; a block that ends should not wait for it.
        accepting = await asyncio.get_running_loop().create_server(connection, sock=socket)
        try:
            yield f"{scheme}://{HOST}:{socket.getsockname()[1]}/"
        finally:
            accepting.close()
            for one in list(state.connections):
                one.transport.abort()
            await _end(list(state.tasks))


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
