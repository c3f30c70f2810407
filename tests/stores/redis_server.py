"""A real redis-server in a folder of its own, reached by a socket file: started, killed and started again by tests."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest


class RedisServer:
    def __init__(self, *settings: str) -> None:
        # Not pytest's own folder: a socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="redis"))
        self.socket = self.folder / "s"
        self.address = f"redis+unix://{self.socket}"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RedisServer:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("there is no redis-server; install it (apt-get install redis-server) to run this test")
        options = ("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", "")
        self._process = subprocess.Popen(
            [program, *options, *self._settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait()
        return self

    def kill(self) -> None:
        """As if by `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def used_memory(self) -> int:
        """How many bytes it uses, in its own words."""
        return int(self.info("memory").split("used_memory:")[1].split("\r\n")[0])

    def info(self, section: str) -> str:
        """A section of what it says about itself."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.socket))
            asking.sendall(b"INFO %b\r\n" % section.encode())
            with asking.makefile("rb") as said:
                return said.read(int(said.readline()[1:])).decode()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(str(self.socket))
                    probe.sendall(b"PING\r\n")
                    if probe.recv(64) == b"+PONG\r\n":
                        return
            except OSError:
                pass
            if time.monotonic() > end:
                raise TimeoutError("redis-server does not answer")
            time.sleep(0.01)


@cache
def start_shared_redis() -> RedisServer:
    """The one of this process, for tests that leave it running and name what they keep in it by a prefix."""
    server = RedisServer("--appendonly", "yes").start()
    atexit.register(server.remove)
    return server


@asynccontextmanager
async def balancing(primaries: list[RedisServer]) -> AsyncIterator[str]:
    """An address that leads to the last of these. As with a load balancer, an open connection stays where it led."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_unix_connection(str(primaries[-1].socket))
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(pump(reader, requests), pump(answers, writer))

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        sink.close()

    balancer = await asyncio.start_server(forward, "127.0.0.1", 0)
    yield f"redis://127.0.0.1:{balancer.sockets[0].getsockname()[1]}"
    balancer.close()


@contextmanager
def client_of_own_redis() -> Iterator[Any]:
    """A client of a Redis that nobody else uses."""
    from redis import Redis

    server = RedisServer().start()
    client = Redis(unix_socket_path=str(server.socket))
    try:
        yield client
    finally:
        client.close()
        server.remove()
