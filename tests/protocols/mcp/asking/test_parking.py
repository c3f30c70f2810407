"""Work that is parked while its caller is asked: it goes on with the answer, and never begins again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Context, Server
from defserve.protocols.mcp.asking.client_requests import ParkedWork, ParkedWorkRegistry
from tests.raw import STATELESS, Json, Raw, raw, text_of
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

ASKS: Json = {"elicitation": {}}
SECRET = "a secret of twenty-six bytes"
FORM: Json = {"message": "Go on?", "requestedSchema": {"type": "object", "properties": {}}}
YES: Json = {"action": "accept", "content": {}}


class Parked:
    """A server with one tool, whose work asks as many questions as it is told to."""

    def __init__(self, **bounds: Any) -> None:
        self.parking, self.server = ParkedWorkRegistry(**bounds), Server("s", "1", secret=SECRET)
        self.events: list[str] = []

        @self.server.tool
        async def work(ctx: Context, questions: int = 1) -> str:
            return await self.parking.run_or_resume(ctx.call, lambda parked: self._run(parked, questions))

    async def _run(self, parked: ParkedWork, questions: int) -> str:
        self.events.append("began")
        parked.note = lambda: f"It had done {len(self.events)} things."
        try:
            for _ in range(questions):
                answer = await parked.ask_caller("elicitation/create", FORM, lambda answer: "action" in answer)
                self.events.append(answer["action"])
                await parked.wait_for_caller()
            return "done"
        finally:
            self.events.append("ended")


async def step(peer: Raw, asked: Json | None = None, answer: Json = YES, **arguments: Any) -> Json:
    params: Json = {"name": "work", "arguments": arguments}
    if asked is not None:
        params["inputResponses"] = dict.fromkeys(asked["inputRequests"], answer)
        params["requestState"] = asked["requestState"]
    reply = await peer.ask("tools/call", params)
    return reply.get("result") or reply["error"]


async def test_the_answer_reaches_the_work_that_asked_and_nothing_runs_twice():
    parked = Parked()
    async with raw(parked.server, STATELESS, ASKS) as peer:
        first = await step(peer, questions=2)
        assert [request["params"] for request in first["inputRequests"].values()] == [FORM]
        assert parked.events == ["began"] and len(parked.parking) == 1
        second = await step(peer, first, questions=2)
        assert second["resultType"] == "input_required"
        done = await step(peer, second, {"action": "decline"}, questions=2)
    assert text_of(done) == "done"
    assert parked.events == ["began", "accept", "decline", "ended"]
    assert len(parked.parking) == 0


async def test_a_state_is_good_once_and_only_for_its_own_request():
    parked = Parked()
    async with raw(parked.server, STATELESS, ASKS) as peer:
        first = await step(peer)
        assert "requestState" in (await step(peer, first, questions=7))["message"]
        assert text_of(await step(peer, first)) == "done"
        assert "requestState" in (await step(peer, first))["message"]
    assert parked.events == ["began", "accept", "ended"]


async def test_an_answer_of_the_wrong_shape_is_asked_for_again():
    parked = Parked()
    async with raw(parked.server, STATELESS, ASKS) as peer:
        first = await step(peer)
        again = await step(peer, first, {"nonsense": 1})
        assert again["inputRequests"] == first["inputRequests"]
        assert text_of(await step(peer, again)) == "done"
    assert parked.events == ["began", "accept", "ended"]


async def test_work_of_another_process_is_lost_and_the_caller_learns_what_was_done():
    one, other = Parked(), Parked()
    async with raw(one.server, STATELESS, ASKS) as peer, raw(other.server, STATELESS, ASKS) as elsewhere:
        first = await step(peer)
        lost = await step(elsewhere, first)
    assert lost["isError"] and "is gone" in text_of(lost)
    assert "It had done 1 things." in text_of(lost) and "Nothing was done again" in text_of(lost)
    assert other.events == []


async def test_work_that_waits_too_long_ends():
    parked = Parked(seconds=0.01)
    async with raw(parked.server, STATELESS, ASKS) as peer:
        first = await step(peer)
        await until(lambda: parked.events == ["began", "ended"])
        assert "is gone" in text_of(await step(peer, first))
    assert parked.events == ["began", "ended"]


@for_each_row("bounds", [{"most": 2}, {"of_one": 2}], ids=str)
async def test_work_beyond_the_bounds_fails_and_what_is_parked_stays(bounds: dict[str, Any]):
    parked = Parked(**bounds)
    async with raw(parked.server, STATELESS, ASKS) as peer:
        kept = [await step(peer), await step(peer)]
        assert "too many calls wait for an answer" in text_of(await step(peer))
        assert [text_of(await step(peer, first)) for first in kept] == ["done", "done"]
        assert (await step(peer))["resultType"] == "input_required"


async def test_work_is_bounded_in_bytes():
    parked = Parked(most_bytes=100)

    @parked.server.tool
    async def large(ctx: Context) -> str:
        async def run(work: ParkedWork) -> str:
            async def prepare() -> int:
                return 60

            work.prepare = prepare
            return str(await work.ask_caller("elicitation/create", FORM, bool))

        return await parked.parking.run_or_resume(ctx.call, run)

    async with raw(parked.server, STATELESS, ASKS) as peer:
        assert "inputRequests" in await peer.call("large")
        assert "too much memory" in text_of(await peer.call("large"))


async def test_what_is_parked_ends_with_the_server():
    parked = Parked()
    async with raw(parked.server, STATELESS, ASKS) as peer:
        await step(peer)
        await parked.parking.close()
        assert parked.events == ["began", "ended"] and len(parked.parking) == 0


async def test_a_request_that_is_cancelled_ends_its_work():
    parked, began = Parked(), asyncio.Event()

    @parked.server.tool
    async def stuck(ctx: Context) -> None:
        async def run(work: ParkedWork) -> None:
            try:
                began.set()
                await asyncio.Event().wait()
            finally:
                parked.events.append("stopped")

        await parked.parking.run_or_resume(ctx.call, run)

    async with raw(parked.server, STATELESS, ASKS) as peer:
        id = await peer.begin("tools/call", {"name": "stuck", "arguments": {}})
        await began.wait()
        await peer.tell("notifications/cancelled", {"requestId": id})
        await until(lambda: parked.events == ["stopped"])
