from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import pytest

from defserve import Context, Depends, Limits, Server, ToolError
from tests.raw import ERAS, Raw, raw, text_of, turns, until

pytestmark = pytest.mark.anyio

JOURNAL: list[str] = []


@pytest.fixture(autouse=True)
def fresh_journal() -> None:
    JOURNAL.clear()


class Db:
    def __init__(self, name: str) -> None:
        self.name = name


def closing(name: str, error: BaseException | None) -> None:
    JOURNAL.append(f"{name}: {type(error).__name__ if error else 'done'}")


def plain() -> Db:
    return Db("plain")


async def awaited() -> Db:
    return Db("awaited")


def generated() -> Iterator[Db]:
    try:
        yield Db("generated")
    except BaseException as error:
        closing("generated", error)
        raise
    closing("generated", None)


async def generated_async() -> AsyncIterator[Db]:
    try:
        yield Db("generated_async")
    except BaseException as error:
        closing("generated_async", error)
        raise
    closing("generated_async", None)


async def swallowing() -> AsyncIterator[Db]:
    try:
        yield Db("swallowing")
    except BaseException as error:
        closing("swallowing", error)
        return
    closing("swallowing", None)


@contextmanager
def managed() -> Iterator[Db]:
    try:
        yield Db("managed")
    except BaseException as error:
        closing("managed", error)
        raise
    closing("managed", None)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Source:
    @decorated
    @asynccontextmanager
    async def managed_async(self) -> AsyncIterator[Db]:
        try:
            yield Db("managed_async")
        except BaseException as error:
            closing("managed_async", error)
            raise
        closing("managed_async", None)


KINDS = {
    "plain": (plain, False),
    "awaited": (awaited, False),
    "generated": (generated, True),
    "generated_async": (generated_async, True),
    "swallowing": (swallowing, True),
    "managed": (managed, True),
    "managed_async": (Source().managed_async, True),
}

# What the caller does and the function meets, and how the dependency sees it end.
ENDINGS: dict[str, tuple[str, str]] = {
    "success": ("return", "done"),
    "failure": ("raise", "ValueError"),
    "a tool error": ("complain", "ToolError"),
    "cancel": ("wait", "CancelledError"),
    "timeout": ("wait briefly", "CancelledError"),
    "the peer leaving": ("wait", "CancelledError"),
}


def serving(dependency: Any) -> Server:
    server = Server("s", "1")

    async def use(db: Annotated[Db, Depends(dependency)], act: str) -> str:
        JOURNAL.append(f"use {db.name}")
        if act == "raise":
            raise ValueError("broken")
        if act == "complain":
            raise ToolError("try again")
        if act.startswith("wait"):
            await asyncio.Event().wait()
        return db.name

    server.add_tool(use)
    server.add_tool(use, name="use_briefly", timeout=0.1)
    return server


async def end(peer: Raw, ending: str, act: str) -> None:
    """Begin a call and see it to its end."""
    tool = "use_briefly" if ending == "timeout" else "use"
    id = await peer.begin("tools/call", {"name": tool, "arguments": {"act": act}})
    if ending in ("cancel", "the peer leaving"):
        await until(lambda: any(line.startswith("use") for line in JOURNAL))
    if ending == "cancel":
        await peer.tell("notifications/cancelled", {"requestId": id})
    elif ending != "the peer leaving":
        result = (await peer.reply_to(id))["result"]
        assert result.get("isError", False) is (ending != "success")


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_teardown_runs_once_after_the_function_and_sees_how_it_ended(version: str, kind: str, ending: str):
    dependency, torn_down = KINDS[kind]
    act, seen = ENDINGS[ending]
    expected = [f"use {kind}", *([f"{kind}: {seen}"] if torn_down else [])]
    async with raw(serving(dependency), version) as peer:
        await end(peer, ending, act)
        if ending != "the peer leaving":
            await until(lambda: len(JOURNAL) >= len(expected))
    await turns()
    assert expected == JOURNAL


async def test_a_failing_dependency_is_the_calls_failure_and_opened_ones_are_closed():
    async def failing() -> Db:
        raise ToolError("the database is down; try later")

    server = Server("s", "1")

    @server.tool
    def use(first: Annotated[Db, Depends(generated_async)], second: Annotated[Db, Depends(failing)]) -> str:
        raise AssertionError("never reached")

    async with raw(server) as peer:
        result = await peer.call("use")
        assert (result["isError"], text_of(result)) == (True, "the database is down; try later")
    assert JOURNAL == ["generated_async: ToolError"]


async def test_dependencies_nest_are_made_once_a_call_and_close_in_reverse():
    made: list[str] = []

    async def base() -> AsyncIterator[str]:
        made.append("base")
        yield f"base{len(made)}"
        JOURNAL.append("close base")

    def left(base: Annotated[str, Depends(base)], ctx: Context) -> Iterator[str]:
        yield f"left({base}, {ctx.principal})"
        JOURNAL.append("close left")

    async def right(base: Annotated[str, Depends(base)]) -> str:
        return f"right({base})"

    server = Server("s", "1")

    @server.tool
    def use(
        left: Annotated[str, Depends(left)],
        right: Annotated[str, Depends(right)],
        again: Annotated[str, Depends(base, use_cache=False)],
    ) -> list[str]:
        return [left, right, again]

    async with raw(server) as peer:
        first = await peer.call("use")
        assert first["structuredContent"] == {"result": ["left(base1, local)", "right(base1)", "base2"]}
        assert JOURNAL == ["close base", "close left", "close base"]
        second = await peer.call("use")
        assert second["structuredContent"] == {"result": ["left(base3, local)", "right(base3)", "base4"]}
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert tool["inputSchema"].get("properties", {}) == {}


async def test_a_dependency_counts_against_the_timeout_of_its_tool():
    async def slow() -> AsyncIterator[str]:
        try:
            await asyncio.Event().wait()
            yield "never"
        finally:
            JOURNAL.append("gave up")

    server = Server("s", "1", limits=Limits(tool=0.01))

    @server.tool
    def use(value: Annotated[str, Depends(slow)]) -> str:
        return value

    async with raw(server) as peer:
        result = await peer.call("use")
        assert (result["isError"], text_of(result)) == (True, "timed out after 0.01 s")
    assert JOURNAL == ["gave up"]


async def test_prompts_and_resources_have_dependencies_too():
    server = Server("s", "1")

    @server.resource("db://{key}")
    def read(key: str, db: Annotated[Db, Depends(generated)]) -> str:
        return f"{key} from {db.name}"

    @server.prompt
    def ask(db: Annotated[Db, Depends(awaited)]) -> str:
        return db.name

    async with raw(server) as peer:
        (contents,) = (await peer.ask("resources/read", {"uri": "db://a"}))["result"]["contents"]
        assert contents["text"] == "a from generated"
        (message,) = (await peer.ask("prompts/get", {"name": "ask"}))["result"]["messages"]
        assert message["content"]["text"] == "awaited"
    assert JOURNAL == ["generated: done"]


async def test_a_dependency_may_come_after_a_parameter_with_a_default():
    server = Server("s", "1")

    @server.tool
    def use(times: int = 2, db: Db = Depends(managed), *, other: Annotated[Db, Depends(plain)]) -> str:
        return f"{db.name} {other.name} " * times

    async with raw(server) as peer:
        assert text_of(await peer.call("use")) == "managed plain managed plain "
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert list(tool["inputSchema"]["properties"]) == ["times"]


def failing_at_close() -> Iterator[Db]:
    yield Db("failing")
    raise OSError("the disk is full")


async def failing_at_close_async() -> AsyncIterator[Db]:
    try:
        yield Db("failing")
    finally:
        raise OSError("the disk is full")


@pytest.mark.parametrize("dependency", [failing_at_close, failing_at_close_async, contextmanager(failing_at_close)])
async def test_a_failing_teardown_is_logged_and_the_answer_stands(dependency: Any, caplog: pytest.LogCaptureFixture):
    async with raw(serving(dependency)) as peer:
        done = await peer.call("use", {"act": "return"})
        failed = await peer.call("use", {"act": "complain"})
    assert (done.get("isError", False), text_of(done)) == (False, "failing")
    assert (failed["isError"], text_of(failed)) == (True, "try again")
    assert "the clean-up of failing_at_close" in caplog.text and "the disk is full" in caplog.text


@pytest.mark.parametrize("act", ["return", "raise"])
async def test_a_tool_error_of_the_teardown_is_the_answer(act: str):
    def saving() -> Iterator[Db]:
        try:
            yield Db("saving")
        finally:
            raise ToolError("it could not be saved; try again")

    async with raw(serving(saving)) as peer:
        result = await peer.call("use", {"act": act})
    assert (result["isError"], text_of(result)) == (True, "it could not be saved; try again")


def connection() -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(":memory:")
    yield database
    database.close()


def shared_connection() -> Iterator[sqlite3.Connection]:
    yield sqlite3.connect(":memory:", check_same_thread=False)


async def on_loop(db: Annotated[Any, Depends(connection)]) -> None: ...
async def on_loop_by_default(db: sqlite3.Cursor = Depends(plain)) -> None: ...
async def on_loop_shared(db: sqlite3.Connection = Depends(shared_connection)) -> None: ...
async def on_loop_nested(db: Annotated[None, Depends(on_loop)]) -> None: ...
async def on_loop_harmless(db: Annotated[Db, Depends(plain)]) -> None: ...
def in_thread(db: Annotated[sqlite3.Connection, Depends(connection)]) -> None: ...


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (on_loop, "on_loop"),
        (on_loop_by_default, "on_loop_by_default"),
        (on_loop_nested, "on_loop"),
        (on_loop_shared, None),
        (on_loop_harmless, None),
        (in_thread, None),
    ],
)
def test_a_connection_of_another_thread_is_warned_of_when_it_is_declared(
    function: Any, named: str | None, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "defserve"):
        Server("s", "1").add_tool(function)
    assert len(caplog.records) == (named is not None)
    assert named is None or f"fix: write `def {named}`" in caplog.text
