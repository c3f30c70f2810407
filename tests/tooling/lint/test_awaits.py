"""Questions that nobody waits for."""

from __future__ import annotations

import pytest

# What is read here is wrong on purpose.
# pyright: basic
from defserve import Context, Server
from tests.tooling.lint.reading import only, read

server = Server("awaits", "1")


@server.tool
def returned(ctx: Context) -> str:
    """Ask, and give back the question."""
    return ctx.ask("Who?", str)


@server.tool
async def judged(context: Context) -> str:
    """Take a question for its answer."""
    if context.confirm("Sure?"):
        return "yes"
    while not context.confirm("Sure now?"):
        pass
    return "no"


@server.tool
async def dropped(ctx: Context) -> str:
    """Say something to nobody."""
    ctx.chat("hello")
    name = ctx.ask("Who?", str)
    return f"{name} {ctx.choose('Which?', ['a'])} {ctx.ask('What?', str) + '!'}"


@server.tool
async def awaited(ctx: Context) -> str:
    """Do it right in every way there is."""
    first = ctx.ask("Who?", str)
    second = ctx.ask("What?", str)
    third, fourth = await ctx.gather(second, ctx.ask("When?", str))
    ctx.progress(1)

    def later():
        return ctx.ask("Why?", str)

    await ctx.once("key", later)
    await ctx.once("key", lambda: ctx.ask("Why?", str))
    return f"{await first} {third} {fourth} {await ctx.confirm('Sure?')}"


@server.tool
def waited(ctx: Context) -> str:
    """Do it right in a thread."""
    return ctx.wait(ctx.ask("Who?", str))


@server.resource("awaits://{name}")
async def resource(name: str, ctx: Context) -> str:
    """Forget it here, too."""
    return ctx.ask("Who?", str)


def test_every_question_that_nobody_waits_for_is_found():
    found = [c.finding for c in only(read(server), "forgotten-await")]
    assert [(f.subject, f.problem.partition("(")[0]) for f in found] == [
        ("tool 'returned'", "ctx.ask"),
        ("tool 'judged'", "context.confirm"),
        ("tool 'judged'", "context.confirm"),
        ("tool 'dropped'", "ctx.chat"),
        ("tool 'dropped'", "ctx.ask"),
        ("tool 'dropped'", "ctx.choose"),
        ("tool 'dropped'", "ctx.ask"),
        ("template 'resource'", "ctx.ask"),
    ]
    assert found[0].fix == "in a plain def, write ctx.wait(ctx.ask(…)), or make it async def"
    assert found[1].fix == "write await context.confirm(…)"


@pytest.mark.slow
def test_the_line_of_the_question_is_named():
    place = only(read(server), "forgotten-await")[0].finding.where
    path, _, line = place.rpartition(":")
    with open(path) as file:
        assert 'return ctx.ask("Who?", str)' in file.readlines()[int(line) - 1]


@pytest.mark.slow
def test_a_function_without_a_source_is_not_looked_at():
    made: dict[str, object] = {"Context": Context}
    exec("def made(ctx: Context) -> str:\n    'Make it.'\n    return ctx.ask('Who?', str)", made)
    hidden = Server("hidden", "1")
    hidden.tool(made["made"])  # type: ignore[arg-type]
    assert only(read(hidden), "forgotten-await") == []


def test_what_gives_nothing_is_not_awaited():
    telling = Server("telling", "1")

    @telling.tool
    async def tell(ctx: Context, log: str) -> str:
        """Tell the client what happens."""
        await ctx.log.info("begins")
        await ctx.progress(1)
        ctx.log.info("goes on")
        return await ctx.ask(log, str)

    found = [c.finding for c in only(read(telling), "needless-await")]
    assert [f.fix for f in found] == ["write ctx.log.info(…) without await", "write ctx.progress(…) without await"]
    path, _, line = found[0].where.rpartition(":")
    with open(path) as file:
        assert 'await ctx.log.info("begins")' in file.readlines()[int(line) - 1]
