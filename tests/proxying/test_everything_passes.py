"""What a client of a mounted server can do, in every pair of eras: all that it could do with the server itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import ToolError
from defserve.host import Answers, Client
from tests.proxying.conftest import Join, hearing, until_fact
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def of_backend(client: Client, fact: str) -> Any:
    return await client.call("e_fact", name=fact)


async def test_all_pages_of_all_lists_are_offered_under_the_prefix(join: Join) -> None:
    async with join() as client:
        names = [tool["name"] for tool in await client.tools()]
        assert names[:3] == ["e_add", "e_record", "e_fail"]
        assert len(names) == 19
        assert [item["uri"] for item in await client.resources()] == ["note://e/fixed", "note://e/live"]
        assert [item["uriTemplate"] for item in await client.templates()] == ["note://e/of/{who}"]
        assert [item["name"] for item in await client.prompts()] == ["e_greet"]


async def test_a_listing_keeps_its_members(join: Join) -> None:
    async with join() as client:
        add = (await client.tools())[0]
        assert add["title"] == "Addition"
        assert add["description"] == "Add two numbers."
        assert add["annotations"] == {"readOnlyHint": True}
        assert add["_meta"]["example.org/weight"] == 3
        assert add["inputSchema"]["required"] == ["a", "b"]
        assert (await client.resources())[0]["size"] == 5


async def test_tools_are_called(join: Join) -> None:
    async with join() as client:
        assert await client.call("e_add", a=1, b=2) == 3
        assert (await client.call_raw("e_record", {"city": "Oslo"}))["structuredContent"] == {"Oslo": 7}
        with pytest.raises(ToolError, match="this cannot be done"):
            await client.call("e_fail")
        with pytest.raises(ToolError, match="a: "):
            await client.call("e_add", a="x", b=2)


async def test_links_in_results_have_the_prefix(join: Join) -> None:
    async with join() as client:
        link, embedded, text = (await client.call_raw("e_links"))["content"]
        assert link["uri"] == "note://e/fixed"
        assert embedded["resource"]["uri"] == "note://e/fixed"
        assert text["text"] == "bare note://fixed"
        assert await client.read_text(link["uri"]) == "fixed"


async def test_progress_and_logs_come_before_the_result(join: Join) -> None:
    steps: list[Any] = []
    logs: list[Any] = []

    def noted(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with join(on_log=logs.append, on_progress=noted) as client:
        assert await client.call("e_count", n=3) == "counted to 3"
        assert steps == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        assert [log["data"] for log in logs] == [{"message": "counted", "i": i} for i in range(3)]


async def test_a_lower_log_level_reaches_the_backend(join: Join) -> None:
    logs: list[Any] = []
    async with join(on_log=logs.append, log_level="debug") as client:
        await client.call("e_count", n=1)
        assert [log["level"] for log in logs] == ["info", "debug"]


async def test_questions_are_answered_and_the_tool_of_a_session_runs_once(join: Join) -> None:
    asked: list[str] = []

    def ask(message: str, schema: Any) -> Any:
        asked.append(message)
        return {"value": 5} if "size" in message else {"value": "red"}

    async with join(answers=Answers(ask=ask)) as client:
        assert await client.call("e_order") == "5 red"
        assert asked == ["Which size?", "Which colour?"]
        # A stateless server runs its own functions again; in a session the call waits.
        assert await of_backend(client, "runs") == (1 if join.back == "handshake" else 3)


async def test_a_client_that_offers_no_answers_is_asked_nothing(join: Join) -> None:
    async with join() as client:
        result = client.call("e_order")
        with pytest.raises(Exception, match=r"elicitation"):
            await result


async def test_models_and_roots_are_those_of_the_client(join: Join) -> None:
    answers = Answers(sample=lambda params: "word", roots=["file:///home/a"])
    async with join(answers=answers) as client:
        assert await client.call("e_write") == "word"
        assert await client.call("e_folders") == ["file:///home/a"]


async def test_resources_and_templates_are_read(join: Join) -> None:
    async with join() as client:
        [content] = await client.read("note://e/fixed")
        assert (content["uri"], content["text"], content["mimeType"]) == ("note://e/fixed", "fixed", "text/plain")
        assert await client.read_text("note://e/of/Ann") == "note of Ann"
        with pytest.raises(Exception, match="not found"):
            await client.read("note://e/nothing")


async def test_prompts_and_completions(join: Join) -> None:
    async with join() as client:
        prompt = await client.prompt("e_greet", name="Ann", tone="dry")
        assert prompt["messages"][0]["content"]["text"] == "a dry hello to Ann"
        assert (await client.complete("e_greet", argument="name", value="An"))["values"] == ["Ann", "Anton"]
        assert (await client.complete("e_greet", argument="tone", value=""))["values"] == ["warm", "dry"]
        assert (await client.complete("note://e/of/{who}", argument="who", value="B"))["values"] == ["B!"]


async def test_updates_of_a_resource_reach_its_subscriber(join: Join) -> None:
    news: list[Any] = []
    async with join(on_notification=hearing(news, "uri")) as client:
        await client.subscribe("note://e/live")
        await client.call("e_change", text="second")
        await until(lambda: "note://e/live" in news)
        assert await client.read_text("note://e/live") == "second"
        await client.unsubscribe("note://e/live")


async def test_a_new_tool_is_announced_and_works(join: Join) -> None:
    async with join() as client, client.listen(tools=True) as changes:
        await client.call("e_grow", name="new")
        async for _ in changes:
            if "e_new" in [tool["name"] for tool in await client.tools()]:
                break
        assert await client.call("e_new") == "grown"


async def test_a_cancelled_call_is_cancelled_in_the_backend(join: Join) -> None:
    async with join() as client:
        call = asyncio.create_task(client.call("e_wait"))
        await until_fact(client, "waiting")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until_fact(client, "stopped")


async def test_what_a_request_carries_in_meta_arrives(join: Join) -> None:
    async with join() as client:
        result = await client.call_raw("e_meta", meta={"example.org/mark": [1, None]})
        assert result["structuredContent"]["example.org/mark"] == [1, None]
