"""Asking while a tool runs: straight-line code, whether the client keeps a session or every request stands alone.

Where there is no session the function is run again with the answers so far: code before a question runs again, so
effects go behind the last question or into `ctx.once`.
"""

from itertools import count

from defserve import Context, Declined, Server

server = Server("asking", "1.0.0")


@server.tool
async def paint(ctx: Context) -> str:
    """Let the person choose, one question after the other."""
    colour = await ctx.choose("Which colour?", {"#f00": "Red", "#0f0": "Green"})
    finish = await ctx.choose(f"Which finish for {colour}?", ["matt", "gloss"])
    return f"{colour}, {finish}"


orders = count(1)


@server.tool
async def order(item: str, ctx: Context) -> str:
    """Do something once, whatever is asked afterwards."""
    number = await ctx.once("number", lambda: next(orders))
    if not await ctx.confirm(f"Send order {number}: {item}?"):
        return f"order {number} dropped"
    return f"order {number} sent"


@server.tool
async def dine(ctx: Context) -> str:
    """Go on without an answer."""
    try:
        dish = await ctx.ask("What would you like?", str)
    except Declined:
        dish = "whatever there is"
    return f"serving {dish}"


@server.tool
async def introduce(ctx: Context) -> str:
    """Ask several questions in one round."""
    name, age = await ctx.gather(ctx.ask("Your name?", str), ctx.ask("Your age?", int))
    return f"{name}, {age}"


@server.tool
async def sign_in(ctx: Context) -> str:
    """Send the person to a web page."""
    await ctx.ask_url("Please sign in", "https://example.com/sign-in")
    return "on their way"


@server.tool
def rename(ctx: Context) -> str:
    """Ask from synchronous code."""
    return "now called " + ctx.wait(ctx.ask("New name?", str))


@server.tool
def abilities(ctx: Context) -> list[str]:
    """What this client can be asked for."""
    return [verb for verb in ("ask", "ask_url", "sample", "roots") if ctx.can(verb)]


if __name__ == "__main__":
    server.main()
