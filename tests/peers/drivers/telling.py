"""What drivers written in Python share. Each is run by its peer's own interpreter, so nothing of the project is here.

The only argument is the plan: where the server is (`command`, `url`, `sse`, `keyed`, `cut`), over which `transport` and
in which protocol `version` to come, the `token`, the `headers` of every request, and the `features` to try. `tour` says
what is used of each server in those that several have (`touring.py`), `root` what the client's root is. What it saw it
tells in lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

PLAN: dict[str, Any] = json.loads(sys.argv[1])
STATELESS = "2026-07-28"
ORDER = [{"item": "tea", "price": 2.5, "quantity": 2}]
CRATE: dict[str, Any] = {"weight": 5}
for weight in (4, 3, 2, 1):
    CRATE = {"weight": weight, "contents": ORDER, "crates": [CRATE]}
GUEST = {"name": "Ann", "nights": 2}


class Caller(Protocol):
    """A connected client, as its users use it. `version` is what was agreed on, or None where it does not say."""

    version: str | None

    async def names(self) -> list[str]: ...

    async def call(self, tool: str, arguments: dict[str, Any], steps: list[float]) -> tuple[str, Any]:
        """The text and the structured content of the result. Progress is put into `steps`."""
        ...

    async def read(self, uri: str) -> str: ...

    async def prompt(self, name: str, arguments: dict[str, str]) -> list[str]: ...


# Opens a connection: as the plan says, or over HTTP to this address with these headers.
Opener = Callable[[str | None, dict[str, str]], AbstractAsyncContextManager[Caller]]


def tell(feature: str, saw: Any) -> None:
    print(json.dumps({"feature": feature, "saw": saw}), flush=True)


async def attempt(feature: str, trying: Callable[[], Awaitable[Any]], seconds: float = 20) -> None:
    """Tell what came of it, if it is to be tried. An exception is told by its text, and the drive goes on."""
    if feature not in PLAN["features"]:
        return
    try:
        async with asyncio.timeout(seconds):
            saw = await trying()
    except Exception as error:
        saw = {"error": described(error)}
    tell(feature, saw)


def described(error: BaseException) -> str:
    """An exception in words, with what a group of them holds."""
    inner = "; ".join(described(e) for e in error.exceptions) if isinstance(error, BaseExceptionGroup) else ""
    return inner or f"{type(error).__name__}: {error}"


def texts(blocks: Any) -> str:
    """What the blocks of a result, or of a prompt's messages, say."""
    return " ".join(block.text for block in blocks if getattr(block, "text", None))


def drive(opener: Opener) -> None:
    """Try all that the plan asks for."""
    asyncio.run(_drive(opener))


async def _drive(opener: Opener) -> None:
    async with opener(None, {}) as caller:
        tell("connect", True)
        if "version" in PLAN["features"]:
            tell("version", caller.version == PLAN["version"] or caller.version)
        await _tour(caller)
    await attempt("auth", lambda: _once(opener, "keyed", "whoami", {}, {"Authorization": f"Bearer {PLAN['token']}"}))
    await attempt("no token", lambda: _refused(opener))
    await attempt("resumption", lambda: _once(opener, "cut", "cook", {"seconds": 1.5}, {}))


async def _tour(caller: Caller) -> None:
    async def names() -> list[str]:
        return sorted(await caller.names())

    async def text(tool: str, **arguments: Any) -> str:
        try:
            return (await caller.call(tool, arguments, []))[0]
        except Exception as error:
            # Some raise what a tool refused.
            return described(error)

    async def structured(tool: str, **arguments: Any) -> Any:
        return (await caller.call(tool, arguments, []))[1]

    async def steps() -> list[float]:
        seen: list[float] = []
        await caller.call("count_to", {"last": 3}, seen)
        return seen

    async def many() -> int:
        return sum([(await steps())[-1:] == [3] for _ in range(200)])

    await attempt("list", names)
    await attempt("call", lambda: text("add", a=2, b=3))
    await attempt("no parameters", lambda: text("clean"))
    await attempt("recursive", lambda: text("weigh", crate=CRATE))
    await attempt("structured", lambda: structured("bill", order=ORDER))
    await attempt("structured list", lambda: structured("primes"))
    await attempt("structured none", lambda: structured("find", name="x"))
    await attempt("formats", lambda: structured("hours"))
    await attempt("errors", lambda: text("withdraw", amount=101))
    await attempt("progress", steps)
    await attempt("progress ×200", many, seconds=60)
    await attempt("resources", lambda: caller.read("note://milk"))
    await attempt("prompts", lambda: caller.prompt("debate", {"topic": "tabs"}))
    await attempt("elicitation", lambda: text("check_in"))
    await attempt("sampling", lambda: text("summarize", text="long"))


async def _once(opener: Opener, place: str, tool: str, arguments: dict[str, Any], headers: dict[str, str]) -> str:
    async with opener(PLAN[place], headers) as caller:
        return (await caller.call(tool, arguments, []))[0]


async def _refused(opener: Opener) -> bool | str:
    """Whether the error says what is wrong, as opposed to that something is."""
    try:
        await _once(opener, "keyed", "whoami", {}, {})
    except BaseException as error:
        said = described(error)
        return any(word in said.lower() for word in ("token", "401", "unauthorized")) or said
    return "was let in"
