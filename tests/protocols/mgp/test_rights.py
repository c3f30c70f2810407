"""What one key of a principal does under MGP in a session that another one uses too: grants, events, callbacks."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.auth.callers import Caller, Json, Office, asked, called, office
from tests.protocols.mgp.callers import offer
from tests.raw import HANDSHAKE, until

pytestmark = pytest.mark.anyio

Place = tuple[Office, dict[str, Caller], str]


@pytest.fixture
async def place() -> AsyncGenerator[Place]:
    """A session of the strong key, in which everything is negotiated."""
    async with office() as (made, callers):
        made.server.event_channel("news")
        made.server.event_channel("news.secret", scopes="secrets")
        extensions = ("permissions", "events", "callbacks", "streaming")
        yield made, callers, await callers["strong"].open(capabilities=offer(HANDSHAKE[-1], *extensions))


async def result(who: Caller, session: str, method: str, **params: object) -> Json:
    return (await who.send(asked(method, **params), session)).json["result"]


async def test_a_grant_holds_for_the_key_that_made_it(place: Place):
    _, callers, session = place

    async def decided(key: str) -> str:
        asked = {"request_id": "r", "permissions": ["shell.execute"]}
        answer = await result(callers[key], session, "mgp/permission/request", **asked)
        return answer["grants"]["shell.execute"]

    await result(callers["weak"], session, "mgp/permission/grant", grants={"shell.execute": "denied"})
    assert (await decided("weak"), await decided("strong")) == ("denied", "deferred")
    await result(callers["strong"], session, "mgp/permission/grant", grants={"shell.execute": "approved"})
    assert (await decided("weak"), await decided("strong")) == ("denied", "approved")
    await result(callers["strong"], session, "mgp/permission/grant", grants={"shell.execute": "deferred"})
    assert (await decided("weak"), await decided("strong"), await decided("twin")) == ("denied", "deferred", "deferred")


async def test_a_channel_is_open_to_the_key_that_subscribes_not_to_the_session(place: Place):
    _, callers, session = place
    found = [
        await result(callers[key], session, "mgp/events/subscribe", channels=["news.*", "news"])
        for key in ("weak", "strong")
    ]
    assert [each["subscribed"] for each in found] == [["news"], ["news", "news.secret"]]


async def test_a_stream_carries_the_events_of_its_own_key(place: Place):
    made, callers, session = place
    for key in ("strong", "weak"):
        await result(callers[key], session, "mgp/events/subscribe", channels=["news.*", "news", "tool.*"])
    reading = await callers["weak"].stream(session)
    await callers["strong"].call(session, "erase")
    await callers["weak"].call(session, "look")
    made.server.mgp.events.channels["news.secret"].emit_now(number=1)
    made.server.mgp.events.channels["news"].emit_now(number=2)
    heard = [(await reading.next())["params"] for _ in range(3)]
    assert [each["channel"] for each in heard] == ["tool.started", "tool.completed", "news"]
    assert {each["data"]["tool_name"] for each in heard[:2]} == {"look"}


async def test_a_callback_is_answered_with_the_rights_of_the_call_that_asks(place: Place):
    _, callers, session = place
    asking = await callers["strong"].stream(session, called("ask"))
    callback = (await asking.next())["params"]["callback_id"]
    answer = asked("mgp/callback/respond", callback_id=callback, response="confirm")
    refused = (await callers["weak"].send(answer, session)).json
    assert refused["error"]["data"]["error_type"] == "callback_not_pending"
    assert (await callers["twin"].send(answer, session)).json["result"] == {"accepted": True}
    assert (await asking.rest())[-1]["result"]["content"][0]["text"] == "confirmed"


async def test_a_stream_is_cancelled_with_the_rights_of_its_call(place: Place):
    made, callers, session = place
    working = await callers["strong"].stream(session, called("work"))
    await working.next()
    assert await result(callers["weak"], session, "mgp/stream/cancel", request_id=7) == {"cancelled": False}
    assert (await result(callers["twin"], session, "mgp/stream/cancel", request_id=7))["cancelled"] is True
    await until(made.cancelled.is_set)


async def test_what_a_revoked_key_subscribed_to_and_granted_is_forgotten(place: Place):
    made, callers, session = place
    await result(callers["weak"], session, "mgp/events/subscribe", channels=["news"])
    await result(callers["strong"], session, "mgp/events/subscribe", channels=["news"])
    await made.keys.revoke(made.ids["weak"])
    live = callers["weak"].where.app.live
    assert live is not None
    await live.verify_credentials()
    assert made.server.mgp.events.listeners == 1
