from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from defserve import Server
from defserve.client.link import ClientLink
from defserve.errors import DefserveError, PeerError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.page_server import PAGE_HANDLERS
from defserve.inspector.protocol import PageRequest, describe_error_for_page
from defserve.serve.lifespans import connect_in_memory
from tests.inspector.conftest import Inspect, Run
from tests.waiting import until

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("era", ["handshake", "stateless"])


@eras
async def test_the_list_says_what_each_tool_costs_and_needs(inspect: Inspect, do: Run, era: str):
    async with inspect() as inspection:
        listed = {tool["definition"]["name"]: tool for tool in (await do(inspection, "tools.list", era=era))["tools"]}
    assert (listed["list_sensors"]["mark"], listed["clear_bed"]["mark"]) == ("safe", "dangerous")
    # One word in the list and in the definition, also if the server made it up.
    said = listed["help"]["definition"].get("security") or listed["help"]["definition"].get("_mgp", {})
    assert listed["help"]["mark"] in str(said) and listed["help"]["set"] is None
    survey = listed["survey"]
    assert (survey["mark"], survey["set"], survey["guard"]) == ("moderate", "climate.read", "network_restricted")
    assert survey["needs"] == [{"name": "network.outbound", "decision": "deferred"}]
    assert survey["tokens"] > listed["help"]["tokens"] > 10
    assert listed["clear_bed"]["confirms"] and not survey["confirms"]


async def test_a_server_without_tools_lists_none(inspect: Inspect, do: Run):
    async with inspect(Server("empty", "1")) as inspection:
        assert (await do(inspection, "tools.list"))["tools"] == []


@eras
async def test_a_call_ends_though_its_parts_cannot_be_sent(inspect: Inspect, do: Run, era: str):
    def refuse(part: Any) -> None:
        raise ValueError("this cannot be sent")

    async with inspect() as inspection:
        inspection.granted["network.outbound"] = True
        arguments = {"era": era, "tool": "survey", "arguments": {"where": ["fern"], "draw": True}}
        with pytest.raises(ValueError, match="cannot be sent"):
            await PAGE_HANDLERS["tools.call"](inspection, PageRequest(arguments, refuse))
        told = await do(inspection, "tools.follow", call=1)
        assert len(told["result"]["content"]) == 4 and not inspection.notices


@eras
async def test_a_call_gives_its_parts_and_its_result(inspect: Inspect, do: Run, era: str):
    parts = list[Any]()
    async with inspect() as inspection:
        inspection.granted["network.outbound"] = True
        told = await do(
            inspection, "tools.call", parts, era=era, tool="survey", arguments={"where": ["fern"], "draw": True}
        )
        assert (told["era"], told["state"]) == (era, "done")
        assert [block["type"] for block in told["result"]["content"]] == ["image", "text", "text", "text"]
        came = [block["type"] for part in parts for block in part.get("content", ())]
        assert came == ["image", "text", "text", "text"]
        assert any("station north" in str(part.get("log")) for part in parts)
        # The id leads to the messages of the call.
        assert any(
            entry.id == told["request"] for entry in inspection.recorder.get_messages(0, inspection.recorder.count)
        )
        assert not inspection.notices


@eras
async def test_a_failed_call_keeps_its_result(inspect: Inspect, do: Run, era: str):
    async with inspect() as inspection:
        inspection.granted["network.outbound"] = True
        told = await do(inspection, "tools.call", era=era, tool="survey", arguments={"where": ["attic"]})
        assert told["state"] == "failed" and "fix: use one of" in told["result"]["content"][0]["text"]
        with pytest.raises(DefserveError) as wrong:
            await do(inspection, "tools.call", era=era, tool="survey", arguments={"where": {}, "day": "x"})
        problems = describe_error_for_page(wrong.value)["problems"]
        assert [problem["field"] for problem in problems] == ["where", "day"]
        assert problems[1]["reason"] == 'expected date (YYYY-MM-DD), got "x"'


@eras
async def test_an_unknown_tool_is_an_error(inspect: Inspect, do: Run, era: str):
    async with inspect() as inspection:
        # A tool that nobody knows may need whatever its server does.
        inspection.granted.update({"network.outbound": True, "shell.execute": True})
        call = asyncio.create_task(do(inspection, "tools.call", era=era, tool="no_such", arguments={}))
        await until(lambda: bool(inspection.questions.waiting))
        (question,) = inspection.questions.waiting
        await do(inspection, "questions.answer", question=question["id"], answer={"yes": True})
        with pytest.raises(PeerError):
            await call


@eras
@pytest.mark.parametrize("yes", [True, False])
async def test_a_dangerous_call_waits_for_the_person(inspect: Inspect, do: Run, era: str, yes: bool):
    async with inspect() as inspection:
        call = asyncio.create_task(do(inspection, "tools.call", era=era, tool="clear_bed", arguments={"bed": "fern"}))
        await until(lambda: bool(inspection.questions.waiting))
        (question,) = inspection.questions.waiting
        assert (question["kind"], question["tool"], question["arguments"]) == (
            "confirmation",
            "clear_bed",
            {"bed": "fern"},
        )
        assert await do(inspection, "questions.answer", question=question["id"], answer={"yes": yes}) == {
            "answered": True
        }
        if yes:
            assert (await call)["result"]["content"][0]["text"] == "fern is empty"
        else:
            with pytest.raises(DefserveError, match="not confirmed"):
                await call
        assert not inspection.questions.waiting


@eras
async def test_a_permission_is_asked_for_when_a_call_needs_it_and_kept(inspect: Inspect, do: Run, era: str):
    async with inspect() as inspection:
        await do(inspection, "tools.list", era=era)
        assert not inspection.questions.waiting
        call = asyncio.create_task(do(inspection, "tools.call", era=era, tool="survey", arguments={"where": 1}))
        await until(lambda: bool(inspection.questions.waiting))
        (question,) = inspection.questions.waiting
        assert (question["kind"], question["permission"]) == ("permission", "network.outbound")
        await do(inspection, "questions.answer", question=question["id"], answer={"decision": "approved"})
        assert (await call)["state"] == "done"
        assert inspection.granted == {"network.outbound": True}
        listed = {tool["definition"]["name"]: tool for tool in (await do(inspection, "tools.list", era=era))["tools"]}
        assert listed["survey"]["needs"][0]["decision"] == "approved"


@eras
async def test_a_question_of_a_tool_is_answered_by_the_person(inspect: Inspect, do: Run, era: str):
    async with inspect() as inspection:
        call = asyncio.create_task(do(inspection, "tools.call", era=era, tool="water", arguments={"bed": "fern"}))
        await until(lambda: bool(inspection.questions.waiting))
        (question,) = await do(inspection, "questions.list")
        assert (question["kind"], question["message"]) == ("form", "How many litres for fern?")
        name = next(iter(question["schema"]["properties"]))
        await do(
            inspection, "questions.answer", question=question["id"], answer={"action": "accept", "content": {name: 7}}
        )
        assert (await call)["result"]["content"][0]["text"] == "7 litres for fern"
        assert await do(inspection, "questions.answer", question=question["id"], answer={}) == {"answered": False}


async def test_a_cancelled_call_takes_its_question_back(inspect: Inspect, do: Run):
    async with inspect() as inspection:
        call = asyncio.create_task(do(inspection, "tools.call", tool="clear_bed", arguments={"bed": "fern"}))
        await until(lambda: bool(inspection.questions.waiting))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert not inspection.questions.waiting and not inspection.notices


async def test_what_the_server_refuses_reaches_the_page(inspect: Inspect, do: Run):
    async with inspect() as inspection:
        inspection.granted["network.outbound"] = True
        with pytest.raises(DefserveError, match="127.0.0.1|refused|public"):
            await do(inspection, "tools.call", tool="survey", arguments={"where": 1, "station": "http://127.0.0.1/"})
        asked = [entry for entry in inspection.recorder.get_messages(0, 99) if entry.method == "tools/call"]
        assert [entry.direction for entry in asked] == ["sent", "received"]


async def test_times_of_calls_are_told(inspect: Inspect, do: Run):
    async with inspect() as inspection:
        for _ in range(3):
            await do(inspection, "tools.call", tool="help", arguments={})
        calls = (await do(inspection, "tools.latency", tool="help"))["calls"]
        assert [(call["era"], call["error"]) for call in calls] == [("stateless", False)] * 3
        assert all(call["ms"] > 0 for call in calls)
        assert (await do(inspection, "tools.latency", tool="survey"))["calls"] == []


async def test_a_call_is_saved_as_code(inspect: Inspect, do: Run):
    async with inspect() as inspection:
        saved = await do(inspection, "tools.save", tool="help", arguments={"a": [1]})
        assert saved["command"] == "defserve call greenhouse.py help 'a:=[1]'"
        assert "client.call_raw('help', {'a': [1]})" in saved["test"]


async def test_the_key_in_the_address_of_a_server_is_neither_told_nor_saved(do: Run):
    address = "http://127.0.0.1:9/mcp?api_key=SECRETurl12345"

    def link() -> AbstractAsyncContextManager[ClientLink]:
        return connect_in_memory(Server("a", "1").composition)

    async with Inspection(InspectionTarget(address, (address,), link)) as inspection:
        told = [
            await do(inspection, "hello"),
            await do(inspection, "tools.save", tool="login", arguments={"password": "SECRETpw"}),
        ]
    assert "SECRET" not in str(told) and "http://127.0.0.1:9/mcp?api_key=" in str(told[0])
