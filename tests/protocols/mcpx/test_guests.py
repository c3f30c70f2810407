"""Guests of a gateway: anybody may be one, so their yes counts for nothing and nothing is kept for their names."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from defserve import Context, Server, State, dangerous
from defserve.auth.authority import is_stranger
from defserve.auth.principals import PARTICIPANT_PREFIX, Principal, is_token_principal_id
from defserve.client import TopicClient, join_topic
from defserve.core.extension import CarriedMessage
from defserve.errors import ToolError, UsageError
from defserve.gateway.gateway import Gateway
from defserve.gateway.policy import Admission
from defserve.protocols.mcpx.extension import TopicCarrier
from tests.gateway.in_memory import Ear
from tests.gateway.topics import Running, eventually
from tests.gateway.topics import gateway as our_gateway
from tests.protocols.mcpx.gateways import FULL, gateway, stranger
from tests.protocols.mcpx.servers import call, joined
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PEOPLE: dict[str, Any] = {
    "bank": {"token": "t-bank", "profile": "response-only"},
    "ann": {"token": "t-ann", "capabilities": list(FULL)},
}
GUESTS: dict[str, Any] = {"names": ["guest-*"], "capabilities": list(FULL)}


class Book(BaseModel):
    notes: list[str] = []


def bank(store: str = "memory:") -> Server:
    server = Server("bank", "1", store=store)
    notes = server.feature_set("bank.notes", "notes")
    notes.state(Book)

    @notes.tool
    def note(text: str, book: State[Book]) -> list[str]:
        book.notes.append(text)
        return book.notes

    @server.tool
    def who(ctx: Context) -> str:
        return ctx.principal

    @server.tool
    @dangerous("shell.execute", effects=["process"])
    def wipe() -> str:
        return "wiped"

    return server


@asynccontextmanager
async def guest(there: Running, name: str = "guest-1", topic: str = "demo") -> AsyncGenerator[TopicClient]:
    asked = {"participantId": name, "topic": topic}
    status, text = await there.http("POST", "/v0.1/auth/token", asked, content_type="application/json")
    assert status == 200, text
    async with join_topic(there.topic(topic), token=json.loads(text)["token"]) as found:
        await eventually(lambda: "bank" in found.participants)
        yield found


async def said(client: TopicClient, tool: str, **arguments: Any) -> str:
    return str(await client.call_tool("bank", tool, **arguments))


async def test_a_guest_is_a_stranger_that_runs_nothing_dangerous():
    async with our_gateway(participants=PEOPLE, guests=GUESTS) as there:
        async with bank().join(f"mcpx+{there.topic()}", token="t-bank"), guest(there) as one:
            assert (await said(one, "who")).startswith("anonymous:")
            with pytest.raises(ToolError, match="permission"):
                await said(one, "wipe")


async def test_the_next_guest_of_a_name_finds_nothing_of_the_one_before():
    async with our_gateway(participants=PEOPLE, guests=GUESTS) as there:
        server = bank()
        async with server.join(f"mcpx+{there.topic()}", token="t-bank"):
            async with guest(there) as one:
                await said(one, "note", text="a PIN")
                first, again = await said(one, "who"), await said(one, "note", text="more")
                assert "a PIN" in again
            await eventually(lambda: not server.composition.sessions)
            async with guest(there) as other:
                assert "PIN" not in await said(other, "note", text="hello")
                assert await said(other, "who") != first


async def test_a_participant_with_a_token_keeps_its_state_in_its_topic_alone():
    async with our_gateway(participants=PEOPLE) as there:
        server = bank()
        for topic, expected in (("demo", "only demo"), ("other", ""), ("demo", "only demo")):
            async with (
                server.join(f"mcpx+{there.topic(topic)}", token="t-bank"),
                join_topic(there.topic(topic), token="t-ann") as ann,
            ):
                await eventually(lambda ann=ann: "bank" in ann.participants)
                found = await said(ann, "note", text=f"only {topic}")
                assert expected in found and ("only demo" in found) == (topic == "demo")
                assert await said(ann, "who") == f"mcpx:ann@127.0.0.1:{there.port}/ws#{topic}"


async def test_a_gateway_that_does_not_say_who_is_authenticated_vouches_for_nobody():
    async with gateway(bank=FULL, ann=FULL) as there:
        there.says_who_is_authenticated = False
        async with joined(bank(), there, "bank"), stranger(there, "ann") as ann:
            answer = await ann.answer(await ann.ask("bank", "tools/call", call("who")))
            assert answer["payload"]["result"]["content"][0]["text"].startswith("anonymous:")


async def test_an_admission_without_a_token_is_that_of_a_guest_whatever_the_policy_says():
    class Open:
        async def admit(self, token: str | None, topic: str) -> Admission | None:
            return Admission("ann" if token else "anybody")

    here = Gateway(Open())
    for token, is_guest in ((None, True), ("t", False)):
        admission = await here.admit(token, "demo")
        assert isinstance(admission, Admission) and admission.is_guest is is_guest
        ear = Ear()
        here.join_topic("demo", admission, ear)
        you = json.loads(ear.heard[-1])["payload"]["you"]
        assert you.get("authenticated", False) is not is_guest


def told(carrier: TopicCarrier, kind: str, payload: dict[str, Any]) -> list[CarriedMessage]:
    envelope = {"protocol": "mcpx/v0.1", "id": "g", "from": "system:gateway", "kind": kind, "payload": payload}
    return carrier.unwrap(json.dumps(envelope).encode())


def known(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "capabilities": ["mcp/*"], **more}


@for_each_row("mark", [False, None, 1, "true", "yes", [True], {}])
def test_only_a_plain_true_says_that_somebody_is_authenticated(mark: Any):
    carrier = TopicCarrier()
    told(carrier, "system/welcome", {"you": known("bank"), "participants": [known("ann", authenticated=mark)]})
    assert is_stranger(carrier.caller("ann"))
    told(carrier, "system/presence", {"event": "join", "participant": known("ann", authenticated=True)})
    assert not is_stranger(carrier.caller("ann"))
    told(carrier, "system/presence", {"event": "join", "participant": known("ann", authenticated=mark)})
    assert is_stranger(carrier.caller("ann"))
    assert carrier.caller("ann").id != carrier.caller("ann").id


async def test_who_takes_a_name_over_does_not_take_the_conversation_over():
    async with gateway(bank=FULL, ann=FULL) as there, joined(bank(), there, "bank"), stranger(there, "ann") as ann:
        answer = await ann.answer(await ann.ask("bank", "tools/call", call("who")))
        assert answer["payload"]["result"]["content"][0]["text"].startswith("mcpx:ann@")
        there.says_who_is_authenticated = False
        await there.welcome("bank")  # no presence: the gateway only says it again
        answer = await ann.answer(await ann.ask("bank", "tools/call", call("who"), id=2))
        assert answer["payload"]["result"]["content"][0]["text"].startswith("anonymous:")


def test_no_name_in_one_place_reads_as_another_name_in_another_place():
    names, places = ["a", "a@x", "a@x#t", "x"], ["x#t", "x#t2", "y/ws#x", ""]
    ids = set[str]()
    for place in places:
        carrier = TopicCarrier()
        carrier.topic.place = place
        carrier.topic.authenticated = set(names)
        ids |= {carrier.caller(name).id for name in names}
    # Without a place there is no gateway: only then a name may look like one.
    assert len(ids) >= len(names) * (len(places) - 1)


def test_a_token_cannot_have_the_name_of_a_participant():
    assert not is_token_principal_id(PARTICIPANT_PREFIX + "ann")
    with pytest.raises(UsageError, match="mcpx:"):
        Principal("mcpx:ann")
