"""A server that asks in every way there is; run as a process and in memory by the asking tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Annotated, Literal

import anyio
from pydantic import BaseModel, Field

from defserve import Context, Declined, Depends, Dismissed, SampleOptions, Server, ToolError, User
from defserve.errors import NoBackChannel

server = Server("asking")
EVENTS: list[str] = []
"""What happened in this process, in order: it outlives the rounds of a call."""


class Name(BaseModel):
    name: str


class Person(BaseModel):
    name: str = Field(min_length=2, description="As on the passport")
    age: int = Field(ge=0, le=150)
    plan: Literal["free", "paid"] = "free"
    topics: list[Literal["news", "tips"]] = []
    nickname: str | None = None
    newsletter: bool = False


class Nested(BaseModel):
    person: Person


@server.tool
def events() -> list[str]:
    """What happened since the last look."""
    seen, EVENTS[:] = EVENTS[:], []
    return seen


@server.tool
async def greet(ctx: Context) -> str:
    return f"hello {(await ctx.ask('Your name?', Name, key='user_name')).name}"


@server.tool
async def order(ctx: Context) -> str:
    EVENTS.append("begun")
    what = await ctx.ask("What?", str)
    count = await ctx.ask(f"How many {what}?", int)
    EVENTS.append("ordered")
    return f"{count} {what}"


@server.tool
async def at_once(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        left, right = (group.create_task(ctx.ask(f"{side}?", str)) for side in ("left", "right"))
    EVENTS.append("after the group")
    return f"left={left.result()} right={right.result()}"


@server.tool
async def at_once_anyio(ctx: Context) -> str:
    found: dict[str, str] = {}

    async def ask(side: str) -> None:
        found[side] = await ctx.ask(f"{side}?", str)

    async with anyio.create_task_group() as group:
        for side in ("left", "right"):
            group.start_soon(ask, side)
    EVENTS.append("after the group")
    return f"left={found['left']} right={found['right']}"


@server.tool
async def one_after_the_other_at_once(ctx: Context) -> str:
    """The second question comes a little later, so that it misses the round of the first."""

    async def late() -> str:
        for _ in range(20):
            await asyncio.sleep(0)
        return await ctx.ask("right?", str)

    async with asyncio.TaskGroup() as group:
        left, right = group.create_task(ctx.ask("left?", str)), group.create_task(late())
    return f"left={left.result()} right={right.result()}"


@server.tool
async def twins(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ctx.ask("Again?", str)) for _ in range(3)]
    return " ".join(task.result() for task in asked)


@server.tool
async def namesakes(ctx: Context) -> str:
    """The same message and type, told apart by the text of the form."""
    first = Annotated[str, Field(description="the first")]
    second = Annotated[str, Field(description="the second")]
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ctx.ask("Which?", kind)) for kind in (second, first)]  # type: ignore[arg-type]
    return " ".join(task.result() for task in asked)


@server.tool
async def gathered(ctx: Context) -> str:
    name, sample, roots = await ctx.gather(
        ctx.ask("Your name?", Name, key="user_name"), ctx.sample("Greet", key="greeting"), ctx.roots(key="client_roots")
    )
    return f"{name.name} {sample.text} {roots[0].uri}"


@server.tool
async def gathered_forms(ctx: Context) -> str:
    answers = await ctx.gather(*(ctx.ask(f"{side}?", str) for side in ("left", "right")))
    return " ".join(answers)


@server.tool
async def pay(ctx: Context) -> str:
    EVENTS.append("before")

    async def charge() -> int:
        EVENTS.append("charged")
        return 42

    receipt = await ctx.once("charge", charge)
    await ctx.ask("Send a receipt?", bool)
    again = await ctx.once("charge", charge)
    await ctx.ask("Anything else?", str)
    return f"receipt {receipt} {again}"


@server.tool
async def pay_beside(ctx: Context) -> str:
    """The effect is under way while the question is asked, and wanted twice."""

    async def charge() -> str:
        EVENTS.append("charging")
        for _ in range(20):
            await asyncio.sleep(0)
        EVENTS.append("charged")
        return "paid"

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.once("charge", charge)) for _ in range(2)]
        group.create_task(ctx.ask("Sure?", str))
    return " ".join(task.result() for task in tasks)


@server.tool
async def ask_in_once(ctx: Context) -> str:
    async def effect() -> str:
        return await ctx.ask("Inside?", str)

    return await ctx.once("asks", effect)


@server.tool
async def stubborn(ctx: Context) -> str:
    try:
        return await ctx.ask("Your name?", str)
    except Exception as error:
        EVENTS.append(f"swallowed {error!r}")
        return "swallowed"


@server.tool
async def deaf(ctx: Context) -> str:
    """Catches even the end of the run, and asks on."""
    answers: list[str] = []
    for question in ("one?", "two?", "three?"):
        try:
            answers.append(await ctx.ask(question, str))
        except BaseException:
            EVENTS.append(f"caught at {question}")
    return " ".join(answers)


@server.tool
def deaf_thread(ctx: Context) -> str:
    answers: list[str] = []
    for question in ("one?", "two?"):
        try:
            answers.append(ctx.wait(ctx.ask(question, str)))
        except BaseException:
            EVENTS.append(f"caught at {question}")
    return " ".join(answers)


@server.tool(timeout=0.8)
async def impatient(ctx: Context) -> str:
    return await ctx.ask("Take your time", str)


@server.tool(timeout=0.8)
async def impatient_reader(ctx: Context) -> str:
    await asyncio.sleep(0)
    await ctx.read_resource("plain://text")
    return await ctx.ask("Take your time", str)


@server.tool(timeout=0.8)
def impatient_thread(ctx: Context) -> str:
    return ctx.wait(ctx.ask("Take your time", str))


@server.tool
async def careful(ctx: Context) -> str:
    try:
        return await ctx.ask("Your name?", str)
    except Declined:
        return "they said no"
    except Dismissed:
        return "they went away"
    except ToolError as error:
        return f"unusable: {error}"


def open_desk() -> Iterator[str]:
    EVENTS.append("desk opened")
    try:
        yield "desk"
    finally:
        EVENTS.append("desk closed")


async def open_shop(desk: Annotated[str, Depends(open_desk)]) -> AsyncIterator[str]:
    EVENTS.append("shop opened")
    try:
        yield f"shop with {desk}"
    finally:
        await asyncio.sleep(0)
        EVENTS.append("shop closed")


@server.tool
async def visit(shop: Annotated[str, Depends(open_shop)], ctx: Context) -> str:
    async with AsyncExitStack() as stack:
        stack.callback(EVENTS.append, "left")
        return f"{await ctx.ask('Your name?', str)} in {shop}"


@server.tool
def visit_in_a_thread(shop: Annotated[str, Depends(open_shop)], ctx: Context) -> str:
    try:
        name = ctx.wait(ctx.ask("Your name?", str))
        return f"{name}, {ctx.wait(ctx.ask(f'Your age, {name}?', int))}, in {shop}"
    finally:
        EVENTS.append("left")


@server.tool
async def poem(ctx: Context) -> str:
    options = SampleOptions(
        [User("Write"), "Please"],
        max_tokens=99,
        system="You are a poet",
        temperature=0.5,
        stop=["END"],
        models=["claude"],
        cost=0.1,
        speed=0.2,
        intelligence=0.9,
        metadata={"k": "v"},
        include_context="none",
    )
    sample = await ctx.sample(options)
    return f"{sample} by {sample.model} ({sample.stop_reason})"


@server.tool
async def use_tools(ctx: Context) -> str:
    tool = {"name": "add", "inputSchema": {"type": "object"}}
    sample = await ctx.sample(SampleOptions(["Use it"], tools=[tool], tool_choice="required"))
    return sample.content[0]["type"]


@server.tool
async def with_context(ctx: Context) -> str:
    return (await ctx.sample(SampleOptions(["hi"], include_context="thisServer"))).text


@server.tool
async def places(ctx: Context) -> list[str]:
    return [f"{root.uri} {root.name}" for root in await ctx.roots()]


@server.tool
async def pick(ctx: Context) -> str:
    colour = await ctx.choose("Colour?", ["red", "green"])
    size = await ctx.choose("Size?", {"s": "Small", "l": "Large"})
    return f"{colour} {size}"


@server.tool
async def erase(ctx: Context) -> str:
    return "erased" if await ctx.confirm("Erase?", key="sure") else "kept"


@server.tool
async def sign_in(ctx: Context) -> str:
    await ctx.ask_url("Sign in, please", "https://example.com/sign-in")
    return "on their way"


@server.tool
async def register(ctx: Context) -> str:
    return (await ctx.ask("About you", Person)).model_dump_json()


@server.tool
async def impossible(ctx: Context) -> str:
    return str(await ctx.ask("Too deep", Nested))


@server.tool
async def abilities(ctx: Context) -> list[str]:
    return [f for f in ("ask", "ask_url", "confirm", "choose", "sample", "roots", "fly") if ctx.can(f)]


@server.tool
async def wavering(ctx: Context) -> str:
    """Asks something else in every run, under the same key."""
    EVENTS.append("run")
    return await ctx.ask(f"Question {EVENTS.count('run')}?", str, key="it")


@server.tool
async def reads(ctx: Context) -> str:
    name = await ctx.ask("Your name?", str)
    return f"{name} {(await ctx.read_resource('plain://text'))[0]['text']}"


@server.resource("plain://text")
def plain() -> str:
    return "plain"


@server.resource("asked://{topic}")
async def asked(topic: str, ctx: Context) -> str:
    return f"{topic}: {await ctx.ask(f'Which {topic}?', str)}"


@server.prompt
async def introduce(ctx: Context, to: str = "all", tone: str = "") -> str:
    return f"Introduce {await ctx.ask('Whom?', str, key='user_context')} to {to}"


@server.completion("introduce", "tone")
async def tones(value: str, ctx: Context) -> list[str]:
    try:
        return [await ctx.ask("Which tone?", str)]
    except NoBackChannel as error:
        return [f"can={ctx.can('ask')}", str(error)]


if __name__ == "__main__":
    server.main()
