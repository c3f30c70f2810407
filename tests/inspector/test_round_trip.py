"""Where the time of a call went, if the inspector only talks to the server."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from defserve import Server
from defserve.cli.commands.inspect import make_inspector_target
from defserve.cli.target import ServerTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.waterfalls import ROUND_TRIP_ONLY_NOTE
from defserve.serve.session_opener import serve_on_loopback
from tests.inspector.conftest import Run

pytestmark = pytest.mark.anyio


def add_header(app: Any) -> Any:
    """The same application, which tells how long its database took."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        async def send_more(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"server-timing", b"db;dur=0.01")]}
            await send(message)

        await app(scope, receive, send_more)

    return run


@pytest.mark.parametrize("tells", [False, True])
async def test_over_http_it_is_the_round_trip_and_what_the_server_tells_itself(do: Run, tells: bool):
    server = Server("remote", "1")

    @server.tool
    async def add(a: int) -> int:
        return a + 1

    assert add
    app = server.asgi()
    async with serve_on_loopback(add_header(app) if tells else app, server.limits) as url:
        options = Namespace(era=None, token=None, header=[], verbose=False)
        async with Inspection(make_inspector_target(ServerTarget(address=url), [url], options)) as inspection:
            done = await do(inspection, "tools.call", tool="add", arguments={"a": 1})
        await app.provider.stop()
    waterfall = done["waterfall"]
    titles = [stage["title"] for stage in waterfall["stages"] if stage["kind"] == "outside"]
    assert titles == ["sending, and waiting for the server", "receiving the response"]
    assert waterfall["note"] == ROUND_TRIP_ONLY_NOTE
    told = [stage["title"] for stage in waterfall["stages"] if stage["kind"] != "outside"]
    assert told == (["the server says: db"] if tells else [])
