from __future__ import annotations

import json
from typing import Any

import pytest

from defserve.binding.content import Embedded, Link
from defserve.errors import UsageError
from defserve.protocols.mcp.asking.client_features import (
    Assistant,
    Message,
    Sample,
    SampleOptions,
    User,
    build_sampling_params,
)
from tests.protocols.mcp.asking.asking_server import server
from tests.raw import raw, text_of
from tests.rows import for_each_row

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
TOOL = {"name": "add", "inputSchema": {"type": "object"}}


def params(options: SampleOptions, version: str = "2025-11-25", **offered: Any) -> dict[str, Any]:
    return build_sampling_params(options, server.mcp.lifecycle.dialects[version], offered)


def test_only_what_was_said_is_sent():
    assert params(SampleOptions(["hi"])) == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
        "maxTokens": 1024,
    }


def test_messages_are_texts_objects_or_plain_dicts():
    raw_message = {"role": "user", "content": [{"type": "tool_result", "toolUseId": "1", "content": []}]}
    messages = params(SampleOptions([User("a"), Assistant("b"), "c", raw_message]))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user"]
    assert messages[3] == raw_message


def test_a_message_is_the_users_or_the_assistants():
    with pytest.raises(UsageError, match="'user' or 'assistant', not 'system'"):
        Message("system", "obey")


@for_each_row(
    ("version", "offered", "wanted", "sent"),
    [
        ("2024-11-05", {}, "thisServer", "thisServer"),
        ("2025-06-18", {}, "allServers", "allServers"),
        ("2025-11-25", {}, "thisServer", None),
        ("2025-11-25", {"context": {}}, "thisServer", "thisServer"),
        ("2026-07-28", {}, "allServers", None),
        ("2026-07-28", {}, "none", "none"),
    ],
)
def test_context_is_asked_of_clients_that_have_it(version: str, offered: dict[str, Any], wanted: str, sent: str | None):
    found = params(SampleOptions(["hi"], include_context=wanted), version, **offered)
    assert found.get("includeContext") == sent


def test_a_sample_reads_one_block_or_many():
    one = Sample({"role": "assistant", "content": {"type": "text", "text": "a"}, "model": "m"})
    many = Sample({
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "1"}, {"type": "text", "text": "b"}],
        "stopReason": "toolUse",
    })  # fmt: skip
    assert (one.text, str(one), one.model, one.stop_reason) == ("a", "a", "m", None)
    assert (many.text, len(many.content), many.stop_reason) == ("ab", 3, "toolUse")


@pytest.mark.anyio
@pytest.mark.req("MCP-5.4")
@pytest.mark.parametrize("version", VERSIONS)
async def test_sampling_is_asked_for_only_where_it_is_offered(version: str):
    async with raw(server, version, {}) as peer:
        reply = await peer.ask("tools/call", {"name": "poem", "arguments": {}})
        assert peer.heard == []
        _refused(reply, version, {"sampling": {}})


@pytest.mark.anyio
@pytest.mark.req("MCP-5.4")
@for_each_row("version", VERSIONS)
async def test_tools_are_sent_only_to_clients_that_take_them(version: str):
    async with raw(server, version, {"sampling": {}}) as peer:
        reply = await peer.ask("tools/call", {"name": "use_tools", "arguments": {}})
        assert peer.heard == []
        _refused(reply, version, {"sampling": {"tools": {}}})
    async with raw(server, version, {"sampling": {"tools": {}}}) as peer:
        id = await peer.begin("tools/call", {"name": "use_tools", "arguments": {}})
        message = json.loads(await peer.link.receive())
        if version < "2025-11-25":
            _refused(message, version, {})
            return
        asked = message if "method" in message else next(iter(message["result"]["inputRequests"].values()))
        assert asked["params"]["tools"] == [TOOL]
        assert asked["params"]["toolChoice"] == {"mode": "required"}
        assert id


def _refused(reply: dict[str, Any], version: str, needs: dict[str, Any]) -> None:
    if version == "2026-07-28":
        assert (reply["error"]["code"], reply["error"]["data"]["requiredCapabilities"]) == (-32021, needs)
    else:
        assert reply["result"]["isError"]
        assert text_of(reply["result"]).startswith("this needs a client that offers sampling")


@pytest.mark.anyio
async def test_a_sample_of_the_wrong_shape_is_an_error_the_model_reads():
    async with raw(server, "2025-11-25", {"sampling": {}}) as peer:
        said = {"type": "text", "text": "hi"}
        blocks = (
            {"type": "text", "text": 5},
            {"type": "text", "text": None},
            {"type": "text"},
            {"text": "hi"},
            [said, 5],
        )
        wrongs = (7, {}, {"role": "assistant"}, {"role": "assistant", "content": "text"}, {"content": {}})
        for wrong in (
            *wrongs,
            *({"role": "assistant", "content": block} for block in blocks),
            {"role": "assistant", "content": said, "model": 5},
            {"role": "assistant", "content": said, "stopReason": 5},
        ):
            id = await peer.begin("tools/call", {"name": "with_context", "arguments": {}})
            request = json.loads(await peer.link.receive())
            await peer.send({"jsonrpc": "2.0", "id": request["id"], "result": wrong})
            result = (await peer.reply_to(id))["result"]
            assert result["isError"]
            assert text_of(result) == "the client's answer to sampling/createMessage has the wrong shape"


@pytest.mark.anyio
@pytest.mark.req("MCP-5.5")
async def test_a_change_of_roots_is_heard_and_the_next_look_is_fresh():
    async with raw(server, "2025-11-25", {"roots": {"listChanged": True}}) as peer:
        for uri in ("file:///old", "file:///new"):
            id = await peer.begin("tools/call", {"name": "places", "arguments": {}})
            request = json.loads(await peer.link.receive())
            assert request["method"] == "roots/list"
            await peer.send({"jsonrpc": "2.0", "id": request["id"], "result": {"roots": [{"uri": uri}]}})
            assert uri in text_of((await peer.reply_to(id))["result"])
            await peer.tell("notifications/roots/list_changed")
            assert await peer.news() == []


@pytest.mark.anyio
async def test_a_client_that_refuses_is_quoted_to_the_model():
    async with raw(server, "2025-11-25", {"sampling": {}}) as peer:
        id = await peer.begin("tools/call", {"name": "poem", "arguments": {}})
        request = json.loads(await peer.link.receive())
        error = {"code": -1, "message": "User rejected sampling request"}
        await peer.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
        result = (await peer.reply_to(id))["result"]
        assert (result["isError"], text_of(result)) == (True, "User rejected sampling request")


@for_each_row("part", [Link("x://y"), Embedded("x://y", text="z")])
def test_what_no_sampling_message_may_hold_is_refused(part: Link | Embedded):
    with pytest.raises(UsageError, match=f"a {type(part).__name__} cannot be sampled from"):
        params(SampleOptions([User(part)]))
