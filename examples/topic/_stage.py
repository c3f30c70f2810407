"""What each of the scripts needs around it: a gateway, and a worker that is an example server as it stands.

Not part of the examples' idea: both are one command each, which `running` starts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from defserve.client import TopicClient, join_topic

HERE = Path(__file__).parent
WORKER = HERE.parent / "hello.py"


class Stage:
    """A topic at a gateway."""

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        self.url = f"{gateway}?topic=demo"

    def token(self, name: str) -> str:
        return f"demo-{name}"

    def enter(self, name: str) -> AbstractAsyncContextManager[TopicClient]:
        """Take part as one of those in gateway.toml."""
        return join_topic(self.url, token=self.token(name))

    @asynccontextmanager
    async def server(self, script: Path, name: str) -> AsyncGenerator[None]:
        """`python SCRIPT --on mcpx+ws://… --token-file …`, until the block ends."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "token"
            file.write_text(self.token(name))
            async with running(str(script), "--on", f"mcpx+{self.url}", "--token-file", str(file)):
                yield


@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    """`defserve gateway --config gateway.toml`, and the worker, until the block ends."""
    config = str(HERE / "gateway.toml")
    async with running("-m", "defserve", "gateway", "--on", "ws://127.0.0.1:0/ws", "--config", config) as said:
        made = Stage((await said.readline()).decode().removeprefix("gateway on ").strip())
        async with made.server(WORKER, "worker"):
            yield made


@asynccontextmanager
async def running(*command: str) -> AsyncGenerator[asyncio.StreamReader]:
    """A Python process, and what it says on stderr. It is told to end when the block does."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        yield process.stderr
    finally:
        if process.returncode is None:
            process.terminate()
        sys.stderr.write((await process.communicate())[1].decode())


async def present(me: TopicClient, *names: str) -> None:
    """Until they are all here: nobody waits for those who come later."""
    while missing := set(names) - set(me.participants):
        async for _ in me.heard():
            if not missing - set(me.participants):
                break


def play(script: Callable[[Stage], Awaitable[None]]) -> None:
    """Run a script on a stage of its own."""

    async def main() -> None:
        async with stage() as made:
            await script(made)

    asyncio.run(main())
