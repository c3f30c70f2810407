from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from defserve.inspector import page_server as page_socket
from defserve.inspector.page_server import MAX_FRAME_BYTES, RunningInspector
from tests.waiting import until

pytestmark = pytest.mark.anyio

OpenPage = Callable[[RunningInspector], AbstractAsyncContextManager[Any]]


async def test_a_page_is_told_what_it_looks_at(running: RunningInspector, open_page: OpenPage):
    async with open_page(running) as page:
        await page.ask("era.open")
        hello = (await page.ask("hello"))["ok"]
        target = {"address": "greenhouse.py", "words": ["greenhouse.py"], "tracebacks": ""}
        assert hello["target"] == {**target, "signs_in": False, "starts": False, "saved": None}
        told = hello["connections"][0]
        assert (told["state"], told["era"], told["server"]["name"]) == ("open", "stateless", "greenhouse")
        assert [name for name, _ in told["speaks"]] == ["MCP", "MGP", "MCPL"]


async def test_parts_come_before_the_answer(running: RunningInspector, open_page: OpenPage):
    running.inspection.granted["network.outbound"] = True
    async with open_page(running) as page:
        id = await page.begin("tools.call", tool="survey", arguments={"where": 2})
        answer = (await page.answer(id))["ok"]
        parts = page.parts[id]
        assert parts[0]["call"]["tool"] == "survey"
        assert [block["type"] for part in parts for block in part.get("content", ())] == ["text"] * 4
        assert [part["progress"]["progress"] for part in parts if "progress" in part][-1] == 2
        assert [line["level"] for part in parts for line in part.get("log", ())] == ["info"]
        assert len(answer["result"]["content"]) == 4 and answer["first"] <= answer["ms"]


async def test_a_request_can_be_cancelled(running: RunningInspector, open_page: OpenPage):
    running.inspection.granted["network.outbound"] = True
    async with open_page(running) as page:
        id = await page.begin("tools.call", tool="survey", arguments={"where": 3, "hold": True})
        await until(lambda: any("progress" in part for part in page.parts.get(id, ())))
        await page.socket.send(json.dumps({"do": "cancel", "of": id}))
        assert (await page.answer(id))["error"]["cancelled"] is True
        assert (await page.ask("hello"))["ok"]


async def test_wrong_messages_are_told_and_end_nothing(running: RunningInspector, open_page: OpenPage):
    async with open_page(running) as page:
        await page.socket.send("not JSON")
        await page.socket.send('{"do": "cancel", "of": "x"}')
        await until(lambda: any(each["on"] == "refused" for each in page.heard))
        assert "no verb" in (await page.ask("no.such"))["error"]["message"]
        assert "missing" in (await page.ask("tools.call"))["error"]["message"]
        assert (await page.ask("hello"))["ok"]


async def test_an_id_in_use_and_too_many_requests_are_refused(
    running: RunningInspector, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(page_socket, "MAX_REQUESTS", 1)
    running.inspection.granted["network.outbound"] = True
    async with open_page(running) as page:
        await page.begin("tools.call", tool="survey", arguments={"where": 3, "hold": True})
        assert "requests run already" in (await page.ask("hello"))["error"]["message"]


async def test_a_binary_frame_ends_the_socket(running: RunningInspector, open_page: OpenPage):
    async with open_page(running) as page:
        await page.socket.send(b"\0")
        await page.socket.wait_closed()
        assert page.socket.close_code == 1008


async def test_a_frame_that_is_too_long_ends_the_socket(running: RunningInspector, open_page: OpenPage):
    async with open_page(running) as page:
        with suppress(ConnectionClosed):  # it may end before everything was sent
            await page.socket.send("x" * (MAX_FRAME_BYTES + 1))
        await page.socket.wait_closed()
        assert page.socket.close_code == 1009
    async with open_page(running) as page:
        assert (await page.ask("hello"))["ok"]


async def test_every_page_is_told_and_a_page_that_left_is_forgotten(running: RunningInspector, open_page: OpenPage):
    async with open_page(running) as one, open_page(running) as other:
        await one.ask("hello")
        await other.ask("hello")
        running.inspection.push("news", 1)
        await until(lambda: all({"on": "news", "data": 1} in page.heard for page in (one, other)))
    await until(lambda: not running.inspection.pages)


async def test_of_some_topics_only_the_newest_is_sent(running: RunningInspector, open_page: OpenPage):
    async with open_page(running) as page:
        await page.ask("hello")
        for number in range(100):
            running.inspection.push("messages", number)
            running.inspection.push("news", number)
        await until(lambda: sum(each["on"] == "news" for each in page.heard) == 100)
        assert [each["data"] for each in page.heard if each["on"] == "messages"] == [99]


async def test_a_page_that_does_not_read_is_disconnected(
    running: RunningInspector, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(page_socket, "MAX_UNSENT_BYTES", 1_000)
    async with open_page(running) as page:
        await page.ask("hello")
        for _ in range(100):
            running.inspection.push("news", "x" * 100)
        await page.socket.wait_closed()
        assert page.socket.close_code == 1013


async def test_a_running_call_outlives_its_page_and_is_followed_by_the_next(
    running: RunningInspector, open_page: OpenPage
):
    running.inspection.granted["network.outbound"] = True
    async with open_page(running) as page:
        id = await page.begin("tools.call", tool="survey", arguments={"where": 3, "hold": True})
        await until(lambda: any("progress" in part for part in page.parts.get(id, ())))
        before = [block for part in page.parts[id] for block in part.get("content", ())]
    async with open_page(running) as page:
        (call,) = (await page.ask("tools.calls"))["ok"]["calls"]
        assert (call["number"], call["tool"], call["state"]) == (1, "survey", "running")
        id = await page.begin("tools.follow", call=1)
        await until(
            lambda: (
                [block for part in page.parts.get(id, ()) for block in part.get("content", ())][: len(before)] == before
            )
        )
        await page.ask("tools.cancel", call=1)
        assert (await page.answer(id))["ok"]["state"] == "cancelled"
    await until(lambda: not running.inspection.notices)
