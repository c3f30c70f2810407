"""Runs that wait for an answer where a question ends the request (2026-07-28). No call of theirs is made twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Context, Server, dangerous
from defserve.auth.principals import Principal
from defserve.code_mode import CodeMode
from defserve.sandbox import monty
from tests import asgi
from tests.code_mode.peers import ASKS, YES, answers, failure, run, value
from tests.protocols.mgp.callers import ALICE, BOB, Trail, speaking
from tests.raw import STATELESS, Json, Raw, raw
from tests.waiting import slow_tool, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not monty.is_installed(), reason="pydantic-monty is not installed in the tested version"),
]

SECRET = "a secret of twenty-six bytes"


def asking(ran: list[str], **more: Any) -> Server:
    options: Json = {"code_mode": True, "secret": SECRET, **more}
    server = Server("asking", "1", **options)

    @server.tool
    async def greet(ctx: Context, title: str = "") -> str:
        await ctx.once("noted", lambda: ran.append(f"noted {title}"))
        ran.append(f"asks {title}")
        name = await ctx.ask(f"Who is {title}?", str)
        ran.append(f"greets {name}")
        return f"hello {name}"

    @server.tool
    def note(text: str) -> str:
        ran.append(text)
        return text

    @server.tool
    @dangerous("filesystem.write")
    def wipe(disk: str) -> str:
        ran.append(f"wipe {disk}")
        return "wiped"

    return server


def named(message: str) -> Json:
    return {"action": "accept", "content": {"value": message.removeprefix("Who is ").removesuffix("?").upper()}}


async def step(peer: Raw, code: str, asked: Json | None = None) -> Json:
    """One request: the first, or the one that answers."""
    params: Json = {"name": "run_code", "arguments": {"code": code}}
    reply = await peer.ask("tools/call", params | (answers(asked, named) if asked is not None else {}))
    return reply.get("result") or reply["error"]


async def ask_until(peer: Raw, code: str, questions: int) -> Json:
    """The first answer that has so many questions. On a busy machine, one of several tools side by side asks later."""
    asked = await step(peer, code)
    while len(asked["inputRequests"]) < questions:
        nothing = {**answers(asked, named), "inputResponses": {}}
        params = {"name": "run_code", "arguments": {"code": code}, **nothing}
        asked = (await peer.ask("tools/call", params))["result"]
    return asked


CODE = "note('first')\nx = greet('ada')\nnote('second')\ny = greet('bob')\nnote('third')\n[x, y]"


async def test_a_question_parks_the_run_and_the_answer_goes_on_with_it():
    ran: list[str] = []
    async with raw(asking(ran), STATELESS, ASKS) as peer:
        first = await step(peer, CODE)
        assert first["resultType"] == "input_required"
        assert [request["params"]["message"] for request in first["inputRequests"].values()] == ["Who is ada?"]
        assert ran == ["first", "noted ada", "asks ada"]
        second = await step(peer, CODE, first)
        assert ran[3:] == ["greets ADA", "second", "noted bob", "asks bob"]
        assert value(await step(peer, CODE, second)) == ["hello ADA", "hello BOB"]
    assert ran[7:] == ["greets BOB", "third"]


async def test_questions_of_calls_side_by_side_travel_together():
    ran: list[str] = []
    code = "import asyncio\nawait asyncio.gather(*[greet(n) for n in ['ada', 'bob', 'cy']], note('beside'))"
    async with raw(asking(ran), STATELESS, ASKS) as peer:
        first = await ask_until(peer, code, 3)
        done = value(await step(peer, code, first))
    assert done == ["hello ADA", "hello BOB", "hello CY", "beside"]
    assert sorted(line for line in ran if line.startswith("greets")) == ["greets ADA", "greets BOB", "greets CY"]
    assert ran.count("beside") == 1


async def test_one_of_two_answers_leaves_the_other_question_open():
    ran: list[str] = []
    code = "import asyncio\nawait asyncio.gather(greet('ada'), greet('bob'))"
    async with raw(asking(ran), STATELESS, ASKS) as peer:
        again = {"name": "run_code", "arguments": {"code": code}}
        first = await ask_until(peer, code, 2)
        half = answers(first, named)
        half["inputResponses"].pop(sorted(half["inputResponses"])[1])
        second = (await peer.ask("tools/call", {**again, **half}))["result"]
        assert len(second["inputRequests"]) == 1
        assert value(await step(peer, code, second)) == ["hello ADA", "hello BOB"]
    assert ran.count("asks ada") == ran.count("asks bob") == 1


async def test_a_parked_run_keeps_no_worker_and_its_variables():
    ran: list[str] = []
    code = "big = list(range(1000))\nname = greet('ada')\nprint(name)\nsum(big)"
    async with raw(asking(ran, code_mode=CodeMode(workers=1)), STATELESS, ASKS) as peer:
        waiting = [await step(peer, code) for _ in range(5)]
        assert value(await run(peer, "1 + 1")) == 2  # the only worker is free
        for asked in waiting:
            done = await step(peer, code, asked)
            assert done["structuredContent"] == {"result": 499500, "printed": "hello ADA\n"}
    assert ran.count("asks ada") == 5


@pytest.mark.slow
async def test_waiting_for_an_answer_takes_no_time_of_the_run():
    ran: list[str] = []
    code = "greet('ada')\nnote('on')"
    async with raw(asking(ran, code_mode=CodeMode(seconds=2.0)), STATELESS, ASKS) as peer:
        first = await step(peer, code)
        longer = asyncio.get_running_loop().time() + 2.1
        await until(lambda: asyncio.get_running_loop().time() > longer)
        assert value(await step(peer, code, first)) == "on"


async def test_a_run_has_one_time_for_all_its_rounds():
    ran: list[str] = []
    server = asking(ran, code_mode=CodeMode(seconds=0.5))

    @server.tool
    async def slow() -> str:
        await asyncio.sleep(0.2)
        return ""

    code = "while True:\n    slow()\n    greet('ada')"
    async with raw(server, STATELESS, ASKS) as peer:
        result = await run(peer, code, named)
    assert "ran out of time" in failure(result)
    assert ran.count("greets ADA") <= 3


# -- lost -----------------------------------------------------------------------------------------------


async def test_a_run_of_another_process_is_lost_and_nothing_runs_again():
    here: list[str] = []
    there: list[str] = []
    async with (
        raw(asking(here), STATELESS, ASKS) as peer,
        raw(asking(there), STATELESS, ASKS) as elsewhere,
    ):
        first = await step(peer, CODE)
        text = failure(await step(elsewhere, CODE, first))
    assert "What this answer belongs to is gone" in text
    assert "These tools had been called: note, greet." in text
    assert there == []


async def test_a_run_that_nobody_comes_back_to_ends_and_its_calls_too():
    ran: list[str] = []
    server = asking(ran)

    @server.tool
    async def held(ctx: Context) -> str:
        try:
            return await ctx.ask("Who is it?", str)
        finally:
            ran.append("let go")

    async with raw(server, STATELESS, ASKS) as peer:
        await step(peer, "held()")
        assert ran == []
    await until(lambda: ran == ["let go"])


async def test_a_state_is_good_once():
    ran: list[str] = []
    code = "greet('ada')"
    async with raw(asking(ran), STATELESS, ASKS) as peer:
        first = await step(peer, code)
        assert value(await step(peer, code, first)) == "hello ADA"
        assert "requestState" in (await step(peer, code, first))["message"]
    assert ran.count("greets ADA") == 1


async def test_only_its_owner_can_go_on_with_a_run_and_only_with_the_same_code():
    ran: list[str] = []
    server = asking(ran)
    code = "greet('ada')"
    async with speaking(server, STATELESS, who=ALICE, capabilities=ASKS) as alice:
        first = await step(alice, code)
        async with speaking(server, STATELESS, who=BOB, capabilities=ASKS) as bob:
            assert "requestState" in (await step(bob, code, first))["message"]
        assert "requestState" in (await step(alice, code + "  ", first))["message"]
        weaker = Principal("alice", credential="other")
        async with speaking(server, STATELESS, who=weaker, capabilities=ASKS) as other_key:
            assert "requestState" in (await step(other_key, code, first))["message"]
    assert "greets ADA" not in ran


async def test_later_calls_have_the_rights_of_the_request_that_goes_on():
    ran: list[str] = []
    trail = Trail()
    server = asking(ran, audit=trail)
    code = "greet('ada')\nnote('after')"
    async with speaking(server, STATELESS, who=ALICE, capabilities=ASKS) as alice:
        first = await step(alice, code)
        stronger = Principal("alice", ALICE.scopes | {"more"}, credential="second")
        async with speaking(server, STATELESS, who=stronger, capabilities=ASKS) as again:
            assert value(await step(again, code, first)) == "after"
    actors = {event["target"]["tool_name"]: event["actor"].get("credential") for event in trail.events}
    assert actors["note"] == actors["greet"] == "second"


async def test_more_parked_runs_than_may_wait_fail_and_those_that_wait_stay():
    ran: list[str] = []
    code = "greet('ada')"
    async with raw(asking(ran, code_mode=CodeMode(parked=2)), STATELESS, ASKS) as peer:
        kept = [await step(peer, code), await step(peer, code)]
        assert "too many calls wait for an answer" in failure(await step(peer, code))
        assert [value(await step(peer, code, asked)) for asked in kept] == ["hello ADA"] * 2


async def test_a_request_that_is_cancelled_after_its_answer_ends_the_run():
    ran: list[str] = []
    server = asking(ran)
    began = slow_tool(server, ran)
    code = "greet('ada')\nslow()"
    async with raw(server, STATELESS, ASKS) as peer:
        first = await step(peer, code)
        id = await peer.begin("tools/call", {"name": "run_code", "arguments": {"code": code}, **answers(first, named)})
        await began.wait()
        await peer.tell("notifications/cancelled", {"requestId": id})
        await until(lambda: ran[-1:] == ["slow"])


async def test_a_confirmation_inside_a_parked_run_counts_once():
    ran: list[str] = []
    async with raw(asking(ran, granted=["filesystem.write"]), STATELESS, ASKS) as peer:
        code = "wipe('a')\nwipe('b')"
        params: Json = {"name": "run_code", "arguments": {"code": code}}
        first = (await peer.ask("tools/call", params))["result"]
        assert ran == []
        second = (await peer.ask("tools/call", params | answers(first, lambda _: YES)))["result"]
        assert ran == ["wipe a"] and second["resultType"] == "input_required"
        assert value((await peer.ask("tools/call", params | answers(second, lambda _: YES)))["result"]) == "wiped"
    assert ran == ["wipe a", "wipe b"]


# -- over HTTP, where each round is a session of its own ------------------------------------------------


async def test_over_http_the_next_request_finds_the_run():
    ran: list[str] = []
    async with asgi.peer(asking(ran), STATELESS, ASKS) as peer:
        params: Json = {"name": "run_code", "arguments": {"code": CODE}}
        first = (await peer.ask("tools/call", params))["result"]
        second = (await peer.ask("tools/call", params | answers(first, named)))["result"]
        done = (await peer.ask("tools/call", params | answers(second, named)))["result"]
    assert value(done) == ["hello ADA", "hello BOB"]
    assert ran.count("first") == ran.count("second") == ran.count("third") == 1


async def test_over_http_what_a_tool_tells_after_its_answer_goes_to_the_request_that_brought_it():
    ran: list[str] = []
    server = asking(ran)

    @server.tool
    async def telling(ctx: Context) -> str:
        name = await ctx.ask("Who is it?", str)
        ctx.log.warning(f"it is {name}")
        return name

    async with asgi.peer(server, STATELESS, ASKS) as peer:
        meta = {"io.modelcontextprotocol/logLevel": "warning", "progressToken": 3}
        params: Json = {"name": "run_code", "arguments": {"code": "telling()"}, "_meta": meta}
        first = (await peer.ask("tools/call", params))["result"]
        exchange = await peer.begin_request("tools/call", params | answers(first, named)).ended()
    told = [message["params"] for message in exchange.messages if "method" in message]
    assert [t["data"] for t in told if "data" in t] == ["it is IT"]
    assert [t["progress"] for t in told if "progress" in t] == [1]
