"""Other people's ASGI servers serve the app of a server: both eras, streams, sessions, and the end of a client."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from defserve.client import RemoteServer
from tests.listening import find_free_port
from tests.raw import ERAS
from tests.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

APP = """
from defserve import Context, Server

server = Server("hosted", "1")


@server.tool
def add(a: int, b: int) -> int:
    return a + b


@server.tool
async def count(ctx: Context, to: int) -> int:
    for step in range(to):
        ctx.progress(step, to)
    return to


app = server.asgi()
"""
# The server → its command, with the port to fill in.
SERVERS = {
    "uvicorn": ("uvicorn", "hosted:app", "--port", "{port}"),
    "hypercorn": ("hypercorn", "hosted:app", "--bind", "127.0.0.1:{port}"),
    "granian": ("granian", "--interface", "asgi", "hosted:app", "--port", "{port}"),
}


@contextmanager
def hosted(name: str, folder: Path) -> Iterator[str]:
    """The address of the app under a server."""
    pytest.importorskip(name)
    (folder / "hosted.py").write_text(APP)
    port = find_free_port()
    module, *options = (part.format(port=port) for part in SERVERS[name])
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", module, *options], cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or _is_open(port))
        assert process.poll() is None, (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(20)
    assert not re.search("Traceback", (folder / "log").read_text())


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("name", SERVERS)
async def test_a_server_of_somebody_else_serves_both_eras(name: str, tmp_path: Path):
    with hosted(name, tmp_path) as url:
        for era in ERAS:
            await _call_and_follow(url, era)


async def _call_and_follow(url: str, era: str) -> None:
    steps = list[float]()
    async with RemoteServer(url).connect(era, timeout=20) as client:
        assert await client.call("add", a=1, b=2) == 3
        done = await client.call_raw("count", {"to": 3}, on_progress=lambda progress, *_: steps.append(progress))
        assert done["content"][0]["text"] == "3"
        assert steps == [0, 1, 2]
