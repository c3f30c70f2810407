"""What both desks offer, declared on a server of either framework. The interpreter of the desk runs it."""

import asyncio
from typing import Any

NAMES = ("Ann", "Anton", "Bob")


def declare(server: Any, Context: Any) -> None:
    """Add them to a server. Its framework knows the parameter that it fills in by the class `Context`.

    So annotations must not be postponed in this file: the class is known only here.
    """
    gone: list[str] = []

    @server.tool()
    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    @server.tool()
    async def steps(ctx: Context) -> str:
        """Three steps of progress."""
        for step in (1, 2, 3):
            await ctx.report_progress(step, 3)
        return "done"

    @server.tool()
    async def clean(ctx: Context) -> str:
        """Write into the log what was cleaned."""
        await ctx.info("the desk is clean")
        return "done"

    @server.tool()
    async def wait(guest: str, ctx: Context) -> str:
        """Wait until the client gives up."""
        await ctx.report_progress(1)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            gone.append(guest)
            raise
        return "never"

    @server.tool()
    def gave_up() -> str:
        """Whose calls of `wait` were cancelled."""
        return " ".join(gone)

    @server.resource("desk://lamp")
    def lamp() -> str:
        """The lamp."""
        return "it is on"

    @server.resource("desk://drawers/{number}")
    def drawers(number: str) -> str:
        """A drawer by its number."""
        return f"drawer {number}"

    @server.prompt()
    def letter(to: str) -> str:
        """Write a letter."""
        return f"Write to {to}."

    assert [double, steps, clean, wait, gave_up, lamp, drawers, letter]


def drawer() -> str:
    """What is in the drawer."""
    return "pens"
