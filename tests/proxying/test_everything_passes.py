"""What a client of a mounted server can do, in every pair of eras: all that it could do with the server itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from defserve import Remote, Server, ToolError
from defserve.client import Answers, Client
from defserve.errors import PeerError
from tests.at_address import at_address
from tests.effort import slow
from tests.proxying.backends import ERAS, child, until_fact, until_listed
from tests.proxying.everything import everything
from tests.waiting import until

pytestmark = pytest.mark.anyio


CARRIERS = ("pipe", "http")
# Every pair of eras, over one carrier each.
PAIRS = [
    (front, back, carrier) if ((front == back) == (carrier == "http")) else slow((front, back, carrier))
    for front in ERAS
    for back in ERAS
    for carrier in CARRIERS
]


class Joined:
    """A client of a server that mounts one with everything, and what the client has heard so far."""

    client: Client

    def __init__(self, front: str, back: str, carrier: str) -> None:
        self.front, self.back, self.carrier = front, back, carrier
        self.logs: list[dict[str, Any]] = []
        self.steps: list[tuple[float, float | None, str | None]] = []
        self.heard: list[Any] = []
        self.asked: list[str] = []

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncGenerator[Client]:
        server = Server("front", "1")
        async with AsyncExitStack() as stack:
            if self.carrier == "pipe":
                server.mount(child(version=self.back), prefix="e")
            else:
                url = await stack.enter_async_context(at_address(everything()))
                server.mount(Remote(url, version=self.back), prefix="e")
            yield await stack.enter_async_context(server.connect(self.front, **options))

    def ask(self, message: str, schema: Any) -> Any:
        self.asked.append(message)
        return {"value": 5} if "size" in message else {"value": "red"}

    def progressed(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append((progress, total, message))

    def hear(self, method: str, params: dict[str, Any]) -> None:
        self.heard.append((method, params.get("uri")))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
async def joined(request: pytest.FixtureRequest) -> AsyncGenerator[Joined]:
    """Each pair of eras, over a pipe and over HTTP. The tests share one client: starting processes takes long."""
    joined = Joined(*request.param)
    answers = Answers(ask=joined.ask, sample=lambda params: "word", roots=["file:///home/a"])
    handlers: dict[str, Any] = {"on_log": joined.logs.append, "on_progress": joined.progressed}
    async with joined.open(answers=answers, log_level="debug", on_notification=joined.hear, **handlers) as client:
        joined.client = client
        await until_listed(client, "e_add")
        yield joined


async def of_backend(client: Client, fact: str) -> Any:
    return await client.call("e_fact", name=fact)


@pytest.mark.slow
async def test_all_pages_of_all_lists_are_offered_under_the_prefix(joined: Joined) -> None:
    client = joined.client
    names = [tool["name"] for tool in await client.tools()]
    assert names[:3] == ["e_add", "e_record", "e_fail"]
    assert len(names) >= 19
    assert [item["uri"] for item in await client.resources()] == ["note://e/fixed", "note://e/live"]
    assert [item["uriTemplate"] for item in await client.templates()] == ["note://e/of/{who}"]
    assert [item["name"] for item in await client.prompts()] == ["e_greet"]


@pytest.mark.slow
async def test_a_listing_keeps_its_members(joined: Joined) -> None:
    client = joined.client
    add = (await client.tools())[0]
    assert add["title"] == "Addition"
    assert add["description"] == "Add two numbers."
    assert "annotations" not in add  # it is not believed to be harmless
    assert add["_meta"]["example.org/weight"] == 3
    assert add["inputSchema"]["required"] == ["a", "b"]
    assert (await client.resources())[0]["size"] == 5


async def test_tools_are_called(joined: Joined) -> None:
    client = joined.client
    assert await client.call("e_add", a=1, b=2) == 3
    assert (await client.call_raw("e_record", {"city": "Oslo"}))["structuredContent"] == {"Oslo": 7}
    with pytest.raises(ToolError, match="this cannot be done"):
        await client.call("e_fail")
    with pytest.raises(ToolError, match="a: "):
        await client.call("e_add", a="x", b=2)


async def test_links_in_results_have_the_prefix(joined: Joined) -> None:
    client = joined.client
    link, embedded, text = (await client.call_raw("e_links"))["content"]
    assert link["uri"] == "note://e/fixed"
    assert embedded["resource"]["uri"] == "note://e/fixed"
    assert text["text"] == "bare note://fixed"
    assert await client.read_text(link["uri"]) == "fixed"


async def test_progress_and_logs_come_before_the_result(joined: Joined) -> None:
    joined.steps.clear()
    joined.logs.clear()
    assert await joined.client.call("e_count", n=3) == "counted to 3"
    assert joined.steps == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
    said = [(log["level"], log["data"]) for log in joined.logs]
    assert said == [one for i in range(3) for one in (("info", {"message": "counted", "i": i}), ("debug", "in detail"))]


@pytest.mark.slow
async def test_a_client_that_wants_few_logs_gets_few(joined: Joined) -> None:
    logs: list[Any] = []
    async with joined.open(on_log=logs.append, log_level="info") as client:
        await client.call("e_count", n=1)
        assert [log["level"] for log in logs] == ["info"]


async def test_questions_are_answered_and_the_tool_of_a_session_runs_once(joined: Joined) -> None:
    client = joined.client
    before = await of_backend(client, "runs")
    joined.asked.clear()
    assert await client.call("e_order") == "5 red"
    assert joined.asked == ["Server 'e' asks: Which size?", "Server 'e' asks: Which colour?"]
    # A stateless server runs its own functions again; in a session the call waits.
    assert await of_backend(client, "runs") - before == (1 if joined.back == "handshake" else 3)


@pytest.mark.slow
async def test_a_client_that_offers_no_answers_is_asked_nothing(joined: Joined) -> None:
    async with joined.open() as client:
        with pytest.raises(Exception, match="elicitation"):
            await client.call("e_order")


async def test_models_and_roots_are_those_of_the_client(joined: Joined) -> None:
    assert await joined.client.call("e_write") == "word"
    assert await joined.client.call("e_folders") == ["file:///home/a"]


async def test_resources_and_templates_are_read(joined: Joined) -> None:
    client = joined.client
    [content] = await client.read("note://e/fixed")
    assert (content["uri"], content["text"], content["mimeType"]) == ("note://e/fixed", "fixed", "text/plain")
    assert await client.read_text("note://e/of/Ann") == "note of Ann"
    assert await client.read_text("note://e/unlisted") == "read all the same"
    with pytest.raises(Exception, match="not found"):
        await client.read("note://e/nothing")


async def test_prompts_and_completions(joined: Joined) -> None:
    client = joined.client
    prompt = await client.prompt("e_greet", name="Ann", tone="dry")
    assert prompt["messages"][0]["content"]["text"] == "a dry hello to Ann"
    assert (await client.complete("e_greet", argument="name", value="An"))["values"] == ["Ann", "Anton"]
    assert (await client.complete("e_greet", argument="tone", value=""))["values"] == ["warm", "dry"]
    assert (await client.complete("note://e/of/{who}", argument="who", value="B"))["values"] == ["B!"]


async def test_updates_of_a_resource_reach_its_subscriber(joined: Joined) -> None:
    client = joined.client
    await client.subscribe("note://e/live")
    await client.call("e_change", text="second")
    await until(lambda: ("notifications/resources/updated", "note://e/live") in joined.heard)
    assert await client.read_text("note://e/live") == "second"
    await client.unsubscribe("note://e/live")


async def test_a_new_tool_is_announced_and_works(joined: Joined) -> None:
    client = joined.client
    async with client.listen(tools=True) as changes:
        await client.call("e_grow", name="new")
        await anext(aiter(changes))
        await until_listed(client, "e_new")
    assert await client.call("e_new") == "grown"


async def test_a_cancelled_call_is_cancelled_in_the_backend(joined: Joined) -> None:
    client = joined.client
    call = asyncio.create_task(client.call("e_wait"))
    await until_fact(client, "waiting")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until_fact(client, "stopped")


async def test_what_a_request_carries_in_meta_arrives(joined: Joined) -> None:
    client = joined.client
    result = await client.call_raw("e_meta", meta={"example.org/mark": [1, None]})
    assert result["structuredContent"]["example.org/mark"] == [1, None]


async def test_a_resource_that_is_not_found_is_not_found_in_the_words_of_the_front(joined: Joined) -> None:
    with pytest.raises(PeerError) as refused:
        await joined.client.read("note://e/nothing/like/this")
    assert refused.value.code == (-32602 if joined.front == "stateless" else -32002)
