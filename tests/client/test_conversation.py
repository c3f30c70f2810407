from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from defserve.client.conversation import ClientConversation
from defserve.core.messages import Request
from defserve.errors import MethodNotFound, PeerError, PeerGone, PeerTimeout
from tests.client.pretend import SILENCE, Fail, PretendServer
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


class Talk:
    """A conversation with a pretend server, and what it reported."""

    def __init__(self, replies: dict[str, Any] | None = None, on_request: Any = None) -> None:
        self.server = PretendServer(replies)
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.gone: list[PeerGone] = []
        self.conversation = ClientConversation(
            self.server,
            on_request=on_request or _nothing,
            on_notification=lambda method, params: self.heard.append((method, params)),
            on_gone=self.gone.append,
        )

    async def __aenter__(self) -> Talk:
        self.conversation.start()
        self.conversation.mark_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.conversation.aclose()


async def _nothing(request: Request) -> Any:
    raise MethodNotFound(f"no {request.method}")


async def test_replies_find_their_requests_in_any_order():
    async with Talk({"one": SILENCE, "two": SILENCE}) as talk:
        one = asyncio.create_task(talk.conversation.request("one", {}, within=30))
        two = asyncio.create_task(talk.conversation.request("two", {}, within=30))
        first = await talk.server.told(lambda m: m["method"] == "one")
        second = await talk.server.told(lambda m: m["method"] == "two")
        talk.server.say({"id": second["id"], "result": 2})
        talk.server.say({"id": first["id"], "result": 1})
        assert (await one, await two) == (1, 2)


async def test_an_error_reply_is_raised_with_its_code_and_data():
    async with Talk({"bad": Fail(-32602, "unknown tool", {"name": "x"})}) as talk:
        with pytest.raises(PeerError, match="unknown tool") as caught:
            await talk.conversation.request("bad", {}, within=30)
    assert (caught.value.code, caught.value.data) == (-32602, {"name": "x"})


async def test_a_request_that_gets_no_answer_times_out_and_is_called_off():
    async with Talk({"slow": SILENCE}) as talk:
        with pytest.raises(PeerTimeout, match="slow within 0.01 s"):
            await talk.conversation.request("slow", {}, within=0.01)
        cancelled = await talk.server.told(lambda m: m["method"] == "notifications/cancelled")
        assert cancelled["params"]["requestId"] == talk.server.sent[0]["id"]


async def test_cancelling_the_task_calls_the_request_off():
    async with Talk({"slow": SILENCE}) as talk:
        task = asyncio.create_task(talk.conversation.request("slow", {}, within=30))
        request = await talk.server.told(lambda m: m["method"] == "slow")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled = await talk.server.told(lambda m: m["method"] == "notifications/cancelled")
        assert cancelled["params"]["requestId"] == request["id"]


async def test_a_request_that_may_not_be_called_off_is_not():
    async with Talk({"slow": SILENCE}) as talk:
        with pytest.raises(PeerTimeout):
            await talk.conversation.request("slow", {}, within=0.01, cancellable=False)
    assert talk.server.asked("notifications/cancelled") == []


async def test_everyone_who_waits_learns_why_the_peer_left():
    async with Talk({"a": SILENCE, "b": SILENCE}) as talk:
        waiting = [asyncio.create_task(talk.conversation.request(name, {}, within=30)) for name in "ab"]
        await talk.server.told(lambda m: m["method"] == "b")
        talk.server.leave(PeerGone("it exited with code 3"))
        for task in waiting:
            with pytest.raises(PeerGone, match="code 3"):
                await task
        with pytest.raises(PeerGone, match="code 3"):
            await talk.conversation.request("late", {}, within=30)
    assert [str(gone) for gone in talk.gone] == ["it exited with code 3"]


async def test_what_is_no_message_is_logged_and_skipped(caplog: pytest.LogCaptureFixture):
    async with Talk({"a": SILENCE}) as talk:
        with caplog.at_level(logging.WARNING, "defserve.client"):
            task = asyncio.create_task(talk.conversation.request("a", {}, within=30))
            request = await talk.server.told(lambda m: m["method"] == "a")
            talk.server.say(b"Listening on port 80...")
            talk.server.say({"id": request["id"], "result": "fine"})
            assert await task == "fine"
    assert "Listening on port 80" in caplog.text


async def test_an_unreadable_reply_fails_its_request_at_once():
    async with Talk({"a": SILENCE}) as talk:
        task = asyncio.create_task(talk.conversation.request("a", {}, within=30))
        request = await talk.server.told(lambda m: m["method"] == "a")
        talk.server.say({"id": request["id"], "result": 1, "error": {"code": 1, "message": "both"}})
        with pytest.raises(PeerError, match="unreadable"):
            await task


async def test_a_server_that_answers_with_the_id_as_a_text_is_understood():
    async with Talk({"a": SILENCE, "b": SILENCE}) as talk:
        first, second = (asyncio.create_task(talk.conversation.request(name, {}, within=30)) for name in "ab")
        ids = [(await talk.server.told(lambda m, name=name: m["method"] == name))["id"] for name in "ab"]
        for id in (f"{ids[1]}x", "9" * 200, "", "\u0661"):
            talk.server.say({"id": id, "result": "another's"})
        talk.server.say({"id": str(ids[1]), "result": 2})
        talk.server.say({"id": str(ids[1]), "result": "again"})
        talk.server.say({"id": str(ids[0]), "result": 1})
        assert (await first, await second) == (1, 2)


@for_each_row("id", [1.5, [], {"a": 1}, True, None, "x" * 300])
async def test_a_reply_that_can_be_read_and_names_no_request_answers_none(id: Any):
    async with Talk({"a": SILENCE}) as talk:
        task = asyncio.create_task(talk.conversation.request("a", {}, within=30))
        request = await talk.server.told(lambda m: m["method"] == "a")
        for members in ({}, {"result": 1}, {"error": 1}, {"result": 1, "error": {"code": 1, "message": "both"}}):
            talk.server.say({"id": id, **members})
        talk.server.say({"id": request["id"], "result": "ok"})
        assert await task == "ok"


async def test_a_batch_is_taken_apart():
    async with Talk({"a": SILENCE}) as talk:
        task = asyncio.create_task(talk.conversation.request("a", {}, within=30))
        request = await talk.server.told(lambda m: m["method"] == "a")
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "hi"}}
        talk.server.say([note, {"jsonrpc": "2.0", "id": request["id"], "result": "ok"}])
        assert await task == "ok"
    assert talk.heard == [("notifications/message", {"data": "hi"})]


async def test_progress_comes_before_the_result_it_preceded():
    seen: list[tuple[Any, ...]] = []

    def work(request: dict[str, Any]) -> str:
        token = request["params"]["_meta"]["progressToken"]
        for step in (1, 2):
            params = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
            talk.server.say({"method": "notifications/progress", "params": params})
        return "done"

    async with Talk({"work": work}) as talk:
        await talk.conversation.request("work", {"_meta": {"k": 1}}, within=30, on_progress=lambda *a: seen.append(a))
        assert talk.server.sent[0]["params"]["_meta"]["k"] == 1
    assert seen == [(1, 2, "step 1"), (2, 2, "step 2")]


async def test_a_failing_progress_handler_does_not_end_the_conversation():
    def work(request: dict[str, Any]) -> str:
        params = {"progressToken": request["id"], "progress": 1}
        talk.server.say({"method": "notifications/progress", "params": params})
        return "done"

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    async with Talk({"work": work}) as talk:
        assert await talk.conversation.request("work", {}, within=30, on_progress=broken) == "done"


async def test_the_peers_request_is_answered():
    async def answer(request: Request) -> Any:
        return {"method": request.method, **request.params}

    async with Talk(on_request=answer) as talk:
        talk.server.say({"id": "s1", "method": "roots/list", "params": {"x": 1}})
        reply = await talk.server.told(lambda m: m.get("id") == "s1")
    assert reply["result"] == {"method": "roots/list", "x": 1}


async def test_the_peers_unknown_request_is_refused_as_method_not_found():
    async with Talk() as talk:
        talk.server.say({"id": 1, "method": "acme/strange"})
        reply = await talk.server.told(lambda m: m.get("id") == 1)
    assert reply["error"] == {"code": -32601, "message": "no acme/strange"}


async def test_a_failing_answer_is_an_internal_error_for_the_peer():
    async def answer(request: Request) -> Any:
        raise RuntimeError("out of ideas")

    async with Talk(on_request=answer) as talk:
        talk.server.say({"id": 1, "method": "sampling/createMessage"})
        reply = await talk.server.told(lambda m: m.get("id") == 1)
    assert reply["error"] == {"code": -32603, "message": "RuntimeError: out of ideas"}


async def test_the_clock_stands_still_while_we_answer_the_peer():
    asked, thought = asyncio.Event(), asyncio.Event()

    async def answer(request: Request) -> Any:
        asked.set()
        await thought.wait()
        return {}

    async with Talk({"ask": SILENCE}, on_request=answer) as talk:
        talk.server.say({"id": "q", "method": "elicitation/create"})
        await asked.wait()
        task = asyncio.create_task(talk.conversation.request("ask", {}, within=0.01))
        request = await talk.server.told(lambda m: m.get("method") == "ask")
        await asyncio.wait((task,), timeout=0.05)
        assert not task.done()
        talk.server.say({"id": request["id"], "result": "thanks"})
        assert await task == "thanks"
        thought.set()


async def test_a_question_the_peer_takes_back_is_dropped():
    started, stopped = asyncio.Event(), asyncio.Event()

    async def answer(request: Request) -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Talk(on_request=answer) as talk, asyncio.timeout(20):
        talk.server.say({"id": "q", "method": "elicitation/create"})
        await started.wait()
        talk.server.say({"method": "notifications/cancelled", "params": {"requestId": "q"}})
        await stopped.wait()
    assert talk.server.sent == []


async def test_closing_fails_what_still_waits_and_closes_the_link():
    async with Talk({"a": SILENCE}) as talk:
        task = asyncio.create_task(talk.conversation.request("a", {}, within=30))
        await talk.server.told(lambda m: m["method"] == "a")
    with pytest.raises(PeerGone, match="closed"):
        await task
    assert talk.server.closed


async def test_a_request_that_the_link_lost_fails_alone():
    async with Talk({"a": SILENCE, "b": {}}) as talk:
        task = asyncio.create_task(talk.conversation.request("a", {}, within=30))
        request = await talk.server.told(lambda m: m["method"] == "a")
        talk.server.lose("nobody's", PeerError("unheard"))
        talk.server.lose(request["id"], PeerError("refused", code=7))
        with pytest.raises(PeerError, match="refused") as refused:
            await task
        assert refused.value.code == 7
        assert await talk.conversation.request("b", {}, within=30) == {}
    assert talk.server.asked("notifications/cancelled") == []
