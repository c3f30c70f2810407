"""Every request has the rights of the key it shows, whoever opened the session it belongs to."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from defserve.protocols.mcp.subscriptions import SubscribedUris
from tests.auth.callers import BATCHES, Answer, Caller, Json, Office, asked, called, office
from tests.raw import HANDSHAKE

pytestmark = pytest.mark.anyio

Place = tuple[Office, dict[str, Caller]]


@pytest.fixture
async def place() -> AsyncGenerator[Place]:
    async with office(rest=True) as made:
        yield made


def said(answer: Answer) -> str | int:
    """The text of a tool's result, or the type of its error, or the status of another refusal."""
    if answer.status != 200:
        return answer.status
    return outcome(answer.json)


def outcome(reply: Json) -> str:
    if "error" in reply:
        return str(reply["error"]["code"])
    result = reply["result"]
    if result.get("isError"):
        return result["_meta"]["dev.defserve/error"]["error_type"]
    return result["content"][0]["text"]


# -- the matrix: who does what in a session that the strong key opened -----------------------------------


async def calls_what_it_may(place: Place, who: Caller, session: str) -> object:
    return said(await who.call(session, "look"))


async def calls_what_only_the_strong_may(place: Place, who: Caller, session: str) -> object:
    return said(await who.call(session, "erase"))


async def lists_tools(place: Place, who: Caller, session: str) -> object:
    answer = await who.send(asked("tools/list"), session)
    return answer.status if answer.status != 200 else len(answer.json["result"]["tools"])


async def reads_the_secret(place: Place, who: Caller, session: str) -> object:
    answer = await who.send(asked("resources/read", uri="memo://secret"), session)
    return answer.status if answer.status != 200 else "result" in answer.json


async def opens_the_stream(place: Place, who: Caller, session: str) -> object:
    stream = await who.stream(session)
    stream.leave()
    return stream.status


async def resumes_the_strong_s_call(place: Place, who: Caller, session: str) -> object:
    begun = await place[1]["strong"].stream(session, called("work"))
    await begun.next()
    last = begun.last_id
    begun.leave()
    stream = await who.stream(session, last=last)
    if stream.status == 200:
        place[0].go.set()
        return outcome((await stream.rest())[-1])
    return stream.status


async def answers_the_strong_s_question(place: Place, who: Caller, session: str) -> object:
    asking = await place[1]["strong"].stream(session, called("ask"))
    question = await asking.next()
    accepted = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"value": True}}}
    first = await who.send(accepted, session)
    await place[1]["strong"].send({**accepted, "result": {"action": "decline"}}, session)
    return first.status, outcome((await asking.rest())[-1])


async def cancels_the_strong_s_call(place: Place, who: Caller, session: str) -> object:
    working = await place[1]["strong"].stream(session, called("work"))
    await working.next()
    params = {"requestId": 7}
    answer = await who.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, session)
    place[0].go.set()
    return answer.status, [outcome(reply) for reply in await working.rest() if "id" in reply]


async def deletes_the_session(place: Place, who: Caller, session: str) -> object:
    answer = await who.send(session=session, verb="DELETE")
    left = await place[1]["strong"].send(asked("ping"), session)
    return answer.status, left.status


async def opens_a_socket(place: Place, who: Caller, session: str) -> object:
    headers = {"authorization": f"Bearer {who.token}"} if who.token is not None else {}
    try:
        async with connect(f"ws://{who.where.authority}/mcp", additional_headers=headers, subprotocols=["mcp"]) as open:
            about = {"name": "c", "version": "1"}
            params = {"protocolVersion": HANDSHAKE[-1], "capabilities": {}, "clientInfo": about}
            await open.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}))
            await open.recv()
            await open.send(json.dumps(called("erase")))
            return outcome(json.loads(await open.recv()))
    except InvalidStatus as refused:
        return refused.response.status_code


async def calls_over_rest(place: Place, who: Caller, session: str) -> object:
    answer = await who.send({}, path="/tools/erase")
    return answer.status


async def calls_in_a_batch(place: Place, who: Caller, session: str) -> object:
    batches = await place[1]["strong"].open(BATCHES)
    answer = await who.send([called("look", 1), called("erase", 2)], batches)
    if answer.status != 200:
        return answer.status
    return [outcome(reply) for reply in sorted(answer.json, key=lambda reply: reply["id"])]


async def calls_alone(place: Place, who: Caller, session: str) -> object:
    return said(await who.call_alone("erase"))


# A tool that a caller may not see is an unknown tool.
UNKNOWN = "-32602"

Action = Callable[[Place, Caller, str], Awaitable[object]]

# What the weak key, the strong one, another one with the same rights, and another principal's achieve.
ACTIONS: dict[Action, tuple[object, object, object, object]] = {
    calls_what_it_may: ("seen", "seen", "seen", 404),
    calls_what_only_the_strong_may: (UNKNOWN, "erased", "erased", 404),
    lists_tools: (1, 4, 4, 404),
    reads_the_secret: (False, True, True, 404),
    opens_the_stream: (200, 200, 200, 404),
    resumes_the_strong_s_call: (404, "worked", "worked", 404),
    answers_the_strong_s_question: (
        (403, "not confirmed"),
        (202, "confirmed"),
        (202, "confirmed"),
        (404, "not confirmed"),
    ),
    cancels_the_strong_s_call: ((202, ["worked"]), (202, []), (202, []), (404, ["worked"])),
    deletes_the_session: ((403, 200), (204, 404), (204, 404), (404, 200)),
    opens_a_socket: (UNKNOWN, "erased", "erased", "erased"),
    calls_over_rest: (404, 200, 200, 200),
    calls_in_a_batch: (["seen", UNKNOWN], ["seen", "erased"], ["seen", "erased"], 404),
    calls_alone: (400, "erased", "erased", "erased"),
}
ALIVE = ("weak", "strong", "twin", "other")
DEAD = ("expired", "revoked", "none")


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
@pytest.mark.parametrize("key", ALIVE)
async def test_what_a_key_achieves_in_a_session_of_the_strong_key(place: Place, action: Action, key: str):
    session = await place[1]["strong"].open()
    assert await action(place, place[1][key], session) == ACTIONS[action][ALIVE.index(key)]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
@pytest.mark.parametrize("key", DEAD)
async def test_a_key_that_is_no_longer_good_achieves_nothing(place: Place, action: Action, key: str):
    session = await place[1]["strong"].open()
    found = await action(place, place[1][key], session)
    unchanged = {
        answers_the_strong_s_question: (401, "not confirmed"),
        cancels_the_strong_s_call: (401, ["worked"]),
        deletes_the_session: (401, 200),
    }
    assert found == unchanged.get(action, 401)


# -- stepping up -----------------------------------------------------------------------------------------


async def test_a_stronger_key_steps_up_for_its_own_requests_only(place: Place):
    weak, strong = place[1]["weak"], place[1]["strong"]
    session = await weak.open()
    assert said(await weak.call(session, "erase")) == UNKNOWN
    assert said(await strong.call(session, "erase")) == "erased"
    assert await lists_tools(place, strong, session) == 4
    assert said(await weak.call(session, "erase")) == UNKNOWN
    assert await lists_tools(place, weak, session) == 1


async def test_a_key_resumes_and_cancels_its_own_calls_in_a_session_of_a_stronger_one(place: Place):
    made, callers = place
    working = (await made.keys.create("alice", permissions=["ToolInvoke(work)"])).token
    worker = Caller(callers["weak"].where, working)
    callers["worker"] = worker
    session = await callers["strong"].open()
    begun = await worker.stream(session, called("work"))
    await begun.next()
    begun.leave()
    resumed = await worker.stream(session, last=begun.last_id)
    assert resumed.status == 200
    params = {"requestId": 7}
    await worker.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, session)
    assert [reply for reply in await resumed.rest() if "id" in reply] == []
    assert made.cancelled.is_set()


# -- what a stream carries -------------------------------------------------------------------------------


async def subscribe(who: Caller, session: str, uri: str) -> bool:
    return "result" in (await who.send(asked("resources/subscribe", uri=uri), session)).json


def uris(messages: list[Json]) -> list[str]:
    return [message["params"].get("uri", message["method"]) for message in messages]


async def test_a_stream_carries_what_its_own_key_may_see(place: Place):
    (made, callers), session = place, await place[1]["strong"].open()
    weak, strong = callers["weak"], callers["strong"]
    assert await subscribe(strong, session, "memo://secret")
    assert not await subscribe(weak, session, "memo://secret")
    assert await subscribe(weak, session, "memo://open")
    reading = await weak.stream(session)
    made.server.mcp.subscriptions.notify_resource_updated("memo://secret")
    made.server.mcp.subscriptions.notify_resource_updated("memo://open")
    made.server.mcp.subscriptions.notify_list_changed("tools")
    assert uris([await reading.next(), await reading.next()]) == ["memo://open", "notifications/tools/list_changed"]

    # The strong key takes over, and gets what had to wait for it.
    taken = await strong.stream(session)
    assert taken.status == 200 and await reading.rest() == []
    assert uris([await taken.next()]) == ["memo://secret"]
    # The other way round it is a conflict.
    assert (await weak.stream(session)).status == 409


async def test_resuming_the_session_s_stream_gives_what_its_own_key_may_see(place: Place):
    (made, callers), session = place, await place[1]["strong"].open()
    weak, strong = callers["weak"], callers["strong"]
    for who, uri in ((strong, "memo://secret"), (weak, "memo://open")):
        assert await subscribe(who, session, uri)
    reading = await strong.stream(session)
    made.server.mcp.subscriptions.notify_list_changed("tools")
    assert uris([await reading.next()]) == ["notifications/tools/list_changed"]
    last = reading.last_id
    made.server.mcp.subscriptions.notify_resource_updated("memo://secret")
    made.server.mcp.subscriptions.notify_resource_updated("memo://open")
    assert uris([await reading.next(), await reading.next()]) == ["memo://secret", "memo://open"]
    reading.leave()
    resumed = await weak.stream(session, last=last)
    made.server.mcp.subscriptions.notify_list_changed("prompts")
    assert uris([await resumed.next(), await resumed.next()]) == ["memo://open", "notifications/prompts/list_changed"]


async def test_a_subscription_is_ended_by_its_own_key_or_one_with_its_rights(place: Place):
    (made, callers), session = place, await place[1]["strong"].open()
    weak, strong = callers["weak"], callers["strong"]
    assert await subscribe(strong, session, "memo://open") and await subscribe(weak, session, "memo://open")
    (conversation,) = made.server.composition.sessions

    def subscribers() -> int:
        subscribed = conversation.peek(SubscribedUris)
        return len(subscribed.list_requested_uris()) if subscribed is not None else 0

    assert subscribers() == 2
    await weak.send(asked("resources/unsubscribe", uri="memo://open"), session)
    assert subscribers() == 1
    assert await subscribe(weak, session, "memo://open")
    await strong.send(asked("resources/unsubscribe", uri="memo://open"), session)
    assert subscribers() == 0


async def test_with_legacy_sse_a_stronger_key_cannot_answer_into_a_weaker_one_s_stream():
    async with office(legacy_sse=True) as (_, callers):
        weak, strong = callers["weak"], callers["strong"]
        reading = await weak.stream("", path="/sse")
        target = await reading.text()
        assert (await weak.send(asked("ping"), path=target)).status == 202
        refused = await strong.send(called("erase"), path=target)
        assert refused.status == 403 and "fewer rights" in refused.json["error"]["message"]


# -- answers that come with a repeated call --------------------------------------------------------------

ELICITATION: Json = {"elicitation": {}}


async def test_an_answer_counts_only_with_the_rights_of_the_call_that_asked(place: Place):
    async def question(who: Caller) -> Json:
        result = (await who.call_alone("ask", ELICITATION)).json["result"]
        (key,) = result["inputRequests"]
        answers = {key: {"action": "accept", "content": {"value": True}}}
        return {"requestState": result["requestState"], "inputResponses": answers}

    asking, strong, twin = (place[1][name] for name in ("asking", "strong", "twin"))
    assert (await asking.call_alone("ask", ELICITATION, **await question(strong))).status == 400
    for who, asked_by in ((strong, asking), (twin, strong), (asking, asking)):
        assert said(await who.call_alone("ask", ELICITATION, **await question(asked_by))) == "confirmed"
