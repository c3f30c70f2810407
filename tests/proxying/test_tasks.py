"""Tasks of mounted servers: whoever takes tasks gets them under an id of ours; others wait for the result."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from defserve import Command, Context, Link, Remote, Server
from defserve.auth import Auth, StaticTokens
from defserve.client import Answers, Client
from defserve.errors import PeerError
from defserve.protocols.mcp.tasks.run import TaskRunner, fail_task
from defserve.proxying.relay import await_task
from tests.at_address import at_address, fresh
from tests.protocols.mcp.tasks.peers import OVER, TAKES, YES, callers, shop
from tests.proxying.backends import ERAS, child
from tests.rows import for_each_row
from tests.waiting import DEADLINE, until

pytestmark = pytest.mark.anyio

TOKENS = StaticTokens({name: {"principal": name, "scopes": ["use"]} for name in ("alice", "bob")})
UNKNOWN = -32602


def jobs() -> Command:
    return child("../protocols/mcp/tasks/job_server.py")


def proxy(target: Command | Remote, **options: Any) -> Server:
    front = Server("front", "1", **options)
    front.mount(target, prefix="b")
    return front


async def ended(client: Client, id: str) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE):
        while (task := await client.request("tasks/get", {"taskId": id}))["status"] not in OVER:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return task


async def asks(client: Client, id: str, key: str) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE):
        while key not in (task := await client.request("tasks/get", {"taskId": id})).get("inputRequests", ()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return task


@pytest.mark.slow
async def test_the_task_of_a_child_outlives_the_request_of_a_stranger_and_its_outcome_the_child():
    front = proxy(jobs())
    async with callers(front, None) as (client,):
        created = await client.call_raw("b_wait", {"seconds": 0.3})
        assert created["resultType"] == "task"
        assert "result" not in created
        task = await ended(client, created["taskId"])
        assert task["status"] == "completed"
        assert task["result"]["content"][0]["text"] == "done"
        backend = front.mounts.backends["b"]
        await until(lambda: len(backend.conversations.pool) == 0)
        assert await ended(client, created["taskId"]) == task


async def test_ids_are_ours_and_belong_to_the_principal_that_made_the_task():
    back, job = shop()
    async with at_address(back) as url:
        front = proxy(Remote(url), auth=Auth(TOKENS, scopes=["use"]))
        async with callers(front, "alice", "bob") as (alice, bob):
            id = (await alice.call_raw("b_wait"))["taskId"]
            (kept,) = [one async for one in _kept_ids(front, id)]
            assert kept != id
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                for client, said in ((bob, id), (alice, kept), (alice, "A" * 32)):
                    with pytest.raises(PeerError) as refused:
                        await client.request(method, {"taskId": said, "inputResponses": {}})
                    assert refused.value.code == UNKNOWN
            job.go_on.set()
            assert (await ended(alice, id))["result"]["content"][0]["text"] == "x done"


async def _kept_ids(front: Server, id: str) -> AsyncGenerator[str]:
    tasks: Any = front.mounts.tasks
    record = (await tasks._runner().storage.find(id)).record
    yield record.elsewhere["task"]


async def test_a_task_is_asked_answered_and_cancelled_where_it_runs():
    back, job = shop()
    async with at_address(back) as url, callers(proxy(Remote(url)), None) as (client,):
        id = (await client.call_raw("b_sure"))["taskId"]
        for key, left in (("a", {"b"}), ("b", set[str]())):
            task = await asks(client, id, key)
            assert task["taskId"] == id
            done = await client.request("tasks/update", {"taskId": id, "inputResponses": {key: YES}})
            assert not {"taskId", "status", "result"} & done.keys()
            task = await client.request("tasks/get", {"taskId": id})
            assert task.get("inputRequests", {}).keys() == left
        assert (await ended(client, id))["result"]["content"][0]["text"] == "True True"
        id = (await client.call_raw("b_wait", {"name": "y"}))["taskId"]
        await until(lambda: job.began == ["y"])
        await client.request("tasks/cancel", {"taskId": id})
        assert (await ended(client, id))["status"] == "cancelled"
        await until(lambda: job.undone == ["y"])


async def test_errors_of_tasks_keep_their_kind():
    back, _ = shop()
    async with at_address(back) as url, callers(proxy(Remote(url)), None) as (client,):
        wrong = await ended(client, (await client.call_raw("b_fail", {"how": "error"}))["taskId"])
        assert wrong["status"] == "completed"
        assert wrong["result"]["isError"]
        broken = await ended(client, (await client.call_raw("b_fail", {"how": "protocol"}))["taskId"])
        assert broken["status"] == "failed"
        assert broken["error"]["code"] == -32005


async def test_who_declares_no_tasks_gets_plain_calls_and_the_refusal_of_those_that_cannot_be():
    back, job = shop()
    job.go_on.set()
    async with at_address(back) as url, callers(proxy(Remote(url)), None, offers={}) as (client,):
        assert (await client.call_raw("b_wait"))["content"][0]["text"] == "x done"
        with pytest.raises(PeerError) as refused:
            await client.call_raw("b_fail", {"how": "error"})
        assert refused.value.code == -32021
        assert refused.value.data["requiredCapabilities"] == TAKES
        with pytest.raises(PeerError) as refused:
            await client.request("tasks/get", {"taskId": "gate"})
        assert refused.value.code == -32021


@pytest.mark.slow
@pytest.mark.parametrize("at", ["child", "address"])
@pytest.mark.parametrize("back", ERAS)
async def test_a_session_waits_for_the_result_of_a_tool_that_is_only_a_task(back: str, at: str):
    if at == "child":
        command = jobs()
        command.version = back
        async with proxy(command).connect("handshake") as client:
            assert await client.call("b_wait", seconds=0.1) == "done"
        return
    async with at_address(fresh("tasks")) as url:
        async with proxy(Remote(url, version=back)).connect("handshake") as client:
            assert await client.call("b_bill", customer="Ada") == "invoice 1 for Ada"


async def test_a_session_is_asked_what_a_task_asks():
    back = Server("back", "1")

    @back.tool(task="required", poll=0.05)
    async def order(ctx: Context) -> str:
        return f"{await ctx.ask('Which?', str)} ordered"

    async with at_address(back) as url:
        answers = Answers(ask=lambda message, schema: {"value": "tea"})
        async with proxy(Remote(url)).connect("handshake", answers=answers) as client:
            assert await client.call("b_order") == "tea ordered"


async def test_a_session_that_cancels_cancels_the_task():
    back = Server("back", "1")
    seen: list[str] = []

    @back.tool(task="required", poll=0.05)
    async def long() -> str:
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "?"

    @back.around("tasks/get")
    async def polled(call: Any, params: Any, following: Any) -> Any:
        seen[:1] = ["polled"]
        return await following(call, params)

    async with at_address(back) as url, proxy(Remote(url)).connect("handshake") as client:
        calling = asyncio.create_task(client.call("b_long"))
        await until(lambda: seen == ["polled"])
        calling.cancel()
        await until(lambda: seen == ["polled", "cancelled"])


@pytest.mark.slow
async def test_a_task_whose_child_dies_has_failed():
    front = proxy(jobs())
    async with callers(front, None) as (client,):
        id = (await client.call_raw("b_wait", {"seconds": 60}))["taskId"]
        (channel,) = front.mounts.backends["b"].conversations.pool.list_channels()
        assert channel.pid is not None
        os.kill(channel.pid, signal.SIGKILL)
        task = await ended(client, id)
        assert task["status"] == "failed"
        assert task["error"]["code"] == -32603


async def test_a_listener_hears_of_a_task_elsewhere_until_it_is_over():
    back, job = shop()
    heard: list[Any] = []
    async with at_address(back) as url, callers(proxy(Remote(url)), None) as (client,):
        client._on_notification = lambda method, params: heard.append((method, params))  # pyright: ignore
        id = (await client.call_raw("b_wait"))["taskId"]
        listening = asyncio.create_task(
            client.request("subscriptions/listen", {"notifications": {"taskIds": [id, "A" * 32]}})
        )
        await until(lambda: len(heard) >= 2)
        assert heard[0][1]["notifications"] == {"taskIds": [id]}
        assert (heard[1][0], heard[1][1]["taskId"], heard[1][1]["status"]) == ("notifications/tasks", id, "working")
        job.go_on.set()
        await until(lambda: heard[-1][1].get("status") == "completed")
        assert heard[-1][1]["result"]["content"][0]["text"] == "x done"
        listening.cancel()


async def test_a_listener_hears_that_another_process_has_ended_a_task_elsewhere():
    back, _ = shop()
    heard: list[Any] = []
    async with at_address(back) as url:
        front = proxy(Remote(url))
        async with callers(front, None) as (client,):
            client._on_notification = lambda method, params: heard.append(params)  # pyright: ignore
            id = (await client.call_raw("b_wait"))["taskId"]
            listening = asyncio.create_task(
                client.request("subscriptions/listen", {"notifications": {"taskIds": [id]}})
            )
            await until(lambda: len(heard) >= 2)
            tasks: Any = front.mounts.tasks
            runner: TaskRunner = tasks._runner()
            await runner.storage.change(id, lambda record: fail_task(record, "it is gone"))
            await until(lambda: heard[-1].get("status") == "failed")
            listening.cancel()


@for_each_row("status", [["working"], {}, None, 5, "running"])
async def test_a_status_that_is_none_does_not_end_a_task(status: Any, monkeypatch: pytest.MonkeyPatch):
    back, job = shop()
    async with at_address(back) as url:
        front = proxy(Remote(url))
        async with callers(front, None) as (client,):
            id = (await client.call_raw("b_wait"))["taskId"]
            servers: Any = front.mounts
            ask = servers.ask_task

            async def ask_oddly(*given: Any) -> dict[str, Any]:
                return {**await ask(*given), "status": status}

            with monkeypatch.context() as odd:
                odd.setattr(servers, "ask_task", ask_oddly)
                assert (await client.request("tasks/get", {"taskId": id}))["status"] == "working"
            job.go_on.set()
            assert (await ended(client, id))["status"] == "completed"


async def test_links_in_the_result_of_a_task_have_the_prefix():
    back = Server("back", "1")

    @back.tool(task="required", poll=0.05, structured=False)
    async def report() -> Link:
        return Link("note://x", name="x")

    async with at_address(back) as url, callers(proxy(Remote(url)), None) as (client,):
        task = await ended(client, (await client.call_raw("b_report"))["taskId"])
        assert task["result"]["content"][0]["uri"] == "note://b/x"


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_that_is_only_a_task_of_the_first_generation_is_a_plain_call(era: str):
    front = proxy(child("old_tasks.py", version="2025-11-25"))
    async with front.connect(era) as client:
        (tool,) = await client.tools()
        assert "execution" not in tool
        assert await client.call("b_research", topic="tea") == "all about tea"


async def test_a_status_of_a_task_that_is_no_text_is_not_its_last():
    told: list[Any] = [{"taskId": "t1", "status": ["completed"]}, {"taskId": "t1", "status": "completed"}]

    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return told.pop(0)

    async def answer(asked: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("it asks nothing")

    created = {"taskId": "t1", "status": {}, "pollIntervalMs": 0}
    assert (await await_task(created, ask, answer))["status"] == "completed" and not told


@pytest.mark.slow
async def test_a_task_in_the_child_of_another_process_is_not_lost_while_that_process_lives(tmp_path: Path):
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    first, second = proxy(jobs(), store=store), proxy(jobs(), store=store)
    async with callers(first, None) as (maker,), callers(second, None) as (other,):
        id = (await maker.call_raw("b_wait", {"seconds": 0.5}))["taskId"]
        assert (await other.request("tasks/get", {"taskId": id}))["status"] == "working"
        assert (await ended(maker, id))["status"] == "completed"
        assert (await other.request("tasks/get", {"taskId": id}))["result"]["content"][0]["text"] == "done"
