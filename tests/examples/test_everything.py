from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Answers, Client
from defserve.errors import PeerError, ToolError

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio


@pytest.mark.req("MCP-4.1n")
async def test_the_server_says_who_it_is_and_how_to_use_it(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        assert client.server_info == {
            "name": "everything",
            "version": "1.0.0",
            "title": "Everything",
            "description": "One of each",
            "websiteUrl": "https://example.com/everything",
            "icons": [{"src": "https://example.com/dot.png", "mimeType": "image/png", "sizes": ["48x48"]}],
        }
        assert client.instructions == "Try any tool: nothing here does harm."
        assert {"tools", "resources", "prompts", "completions", "logging"} <= set(client.capabilities)
        await client.ping()


@pytest.mark.req("MCP-5.1s", "MCP-5.1a")
async def test_tools_show_title_annotations_icons_and_meta(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        tools = {tool["name"]: tool for tool in await client.tools()}
        roll = tools["roll"]
        assert (roll["title"], roll["description"]) == ("Roll a die", "Roll a die that has seen better days.")
        assert roll["annotations"] == {"readOnlyHint": True, "openWorldHint": False}
        assert roll["icons"] == [{"src": "https://example.com/die.png"}]
        assert roll["_meta"]["example.com/fair"] is True
        assert roll["inputSchema"] == {"type": "object", "properties": {}, "additionalProperties": False}
        seconds = tools["sleep"]["inputSchema"]["properties"]["seconds"]
        assert seconds == {"type": "number", "minimum": 0, "maximum": 60, "description": "How long"}
        # Injected parameters are nobody's business.
        assert set(tools["count_to"]["inputSchema"]["properties"]) == {"last"}
        assert set(tools["swim"]["inputSchema"]["properties"]) == {"fail"}
        assert "annotations" not in tools["add"]


@pytest.mark.req("MCP-10.2")
async def test_python_types_are_listed_as_json_schema(connect_to: ConnectTo):
    point = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}
    async with connect_to("everything") as client:
        tools = {tool["name"]: tool for tool in await client.tools()}
    takes = {name: tool["inputSchema"].get("properties") for name, tool in tools.items()}
    line = takes["bill"]["order"]["items"]
    assert line["properties"] == {
        "item": {"type": "string"},
        "price": {"type": "number", "exclusiveMinimum": 0},
        "quantity": {"type": "integer", "default": 1},
    }
    assert (takes["bill"]["order"]["type"], line["required"]) == ("array", ["item", "price"])
    assert takes["midpoint"] == {"a": point, "b": point}
    assert takes["weather"] == {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "round_to": {"type": "integer", "enum": [0, 1], "default": 0},
    }
    assert takes["swim"] == {"fail": {"type": "boolean", "default": False}}
    assert tools["midpoint"]["outputSchema"] == point


@pytest.mark.req("MCP-5.1o")
async def test_typed_values_go_in_and_out(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        tools = {tool["name"]: tool for tool in await client.tools()}
        assert await client.call("motto") == "write a def, serve it"
        assert await client.call("add", a=1, b=2) == 3
        assert await client.call("roll") == 4

        order = [{"item": "tea", "price": 2.5, "quantity": 2}, {"item": "cake", "price": 3}]
        priced = await client.call_raw("bill", {"order": order})
        assert priced["structuredContent"] == {"lines": 2, "total": 8.0}
        assert priced["content"] == [{"type": "text", "text": '{"lines":2,"total":8.0}'}]
        assert set(tools["bill"]["outputSchema"]["required"]) == {"lines", "total"}

        assert await client.call("midpoint", a={"x": 0, "y": 0}, b={"x": 4, "y": 2}) == {"x": 2, "y": 1}
        assert await client.call("weather", city="Oslo") == {"city": "Oslo", "degrees": 21}
        warm = await client.call("weather", city="Oslo", unit="fahrenheit", round_to=1)
        assert warm == {"city": "Oslo", "degrees": 70.2}


@pytest.mark.req("MCP-9.4", "MCP-5.1e")
async def test_failures_are_readable_and_unforeseen_ones_masked(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        assert await client.call("withdraw", amount=5) == "5 withdrawn"
        with pytest.raises(ToolError, match="^only 100 are left: ask for less$"):
            await client.call("withdraw", amount=500)
        with pytest.raises(ToolError, match="internal error") as masked:
            await client.call("stumble")
        assert "1234" not in str(masked.value)
        with pytest.raises(ToolError, match=r"order\[0\].price"):
            await client.call("bill", order=[{"item": "tea", "price": -1}])
        with pytest.raises(ToolError, match="unit"):
            await client.call("weather", city="Oslo", unit="kelvin")
        with pytest.raises(ToolError, match="0.05"):
            await client.call("oversleep")


@pytest.mark.req("MCP-4.4g", "MCP-5.7")
async def test_long_work_tells_progress_and_logs_before_its_result(connect_to: ConnectTo):
    told: list[Any] = []
    async with connect_to("everything", on_log=told.append) as client:
        progress: list[Any] = []

        def step(value: float, total: float | None, message: str | None) -> None:
            progress.append((value, total, message))

        result = await client.call_raw("count_to", {"last": 2}, on_progress=step)
        assert result["content"][0]["text"] == "counted to 2"
        assert progress == [(0, 2, "ready"), (1, 2, None), (2, 2, None)]
        counted = [{"message": "counted", "number": 1}, {"message": "counted", "number": 2}]
        assert [(log["level"], log["logger"]) for log in told] == [("info", "count_to")] * 2
        assert [log["data"] for log in told] == counted
        await client.set_log_level("warning")
        await client.call("count_to", last=1)
        assert len(told) == 2
        await client.set_log_level("debug")
        await client.call("count_to", last=1)
        assert [log["level"] for log in told[2:]] == ["info", "debug"]


@pytest.mark.req("MCP-4.4x")
async def test_a_cancelled_call_leaves_the_client_usable(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        call = asyncio.create_task(client.call("sleep", seconds=60))
        await client.ping()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await client.call("sleep", seconds=0) == "awake"


async def test_parts_arrive_in_the_order_they_were_sent(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        recited = await client.call("recite")
        assert [part.get("text", part["type"]) for part in recited] == ["first", "image", "last"]
        assert await client.call("spell", word="hello") == "hello"


async def test_a_dependency_is_given_back_after_success_and_failure(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        assert await client.call("swim") == "lane 1"
        with pytest.raises(ToolError, match="cramp"):
            await client.call("swim", fail=True)
        assert await client.call("swim") == "lane 1"


@pytest.mark.req("MCP-5.2l", "MCP-5.2t")
async def test_resources_are_listed_and_read_as_text_bytes_and_json(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        resources = {resource["uri"]: resource for resource in await client.resources()}
        assert resources["text://welcome"] == {
            "uri": "text://welcome",
            "name": "welcome",
            "title": "Welcome",
            "description": "A word of welcome.",
            "annotations": {"audience": ["user"], "lastModified": "2026-07-28"},
        }
        dot = resources["image://dot"]
        assert (dot["mimeType"], dot["icons"]) == ("image/png", [{"src": "https://example.com/dot.png"}])
        assert resources["config://settings"]["_meta"] == {"example.com/owner": "ops"}
        (template,) = await client.templates()
        assert (template["uriTemplate"], template["mimeType"]) == ("note://{name}", "text/markdown")

        welcome = {"uri": "text://welcome", "mimeType": "text/plain", "text": "Welcome!"}
        assert await client.read("text://welcome") == [welcome]
        (picture,) = await client.read("image://dot")
        assert len(b64decode(picture["blob"])) == dot["size"]
        settings = {"uri": "config://settings", "mimeType": "application/json", "text": '{"colour":"green","level":3}'}
        assert await client.read("config://settings") == [settings]
        assert await client.read("note://milk") == [
            {"uri": "note://milk", "mimeType": "text/markdown", "text": "buy some"}
        ]
        with pytest.raises(PeerError) as missing:
            await client.read("text://nowhere")
        assert missing.value.code == (-32602 if client.stateless else -32002)
        assert missing.value.data["uri"] == "text://nowhere"


@pytest.mark.req("MCP-5.2s")
async def test_a_watched_note_is_heard_of_until_it_is_watched_no_more(connect_to: ConnectTo):
    news: list[str] = []

    def heard(method: str, params: dict[str, Any]) -> None:
        if method == "notifications/resources/updated":
            news.append(params["uri"])

    async with connect_to("everything", on_notification=heard) as client:
        await client.subscribe("note://milk")
        await client.call("write_note", name="eggs", text="six")
        await client.call("write_note", name="milk", text="two")
        assert await client.read_text("note://milk") == "two"
        assert news == ["note://milk"]
        await client.unsubscribe("note://milk")
        await client.call("write_note", name="milk", text="three")
        assert news == ["note://milk"]


@pytest.mark.req("MCP-5.3")
async def test_prompts_are_listed_and_filled_with_texts_messages_and_pictures(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        prompts = {prompt["name"]: prompt for prompt in await client.prompts()}
        assert prompts["greet"] == {
            "name": "greet",
            "title": "Greeting",
            "description": "Greet somebody.",
            "arguments": [
                {"name": "name", "required": True, "description": "Whom to greet."},
                {"name": "tone", "required": False},
            ],
        }
        greeting = await client.prompt("greet", name="Ada", tone="formal")
        assert greeting["description"] == "Greet somebody."
        said = {"role": "user", "content": {"type": "text", "text": "Write a formal greeting for Ada."}}
        assert greeting["messages"] == [said]
        debate = (await client.prompt("debate", topic="tabs", rounds=3))["messages"]
        assert [(message["role"], message["content"]["text"]) for message in debate] == [
            ("user", "Let us debate tabs, 3 rounds."),
            ("assistant", "Gladly. You begin."),
        ]
        look = (await client.prompt("look"))["messages"]
        assert [message["content"]["type"] for message in look] == ["text", "image"]
        for name, arguments in (("greet", {}), ("greet", {"name": "Ada", "tone": "rude"}), ("nobody", {})):
            with pytest.raises(PeerError) as refused:
                await client.prompt(name, **arguments)
            assert refused.value.code == -32602


@pytest.mark.req("MCP-5.7")
async def test_arguments_are_completed_by_function_context_and_type(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        assert await values(client, "greet", "name", "A") == ["Ada", "Alan"]
        assert await values(client, "greet", "name", "M", context={"tone": "formal"}) == ["Ms Ada", "Mr Alan"]
        assert await values(client, "greet", "tone", "w") == ["warm"]
        assert await values(client, "note://{name}", "name", "m") == ["milk"]
        whole = await client.complete("greet", argument="name", value="G")
        assert whole == {"values": ["Grace"], "total": 1, "hasMore": False}
        with pytest.raises(PeerError) as unknown:
            await client.complete("greet", argument="age", value="")
        assert unknown.value.code == -32602


async def values(client: Client, ref: str, argument: str, value: str, **more: Any) -> list[str]:
    return (await client.complete(ref, argument=argument, value=value, **more))["values"]


@pytest.mark.req("MCP-5.4", "MCP-5.5", "MCP-5.6")
async def test_the_person_the_model_and_the_client_are_asked(connect_to: ConnectTo):
    asked: list[Any] = []

    def ask(message: str, schema: dict[str, Any]) -> Any:
        asked.append((message, schema))
        return {"name": "Ann", "nights": 3}

    def sample(params: dict[str, Any]) -> str:
        asked.append(params)
        return "short"

    answers = Answers(ask=ask, sample=sample, roots=["file:///home/ann"])
    async with connect_to("everything", answers=answers) as client:
        assert await client.call("check_in") == "Ann stays 3 nights"
        assert await client.call("summarize", text="long") == "short"
        assert await client.call("workplaces") == ["file:///home/ann"]
    (message, form), sampling = asked
    assert (message, form["required"]) == ("Who are you?", ["name"])
    assert form["properties"]["nights"]["default"] == 1
    assert sampling == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Summarize: long"}}],
        "maxTokens": 50,
        "systemPrompt": "Be brief.",
    }


@pytest.mark.req("MCP-4.1c")
async def test_a_client_that_offers_nothing_is_asked_nothing(connect_to: ConnectTo):
    async with connect_to("everything") as client:
        for tool, arguments, capability in (
            ("check_in", {}, "elicitation"),
            ("summarize", {"text": "long"}, "sampling"),
            ("workplaces", {}, "roots"),
        ):
            if client.stateless:
                with pytest.raises(PeerError) as refused:
                    await client.call(tool, **arguments)
                assert (refused.value.code, set(refused.value.data["requiredCapabilities"])) == (-32021, {capability})
            else:
                with pytest.raises(ToolError, match=f"needs a client that offers {capability}"):
                    await client.call(tool, **arguments)


@pytest.mark.req("MCP-5.1l")
async def test_a_tool_learnt_while_serving_is_announced_listed_called_and_forgotten(connect_to: ConnectTo):
    async with connect_to("everything") as client, client.listen(tools=True) as events:
        assert await client.call("learn", word="moin") == "say_moin"
        assert (await anext(events)).method == "notifications/tools/list_changed"
        assert "say_moin" in [tool["name"] for tool in await client.tools()]
        assert await client.call("say_moin") == "moin"
        assert await client.call("forget", word="moin") == "forgot moin"
        assert (await anext(events)).method == "notifications/tools/list_changed"
        with pytest.raises(PeerError, match="Unknown tool: say_moin"):
            await client.call("say_moin")
