"""Bridges: this project's client on one side, its server on the other, and somebody else's program in between."""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from commands import node
from telling import GUEST, PLAN, drive

from defserve.client import Answers, Client, ProcessLink, connect_url


class Ours:
    def __init__(self, client: Client):
        self.client = client
        self.version = client.version

    async def names(self) -> list[str]:
        return [tool["name"] for tool in await self.client.tools()]

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        def note(progress: float, *_: Any) -> None:
            steps.append(progress)

        result = await self.client.call_raw(tool, arguments, on_progress=note)
        return " ".join(block["text"] for block in result["content"]), result.get("structuredContent")

    async def read(self, uri: str) -> str:
        return await self.client.read_text(uri)

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        return [message["role"] for message in (await self.client.prompt(name, **arguments))["messages"]]


def bridged(url: str | None, headers: dict[str, str], port: int) -> list[str]:
    """The bridge's command: to standard input and output, or to a port."""
    sent = [part for name, value in headers.items() for part in ("--header", f"{name}: {value}")]
    target = url or PLAN["url"]
    if PLAN["bridge"] == "mcp-remote":
        return node("mcp-remote/dist/proxy.js", target, "--allow-http", "--transport", "http-only", *sent)
    script, quiet = "supergateway/dist/index.js", ("--logLevel", "none")
    if PLAN["transport"] == "stdio":
        return node(script, "--streamableHttp", target, *quiet, *sent)
    kinds = {"http": ("--outputTransport", "streamableHttp", "--stateful"), "sse": ("--outputTransport", "sse")}
    command = shlex.join(PLAN["command"])
    return node(script, "--stdio", command, *kinds[PLAN["transport"]], "--port", str(port), *quiet)


@asynccontextmanager
async def linked(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Any]:
    port = free_port()
    command = bridged(url, headers, port)
    if PLAN["transport"] == "stdio":
        yield await ProcessLink.spawn(command[0], command[1:])
        return
    bridge = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        while not listens(port):  # noqa: ASYNC110 (the driver as a whole has a time limit)
            await asyncio.sleep(0.05)
        yield await connect_url(f"http://127.0.0.1:{port}/{'sse' if PLAN['transport'] == 'sse' else 'mcp'}")
    finally:
        bridge.terminate()
        await bridge.wait()


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Ours]:
    answers = Answers(ask=lambda *_: GUEST, sample=lambda *_: "short")
    async with linked(url, headers) as link, Client(link, answers=answers, version=PLAN["version"]) as client:
        yield Ours(client)


def free_port() -> int:
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        return trying.getsockname()[1]


def listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


drive(opened)
