"""The official client talks to `examples/everything.py` over HTTP, in a handshake version and in 2026-07-28."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import mcp
import mcp_types as types
import pytest
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

from defserve import Server
from tests.at_address import at_address, fresh

pytestmark = [
    pytest.mark.anyio,
    # The client warns of what 2026-07-28 deprecates or leaves out; the example serves older clients too.
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

VERSIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28", "auto": "2026-07-28"}


@pytest.fixture(params=["legacy", "2026-07-28"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def everything() -> Server:
    return fresh("everything")


@asynccontextmanager
async def official(server: Server, mode: str, **options: Any) -> AsyncGenerator[mcp.Client]:
    async with (
        at_address(server) as url,
        mcp.Client(url, mode=mode, read_timeout_seconds=20, **options) as client,  # type: ignore[arg-type]
    ):
        yield client


def texts(result: types.CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, types.TextContent)]


async def settled(done: Any) -> None:
    """What happens on the other side of a socket happens a little later."""
    with anyio.fail_after(20):
        while not done():
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("mode", VERSIONS)
async def test_tools_are_listed_and_called_resources_read_and_prompts_got(everything: Server, mode: str):
    async with official(everything, mode) as client:
        assert client.protocol_version == VERSIONS[mode]
        assert {"add", "bill", "withdraw"} <= {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("bill", {"order": [{"item": "tea", "price": 2.5, "quantity": 2}]})
        assert result.structured_content == {"lines": 1, "total": 5.0}
        refused = await client.call_tool("withdraw", {"amount": 101})
        assert (refused.is_error, texts(refused)) == (True, ["only 100 are left: ask for less"])
        with pytest.raises(mcp.MCPError) as unknown:
            await client.call_tool("subtract", {})
        assert unknown.value.error.code == types.INVALID_PARAMS
        (note,) = (await client.read_resource("note://milk")).contents
        assert isinstance(note, types.TextResourceContents) and note.text == "buy some"
        debate = await client.get_prompt("debate", {"topic": "tabs", "rounds": "2"})
        assert [message.role for message in debate.messages] == ["user", "assistant"]


@pytest.mark.req("MCP-4.4g")
async def test_progress_and_logs_come_with_the_call_they_belong_to(everything: Server, mode: str):
    logs: list[Any] = []
    steps: list[tuple[float, float | None, str | None]] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        logs.append((params.level, params.data))

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with official(everything, mode, logging_callback=log, log_level="info") as client:
        if mode == "legacy":
            await client.set_logging_level("info")  # pyright: ignore[reportDeprecated]
        assert texts(await client.call_tool("count_to", {"last": 2}, progress_callback=step)) == ["counted to 2"]
        await settled(lambda: len(logs) == 2 and len(steps) == 3)
    assert steps == [(0, 2, "ready"), (1, 2, None), (2, 2, None)]
    assert logs == [("info", {"message": "counted", "number": number}) for number in (1, 2)]


@pytest.mark.req("MCP-5.4", "MCP-5.5")
async def test_the_client_is_asked_and_its_model_writes(everything: Server, mode: str):
    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert params.message == "Who are you?"
        return types.ElicitResult(action="accept", content={"name": "Ann", "nights": 2})

    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        assert (params.max_tokens, params.system_prompt) == (50, "Be brief.")
        text = types.TextContent(text="short")
        return types.CreateMessageResult(role="assistant", content=text, model="m", stop_reason="endTurn")

    async with official(everything, mode, elicitation_callback=elicit, sampling_callback=sample) as client:
        assert texts(await client.call_tool("check_in")) == ["Ann stays 2 nights"]
        assert texts(await client.call_tool("summarize", {"text": "long"})) == ["short"]


@pytest.mark.req("MCP-5.2s", "MCP-5.1l")
async def test_a_session_hears_of_updates_and_changed_lists_on_its_stream(everything: Server):
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.method)

    async with official(everything, "legacy", message_handler=hear) as client:
        await client.subscribe_resource("note://milk")  # pyright: ignore[reportDeprecated]
        await client.call_tool("write_note", {"name": "milk", "text": "two"})
        await client.call_tool("learn", {"word": "moin"})
        await settled(lambda: len(heard) == 2)
        assert texts(await client.call_tool("say_moin")) == ["moin"]
    assert heard == ["notifications/resources/updated", "notifications/tools/list_changed"]


@pytest.mark.req("MCP-5.2s", "MCP-5.1l")
async def test_a_stateless_client_listens_for_updates_and_changed_lists(everything: Server):
    async with official(everything, "2026-07-28") as client:
        listening = client.listen(tools_list_changed=True, resource_subscriptions=["note://milk"])
        async with listening as news:
            await client.call_tool("write_note", {"name": "eggs", "text": "six"})
            await client.call_tool("write_note", {"name": "milk", "text": "two"})
            assert await anext(news) == ResourceUpdated("note://milk")
            await client.call_tool("learn", {"word": "moin"})
            assert await anext(news) == ToolsListChanged()


@pytest.mark.req("MCP-4.4x")
async def test_a_call_that_the_client_gives_up_ends_at_the_server_too(everything: Server, mode: str):
    def running() -> int:
        served = everything.composition
        return sum(len(session.in_flight) for session in (*served.sessions, *served.short_sessions))

    async with official(everything, mode) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "sleep", {"seconds": 60})
            await settled(lambda: running() == 1)
            group.cancel_scope.cancel()
        await settled(lambda: running() == 0)
        assert texts(await client.call_tool("sleep", {"seconds": 0})) == ["awake"]
