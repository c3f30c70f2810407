"""A server of ours with tools of every risk, for a host to deal with."""

from __future__ import annotations

from typing import Annotated

from defserve import Code, Context, PublicUrl, Server, Shell, ShellCommand, dangerous, moderate, safe
from defserve.protocols.mgp.errors import RateLimited, UpstreamUnavailable

server = Server("guarded", "1.0", server_id="test.guarded", trust_level="sandboxed")

attempts: list[str] = []


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
@safe("system.info")
def uptime() -> str:
    """How long it has been up."""
    return "long"


@server.tool
@moderate("network.outbound", effects=["network"])
def fetch(url: PublicUrl) -> str:
    """Fetch a page."""
    return f"fetched {url}"


@server.tool
@dangerous("shell.execute", effects=["process"])
def run(command: Annotated[ShellCommand, Shell(allowed={"git": ["status"], "frobnicate": None})]) -> str:
    """Run a command."""
    return " ".join(command.argv)


@server.tool
@dangerous("code_execution", confirm=False)
def evaluate(code: Annotated[str, Code(level="strict", allow=["math"])]) -> str:
    """Evaluate code."""
    return code


@server.tool
async def pay(ctx: Context) -> str:
    """Ask in three ways."""
    sure = await ctx.confirm("Pay?")
    account = await ctx.choose("From which account?", ["savings", "current"])
    return f"{sure} {account}"


@server.tool
@safe
def flaky(fails: int) -> str:
    """Be busy a few times."""
    attempts.append("flaky")
    if len(attempts) <= fails:
        raise RateLimited("slow down", retry_after_ms=1, retry_strategy="fixed_delay", max_retries=2)
    return f"after {len(attempts)}"


@server.tool
@safe
def moody(name: str) -> str:
    """Never work, and name one that does."""
    attempts.append("moody")
    raise UpstreamUnavailable("down", retry_after_ms=1, max_retries=1, fallback_tool="steady")


@server.tool
@safe
def steady(name: str) -> str:
    """Always work."""
    return f"hello {name}"


if __name__ == "__main__":
    server.main()
