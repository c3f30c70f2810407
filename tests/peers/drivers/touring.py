"""The tour of the plan: the same feature in each server that has it, by a client that can do all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from secrets import token_hex
from typing import Any, Protocol

from telling import PLAN, Caller, attempt, described

HEARING_SECONDS = 15
MOST_CHANGES = 5
# Of the kernel that peers meet.
SHORT_PAGE = 10


class Tourist(Caller, Protocol):
    """`heard` has what came by itself: ("log", text), ("updated", URI), ("changed", kind of list)."""

    heard: list[tuple[str, str]]

    async def listed(self, kind: str) -> list[str]:
        """The names or URIs on all pages of a list: tools, resources, templates, prompts."""
        ...

    async def prompted(self, name: str, arguments: dict[str, str]) -> str: ...

    async def complete(self, ref: dict[str, str], argument: str, value: str) -> list[str]: ...

    def listening(self, uri: str | None) -> AbstractAsyncContextManager[None]:
        """Changes of lists, and of this resource, are heard inside."""
        ...

    async def give_up(self, tool: str, arguments: dict[str, Any]) -> None:
        """Begin a call, and cancel it after its first step."""
        ...


async def tour(caller: Tourist) -> None:
    async def said(step: dict[str, Any]) -> str:
        return (await caller.call(step["tool"], step["arguments"], []))[0]

    async def has_text(step: dict[str, Any]) -> Any:
        text = await said(step)
        return step["says"] in text or text

    async def heard(what: tuple[str, str]) -> Any:
        def is_there() -> bool:
            return any(kind == what[0] and what[1] in text for kind, text in caller.heard)

        return await eventually(is_there) or caller.heard[-5:]

    async def reads(step: dict[str, Any]) -> Any:
        text = await caller.read(step["uri"])
        return step["says"] in text or text

    async def template(step: dict[str, Any]) -> Any:
        names = await caller.listed("templates")
        return await reads(step) if step["template"] in names else names

    async def prompt(step: dict[str, Any]) -> Any:
        text = await caller.prompted(step["prompt"], step["arguments"])
        return step["says"] in text or text

    async def completion(step: dict[str, Any]) -> Any:
        values = await caller.complete(step["ref"], step["argument"], step["value"])
        return values == step["says"] or values

    async def progress(step: dict[str, Any]) -> Any:
        # The client may handle a result before the steps that came with it.
        steps: list[float] = []
        await caller.call(step["tool"], step["arguments"], steps)
        await eventually(lambda: steps == step["says"])
        return steps == step["says"] or steps

    async def log(step: dict[str, Any]) -> Any:
        await said(step)
        return await heard(("log", step["says"]))

    async def subscription(step: dict[str, Any]) -> Any:
        async with caller.listening(step["uri"]):
            await said(step)
            return await heard(("updated", step["uri"]))

    async def list_changed(step: dict[str, Any]) -> Any:
        async with caller.listening(None):
            caller.heard.clear()
            text, names = await said(step), list[str]()
            # Others may change a list too. Whoever is told of a change looks again.
            for _ in range(MOST_CHANGES):
                if (told := await heard(("changed", step["kind"].removesuffix("s")))) is not True:
                    return names or told
                caller.heard.clear()
                names = await caller.listed(step["kind"])
                if any(step.get("says", text) in name for name in names):
                    return True
            return names

    async def cancellation(step: dict[str, Any]) -> Any:
        guest = token_hex(8)
        await caller.give_up(step["tool"], {"guest": guest})
        text = ""
        for _ in range(50):
            text = (await caller.call(step["asks"], {}, []))[0]
            if guest in text:
                return True
            await asyncio.sleep(0.1)
        return text

    async def pages() -> Any:
        names = await caller.listed("tools")
        wanted = {step["tool"] for steps in PLAN["tour"].values() for step in steps.values() if "tool" in step}
        return (len(set(names)) == len(names) > SHORT_PAGE and wanted <= {*names}) or names

    await each("each call", has_text)
    await each("each resource", reads)
    await each("templates", template)
    await each("each prompt", prompt)
    await each("completion", completion)
    await each("each progress", progress)
    await each("logs", log)
    await each("subscriptions", subscription)
    await each("list changed", list_changed)
    await each("each elicitation", has_text)
    await each("each sampling", has_text)
    await each("roots", has_text)
    await each("cancellation", cancellation)
    # Some tools are there only once their server knows what the client can do.
    await attempt("pages", pages)


async def each(feature: str, trying: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """Tell the servers where it went well, and of the others what was seen."""

    async def one(server: str, step: dict[str, Any]) -> str:
        try:
            async with asyncio.timeout(30):
                saw = await trying(step)
        except Exception as error:
            saw = described(error)
        return server if saw is True else f"{server}: {saw}"

    async def all_of_them() -> list[str]:
        return sorted([await one(server, step) for server, step in PLAN["tour"][feature].items()])

    await attempt(feature, all_of_them, seconds=90)


async def eventually(is_there: Callable[[], bool]) -> bool:
    for _ in range(int(HEARING_SECONDS / 0.05)):
        if is_there():
            return True
        await asyncio.sleep(0.05)
    return is_there()
