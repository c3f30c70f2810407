"""The official client talks to the examples over stdio, in a handshake version and in 2026-07-28."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from pydantic import FileUrl

from tests.forking.spawning import quick_arguments

pytestmark = [
    pytest.mark.anyio,
    # The client warns of what 2026-07-28 deprecates or leaves out; the examples serve older clients too.
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
VERSIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28", "auto": "2026-07-28"}


@pytest.fixture(params=["legacy", "2026-07-28"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@asynccontextmanager
async def official(example: str, mode: str, **options: Any) -> AsyncGenerator[mcp.Client]:
    # The client hands on only a part of its environment, and not where Python finds its modules.
    env = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    arguments = quick_arguments(EXAMPLES / f"{example}.py")
    process = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=env)
    async with mcp.Client(process, mode=mode, read_timeout_seconds=20, **options) as client:  # type: ignore[arg-type]
        yield client


def texts(result: types.CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, types.TextContent)]


@pytest.mark.parametrize("mode", VERSIONS)
async def test_hello(mode: str):
    async with official("hello", mode) as client:
        assert client.protocol_version == VERSIONS[mode]
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "divide"]
        assert texts(await client.call_tool("add", {"a": 2, "b": 3})) == ["5"]
        refused = await client.call_tool("divide", {"dividend": 1, "divisor": 0})
        assert (refused.is_error, texts(refused)) == (True, ["cannot divide by zero: give another divisor"])
        with pytest.raises(mcp.MCPError) as unknown:
            await client.call_tool("subtract", {})
        assert unknown.value.error.code == types.INVALID_PARAMS


@pytest.mark.req("MCP-4.1n")
async def test_the_server_and_its_tools_are_described(mode: str):
    async with official("everything", "auto" if mode != "legacy" else mode) as client:
        info = client.server_info
        assert info is not None
        assert (info.name, info.title, info.website_url) == (
            "everything", "Everything", "https://example.com/everything",
        )  # fmt: skip
        assert client.instructions == "Try any tool: nothing here does harm."
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        roll = tools["roll"]
        assert roll.title == "Roll a die"
        assert roll.annotations is not None and roll.annotations.read_only_hint is True
        assert roll.icons is not None and roll.icons[0].src == "https://example.com/die.png"
        assert roll.meta is not None and roll.meta["example.com/fair"] is True


@pytest.mark.req("MCP-5.1o")
async def test_structured_content_fits_the_schema_the_client_checks_it_against(mode: str):
    async with official("everything", mode) as client:
        # The client validates structured content once it has seen the output schema.
        await client.list_tools()
        result = await client.call_tool("bill", {"order": [{"item": "tea", "price": 2.5, "quantity": 2}]})
        assert result.structured_content == {"lines": 1, "total": 5.0}
        assert texts(result) == ['{"lines":1,"total":5.0}']
        middle = await client.call_tool("midpoint", {"a": {"x": 0, "y": 0}, "b": {"x": 2, "y": 2}})
        assert middle.structured_content == {"x": 1, "y": 1}


@pytest.mark.req("MCP-5.1c")
async def test_content(mode: str):
    async with official("content", mode) as client:
        kinds = {tool.name: (await client.call_tool(tool.name)).content for tool in (await client.list_tools()).tools}
    assert {name: [block.type for block in content] for name, content in kinds.items()} == {
        "picture": ["image"],
        "sound": ["audio"],
        "signpost": ["resource_link"],
        "enclosure": ["resource"],
        "report": ["resource"],
    }


@pytest.mark.req("MCP-5.2l", "MCP-5.2t", "MCP-5.3", "MCP-5.7")
async def test_resources_prompts_and_completion(mode: str):
    async with official("everything", mode) as client:
        listed = (await client.list_resources()).resources
        assert [resource.uri for resource in listed] == ["text://welcome", "image://dot", "config://settings"]
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "note://{name}"
        (welcome,) = (await client.read_resource("text://welcome")).contents
        assert isinstance(welcome, types.TextResourceContents) and welcome.text == "Welcome!"
        (dot,) = (await client.read_resource("image://dot")).contents
        assert isinstance(dot, types.BlobResourceContents)
        (note,) = (await client.read_resource("note://milk")).contents
        assert isinstance(note, types.TextResourceContents) and note.text == "buy some"

        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["greet", "debate", "look"]
        debate = await client.get_prompt("debate", {"topic": "tabs", "rounds": "2"})
        assert [message.role for message in debate.messages] == ["user", "assistant"]

        completed = await client.complete(
            types.PromptReference(name="greet"), {"name": "name", "value": "M"}, {"tone": "formal"}
        )
        assert completed.completion.values == ["Ms Ada", "Mr Alan"]
        completed = await client.complete(
            types.ResourceTemplateReference(uri="note://{name}"), {"name": "name", "value": ""}
        )
        assert completed.completion.values == ["milk"]


@pytest.mark.req("MCP-4.4g", "MCP-5.7")
async def test_progress_and_logging(mode: str):
    logs: list[Any] = []
    steps: list[tuple[float, float | None, str | None]] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        logs.append((params.level, params.data))

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with official("everything", mode, logging_callback=log, log_level="debug") as client:
        if mode == "legacy":
            await client.set_logging_level("debug")  # pyright: ignore[reportDeprecated]
        await client.call_tool("count_to", {"last": 1}, progress_callback=step)
        await settled(lambda: len(logs) == 2 and len(steps) == 2)
    assert logs == [("info", {"message": "counted", "number": 1}), ("debug", "nobody reads this")]
    assert steps == [(0, 1, "ready"), (1, 1, None)]


@pytest.mark.req("MCP-5.4", "MCP-5.5", "MCP-5.6")
async def test_the_client_is_asked(mode: str):
    sampled: list[types.CreateMessageRequestParams] = []

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert params.message == "Who are you?"
        return types.ElicitResult(action="accept", content={"name": "Ann", "nights": 2})

    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        sampled.append(params)
        text = types.TextContent(text="short")
        return types.CreateMessageResult(role="assistant", content=text, model="m", stop_reason="endTurn")

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///home/ann"))])

    callbacks = {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots}
    async with official("everything", mode, **callbacks) as client:
        assert texts(await client.call_tool("check_in")) == ["Ann stays 2 nights"]
        assert texts(await client.call_tool("summarize", {"text": "long"})) == ["short"]
        assert texts(await client.call_tool("workplaces")) == ['["file:///home/ann"]']
    (params,) = sampled
    assert (params.max_tokens, params.system_prompt) == (50, "Be brief.")


@pytest.mark.req("MCP-5.2s", "MCP-5.1l")
async def test_a_session_hears_of_updates_and_changed_lists():
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.method)

    async with official("everything", "legacy", message_handler=hear) as client:
        await client.subscribe_resource("note://milk")  # pyright: ignore[reportDeprecated]
        await client.call_tool("write_note", {"name": "milk", "text": "two"})
        await client.call_tool("learn", {"word": "moin"})
        await settled(lambda: len(heard) == 2)
        assert texts(await client.call_tool("say_moin")) == ["moin"]
    assert heard == ["notifications/resources/updated", "notifications/tools/list_changed"]


@pytest.mark.req("MCP-5.2s", "MCP-5.1l")
async def test_a_stateless_client_listens_for_updates_and_changed_lists():
    async with official("everything", "2026-07-28") as client:
        listening = client.listen(tools_list_changed=True, resource_subscriptions=["note://milk", "text://nowhere"])
        async with listening as news:
            assert news.honored.tools_list_changed is True
            assert news.honored.resource_subscriptions == ["note://milk"]
            await client.call_tool("write_note", {"name": "eggs", "text": "six"})
            await client.call_tool("write_note", {"name": "milk", "text": "two"})
            assert await anext(news) == ResourceUpdated("note://milk")
            await client.call_tool("learn", {"word": "moin"})
            assert await anext(news) == ToolsListChanged()


@pytest.mark.req("MCP-4.4x")
async def test_a_cancelled_call_is_not_waited_for(mode: str):
    async with official("everything", mode) as client:
        with anyio.move_on_after(0.2) as scope:
            await client.call_tool("sleep", {"seconds": 60})
        assert scope.cancelled_caught
        assert texts(await client.call_tool("sleep", {"seconds": 0})) == ["awake"]


async def settled(done: Any) -> None:
    """The client hands notifications to callbacks in tasks of their own, maybe after the result."""
    with anyio.fail_after(20):
        while not done():
            await anyio.lowlevel.checkpoint()
