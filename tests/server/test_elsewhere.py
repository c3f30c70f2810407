"""People who come from other frameworks: their names are met with ours, and a forgotten await is said."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from defserve import Context, Server, ToolError, UsageError
from defserve.context import Log
from defserve.protocols.mcp.asking import client_requests
from defserve.server.decorators import WebFields
from defserve.server.options import DECORATOR_OPTION_FIXES, SERVER_ATTRIBUTE_FIXES, SERVER_OPTION_FIXES, ServerFields
from tests.rows import for_each_row


@for_each_row(("name", "fix"), SERVER_ATTRIBUTE_FIXES.items())
def test_a_method_of_another_server_is_met_with_ours(name: str, fix: str):
    with pytest.raises(AttributeError, match=re.escape(f"Server has no attribute {name!r}\n  fix: {fix}")):
        getattr(Server("s"), name)


@for_each_row(("name", "fix"), DECORATOR_OPTION_FIXES.items())
def test_an_option_of_another_decorator_is_met_with_ours(name: str, fix: str):
    def look() -> str:
        return ""

    given: dict[str, Any] = {name: True}
    with pytest.raises(UsageError, match=re.escape(f"look: tool has no option {name!r}\n  fix: {fix}")) as caught:
        Server("s").tool(**given)(look)
    assert caught.value.__suppress_context__


@for_each_row("name", client_requests.CONTEXT_ATTRIBUTE_HINTS)
def test_a_verb_of_another_context_is_met_with_ours(name: str):
    assert name not in dir(Context)
    with pytest.raises(AttributeError, match=f"Context has no attribute '{name}'\n  fix: "):
        getattr(Context.__new__(Context), name)


@for_each_row("name", client_requests.LOG_METHOD_HINTS)
def test_a_method_of_another_logger_is_met_with_ours(name: str):
    with pytest.raises(AttributeError, match=f"ctx.log has no attribute '{name}'\n  fix: "):
        getattr(Log.__new__(Log), name)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("habit", "fix"),
    [
        ("await ctx.log.info('x')", "ctx.log.info(…) gives nothing to await; write it without await"),
        ("await  ctx.progress(\n        1, 2)", "ctx.progress(…) gives nothing to await; write it without await"),
        ("await ctx.log('info', 'x')", 'ctx.log.info("…", key=value), without await'),
        ("ctx.log.warn('x')", 'ctx.log.warning("…", key=value)'),
        ("await ctx.info('x')", 'ctx.log.info("…", key=value), without await'),
        ("await ctx.report_progress(1, 2)", "ctx.progress(1, 3), without await"),
    ],
)
async def test_what_fails_when_it_runs_is_logged_with_what_to_write(
    habit: str, fix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    server, source = Server("s"), tmp_path / "habit.py"
    source.write_text(f"async def tool(ctx):\n    {habit}\n")
    made: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), made)
    made["tool"].__annotations__ = {"ctx": Context, "return": None}
    server.tool(made["tool"])
    async with server.connect() as client:
        with pytest.raises(ToolError, match="internal error"):
            await client.call("tool")
    assert f"fix: {fix}" in caplog.text


def test_what_the_tables_advise_exists():
    for name in re.findall(
        r"\bctx\.log\.(\w+)",
        "\n".join((*client_requests.LOG_METHOD_HINTS.values(), *client_requests.CONTEXT_ATTRIBUTE_HINTS.values())),
    ):
        assert callable(getattr(Log, name))
    advice = "\n".join(
        (
            *client_requests.CONTEXT_ATTRIBUTE_HINTS.values(),
            *SERVER_ATTRIBUTE_FIXES.values(),
            *SERVER_OPTION_FIXES.values(),
        )
    )
    for name in re.findall(r"\bctx\.(\w+)", advice):
        assert hasattr(Context, name), name
    for name in re.findall(r"\bserver\.(\w+)", advice):
        assert hasattr(Server, name), name


def test_a_slip_of_the_finger_is_met_with_the_nearest_name():
    with pytest.raises(AttributeError, match="did you mean 'resource'"):
        Server("s").resorce  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute '_nothing_like_it'$"):
        Server("s")._nothing_like_it  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(Server("s"), "nothing_like_it")


def test_a_property_that_fails_shows_its_own_error():
    class Odd(Server):
        @property
        def odd(self) -> str:
            return object().missing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'object' object has no attribute 'missing'"):
        _ = Odd("s").odd


@for_each_row("option", SERVER_OPTION_FIXES)
def test_an_option_of_another_server_is_met_with_ours(option: str):
    if option not in ServerFields.__annotations__:
        with pytest.raises(UsageError, match=f"Server has no option '{option}'") as refused:
            Server("s", **{option: 1})  # type: ignore[arg-type]
        assert refused.value.fix == SERVER_OPTION_FIXES[option]


@for_each_row("method", ["run", "asgi"])
@for_each_row("option", ["transport", "port", "allowed_host", "nonsense"])
def test_an_option_that_does_not_exist_is_never_ignored(method: str, option: str):
    with pytest.raises(UsageError, match=f"server.{method} has no option '{option}'") as refused:
        getattr(Server("s"), method)(**{option: "http"})
    assert "on=" in refused.value.fix if option in SERVER_OPTION_FIXES else refused.value.fix
    assert option not in WebFields.__annotations__


@for_each_row("name", ["http", "sse", "streamable-http"])
def test_the_name_of_a_transport_is_met_with_an_address(name: str):
    with pytest.raises(UsageError, match="write the whole address: http://127.0.0.1:8000/mcp"):
        Server("s").run(name)


def test_an_option_that_was_shortened_is_met_with_the_whole():
    with pytest.raises(UsageError, match="tool has no option 'desc'\n  fix: did you mean 'description'"):
        Server("s").tool(desc="Look.")(lambda: "")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="tool has no option 't'\n  fix: use some of"):
        Server("s").tool(t=1)(lambda: "")  # type: ignore[call-overload]


def test_an_option_that_a_feature_set_has_not_is_told_with_those_it_has():
    with pytest.raises(
        UsageError, match=r"^tests/.*feature set 'a' has no option 'persist'\n  fix: use some of .*uses"
    ):
        Server("s").feature_set("a", "A", persist=True)  # type: ignore[call-arg]


@pytest.mark.anyio
@for_each_row("on", ["stdio:", "http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/mcp", "mcpx+ws://127.0.0.1:1/ws"])
async def test_whoever_serves_inside_a_running_loop_is_told_what_to_write(on: str):
    with pytest.raises(UsageError, match="server.run(.*) was called in an event loop") as refused:
        Server("s").run(on)
    assert refused.value.fix == SERVER_ATTRIBUTE_FIXES["run_async"]
    assert refused.value.where.startswith("tests/server/test_elsewhere.py:")


@dataclass
class Note:
    text: Any


async def helper() -> str:
    return ""


async def numbers() -> AsyncIterator[int]:
    yield 1


server = Server("forgetful", "1")


@server.tool
async def in_a_text(ctx: Context) -> str:
    return f"Hello {ctx.ask('Who?', str)}"


@server.tool
async def as_a_text(ctx: Context) -> str:
    return str(ctx.choose("Which?", ["a"]))


@server.tool
async def in_a_list(ctx: Context):  # type: ignore[no-untyped-def]
    return {"names": [ctx.ask("Who?", str)]}


@server.tool
async def in_a_condition(ctx: Context) -> str:
    return "yes" if ctx.roots() else "no"


@server.tool
async def its_member(ctx: Context) -> str:
    return ctx.sample("Write").text  # type: ignore[attr-defined]


@server.tool
async def of_mine(ctx: Context) -> dict[str, Any]:
    return {"it": helper()}


@server.tool
async def in_a_comparison(ctx: Context) -> str:
    return "yes" if ctx.ask("name?", str) == "ann" else "no"


@server.tool
async def in_a_sum(ctx: Context) -> str:
    return "hi " + ctx.ask("name?", str)  # type: ignore[operator]


@server.tool
async def in_a_model(ctx: Context) -> Note:
    return Note(helper())


@server.tool
async def a_generator(ctx: Context):  # type: ignore[no-untyped-def]
    return [numbers()]


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("in_a_text", "fix: await ctx.ask(…)"),
        ("as_a_text", "fix: await ctx.choose(…)"),
        ("in_a_list", "`await` is missing before ctx.ask(…)"),
        ("in_a_condition", "fix: await ctx.roots(…)"),
        ("in_a_comparison", "fix: await ctx.ask(…)"),
        ("in_a_sum", "fix: await ctx.ask(…)"),
        ("its_member", "fix: await ctx.sample(…)"),
        ("of_mine", "`await` is missing before helper(…)"),
        ("in_a_model", "`await` is missing before helper(…)"),
        ("a_generator", "[each async for each in …]"),
    ],
)
@pytest.mark.anyio
@pytest.mark.filterwarnings("error")
async def test_a_forgotten_await_fails_and_is_said(tool: str, said: str, caplog: pytest.LogCaptureFixture):
    async with server.connect() as client:
        with pytest.raises(ToolError, match="internal error"):
            await client.call(tool)
    assert said in caplog.text


@pytest.mark.anyio
async def test_an_answer_can_be_gathered_and_made_a_task():
    asks = Server("s", "1")

    @asks.tool
    async def both(ctx: Context) -> list[int]:
        task = asyncio.create_task(ctx.once("b", lambda: 2))
        return [*await asyncio.gather(ctx.once("a", lambda: 1)), await task]

    async with asks.connect() as client:
        assert await client.call("both") == [1, 2]
