"""A backend with one of everything, and ways to look at what happened in it. Run as a child, it serves stdio."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Literal

from defserve import Context, Embedded, Limits, Link, Server, Text, ToolError
from defserve.extending import Call


def everything() -> Server:
    """A new one: it keeps what was done to it."""
    server = Server("everything", "1.0", limits=Limits(page=3), instructions="Use it well.")
    facts: dict[str, Any] = {"runs": 0, "waiting": 0, "stopped": 0, "live": "first"}

    @server.tool(annotations={"readOnlyHint": True}, meta={"example.org/weight": 3}, title="Addition")
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    def record(city: str) -> dict[str, int]:
        return {city: 7}

    @server.tool
    def fail() -> str:
        raise ToolError("this cannot be done")

    @server.tool
    def links() -> list[Link | Embedded | Text]:
        return [Link("note://fixed", name="fixed"), Embedded("note://fixed", text="inside"), Text("bare note://fixed")]

    @server.tool
    async def count(n: int, ctx: Context) -> str:
        for i in range(n):
            ctx.progress(i + 1, n, f"step {i + 1}")
            ctx.log.info("counted", i=i)
            ctx.log.debug("in detail")
            await asyncio.sleep(0.02)
        return f"counted to {n}"

    @server.tool
    async def order(ctx: Context) -> str:
        facts["runs"] += 1
        size = await ctx.ask("Which size?", int)
        colour = await ctx.ask("Which colour?", str)
        return f"{size} {colour}"

    @server.tool
    async def write(ctx: Context) -> str:
        return (await ctx.sample("Write a word.")).text

    @server.tool
    async def folders(ctx: Context) -> list[str]:
        return [root.uri for root in await ctx.roots()]

    @server.tool
    async def wait() -> str:
        facts["waiting"] += 1
        try:
            await asyncio.sleep(600)
        finally:
            facts["stopped"] += 1
        return "never"

    @server.tool
    def fact(name: str) -> int:
        return facts[name]

    @server.tool
    def remember(text: str) -> None:
        facts["memory"] = text

    @server.tool
    def recall() -> str:
        return facts.get("memory", "nothing")

    @server.tool
    def pid() -> int:
        return os.getpid()

    @server.tool
    def environment() -> list[str]:
        return sorted(os.environ)

    @server.tool
    def say(name: str) -> str:
        """Print a variable of the environment, to stderr too."""
        value = os.environ.get(name, "")
        print(f"{name} is {value}", file=sys.stderr, flush=True)
        raise ToolError(f"{name} is {value}")

    @server.tool
    def leave(code: int) -> None:
        os._exit(code)

    @server.tool
    def grow(name: str) -> None:
        def new() -> str:
            return "grown"

        server.add_tool(new, name=name)

    @server.tool
    def change(text: str) -> None:
        facts["live"] = text
        server.resource_updated("note://live")

    @server.tool
    async def meta(ctx: Context) -> dict[str, Any]:
        return facts["meta"]

    @server.around("tools/call")
    async def noted(call: Call, params: dict[str, Any], next: Any) -> Any:
        facts["meta"] = params.get("_meta") or {}
        return await next(call, params)

    @server.resource("note://fixed", mime_type="text/plain", size=5)
    def fixed() -> str:
        return "fixed"

    @server.resource("note://live")
    def live() -> str:
        return facts["live"]

    @server.resource("note://unlisted", listed=False)
    def unlisted() -> str:
        return "read all the same"

    @server.resource("note://of/{who}")
    def of(who: str) -> str:
        return f"note of {who}"

    @server.prompt
    def greet(name: str, tone: Literal["warm", "dry"] = "warm") -> str:
        """Greets."""
        return f"a {tone} hello to {name}"

    @server.completion("greet", "name")
    def names(value: str) -> list[str]:
        return [name for name in ("Ann", "Anton", "Bo") if name.startswith(value)]

    @server.completion("note://of/{who}", "who")
    def whose(value: str) -> list[str]:
        return [value + "!"]

    return server


if __name__ == "__main__":
    everything().run()
