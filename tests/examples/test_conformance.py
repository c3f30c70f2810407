"""The fixtures of the official suite behave as it wants them to, without the suite: over every transport, both eras."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Answers
from defserve.errors import PeerError, ToolError
from examples.conformance import ADDRESS_BOOK, DOT, ENUMS

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio
stateless = pytest.mark.parametrize("version", ["2026-07-28"])

FORM = {
    "name": "Alice", "confirm": True, "color": "blue", "ok": True, "context": "tests", "username": "al",
    "email": "al@example.com", "age": 25, "score": 88, "status": "inactive", "verified": False,
    "untitledSingle": "option1", "titledSingle": "value1", "legacyEnum": "opt1", "untitledMulti": ["option1"],
    "titledMulti": ["value1", "value2"],
}  # fmt: skip
CHOICES = (
    '{"untitledSingle": "option1", "titledSingle": "value1", "legacyEnum": "opt1", "untitledMulti": ["option1"], '
    '"titledMulti": ["value1", "value2"]}'
)

# Every task tool: its arguments, and the text or the error that it ends with.
TASKS: dict[str, tuple[dict[str, Any], str | type[Exception]]] = {
    "greet": ({"name": "Alice"}, "Hello, Alice!"),
    "slow_compute": ({"seconds": 0.1, "label": "x"}, "x: computed for 0.1 s"),
    "failing_job": ({}, ToolError),
    "protocol_error_job": ({}, PeerError),
    "confirm_delete": ({"filename": "a.txt"}, "a.txt deleted"),
    "multi_input": ({}, "Alice and Alice"),
    "test_tool_with_task": ({}, "Hello, Alice!"),
}

# Every tool: the arguments the suite calls it with, and the text that comes back. Content has a test of its own.
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "test_simple_text": ({}, "This is a simple text response for testing."),
    "test_tool_with_progress": ({}, "All of 100 done"),
    "test_tool_with_logging": ({}, "Three messages logged"),
    "test_logging_tool": ({}, "Logged"),
    "test_reconnection": ({}, "Reconnection test completed"),
    "test_sampling": ({"prompt": "Hi"}, "LLM response: Hi"),
    "test_elicitation": (
        {"message": "Who?"},
        'User response: action=accept, content={"username": "al", "email": "al@example.com"}',
    ),
    "test_elicitation_sep1034_defaults": (
        {},
        'Elicitation completed: action=accept, content={"name":"Alice","age":25,"score":88.0,"status":"inactive",'
        '"verified":false}',
    ),
    "test_elicitation_sep1330_enums": ({}, f"Elicitation completed: action=accept, content={CHOICES}"),
    "test_missing_capability": ({}, "Say hello"),
    "test_streaming_elicitation": ({}, "Hello, Alice!"),
    "test_input_required_result_elicitation": ({}, "Hello, Alice!"),
    "test_input_required_result_sampling": ({}, "What is the capital of France?"),
    "test_input_required_result_list_roots": ({}, "Roots: file:///test/root"),
    "test_input_required_result_request_state": ({}, "state-ok, confirmed: True"),
    "test_input_required_result_tampered_state": ({}, "state-ok, confirmed: True"),
    "test_input_required_result_multiple_inputs": ({}, "Generate a greeting Alice, working in 1 roots"),
    "test_input_required_result_multi_round": ({}, "Alice likes blue"),
    "test_input_required_result_capabilities": ({}, "Alice, Generate a greeting"),
    "test_trigger_tool_change": ({}, "Tool list changed"),
    "test_trigger_prompt_change": ({}, "Prompt list changed"),
    "json_schema_2020_12_tool": (
        {"name": "Al", "contactMethod": "phone", "phone": "1"},
        'JSON Schema 2020-12 tool called with: {"name": "Al", "contactMethod": "phone", "phone": "1"}',
    ),
    "test_x_mcp_header": ({"region": "eu"}, "Region: eu"),
}
CONTENT = {
    "test_image_content", "test_audio_content", "test_embedded_resource", "test_multiple_content_types",
    "test_error_handling",
}  # fmt: skip

# The questions each tool leaves in its first reply where every request stands alone: key to method.
ASKED: dict[str, dict[str, str]] = {
    "test_input_required_result_elicitation": {"user_name": "elicitation/create"},
    "test_input_required_result_sampling": {"capital_question": "sampling/createMessage"},
    "test_input_required_result_list_roots": {"client_roots": "roots/list"},
    "test_input_required_result_request_state": {"confirm": "elicitation/create"},
    "test_input_required_result_tampered_state": {"confirm": "elicitation/create"},
    "test_input_required_result_multi_round": {"step1": "elicitation/create"},
    "test_input_required_result_multiple_inputs": {
        "user_name": "elicitation/create",
        "greeting": "sampling/createMessage",
        "client_roots": "roots/list",
    },
}


class Suite:
    """Answers as the suite does, and remembers the forms it was shown."""

    def __init__(self) -> None:
        self.forms: list[dict[str, Any]] = []

    @property
    def answers(self) -> Answers:
        return Answers(ask=self._ask, sample=self._sample, roots=["file:///test/root"])

    def _ask(self, message: str, schema: dict[str, Any]) -> dict[str, Any]:
        self.forms.append(schema)
        return {name: FORM[name] for name in schema["properties"]}

    def _sample(self, params: dict[str, Any]) -> str:
        return params["messages"][0]["content"]["text"]


async def test_every_tool_of_the_list_is_driven_and_the_first_takes_no_arguments(connect_to: ConnectTo):
    async with connect_to("conformance", answers=Suite().answers) as client:
        tools = await client.tools()
        assert {tool["name"] for tool in tools} == CALLS.keys() | CONTENT | TASKS.keys()
        assert all(tool["description"] for tool in tools)
        assert "isError" not in await client.request("tools/call", {"name": tools[0]["name"]})
        for name, (arguments, text) in CALLS.items():
            result = await client.call_raw(name, arguments)
            assert result["content"] == [{"type": "text", "text": text}], name


async def test_task_tools_end_as_the_suite_wants(connect_to: ConnectTo):
    async with connect_to("conformance", answers=Suite().answers) as client:
        for name, (arguments, outcome) in TASKS.items():
            task = await client.start(name, **arguments)
            assert (task.id is not None) == (client.stateless and name != "greet")
            if isinstance(outcome, str):
                assert await task.result() == outcome
            else:
                with pytest.raises(outcome, match="intentionally fails"):
                    await task.result()


async def test_content_comes_in_every_kind(connect_to: ConnectTo):
    async with connect_to("conformance") as client:
        (picture,) = (await client.call_raw("test_image_content"))["content"]
        assert (picture["type"], picture["mimeType"], b64decode(picture["data"])) == ("image", "image/png", DOT)
        (sound,) = (await client.call_raw("test_audio_content"))["content"]
        assert (sound["type"], sound["mimeType"]) == ("audio", "audio/wav")
        (enclosed,) = (await client.call_raw("test_embedded_resource"))["content"]
        assert enclosed["resource"]["uri"] == "test://embedded-resource"
        assert enclosed["resource"]["mimeType"] == "text/plain"
        mixed = (await client.call_raw("test_multiple_content_types"))["content"]
        assert [block["type"] for block in mixed] == ["text", "image", "resource"]
        assert mixed[2]["resource"]["uri"] == "test://mixed-content-resource"
        with pytest.raises(ToolError, match="^This tool intentionally returns an error for testing$"):
            await client.call("test_error_handling")


async def test_progress_and_logs_come_three_times(connect_to: ConnectTo):
    logs: list[Any] = []
    steps: list[Any] = []

    def step(value: float, total: float | None, message: str | None) -> None:
        steps.append((value, total, message))

    async with connect_to("conformance", on_log=logs.append) as client:
        await client.call_raw("test_tool_with_progress", on_progress=step)
        assert steps == [(0, 100, None), (50, 100, None), (100, 100, None)]
        await client.call("test_tool_with_logging")
        assert [log["level"] for log in logs] == ["info"] * 3


async def test_forms_are_shown_as_the_suite_wants_them(connect_to: ConnectTo):
    suite = Suite()
    async with connect_to("conformance", answers=suite.answers) as client:
        await client.call("test_elicitation_sep1034_defaults")
        await client.call("test_elicitation_sep1330_enums")
    defaults, enums = (form["properties"] for form in (suite.forms[0], suite.forms[-1]))
    assert defaults == {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    assert enums == ENUMS["properties"]


async def test_schemas_arrive_as_they_were_written(connect_to: ConnectTo):
    async with connect_to("conformance") as client:
        tools = {tool["name"]: tool["inputSchema"] for tool in await client.tools()}
        assert tools["json_schema_2020_12_tool"] == ADDRESS_BOOK
        assert tools["test_x_mcp_header"]["properties"]["region"]["x-mcp-header"] == "Region"
        with pytest.raises(ToolError, match="phone"):
            await client.call("json_schema_2020_12_tool", contactMethod="phone", email="a@b.c")


async def test_a_client_is_asked_only_for_what_it_offers(connect_to: ConnectTo):
    async with connect_to("conformance") as client:
        assert await client.call("test_input_required_result_capabilities") == "This client offers nothing"
        with pytest.raises(PeerError if client.stateless else ToolError, match="sampling") as refused:
            await client.call("test_missing_capability")
        if isinstance(refused.value, PeerError):
            assert refused.value.code == -32021
            assert refused.value.data["requiredCapabilities"] == {"sampling": {}}


async def test_resources_are_listed_and_read(connect_to: ConnectTo):
    async with connect_to("conformance") as client:
        listed = [resource["uri"] for resource in await client.resources()]
        texts = ["test://static-text", "test://static-binary", "test://watched-resource"]
        assert listed == [*texts, "skill://refunds/SKILL.md"]
        assert await client.read_text("test://static-text") == "This is the content of the static text resource."
        assert await client.read_bytes("test://static-binary") == DOT
        (template,) = await client.templates()
        assert template["uriTemplate"] == "test://template/{id}/data"
        (data,) = await client.read("test://template/123/data")
        assert (data["mimeType"], "123" in data["text"]) == ("application/json", True)
        missing = "test://nonexistent-resource-for-conformance-testing"
        with pytest.raises(PeerError) as refused:
            await client.read(missing)
        assert (refused.value.data["uri"], refused.value.code) == (missing, -32602 if client.stateless else -32002)
        await client.subscribe("test://watched-resource")
        await client.unsubscribe("test://watched-resource")


async def test_prompts_echo_enclose_show_and_complete(connect_to: ConnectTo):
    async with connect_to("conformance", answers=Suite().answers) as client:
        assert all(prompt["description"] for prompt in await client.prompts())
        (said,) = (await client.prompt("test_simple_prompt"))["messages"]
        assert said["content"]["text"] == "This is a simple prompt for testing."
        (said,) = (await client.prompt("test_prompt_with_arguments", arg1="one", arg2="two"))["messages"]
        assert said["content"]["text"] == "Prompt with arguments: arg1='one', arg2='two'"
        messages = (await client.prompt("test_prompt_with_embedded_resource", resourceUri="test://x"))["messages"]
        assert messages[0]["content"]["resource"]["uri"] == "test://x"
        messages = (await client.prompt("test_prompt_with_image"))["messages"]
        assert messages[0]["content"]["mimeType"] == "image/png"
        (said,) = (await client.prompt("test_input_required_result_prompt"))["messages"]
        assert said["content"]["text"] == "Use this context: tests"
        completion = await client.complete("test_prompt_with_arguments", argument="arg1", value="test")
        assert completion["values"] == ["test", "test1", "test2"]


async def test_a_changed_list_is_told_and_the_next_change_takes_it_back(connect_to: ConnectTo):
    async with connect_to("conformance") as client, client.listen(tools=True, prompts=True) as events:

        async def news() -> str:
            return (await asyncio.wait_for(anext(aiter(events)), 20)).method

        tools, prompts = len(await client.tools()), len(await client.prompts())
        for more in (1, 0):
            await client.call("test_trigger_tool_change")
            assert await news() == "notifications/tools/list_changed"
            await client.call("test_trigger_prompt_change")
            assert await news() == "notifications/prompts/list_changed"
            assert (len(await client.tools()), len(await client.prompts())) == (tools + more, prompts + more)


@stateless
async def test_questions_travel_under_the_keys_of_the_suite(connect_to: ConnectTo):
    async with connect_to("conformance", answers=Suite().answers) as client:
        for tool, questions in ASKED.items():
            result = await client.request("tools/call", {"name": tool, "arguments": {}}, follow=False)
            assert result["resultType"] == "input_required", tool
            assert {key: asked["method"] for key, asked in result["inputRequests"].items()} == questions
            assert isinstance(result["requestState"], str)


@stateless
async def test_the_prompt_asks_under_its_key(connect_to: ConnectTo):
    async with connect_to("conformance", answers=Suite().answers) as client:
        result = await client.request("prompts/get", {"name": "test_input_required_result_prompt"}, follow=False)
        assert list(result["inputRequests"]) == ["user_context"]


@stateless
async def test_an_answer_that_does_not_fit_is_asked_for_again(connect_to: ConnectTo):
    params: dict[str, Any] = {"name": "test_input_required_result_elicitation", "arguments": {}}
    unfit: list[Any] = [{"wrong_key": {"action": "accept", "content": {"data": "x"}}}, {"user_name": 1}]
    async with connect_to("conformance", answers=Suite().answers) as client:
        for given in (*unfit, {"user_name": None}):
            result = await client.request("tools/call", {**params, "inputResponses": given}, follow=False)
            assert list(result["inputRequests"]) == ["user_name"], given


@stateless
async def test_each_round_has_a_state_of_its_own_and_a_tampered_one_is_an_error(connect_to: ConnectTo):
    async with connect_to("conformance", answers=Suite().answers) as client:
        call: dict[str, Any] = {"name": "test_input_required_result_multi_round", "arguments": {}}
        first = await client.request("tools/call", call, follow=False)
        step1 = {"step1": {"action": "accept", "content": {"name": "Alice"}}}
        again = {**call, "inputResponses": step1, "requestState": first["requestState"]}
        second = await client.request("tools/call", again, follow=False)
        assert list(second["inputRequests"]) == ["step2"]
        assert second["requestState"] != first["requestState"]
        tampered = {**call, "inputResponses": step1, "requestState": second["requestState"] + "-TAMPERED"}
        with pytest.raises(PeerError) as refused:
            await client.request("tools/call", tampered, follow=False)
        assert refused.value.code == -32602


@stateless
async def test_nothing_is_logged_to_a_client_that_did_not_ask_for_it(connect_to: ConnectTo):
    heard: list[str] = []

    def hear(method: str, params: dict[str, Any]) -> None:
        heard.append(method)

    async with connect_to("conformance", on_notification=hear) as client:
        await client.call("test_logging_tool")
        assert heard == []
