from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from defserve import Context, Limits, Server, UsageError, dangerous
from tests.protocols.mcp.tasks.peers import ASKABLE, EXTENSION, TAKES, YES, asks, becomes, ended, get, shop
from tests.raw import HANDSHAKE, STATELESS, Raw, raw, text_of, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
UNKNOWN = "A" * 32


def job() -> str:
    return "x"


async def error(peer: Raw, method: str, **params: Any) -> tuple[int, str]:
    reply = await peer.ask(method, params)
    return reply["error"]["code"], reply["error"]["message"]


# -- the gate


@pytest.mark.req("MCP-8")
@for_each_row("capabilities", [{}, {"extensions": {}}, {"extensions": {EXTENSION: None}}, {"tasks": {}}])
@for_each_row("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_who_did_not_declare_tasks_is_told_so_before_the_id_is_looked_up(method: str, capabilities: Any):
    server, job = shop()
    async with raw(server, capabilities=TAKES) as peer:
        known = (await peer.call("wait"))["taskId"]
        peer.capabilities = capabilities
        for id in (known, UNKNOWN, 7, None):
            reply = await peer.ask(method, {"taskId": id, "inputResponses": {}})
            assert reply["error"]["code"] == -32021
            assert reply["error"]["data"]["requiredCapabilities"] == {"extensions": {EXTENSION: {}}}
        job.go_on.set()


async def test_each_request_declares_for_itself():
    server, job = shop()
    job.go_on.set()
    async with raw(server, capabilities=TAKES) as peer:
        assert "taskId" in await peer.call("wait")
        peer.capabilities = {}
        assert text_of(await peer.call("wait")) == "x done"
        assert await error(peer, "tools/call", name="fail", arguments={"how": "error"}) == (
            -32021,
            "fail runs only as a task: the client must take tasks",
        )


async def test_tasks_are_advertised_without_a_session_only():
    server, _ = shop()
    async with raw(server) as peer:
        assert peer.opening["capabilities"]["extensions"] == {EXTENSION: {}}
        assert "tasks" not in peer.opening["capabilities"]
    async with raw(server, HANDSHAKE[-1], TAKES) as peer:
        assert "extensions" not in peer.opening["capabilities"]
        assert (await error(peer, "tasks/get", taskId=UNKNOWN))[0] == -32601


@for_each_row("method", ["tasks/list", "tasks/result"])
async def test_methods_of_the_experiment_before_do_not_exist(method: str):
    async with raw(shop()[0], capabilities=TAKES) as peer:
        assert (await error(peer, method, taskId=UNKNOWN))[0] == -32601


async def test_a_server_without_task_tools_has_no_tasks():
    server = Server("s", "1")
    server.add_tool(job)
    async with raw(server, capabilities=TAKES) as peer:
        assert "extensions" not in peer.opening["capabilities"]
        assert (await error(peer, "tasks/get", taskId=UNKNOWN))[0] == -32601


# -- creation


@pytest.mark.req("MCP-8")
async def test_a_creation_is_flat_and_the_task_is_there_at_once():
    server, job = shop(ttl=120, poll=2)
    async with raw(server, capabilities=TAKES) as peer:
        made = await peer.call("wait", task={"ttl": 1})
        assert made["resultType"] == "task" and made["status"] == "working"
        assert ISO.fullmatch(made["createdAt"]) and ISO.fullmatch(made["lastUpdatedAt"])
        assert (made["ttlMs"], made["pollIntervalMs"]) == (120_000, 2_000)
        assert not made.keys() & {"task", "result", "error", "inputRequests", "requestState", "content"}
        task = await get(peer, made["taskId"])
        assert task["resultType"] == "complete"
        shared = made.keys() - {"resultType", "_meta"}
        assert {name: task[name] for name in shared} == {name: made[name] for name in shared}
        job.go_on.set()
        task = await ended(peer, made["taskId"])
        assert (task["status"], text_of(task["result"])) == ("completed", "x done")
        assert "error" not in task


async def test_ids_cannot_be_guessed_and_none_comes_twice():
    server, job = shop()
    job.go_on.set()
    async with raw(server, capabilities=TAKES) as peer:
        ids = {(await peer.call("wait"))["taskId"] for _ in range(20)}
        assert len(ids) == 20 and all(len(id) == 32 for id in ids)


async def test_what_could_not_begin_is_answered_at_once():
    server, job = shop()
    async with raw(server, capabilities=TAKES) as peer:
        assert (await peer.call("wait", {"name": 1}))["isError"] is True
        assert await error(peer, "tools/call", name="nothing") == (-32602, "Unknown tool: nothing")
        assert text_of(await peer.call("plain")) == "plain"
    assert job.began == []


@for_each_row("version", HANDSHAKE)
async def test_in_a_session_a_task_tool_is_a_plain_call_with_progress(version: str):
    server = Server("s", "1")

    @server.tool(task="required")
    async def count(ctx: Context) -> str:
        for _ in ctx.track([1, 2]):
            pass
        return str(ctx.task)

    async with raw(server, version, TAKES) as peer:
        assert text_of(await peer.call("count", _meta={"progressToken": 1})) == "None"
        assert [message["params"]["progress"] for message in await peer.news()] == [1, 2]


async def test_a_task_sends_no_progress_and_no_logs_but_a_status_message():
    server = Server("s", "1")

    @server.tool(task="optional")
    async def count(ctx: Context) -> str:
        assert ctx.task is not None and len(ctx.task.id) == 32
        ctx.log.error("oh")
        for _ in ctx.track([1, 2]):
            pass
        return (await ctx.ask("Name?", str)) and "done"

    async with raw(server, capabilities=ASKABLE) as peer:
        meta = {"progressToken": 1, "io.modelcontextprotocol/logLevel": "debug"}
        id = (await peer.call("count", _meta=meta))["taskId"]
        task = await becomes(peer, id, lambda task: task.get("statusMessage") == "2 of 2")
        assert "inputRequests" in await becomes(peer, id, lambda task: task["status"] == "input_required")
        assert task["status"] in ("working", "input_required")
        assert await peer.news() == []


@for_each_row(
    ("how", "status", "member", "said"),
    [
        ("error", "completed", "result", "for the model"),
        ("masked", "completed", "result", "internal error"),
        ("protocol", "failed", "error", "not for the model"),
    ],
)
async def test_only_what_is_an_error_on_the_wire_fails_a_task(how: str, status: str, member: str, said: str):
    async with raw(shop()[0], capabilities=TAKES) as peer:
        task = await ended(peer, (await peer.call("fail", {"how": how}))["taskId"])
        assert task["status"] == status
        assert ("result" in task, "error" in task) == (member == "result", member == "error")
        if member == "error":
            assert (task["error"]["code"], task["error"]["message"]) == (-32005, said)
            assert task["statusMessage"] == said and task["error"]["data"]["a"] == 1
        else:
            assert task["result"]["isError"] is True and said in text_of(task["result"])
            assert "secret" not in text_of(task["result"])


# -- questions


@pytest.mark.req("MCP-8")
async def test_questions_are_answered_one_by_one_and_each_once():
    async with raw(shop()[0], capabilities=ASKABLE) as peer:
        id = (await peer.call("sure"))["taskId"]
        task = await asks(peer, id, "a", "b")
        assert task["status"] == "input_required"
        assert task["inputRequests"]["a"]["method"] == "elicitation/create"
        assert set(task["inputRequests"]["a"]) == {"method", "params"}
        reply = await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"a": YES, "z": {"ignored": True}}})
        assert reply["result"].keys() == {"resultType", "_meta"} and reply["result"]["resultType"] == "complete"
        task = await get(peer, id)
        assert (task["status"], set(task["inputRequests"])) == ("input_required", {"b"})
        # An answer to an answered question is ignored, whatever it looks like.
        for late in (7, {"action": "decline"}):
            assert "result" in await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"a": late}})
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"b": YES}})
        assert (await get(peer, id))["status"] != "input_required"
        assert text_of((await ended(peer, id))["result"]) == "True True"
        assert "result" in await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"b": YES}})


@for_each_row("answer", [7, None, {}, {"action": "maybe"}, {"action": "accept", "content": 7}, [YES]])
async def test_an_answer_of_the_wrong_form_is_refused_and_loses_nothing(answer: Any):
    async with raw(shop()[0], capabilities=ASKABLE) as peer:
        id = (await peer.call("sure"))["taskId"]
        await asks(peer, id, "a", "b")
        code, said = await error(peer, "tasks/update", taskId=id, inputResponses={"b": YES, "a": answer})
        assert code == -32602 and "'a'" in said
        assert set((await get(peer, id))["inputRequests"]) == {"a", "b"}
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"a": YES, "b": YES}})
        assert (await ended(peer, id))["status"] == "completed"


@for_each_row("given", [None, 7, [], "x"])
async def test_an_update_without_answers_is_refused(given: Any):
    server, job = shop()
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait"))["taskId"]
        assert (await error(peer, "tasks/update", taskId=id, inputResponses=given))[0] == -32602
        job.go_on.set()


async def test_a_question_nobody_waits_for_is_withdrawn():
    server = Server("s", "1")

    @server.tool(task="optional")
    async def either(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.ask("Name?", str, key="name"), ctx.ask("Age?", int, key="age"))
        except Exception as error:
            return f"{type(error).__name__}, then {await ctx.ask('Why?', str, key='why')}"
        return "both"

    async with raw(server, capabilities=ASKABLE) as peer:
        id = (await peer.call("either"))["taskId"]
        await asks(peer, id, "name", "age")
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"name": {"action": "decline"}}})
        await asks(peer, id, "why")
        answer = {"action": "accept", "content": {"value": "shy"}}
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"why": answer, "age": answer}})
        assert text_of((await ended(peer, id))["result"]) == "Declined, then shy"


async def test_a_task_that_asks_a_client_that_cannot_answer_fails():
    async with raw(shop()[0], capabilities=TAKES) as peer:
        task = await ended(peer, (await peer.call("sure"))["taskId"])
        assert (task["status"], task["error"]["code"]) == ("failed", -32021)


async def test_what_is_asked_before_a_task_begins_belongs_to_the_call():
    server = Server("s", "1")

    @server.tool(task="required", begin="later")
    async def travel(ctx: Context) -> str:
        city = await ctx.ask("Where?", str, key="city")
        if ctx.task is not None:
            await ctx.task.begin()
        return f"{city} by {await ctx.ask('How?', str, key='how')}"

    async with raw(server, capabilities=ASKABLE) as peer:
        first = await peer.call("travel")
        assert first["resultType"] == "input_required" and "taskId" not in first
        answer = {"city": {"action": "accept", "content": {"value": "Ulm"}}}
        made = await peer.call("travel", inputResponses=answer, requestState=first["requestState"])
        assert made["resultType"] == "task" and not made.keys() & {"requestState", "inputRequests"}
        assert set((await asks(peer, made["taskId"], "how"))["inputRequests"]) == {"how"}
        answer = {"how": {"action": "accept", "content": {"value": "train"}}}
        await peer.ask("tasks/update", {"taskId": made["taskId"], "inputResponses": answer})
        assert text_of((await ended(peer, made["taskId"]))["result"]) == "Ulm by train"


async def test_a_confirmation_comes_before_the_task_and_a_no_makes_none():
    server, wiped = Server("s", "1"), list[int]()

    @server.tool(task="required")
    @dangerous
    async def wipe() -> str:
        wiped.append(1)
        return "wiped"

    async with raw(server, capabilities=ASKABLE) as peer:
        for answer in (False, True):
            first = await peer.call("wipe")
            assert first["resultType"] == "input_required"
            (key,) = first["inputRequests"]
            said = {key: {"action": "accept", "content": {"value": answer}}}
            made = await peer.call("wipe", inputResponses=said, requestState=first["requestState"])
            assert ("taskId" in made, made.get("isError", False)) == (answer, not answer)
        assert text_of((await ended(peer, made["taskId"]))["result"]) == "wiped"
    assert wiped == [1]


async def test_a_function_that_never_begins_its_task_is_a_plain_call():
    server = Server("s", "1")

    @server.tool(task="optional", begin="later")
    async def quick(ctx: Context) -> str:
        return f"{ctx.task.id}!" if ctx.task is not None else ""

    async with raw(server, capabilities=TAKES) as peer:
        assert text_of(await peer.call("quick")) == "!"


# -- cancelling


@pytest.mark.req("MCP-8")
async def test_cancelling_stops_the_function_and_is_acknowledged_again_and_again():
    server, job = shop()
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait"))["taskId"]
        for _ in range(2):
            reply = await peer.ask("tasks/cancel", {"taskId": id})
            assert reply["result"].keys() == {"resultType", "_meta"}
            task = await get(peer, id)
            assert task["status"] == "cancelled" and not task.keys() & {"result", "error"}
        await until(lambda: job.undone == ["x"])
        job.go_on.set()
        assert (await get(peer, id))["status"] == "cancelled"


async def test_cancelling_a_finished_task_changes_nothing():
    server, job = shop()
    job.go_on.set()
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait"))["taskId"]
        before = await ended(peer, id)
        assert (await peer.ask("tasks/cancel", {"taskId": id}))["result"]["resultType"] == "complete"
        assert await get(peer, id) == before


async def test_a_call_that_is_cancelled_before_its_task_began_is_over():
    server = Server("s", "1")
    began: list[str] = []

    @server.tool(task="required", begin="later")
    async def later() -> str:
        began.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            began.append("over")
        return ""

    async with raw(server, capabilities=TAKES) as peer:
        id = await peer.begin("tools/call", {"name": "later"})
        await until(lambda: began == ["began"])
        await peer.tell("notifications/cancelled", {"requestId": id}, dressed=True)
        await until(lambda: began == ["began", "over"])


# -- ids


@for_each_row("id", ["", "x", UNKNOWN, "../" * 11, UNKNOWN + "\n", "é" * 32, "x" * 100_000, f"account:{'a' * 24}"])
@for_each_row("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_an_unknown_id_is_a_wrong_parameter(method: str, id: str):
    async with raw(shop()[0], capabilities=TAKES) as peer:
        reply = await peer.ask(method, {"taskId": id, "inputResponses": {}})
        assert reply["error"]["code"] == -32602
        assert len(reply["error"]["message"]) < 100


@for_each_row("id", [None, 7, [], {}])
async def test_an_id_that_is_no_text_is_refused(id: Any):
    async with raw(shop()[0], capabilities=TAKES) as peer:
        assert await error(peer, "tasks/get", taskId=id) == (-32602, "Invalid params: taskId must be a string")


# -- how long


async def test_a_task_is_gone_and_stopped_when_its_time_is_over():
    server, job = shop(ttl=0.3)
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait"))["taskId"]
        await until(lambda: job.undone == ["x"])
        assert (await error(peer, "tasks/get", taskId=id))[0] == -32602


async def test_a_task_may_take_longer_than_a_plain_call_and_no_longer_than_its_timeout():
    limits = Limits(tool=0.05)
    server, job = shop(limits=limits)

    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait"))["taskId"]
        await asyncio.sleep(0.15)
        assert (await get(peer, id))["status"] == "working"
        job.go_on.set()
        assert (await ended(peer, id))["status"] == "completed"
    server, job = shop(limits=limits, timeout=0.05)
    async with raw(server, capabilities=TAKES) as peer:
        task = await ended(peer, (await peer.call("wait"))["taskId"])
        assert task["result"]["isError"] is True and "timed out" in text_of(task["result"])


# -- declaring


@for_each_row(
    ("options", "said"),
    [
        ({"task": "maybe"}, "task='maybe'"),
        ({"ttl": 5}, "is no task"),
        ({"ttl": 0}, "is no task"),
        ({"task": "optional", "ttl": 0}, "ttl=0"),
        ({"retry": 1}, "is no task"),
        ({"begin": "later"}, "is no task"),
        ({"task": "optional", "ttl": -1}, "ttl=-1"),
        ({"task": "optional", "ttl": 1e9}, "ttl=1000000000.0"),
        ({"task": "optional", "ttl": float("nan")}, "ttl=nan"),
        ({"task": "optional", "poll": 0.0001}, "poll=0.0001"),
        ({"task": "optional", "retry": -1}, "retry=-1"),
        ({"task": "optional", "retry": True}, "retry=True"),
        ({"task": "optional", "begin": "never"}, "begin='never'"),
    ],
)
def test_options_that_cannot_work_are_refused_when_they_are_declared(options: Any, said: str):
    server = Server("s", "1")
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        server.tool(**options)(job)
    assert "test_section.py" in str(refused.value) and "fix:" in str(refused.value)


async def test_the_first_task_tool_cannot_come_while_serving():
    server = Server("s", "1")

    server.add_tool(job, name="before")
    async with raw(server, capabilities=TAKES):
        with pytest.raises(UsageError, match="first task"):
            server.add_tool(job, task="optional")


async def test_more_task_tools_may_come_while_serving():
    server, _ = shop()
    async with raw(server, capabilities=TAKES) as peer:
        server.add_tool(job, task="optional")
        task = await ended(peer, (await peer.call("job"))["taskId"])
        assert text_of(task["result"]) == "x"


@for_each_row("is_served_itself", [False, True])
async def test_task_tools_of_a_mounted_server_run_as_tasks(is_served_itself: bool):
    child, job = shop()
    job.go_on.set()
    if is_served_itself:
        async with raw(child, capabilities=TAKES) as peer:
            await ended(peer, (await peer.call("wait"))["taskId"])
    server = Server("s", "1")
    server.mount(child, prefix="shop")
    async with raw(server, capabilities=TAKES) as peer:
        task = await ended(peer, (await peer.call("shop_wait"))["taskId"])
        assert text_of(task["result"]) == "x done"


async def test_a_list_shows_task_tools_like_any_other():
    async with raw(shop()[0], STATELESS, TAKES) as peer:
        tools = (await peer.ask("tools/list"))["result"]["tools"]
        assert {tool["name"] for tool in tools} == {"wait", "sure", "fail", "big", "plain"}
        assert all("execution" not in tool for tool in tools)
