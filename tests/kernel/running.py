"""A kernel over real processes, in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from defserve.client import Client
from defserve.kernel.config.loading import load_kernel_config
from defserve.kernel.kernel import Kernel
from tests.waiting import until

BACKEND = Path(__file__).with_name("backend_server.py")


def entry(id: str, *args: str, more: str = "", mgp: str = "", prefix: str | None = None) -> str:
    """The entry of a server in a file."""
    words = ", ".join(f'"{word}"' for word in ("-I", "-S", BACKEND, *args))
    return (
        f'[[servers]]\nid = "{id}"\nprefix = "{prefix or id}"\ncommand = "{sys.executable}"\nargs = [{words}]\n{more}\n'
        f"[servers.mgp]\nbackoff_base_ms = 10\n{mgp}\n"
    )


def url_entry(id: str, url: str, more: str = "") -> str:
    return f'[[servers]]\nid = "{id}"\nprefix = "{id}"\nurl = "{url}"\n{more}\n'


class Running(NamedTuple):
    kernel: Kernel
    client: Client
    path: Path

    def state(self, id: str) -> str:
        return self.kernel.members[id].state

    async def connected(self, *ids: str) -> None:
        await until(lambda: all(self.state(id) == "connected" for id in ids))

    async def call(self, name: str, /, **arguments: Any) -> Any:
        return await self.client.call(name, **arguments)

    def write(self, *entries: str) -> None:
        self.path.write_text("\n".join(entries))


@asynccontextmanager
async def running(
    folder: Path, *entries: str, environ: Mapping[str, str] = os.environ, wait: bool = True, **options: Any
) -> AsyncGenerator[Running]:
    """A kernel that serves such a file, and a client of it. `options` are those of the kernel's server."""
    path = folder / "mgp.toml"
    path.write_text("\n".join(entries))
    kernel = Kernel(load_kernel_config(path), environ, **options)
    async with kernel.server.connect() as connection:
        here = Running(kernel, connection, path)
        if wait:
            await here.connected(*kernel.members)
        yield here
