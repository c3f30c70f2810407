"""Claude Code's health check, without a login: servers are added as its users add them, then listed."""

from __future__ import annotations

import asyncio

from commands import MODULES, output
from telling import PLAN, attempt

CLAUDE = str(next(MODULES.glob("@anthropic-ai/claude-code-*/claude")))
BEARER = f"Authorization: Bearer {PLAN['token']}"


def health(*added: str) -> str:
    """What it says of a server that was added so."""
    output([CLAUDE, "mcp", "add", *added])
    return output([CLAUDE, "mcp", "get", "shop"])


async def is_well(*added: str) -> bool | str:
    said = await asyncio.to_thread(health, *added)
    output([CLAUDE, "mcp", "remove", "shop"])
    return "Connected" in said or said


async def known_by_its_token() -> str:
    said = await is_well("--transport", "http", "shop", PLAN["keyed"], "--header", BEARER)
    return "ann" if said is True else str(said)


async def told() -> bool | str:
    said = await is_well("--transport", "http", "shop", PLAN["keyed"])
    return any(word in str(said).lower() for word in ("token", "401", "authenti", "unauthorized")) or said


async def main() -> None:
    plain = {
        "stdio": ("shop", "--", *PLAN["command"]),
        "http": ("--transport", "http", "shop", PLAN["url"]),
        "sse": ("--transport", "sse", "shop", PLAN["sse"]),
    }
    await attempt("health", lambda: is_well(*plain[PLAN["transport"]]))
    await attempt("auth", known_by_its_token)
    await attempt("no token", told)


asyncio.run(main())
