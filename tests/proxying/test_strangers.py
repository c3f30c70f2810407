"""A mount gives nobody the rights of its operator: what a backend keeps from strangers, the front keeps from them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from defserve import Remote, Server, ToolError
from defserve.auth import StaticTokens
from defserve.client import Answers, Client
from defserve.client.tasks import ServerTask
from defserve.errors import PeerError
from tests.at_address import at_address
from tests.proxying.backends import ERA_PAIRS, ERAS, child
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

KEY = "a" * 40
WEAK = "w" * 40
GRANTS = ("dev.defserve/grants", "dev.cloto/mgp/grants")


def guarded(**options: Any) -> Server:
    server = Server("desk", **options)
    server.mount(child("guarded.py"), prefix="e")
    return server


def yes(message: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Says yes to everything, and gives its name."""
    fields = schema["properties"]
    return {name: True if field["type"] == "boolean" else "eve" for name, field in fields.items()}


@pytest.mark.slow
@for_each_row("era", ERAS)
@for_each_row("meta", [{}, *({key: {"shell.execute": "approved"}} for key in GRANTS)])
async def test_a_stranger_does_not_run_the_dangerous_tool_of_a_child(era: str, meta: dict[str, Any]) -> None:
    server = guarded()
    async with at_address(server) as url, Remote(url).connect(era, answers=Answers(ask=yes)) as client:
        result = await client.request("tools/call", {"name": "e_wipe", "arguments": {}, "_meta": meta})
        assert result["isError"] is True
        assert "shell.execute" in str(result)


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_a_permission_of_the_operator_does_not_spare_a_stranger_the_confirmation(era: str) -> None:
    server = guarded(granted=["shell.execute"])
    async with at_address(server) as url, Remote(url).connect(era, answers=Answers(ask=yes)) as client:
        with pytest.raises(ToolError, match="confirmed"):
            await client.call("e_wipe")


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_who_has_a_token_runs_it(era: str) -> None:
    server = guarded(auth=StaticTokens({KEY: "ann"}))
    async with at_address(server) as url, Remote(url, token=KEY).connect(era, answers=Answers(ask=yes)) as client:
        assert await client.call("e_wipe") == "wiped"
        assert await client.call("e_sure") == "done"


@pytest.mark.slow
@pytest.mark.parametrize(("era", "back"), ERA_PAIRS)
async def test_a_strangers_yes_does_not_reach_a_child_and_its_name_does(era: str, back: str) -> None:
    server = Server("desk")
    server.mount(child("guarded.py", version=back), prefix="e")
    async with at_address(server) as url, Remote(url).connect(era, answers=Answers(ask=yes)) as client:
        with pytest.raises((ToolError, PeerError), match="not authenticated"):
            await client.call("e_sure")
        assert await client.call("e_name") == "eve"


async def test_an_answer_that_a_stranger_brings_unasked_counts_once_the_child_has_asked_and_a_yes_never() -> None:
    server = Server("desk")
    server.mount(child("guarded.py", version="stateless"), prefix="e")
    named, sure = ({"action": "accept", "content": {"value": value}} for value in ("eve", True))
    asks = {"capabilities": {"elicitation": {"form": {}}}}
    async with at_address(server) as url, Remote(url).connect("stateless", **asks) as client:
        call = {"name": "e_name", "arguments": {}}
        [key] = (await client.request("tools/call", call, follow=False))["inputRequests"]
        brought = {key: named, "unknown": sure}
        result = await client.request("tools/call", {**call, "inputResponses": brought}, follow=False)
        assert result["content"][0]["text"] == "eve"
        invalid = await client.request("tools/call", {**call, "inputResponses": {key: 12345}}, follow=False)
        assert list(invalid["inputRequests"]) == [key]
        sure_call = {"name": "e_sure", "arguments": {}, "inputResponses": {key: sure, await key_of_yes(): sure}}
        refused = await client.request("tools/call", sure_call, follow=False)
        assert refused["isError"] is True
        assert "not authenticated" in str(refused)


async def key_of_yes() -> str:
    """The key of the confirmation of `e_sure`, which is the same for everybody."""
    known = guarded(auth=StaticTokens({KEY: "ann"}))
    asks = {"capabilities": {"elicitation": {"form": {}}}}
    async with at_address(known) as url, Remote(url, token=KEY).connect("stateless", **asks) as ann:
        asked = await ann.request("tools/call", {"name": "e_sure", "arguments": {}}, follow=False)
    [key] = asked["inputRequests"]
    return key


@pytest.mark.slow
async def test_a_strangers_yes_does_not_reach_a_task_of_a_child_and_its_name_does() -> None:
    async with at_address(guarded()) as url, Remote(url).connect("stateless", answers=Answers(ask=yes)) as client:
        assert await (await client.start("e_name_later")).result() == "eve"
        with pytest.raises((ToolError, PeerError), match="not authenticated"):
            await (await client.start("e_sure_later")).result()


@pytest.mark.slow
async def test_a_stranger_cannot_answer_a_task_of_a_child_before_it_asks() -> None:
    known = guarded(auth=StaticTokens({KEY: "ann"}))
    named, sure = ({"action": "accept", "content": {"value": value}} for value in ("eve", True))
    async with at_address(known) as url, Remote(url, token=KEY).connect("stateless", answers=Answers(ask=yes)) as ann:
        first, later = await asked_by(task := await ann.start("e_sure_later")), ""
        await cast("ServerTask", task).answer({first: named})
        while later in ("", first):
            later = await asked_by(task)  # the key of the confirmation, which is the same for everybody
    async with at_address(guarded()) as url, Remote(url).connect("stateless", answers=Answers(ask=yes)) as client:
        task = cast("ServerTask", await client.start("e_sure_later"))
        assert await asked_by(task) == first
        await task.answer({later: sure, first: named})
        with pytest.raises(PeerError, match="not authenticated"):
            while not task.is_over:
                await task.refresh()
        with pytest.raises(PeerError, match="not authenticated"):
            await task.answer({later: sure})


async def asked_by(task: Any) -> str:
    """The key of the question that a task has."""
    while await task.refresh() != "input_required":
        assert not task.is_over, task.told
    [key] = task.told["inputRequests"]
    return key


@pytest.mark.slow
async def test_a_weaker_key_is_not_asked_what_a_call_of_a_stronger_one_needs(tmp_path: Path) -> None:
    asked: list[str] = []

    def noted(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        asked.append(message)
        return yes(message, schema)

    def no(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"value": False}

    async def began(client: Client, name: str, asks: bool) -> asyncio.Task[Any]:
        task = asyncio.create_task(client.call("e_gated", place=str(tmp_path), name=name, asks=asks))
        await until((tmp_path / f"{name}.began").exists)
        return task

    keys = StaticTokens({KEY: {"principal": "ann", "scopes": ["admin"]}, WEAK: {"principal": "ann", "scopes": []}})
    server = Server("desk", auth=keys)
    server.mount(child("guarded.py", version="handshake"), prefix="e")
    async with at_address(server) as url:
        one = Remote(url, token=KEY).connect("stateless", answers=Answers(ask=no))
        other = Remote(url, token=WEAK).connect("stateless", answers=Answers(ask=noted))
        async with one as strong, other as weak:
            asking = await began(strong, "strong", True)
            waiting = await began(weak, "weak", False)
            (tmp_path / "strong.go").touch()
            assert await asking == "left"
            (tmp_path / "weak.go").touch()
            assert await waiting == "done"
    assert asked == []


@pytest.mark.slow
async def test_what_a_client_decides_is_not_passed_on() -> None:
    async with guarded().connect("stateless") as client:
        meta: dict[str, Any] = {
            **{key: {} for key in GRANTS},
            "dev.defserve/tools": "AQ",
            "traceparent": "t",
            "example.org/a": 1,
        }
        result = await client.request("tools/call", {"name": "e_told", "arguments": {}, "_meta": meta})
        names = json.loads(result["content"][0]["text"])
        assert "example.org/a" in names
        assert not [name for name in names if name.startswith(("dev.defserve/", "dev.cloto/"))]


SCRIPT = """
import json, sys
found = json.loads(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        reply = found.get(asked["method"])
        answer = {"result": reply} if reply is not None else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).replace("SLASH", "\\\\/"), flush=True)
"""
ABOUT: dict[str, Any] = {"serverInfo": {"name": "odd", "version": "1"}}
OLD: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, **ABOUT}
LISTED: dict[str, Any] = {"name": "t", "inputSchema": {"type": "object"}}


def scripted(tmp_path: Path, replies: dict[str, Any], **options: Any) -> Any:
    """A backend that gives fixed results."""
    program = tmp_path / "scripted.py"
    program.write_text(SCRIPT)
    return child(str(program), json.dumps({"initialize": OLD, "tools/list": {"tools": [LISTED]}, **replies}), **options)


@pytest.mark.parametrize("kind", ["input_required", "task", "other"])
async def test_a_result_of_the_old_era_asks_for_nothing_in_the_new_one(tmp_path: Path, kind: str) -> None:
    question: dict[str, Any] = {"method": "sampling/createMessage", "params": {"messages": []}}
    forged: dict[str, Any] = {"resultType": kind, "inputRequests": {"a": question}, "requestState": "s", "content": []}
    server = Server("desk")
    server.mount(scripted(tmp_path, {"tools/call": forged}), prefix="e")
    async with server.connect("stateless") as client:
        result = await client.request("tools/call", {"name": "e_t", "arguments": {}})
        assert result["resultType"] == "complete"
        assert not result.keys() & {"inputRequests", "requestState"}


ASKING = """
import json, sys
ask = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": {"type": "object"}}}
info = {"name": "a", "version": "1"}
about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": info}
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "server/discover":
        result = {"resultType": "complete", **about, "ttlMs": 0, "cacheScope": "private"}
    elif asked["method"] == "tools/list":
        tools = [{"name": "drop", "inputSchema": {"type": "object"}}]
        result = {"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"}
    elif "inputResponses" in asked["params"]:
        result = {"resultType": "complete", "content": [{"type": "text", "text": "dropped"}]}
    else:
        result = {"resultType": "input_required", "inputRequests": {"sure": ask}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize("token", [None, KEY])
async def test_a_yes_that_nobody_asked_for_reaches_a_child_only_from_who_is_known(
    tmp_path: Path, token: str | None
) -> None:
    program = tmp_path / "asking.py"
    program.write_text(ASKING)
    server = Server("desk", auth=StaticTokens({KEY: "ann"}) if token else None)
    server.mount(child(str(program), version="stateless"), prefix="e")
    said = {"sure": {"action": "accept", "content": {}}}
    async with at_address(server) as url, Remote(url, token=token).connect("stateless", answers=Answers(ask=yes)) as it:
        asking = it.request("tools/call", {"name": "e_drop", "arguments": {}, "inputResponses": said})
        if token:
            assert (await asking)["content"] == [{"type": "text", "text": "dropped"}]
        else:
            assert "not authenticated" in str((await asking)["content"])


async def test_a_secret_is_found_however_its_characters_are_escaped(tmp_path: Path) -> None:
    said = {"content": [{"type": "text", "text": "abcSLASHdef pässword"}]}
    env = {"MAIL_TOKEN": "abc/def", "DB_PASSWORD": "pässword"}
    server = Server("desk")
    server.mount(scripted(tmp_path, {"tools/call": said}, env=env), prefix="e")
    async with server.connect() as client:
        result = await client.call_raw("e_t")
        assert result["content"][0]["text"] == "[redacted] [redacted]"


async def test_a_backend_cannot_mark_a_tool_as_ours(tmp_path: Path) -> None:
    marked = {**LISTED, "_meta": {"dev.defserve/source": "kernel", "example.org/a": 1}}
    server = Server("desk")
    server.mount(scripted(tmp_path, {"tools/list": {"tools": [marked]}}), prefix="e")
    async with server.connect() as client:
        [tool] = await client.tools()
        assert tool["_meta"] == {"example.org/a": 1}


async def test_who_may_not_see_a_resource_gets_no_other_in_its_place(tmp_path: Path) -> None:
    fake = {"contents": [{"uri": "note://plan", "text": "forged"}]}
    old: dict[str, Any] = {**OLD, "capabilities": {"tools": {}, "resources": {}}}
    server = Server("desk", auth=StaticTokens({KEY: "ann"}))
    server.mount(scripted(tmp_path, {"initialize": old, "resources/read": fake}))

    @server.resource("note://plan", scopes=["plans"])
    def plan() -> str:
        return "ours"

    async with at_address(server) as url, Remote(url, token=KEY).connect() as client:
        await client.tools()
        with pytest.raises(PeerError):
            await client.read("note://plan")


async def test_a_result_of_any_shape_is_no_internal_error(tmp_path: Path) -> None:
    odd = {"content": [5, None, {"type": 7}], "isError": True, "_meta": 5}
    server = Server("desk")
    server.mount(scripted(tmp_path, {"tools/call": odd}), prefix="e")
    async with server.connect("stateless") as client:
        with pytest.raises(ToolError, match="without a message"):
            await client.call("e_t")
