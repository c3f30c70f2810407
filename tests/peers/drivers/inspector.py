"""The MCP Inspector's command line: each feature is a command of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from commands import node, output
from telling import PLAN, drive


class Inspector:
    version = None

    def __init__(self, target: list[str], headers: dict[str, str]):
        self.target = target
        self.headers = [f"{name}: {value}" for name, value in headers.items()]

    async def names(self) -> list[str]:
        return [tool["name"] for tool in (await self.ask("tools/list"))["tools"]]

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        pairs = [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
        given = ["--tool-arg", *pairs] if pairs else []
        result = await self.ask("tools/call", "--tool-name", tool, *given)
        return " ".join(block["text"] for block in result["content"]), result.get("structuredContent")

    async def read(self, uri: str) -> str:
        return (await self.ask("resources/read", "--uri", uri))["contents"][0]["text"]

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]:
        pairs = [f"{name}={value}" for name, value in arguments.items()]
        result = await self.ask("prompts/get", "--prompt-name", name, "--prompt-args", *pairs)
        return [message["role"] for message in result["messages"]]

    async def ask(self, method: str, *options: str) -> Any:
        headers = ["--header", *self.headers] if self.headers else []
        script = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        command = node(script, "--cli", *self.target, "--method", method, *options, "--stored-auth-only", *headers)
        said = await asyncio.to_thread(output, command)
        try:
            told = json.loads(said[said.index("{") :])
        except ValueError:
            raise RuntimeError(said) from None
        if "error" in told:
            raise RuntimeError(said)
        return told


@asynccontextmanager
async def opened(url: str | None, headers: dict[str, str]) -> AsyncGenerator[Inspector]:
    address = url or {"http": PLAN["url"], "sse": PLAN["sse"]}.get(PLAN["transport"])
    yield Inspector([address] if address else PLAN["command"], headers)


drive(opened)
