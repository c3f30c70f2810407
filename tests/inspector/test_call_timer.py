"""The stages of real calls, as the process of a server measures them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from defserve import Context, Depends, Limits, Server, ToolError
from defserve.client.answers import Answers
from defserve.client.client import Client
from defserve.core.call import Call
from defserve.core.extension import Extension, Stages
from defserve.errors import DefserveError
from defserve.inspector.call_timer import PROBES, CallTimer
from defserve.inspector.waterfalls import MAX_STAGES, ServerWaterfall, Waterfall, WaterfallStage, parse_waterfall
from defserve.protocols.mcp.authorization import NotPermitted
from defserve.protocols.mcp.tools import call_tool
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def measure(server: Server, tool: str, /, **arguments: Any) -> Waterfall:
    """The waterfall of one call, however it ends."""
    found = list[Waterfall]()
    with CallTimer(lambda call, measured: found.append(measured.waterfall)):
        async with server.connect() as client:
            await call_quietly(client, tool, **arguments)
    assert len(found) == 1
    return found[0]


async def call_quietly(client: Client, tool: str, /, **arguments: Any) -> None:
    try:
        await client.call(tool, **arguments)
    except DefserveError:
        pass


def titles(waterfall: Waterfall) -> list[str]:
    return [stage.title for stage in waterfall.stages]


def stage_of(waterfall: Waterfall, title: str) -> WaterfallStage:
    return next(stage for stage in waterfall.stages if stage.title == title)


def failed(waterfall: Waterfall) -> list[str]:
    return [stage.title for stage in waterfall.stages if stage.is_failed]


def make_server() -> Server:
    server = Server("shop", "1", limits=Limits(in_flight=1))

    async def read_settings() -> str:
        return "settings"

    async def open_database(settings: Annotated[str, Depends(read_settings)]) -> AsyncIterator[str]:
        yield settings

    def open_file() -> Iterator[str]:
        yield "file"

    def refuse() -> str:
        raise ToolError("there is no database")

    @server.tool
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @server.tool
    def add_in_thread(a: int) -> int:
        return a + 1

    @server.tool
    async def find(word: str, db: Annotated[str, Depends(open_database)]) -> str:
        return word + db

    @server.tool
    def scan(word: str, file: Annotated[str, Depends(open_file)]) -> str:
        return word + file

    @server.tool
    async def fail() -> str:
        raise ToolError("no")

    @server.tool
    def fail_with_file(file: Annotated[str, Depends(open_file)]) -> str:
        raise ValueError("no")

    @server.tool
    async def lack(db: Annotated[str, Depends(refuse)]) -> str:
        return db

    @server.tool(timeout=0.02)
    async def hang() -> None:
        await asyncio.sleep(3600)

    @server.tool
    async def lie() -> int:
        return "text"  # pyright: ignore[reportReturnType]

    assert add and add_in_thread and find and scan and fail and fail_with_file and lack and hang and lie
    return server


async def test_an_async_call_has_its_stages_in_order_inside_of_its_time():
    waterfall = await measure(make_server(), "add", a=1)
    shown = [each for each in titles(waterfall) if not each.startswith("wait:")]
    assert shown == ["reading the request", "arguments", "add", "packing the result", "writing the reply"]
    assert failed(waterfall) == []
    assert [stage.start for stage in waterfall.stages] == sorted(stage.start for stage in waterfall.stages)
    assert all(stage.start + stage.ms <= waterfall.ms + 0.01 for stage in waterfall.stages)
    assert 0 <= waterfall.ms_between_stages <= waterfall.ms


async def test_a_sync_function_is_a_stage_from_the_loop_to_the_loop():
    waterfall = await measure(make_server(), "add_in_thread", a=1)
    assert stage_of(waterfall, "add_in_thread").kind == "function"
    assert all(stage.depth == 1 for stage in waterfall.stages if stage.title == "wait: thread")


async def test_a_wait_for_a_thread_is_inside_of_the_function_that_waits():
    server, is_held, release = Server("busy", "1", limits=Limits(threads=1)), threading.Event(), threading.Event()

    @server.tool
    def hold() -> None:
        is_held.set()
        release.wait(30)

    @server.tool
    def work() -> None: ...

    assert hold and work
    found = dict[str, Waterfall]()

    def take(call: Call, measured: ServerWaterfall) -> None:
        found[str(call.subject_name)] = measured.waterfall

    with CallTimer(take):
        async with server.connect() as client:
            holding = asyncio.create_task(call_quietly(client, "hold"))
            assert await asyncio.to_thread(is_held.wait, 30)
            working = asyncio.create_task(call_quietly(client, "work"))
            await until(lambda: len(list(server.composition.list_calls())) == 2)
            asyncio.get_running_loop().call_later(0.01, release.set)
            await asyncio.gather(holding, working)
    waited = stage_of(found["work"], "wait: thread")
    assert waited.depth == 1 and waited.ms >= 5


async def test_a_dependency_that_yields_has_a_set_up_and_a_tear_down_around_the_function():
    waterfall = await measure(make_server(), "find", word="a")
    set_up, needed = stage_of(waterfall, "set-up: open_database"), stage_of(waterfall, "read_settings")
    function, tear_down = stage_of(waterfall, "find"), stage_of(waterfall, "tear-down: open_database")
    assert set_up.kind == needed.kind == tear_down.kind == "dependency"
    assert set_up.depth == function.depth == tear_down.depth == needed.depth - 1
    assert set_up.start <= needed.start and needed.start + needed.ms <= set_up.start + set_up.ms + 0.001
    assert set_up.start + set_up.ms <= function.start + 0.001
    assert function.start + function.ms <= tear_down.start + 0.001


async def test_a_blocking_dependency_is_measured_in_its_thread():
    waterfall = await measure(make_server(), "scan", word="a")
    order = ("arguments", "set-up: open_file", "scan", "tear-down: open_file", "packing the result")
    assert [each for each in titles(waterfall) if each in order] == list(order)


@pytest.mark.parametrize(
    ("tool", "arguments", "stage"),
    [
        ("add", {"a": "x"}, "arguments"),
        ("fail", {}, "fail"),
        ("fail_with_file", {}, "fail_with_file"),
        ("lack", {}, "refuse"),
        ("hang", {}, "hang"),
        ("lie", {}, "packing the result"),
        ("nothing", {}, "finding the tool"),
    ],
)
async def test_only_the_stage_in_which_a_call_fails_is_marked(tool: str, arguments: dict[str, Any], stage: str):
    assert failed(await measure(make_server(), tool, **arguments)) == [stage]


async def test_a_call_that_rights_refuse_fails_there_and_runs_no_function():
    class Refusing(Extension):
        name = "refusing"

        def stages(self) -> Stages:
            return Stages(admit=self.refuse)

        def refuse(self, call: Call, item: Any) -> None:
            raise NotPermitted("this key may not call it")

    server = make_server()
    server.extend(Refusing())
    waterfall = await measure(server, "add", a=1)
    assert failed(waterfall) == ["rights"]
    assert not {"arguments", "add", "packing the result"} & set(titles(waterfall))


async def test_middleware_surrounds_what_it_calls():
    server = make_server()

    @server.around("tools/call")
    async def count_calls(call: Call, params: Any, next: Any) -> Any:
        return await next(call, params)

    assert count_calls
    waterfall = await measure(server, "add", a=1)
    outer, inner = stage_of(waterfall, "middleware count_calls"), stage_of(waterfall, "add")
    assert (outer.kind, outer.depth, inner.depth) == ("around", 0, 1)
    assert outer.start <= inner.start and inner.start + inner.ms <= outer.start + outer.ms + 0.001


async def test_a_call_that_finds_no_room_shows_its_wait():
    server, begun, release = Server("busy", "1", limits=Limits(in_flight=1)), asyncio.Event(), asyncio.Event()

    @server.tool
    async def hold() -> None:
        begun.set()
        await release.wait()

    @server.tool
    async def quick() -> None: ...

    assert hold and quick
    found = dict[str, Waterfall]()

    def take(call: Call, measured: ServerWaterfall) -> None:
        found[str(call.subject_name)] = measured.waterfall

    with CallTimer(take):
        async with server.connect() as client:
            holding = asyncio.create_task(client.call("hold"))
            await begun.wait()
            waiting = asyncio.create_task(client.call("quick"))
            await until(lambda: server.composition.queued == 1)
            asyncio.get_running_loop().call_later(0.01, release.set)
            await asyncio.gather(holding, waiting)
    waited = stage_of(found["quick"], "wait: room in the queue")
    assert (waited.kind, waited.depth) == ("wait", 0) and waited.ms >= 5


async def test_a_question_to_the_client_is_a_wait_inside_of_the_function():
    server = Server("asking", "1")

    @server.tool
    async def book(ctx: Context) -> str:
        return str(await ctx.ask("Really?", bool))

    assert book
    found = list[Waterfall]()
    answers = Answers(ask=lambda message, schema: {"value": True})
    with CallTimer(lambda call, measured: found.append(measured.waterfall)):
        async with server.connect("handshake", answers=answers) as client:
            await call_quietly(client, "book")
    assert stage_of(found[-1], "wait: answer of the client").depth == 1
    assert failed(found[-1]) == []


async def test_tools_that_run_at_the_same_time_inside_of_a_call_overlap():
    server, both = Server("parallel", "1"), asyncio.Barrier(2)

    @server.tool
    async def meet() -> None:
        await both.wait()

    @server.around("tools/call")
    async def twice(call: Call, params: Any, next: Any) -> Any:
        if call.outer is not None:
            return await next(call, params)
        await asyncio.gather(call_tool(call, "meet", {}), call_tool(call, "meet", {}))
        return {"content": []}

    assert meet and twice
    waterfall = await measure(server, "meet")
    first, second = (stage for stage in waterfall.stages if stage.title == "tool meet")
    assert first.depth == second.depth
    assert second.start < first.start + first.ms


async def test_a_call_of_very_many_stages_is_bounded_and_says_what_it_left_out():
    server = Server("many", "1")

    @server.tool
    async def small() -> None: ...

    @server.around("tools/call")
    async def often(call: Call, params: Any, next: Any) -> Any:
        if call.outer is None:
            for _ in range(100):
                await call_tool(call, "small", {})
        return await next(call, params)

    assert small and often
    waterfall = await measure(server, "small")
    assert len(waterfall.stages) <= MAX_STAGES and waterfall.left_out > 100
    assert parse_waterfall(json.loads(json.dumps(waterfall.to_wire()))).left_out == waterfall.left_out


async def test_a_timer_leaves_everything_as_it_was():
    before = [vars(owner)[name] for owner, name, _ in PROBES]
    await measure(make_server(), "add", a=1)
    assert [vars(owner)[name] for owner, name, _ in PROBES] == before


async def test_calls_of_other_methods_are_not_measured():
    found = list[Any]()
    with CallTimer(lambda call, measured: found.append(call.method)):
        async with make_server().connect() as client:
            await client.tools()
    assert found == []


def test_a_server_that_is_not_inspected_never_loads_the_timer():
    code = (
        "import asyncio, sys\nfrom defserve import Server\nserver = Server('x', '1')\n"
        "@server.tool\nasync def add(a: int) -> int:\n    return a\n"
        "async def main():\n    async with server.connect() as client:\n        await client.call('add', a=1)\n"
        "asyncio.run(main())\nprint([name for name in sys.modules if 'inspector' in name or 'call_timing' in name])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"
