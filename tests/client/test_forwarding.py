"""Requests that are passed on for somebody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.client.conversation import ClientConversation
from defserve.core.messages import Request
from defserve.errors import MethodNotFound, PeerGone, PeerTimeout
from tests.client.pretend import SILENCE, Fail, PretendServer, forward

pytestmark = pytest.mark.anyio

PROGRESS = "notifications/progress"


class Talk:
    """A conversation with a pretend server, and what its own handler heard."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.server = PretendServer(replies)
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.conversation = ClientConversation(
            self.server,
            on_request=self._asked,
            on_notification=lambda method, params: self.heard.append((method, params)),
            on_gone=lambda gone: None,
        )

    async def _asked(self, request: Request) -> Any:
        raise MethodNotFound(request.method)

    async def __aenter__(self) -> Talk:
        self.conversation.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.conversation.aclose()


async def test_the_reply_comes_whole_whether_it_is_a_result_or_an_error():
    error = {"code": -32602, "message": "unknown", "data": {"x": 1}}
    async with Talk({"good": {"odd": [1, {"two": None}]}, "bad": Fail(-32602, "unknown", {"x": 1})}) as talk:
        good = await forward(talk.conversation, "good", {"n": 1})
        bad = await forward(talk.conversation, "bad", {})
    assert (good.error, good.result, good.raw) == (None, {"odd": [1, {"two": None}]}, b'{"odd":[1,{"two":null}]}')
    assert bad.error == error
    assert talk.server.asked("good") == [{"n": 1}]


async def test_progress_goes_to_whoever_forwarded_the_request_under_their_own_token():
    notes: list[Any] = []
    async with Talk({"slow": SILENCE}) as talk:
        params = {"_meta": {"progressToken": "theirs", "other": 1}}
        task = asyncio.create_task(
            forward(talk.conversation, "slow", params, on_notification=lambda *note: notes.append(note))
        )
        sent = await talk.server.told(lambda m: m["method"] == "slow")
        assert sent["params"]["_meta"] == {"progressToken": sent["id"], "other": 1}
        talk.server.say({"method": PROGRESS, "params": {"progressToken": sent["id"], "progress": 1, "odd": True}})
        talk.server.say({"method": PROGRESS, "params": {"progressToken": "theirs", "progress": 2}})
        talk.server.say({"id": sent["id"], "result": {}})
        await task
    assert notes == [(PROGRESS, {"progressToken": "theirs", "progress": 1, "odd": True})]
    assert talk.heard == [(PROGRESS, {"progressToken": "theirs", "progress": 2})]


async def test_two_forwarded_requests_with_one_token_do_not_mix():
    notes: dict[str, list[Any]] = {"a": [], "b": []}
    async with Talk({"a": SILENCE, "b": SILENCE}) as talk:
        tasks = [
            asyncio.create_task(
                forward(
                    talk.conversation,
                    name,
                    {"_meta": {"progressToken": 1}},
                    on_notification=lambda _, params, name=name: notes[name].append(params["progress"]),
                )
            )
            for name in "ab"
        ]
        ids = {name: (await talk.server.told(lambda m, name=name: m["method"] == name))["id"] for name in "ab"}
        for name, progress in (("b", 1), ("a", 2)):
            talk.server.say({"method": PROGRESS, "params": {"progressToken": ids[name], "progress": progress}})
        for name in "ab":
            talk.server.say({"id": ids[name], "result": {}})
        await asyncio.gather(*tasks)
    assert notes == {"a": [2], "b": [1]}


async def test_a_request_that_asked_for_no_progress_gets_no_token():
    async with Talk({"a": {}}) as talk:
        await forward(talk.conversation, "a", {"_meta": {"x": 1}}, on_notification=lambda *_: None)
    assert talk.server.asked("a") == [{"_meta": {"x": 1}}]


async def test_a_handler_that_fails_loses_only_its_notification():
    def fail(method: str, params: Any) -> None:
        raise RuntimeError("no")

    async with Talk({"slow": SILENCE}) as talk:
        task = asyncio.create_task(
            forward(talk.conversation, "slow", {"_meta": {"progressToken": 0}}, on_notification=fail)
        )
        sent = await talk.server.told(lambda m: m["method"] == "slow")
        talk.server.say({"method": PROGRESS, "params": {"progressToken": sent["id"], "progress": 1}})
        talk.server.say({"id": sent["id"], "result": 1})
        assert (await task).result == 1


async def test_a_forwarded_request_that_is_given_up_is_cancelled():
    async with Talk({"slow": SILENCE}) as talk:
        with pytest.raises(PeerTimeout):
            await forward(talk.conversation, "slow", {}, within=0.01)
        told = await talk.server.told(lambda m: m["method"] == "notifications/cancelled")
        assert told["params"]["requestId"] == talk.server.sent[0]["id"]


async def test_a_server_that_leaves_is_said_as_such():
    async with Talk({"slow": SILENCE}) as talk:
        task = asyncio.create_task(forward(talk.conversation, "slow", {}))
        await talk.server.told(lambda m: m["method"] == "slow")
        talk.server.leave(PeerGone("it exited"))
        with pytest.raises(PeerGone, match="it exited"):
            await task
