from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Context, Server, ToolError
from defserve.client import Answers, Client, tasks
from defserve.client.tasks import ServerTask, get_poll_seconds
from defserve.errors import PeerError, ProtocolError
from defserve.serve.lifespans import connect_in_memory
from defserve.testing import SyncClient
from tests.client.pretend import STATELESS, Fail, PretendServer
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])


def shop() -> tuple[Server, asyncio.Event]:
    server, go_on = Server("s", "1"), asyncio.Event()

    @server.tool(task="required", poll=0.02)
    async def wait(ctx: Context) -> dict[str, int]:
        ctx.progress(1, 2, "half")
        await go_on.wait()
        return {"a": 1}

    @server.tool(task="required", poll=0.02)
    async def fail(how: str) -> str:
        raise ToolError("for the model") if how == "tool" else ProtocolError("broken", code=-32005, data={"b": 2})

    @server.tool(task="optional", poll=0.02)
    async def three(ctx: Context) -> list[int]:
        return [await ctx.ask(f"Number {n}?", int, key=f"n{n}") for n in range(3)]

    @server.tool
    async def plain() -> int:
        return 7

    return server, go_on


@pytest.mark.req("MCP-8")
@eras
async def test_a_started_call_is_asked_for_and_gives_its_value(version: str):
    server, go_on = shop()
    async with server.connect(version) as client:
        task = await client.start("wait")
        assert task.status == "working"
        assert await task.refresh() == "working"
        go_on.set()
        assert await task.result() == {"a": 1}
        assert (task.status, await task.refresh()) == ("completed", "completed")
        assert (await task.result_raw())["structuredContent"] == {"a": 1}


async def test_a_task_tells_how_far_it_is():
    server, go_on = shop()
    async with server.connect("2026-07-28") as client:
        task = await client.start("wait")
        async with asyncio.timeout(30):
            while task.message != "half":
                await task.refresh()
        go_on.set()


async def test_a_task_is_heard_of_and_found_again_by_its_id():
    server, go_on = shop()
    async with server.connect("2026-07-28") as client:
        task = await client.start_raw("wait", {}, timeout=20)
        assert isinstance(task, ServerTask) and task.id and task.pause == 0.02
        again = await client.task(task.id, "wait")
        async with client.listen(tasks=(task.id, "unknown")) as news:
            assert news.honoured["taskIds"] == [task.id]
            go_on.set()
            async for each in news:
                task.apply_status(each.params)
                if task.is_over:
                    break
        assert task.told["result"]["structuredContent"] == {"a": 1} == await again.result()
        task.apply_status({"status": "working"})
        assert task.status == "completed", "what is over stays so"
        with pytest.raises(PeerError):
            await client.task("unknown")


@for_each_row("wanted, seconds", [(10**400, 1), (float("nan"), 1), ("1", 1), (10**9, 60), (-1, 0.02), (250, 0.25)])
def test_a_server_may_wish_for_any_pause(wanted: Any, seconds: float):
    assert get_poll_seconds({"pollIntervalMs": wanted}) == seconds


@eras
async def test_a_failure_is_raised_as_a_plain_call_would(version: str):
    async with shop()[0].connect(version) as client:
        with pytest.raises(ToolError, match="for the model"):
            await (await client.start("fail", how="tool")).result()
        task = await client.start("fail", how="protocol")
        with pytest.raises(PeerError, match="broken") as failed:
            await task.result()
        assert (failed.value.code, failed.value.data["b"], task.status) == (-32005, 2, "failed")


@eras
async def test_a_cancelled_call_has_no_result(version: str):
    async with shop()[0].connect(version) as client:
        task = await client.start("wait")
        await task.cancel()
        with pytest.raises(PeerError, match="was cancelled"):
            await task.result()
        assert task.status == "cancelled"


@eras
async def test_questions_are_answered_while_the_result_is_waited_for(version: str):
    answers = iter(range(10))
    asked: list[str] = []

    def ask(message: str, schema: Any) -> dict[str, int]:
        asked.append(message)
        return {"value": next(answers)}

    async with shop()[0].connect(version, answers=Answers(ask=ask)) as client:
        assert await (await client.start("three")).result() == [0, 1, 2]
    assert asked == ["Number 0?", "Number 1?", "Number 2?"]


@eras
async def test_a_tool_that_answers_at_once_is_done(version: str):
    async with shop()[0].connect(version) as client:
        task = await client.start("plain")
        assert await task.result() == 7
        assert (task.id, task.status) == (None, "completed")
        await task.cancel()
        assert await task.result() == 7


@eras
async def test_a_plain_call_of_a_tool_that_needs_a_task_waits_for_it(version: str):
    server, go_on = shop()
    go_on.set()
    async with server.connect(version) as client:
        assert await client.call("wait") == {"a": 1}


@for_each_row(
    ("task", "said"),
    [
        ({"status": "failed", "error": "x"}, "gave no reason"),
        ({"status": "failed", "error": {"code": "x", "message": None}, "statusMessage": "why"}, "why"),
        ({"status": "cancelled", "result": 7}, "cancelled"),
        ({"status": "completed", "result": [1], "pollIntervalMs": "x"}, None),
        ({"status": "completed", "pollIntervalMs": -1}, None),
    ],
)
async def test_what_a_strange_server_tells_is_an_error_or_nothing(task: dict[str, Any], said: str | None):
    server, _ = shop()

    @server.around("tasks/get")
    async def strange(call: Any, params: Any, next: Any) -> Any:
        return {**task, "taskId": 7}

    async with connect_in_memory(server.composition) as link, Client(link, version="2026-07-28") as client:
        started = await client.start("wait")
        if said is None:
            assert await started.result_raw() == {}
        else:
            with pytest.raises(PeerError, match=said):
                await started.result()


def test_a_test_needs_no_await():
    with SyncClient(shop()[0], "stateless") as client:
        client.will_answer({"value": 1}, {"value": 2}, {"value": 3})
        task = client.start("three")
        assert task.status in ("working", "input_required") and task.id
        assert task.result() == [1, 2, 3]
        assert task.result_raw()["content"]
        task = client.start("wait")
        assert task.refresh() == "working" and task.message in ("", "half")
        task.cancel()
        with pytest.raises(PeerError, match="cancelled"):
            task.result()


async def test_an_answer_that_the_server_did_not_take_is_given_again():
    refusals = [Fail(-32603, "try again"), {}]
    question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
    waiting = {"taskId": "t", "status": "input_required", "pollIntervalMs": 1, "inputRequests": {"q": question}}
    done = {"taskId": "t", "status": "completed", "result": {"content": []}}

    def get(_: Any) -> Any:
        return waiting if refusals else done

    def update(_: Any) -> Any:
        if isinstance(reply := refusals.pop(0), Fail):
            raise reply
        return reply

    server = PretendServer({**STATELESS, "tasks/get": get, "tasks/update": update})
    async with Client(server, answers=Answers(ask=lambda *_: {"a": 1})) as client:
        task = await client.task("t", "wait")
        with pytest.raises(PeerError, match="try again"):
            await task.result()
        async with asyncio.timeout(5):
            assert await task.result() is None


async def test_a_task_in_a_session_cannot_ask_in_its_status():
    question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
    waiting = {"taskId": "t", "status": "input_required", "pollInterval": 1, "inputRequests": {"q": question}}
    told = [waiting, waiting, {"taskId": "t", "status": "completed", "result": {"content": []}}]
    server = PretendServer({"tasks/get": lambda _: told.pop(0)})
    asked: list[str] = []
    async with Client(server, version="2025-11-25", answers=Answers(ask=lambda m, s: asked.append(m) or {})) as client:
        task = await client.task("t", "wait")
        assert "inputRequests" not in task.told
        async with asyncio.timeout(10):
            assert await task.result() is None
    assert not asked and not server.asked("tasks/update")


async def test_a_task_that_never_stops_asking_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "MAX_TASK_QUESTIONS", 20)
    asked: list[str] = []

    def get(_: Any) -> Any:
        questions = {f"q{len(asked)} {n}": {"method": "elicitation/create", "params": {}} for n in range(8)}
        return {"taskId": "t", "status": "input_required", "pollIntervalMs": 1, "inputRequests": questions}

    server = PretendServer({**STATELESS, "tasks/get": get, "tasks/update": {}})
    async with Client(server, answers=Answers(ask=lambda m, s: asked.append(m) or {})) as client:
        task = await client.task("t", "wait")
        async with asyncio.timeout(10):
            with pytest.raises(PeerError, match="the task of wait still asks after 16 questions"):
                await task.result()
    assert len(asked) == 16


@for_each_row(
    ("created", "told"),
    [
        ({"taskId": "t", "status": "zombie"}, "the task of wait has a status that no task can have: 'zombie'"),
        ({"taskId": "t"}, "no task can have: 'None'"),
        ({"status": "working"}, "made a task of wait, and gave it no taskId"),
        ({"taskId": {}, "status": "working"}, "gave it no taskId"),
    ],
)
async def test_a_task_that_is_none_is_told_at_once(created: dict[str, Any], told: str):
    server = PretendServer({**STATELESS, "tools/call": {"resultType": "task", **created}})
    async with Client(server) as client, asyncio.timeout(10):
        with pytest.raises(PeerError, match=told):
            await (await client.start("wait")).result()
