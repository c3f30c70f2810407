"""Callbacks of a server (§13.4) are answered by whoever answers its other questions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.client import Accept, Answers, Cancel, Client, Decline, exchange
from defserve.errors import PeerTimeout, ToolError
from tests.client.mgp import guarded
from tests.client.mgp.hosts import ERAS, connected, mgp_block, speaking, trusting
from tests.client.pretend import SILENCE, PretendServer
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

REQUEST = "notifications/mgp.callback.request"


def asking(answer: Any) -> Answers:
    return Answers(ask=lambda message, schema: answer)


async def test_a_confirmation_and_a_selection_are_put_to_the_clients_answers():
    asked: list[tuple[str, Any]] = []

    async def ask(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        asked.append((message, schema["properties"]["value"]))
        return {"value": "savings" if "account" in message else True}

    heard: list[str] = []
    async with guarded.server.connect(
        ERAS[0], answers=Answers(ask=ask), mgp=trusting(), on_notification=lambda method, _: heard.append(method)
    ) as client:
        assert await client.call("pay") == "True savings"
    assert heard.count(REQUEST) == 2
    choice = {"type": "string", "enum": ["savings", "current"]}
    assert asked == [("Pay?", {"type": "boolean"}), ("From which account?", choice)]


@for_each_row("road", ["stdio", "http"])
async def test_callbacks_are_answered_over_every_road(road: str):
    answers = Answers(ask=lambda message, schema: {"any": "current" if "account" in message else False})
    async with connected(road, ERAS[0], answers=answers, mgp=trusting()) as client:
        assert await client.call("pay") == "False current"


async def test_without_sessions_the_same_answers_come_in_rounds():
    answers = Answers(ask=lambda message, schema: {"value": "savings" if "account" in message else True})
    async with guarded.server.connect(ERAS[1], answers=answers, mgp=trusting()) as client:
        assert await client.call("pay") == "True savings"


@for_each_row(
    ("bound", "most", "length"), [("MAX_PEER_REQUESTS", 5, 1), ("MAX_PEER_REQUEST_BYTES", 5_000_000, 1_000_000)]
)
async def test_a_server_can_have_only_so_many_callbacks_asked_at_a_time(
    bound: str, most: int, length: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(exchange, bound, most)
    asked: list[str] = []

    async def ask(message: str, schema: dict[str, Any]) -> None:
        asked.append(message)
        await asyncio.Event().wait()

    server = speaking(mgp_block(extensions=["callbacks"]))
    async with Client(server, version=ERAS[0], answers=Answers(ask=ask), mgp=trusting()) as client:
        for number in range(20):
            params = {"callback_id": str(number), "type": "confirmation", "message": "m" * length}
            server.say({"method": REQUEST, "params": params})
        server.replies["resources/list"] = {"resources": []}
        await client.resources()
        assert len(asked) == 5


async def test_a_person_who_declines_is_not_asked_on():
    async with guarded.server.connect(ERAS[0], answers=asking(Decline), mgp=trusting()) as client:
        with pytest.raises(ToolError, match="declined"):
            await client.call("pay")


@for_each_row(
    ("kind", "answer", "response"),
    [
        ("confirmation", {"value": True}, "confirm"),
        ("confirmation", {"value": "true"}, "cancel"),  # consent is never guessed
        ("confirmation", {"value": False}, "cancel"),
        ("confirmation", Accept, "confirm"),
        ("confirmation", Decline, "decline"),
        ("confirmation", Cancel, None),
        ("input", {"name": "Ann"}, "Ann"),
        ("input", {"name": "Ann", "age": 3}, None),
        ("input", Accept, None),
        ("selection", {"value": "b"}, "b"),
        ("selection", Decline, "decline"),
        ("llm_completion", {"value": "x"}, None),
    ],
)
async def test_an_answer_goes_back_by_its_callback_id(kind: str, answer: Any, response: Any):
    server = calling_back()
    async with Client(server, version=ERAS[0], answers=asking(answer), mgp=trusting()):
        server.say({"method": REQUEST, "params": {"callback_id": "cb", "type": kind, "options": ["a", "b"]}})
        told = await server.told(lambda message: message.get("method") == "mgp/callback/respond")
    assert told["params"] == {"callback_id": "cb", "response": response}


@for_each_row(
    "params", [{"callback_id": "cb", "type": "notification"}, {"type": "input"}, {"callback_id": 7, "type": "input"}]
)
async def test_what_wants_no_answer_gets_none(params: dict[str, Any]):
    server = calling_back()
    async with Client(server, version=ERAS[0], answers=asking({"v": 1}), mgp=trusting()) as client:
        server.say({"method": REQUEST, "params": params})
        await client.ping()
    assert server.asked("mgp/callback/respond") == []


async def test_a_callback_that_was_not_negotiated_is_ignored():
    server = calling_back()
    async with Client(server, version=ERAS[0], answers=asking({"v": 1}), mgp=trusting(extensions=["audit"])) as client:
        server.say({"method": REQUEST, "params": {"callback_id": "cb", "type": "input"}})
        await client.ping()
    assert server.asked("mgp/callback/respond") == []


async def test_an_answer_that_takes_too_long_is_not_sent():
    thinking = asyncio.Event()

    async def ask(message: str, schema: dict[str, Any]) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            thinking.set()

    server = calling_back()
    async with Client(server, version=ERAS[0], answers=Answers(ask=ask), mgp=trusting()) as client:
        server.say({"method": REQUEST, "params": {"callback_id": "cb", "type": "input", "timeout_ms": 1}})
        async with asyncio.timeout(20):
            await thinking.wait()
        await client.ping()
    assert server.asked("mgp/callback/respond") == []


async def test_a_server_that_never_takes_an_answer_stops_no_deadline():
    server = calling_back()
    server.replies |= {"mgp/callback/respond": SILENCE, "x/silent": SILENCE}
    async with Client(server, version=ERAS[0], answers=asking(Accept), mgp=trusting()) as client, asyncio.timeout(10):
        server.say({"method": REQUEST, "params": {"callback_id": "cb", "type": "confirmation"}})
        await server.told(lambda message: message.get("method") == "mgp/callback/respond")
        with pytest.raises(PeerTimeout):
            await client.request("x/silent", timeout=0.05)


async def test_while_a_person_thinks_no_deadline_passes():
    answered = asyncio.Event()

    async def ask(message: str, schema: dict[str, Any]) -> Any:
        await asyncio.sleep(1.3)  # longer than the client waits for an answer
        return {"v": "yes"}

    def called(request: dict[str, Any]) -> Any:
        server.say({"method": REQUEST, "params": {"callback_id": "cb", "type": "input"}})
        calls.append(request["id"])
        return SILENCE

    def responded(request: dict[str, Any]) -> Any:
        server.say({"id": calls[0], "result": {"content": []}})
        answered.set()
        return {}

    calls: list[int] = []
    server = calling_back({"tools/call": called, "mgp/callback/respond": responded})
    async with Client(server, version=ERAS[0], answers=Answers(ask=ask), mgp=trusting(), timeout=1.0) as client:
        assert await client.call("slow") is None
    assert answered.is_set()


def calling_back(replies: dict[str, Any] | None = None) -> PretendServer:
    return speaking(
        mgp_block(extensions=["bidirectional"]), {"ping": {}, "mgp/callback/respond": {}, **(replies or {})}
    )
