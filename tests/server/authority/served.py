"""A server with one tool for every kind of yes that it may need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from defserve import Context, Server, dangerous, moderate
from defserve.kernel import Kernel
from defserve.protocols.mgp.access import AccessPolicy

ADMINS = ["local", "ann"]


def make(**options: Any) -> Server:
    """Nothing is granted, so that a tool with permissions needs a grant of its caller."""
    access = AccessPolicy("opt-out", admins=ADMINS)
    server = Server(
        "vault",
        "1",
        permissions="config_only",
        granted=["memory.write"],
        access=access,
        **options,
    )

    @server.tool
    @dangerous
    def erase() -> str:
        return "ran"

    @server.tool
    @moderate("shell.execute")
    def execute() -> str:
        return "ran"

    @server.tool
    @moderate("memory.write")
    def note() -> str:
        return "ran"

    @server.tool
    async def confirms(ctx: Context) -> str:
        return "ran" if await ctx.confirm("Sure?") else "declined"

    @server.tool
    async def asks(ctx: Context) -> str:
        return "ran" if await ctx.ask("Which?", str) == "yes" else "other"

    files = server.feature_set("files.edit", "Edit files", scoped=True)

    @files.tool(scope=lambda path: path)
    def edit(path: str) -> str:
        return "ran"

    mail = server.feature_set("mail.send", "Send mail")

    @mail.tool
    def send() -> str:
        return "ran"

    child = Server("child", "1")

    @child.tool
    @dangerous
    def erase_too() -> str:
        return "ran"

    server.mount(child, prefix="child")
    return server


def make_kernel(folder: Path, **options: Any) -> Server:
    """A kernel whose operators are the same, with one server that does not run."""
    path = folder / "mgp.toml"
    off = '[[servers]]\nid = "off"\nenabled = false\nurl = "http://127.0.0.1:9/mcp"\n'
    path.write_text(f'[kernel]\nadmins = ["ann"]\naudit = "audit.jsonl"\n{off}')
    return Kernel.load(path, **options).server


if __name__ == "__main__":
    make().run()
