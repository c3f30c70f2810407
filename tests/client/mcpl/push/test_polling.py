"""Where a server cannot call, the host fetches what waits for it, and takes it as if it had been pushed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from defserve import Server
from defserve.client import Mcpl
from defserve.client.mcpl.push import Inbox
from defserve.errors import PeerError
from defserve.protocols.mcpl.channels.messages import Author, Channel, ReceivedMessage
from tests.client.mcpl.scripted import MEMORY, SETS, Json, hosting, live_server, stateless_server

pytestmark = pytest.mark.anyio

STATELESS = "2026-07-28"
INBOX = "inbox://memory.proactive"


def event(id: str, **more: Any) -> Json:
    payload = {"content": "Ring"}
    return {"featureSet": "memory.proactive", "eventId": id, "timestamp": "now", "payload": payload, **more}


def keeping(*entries: Json) -> Json:
    """Replies of a server whose inbox holds these."""

    def read(request: Json) -> Json:
        uri = request["params"]["uri"]
        after = int(uri.partition("?after=")[2] or 0)
        found = {"events": entries[after:], "cursor": len(entries), "missed": False}
        return {"contents": [{"uri": uri, "text": json.dumps(found)}]}

    resources = [{"uri": uri, "name": uri} for uri in (INBOX, "inbox://memory.retrieval", "file:///a")]
    return {"resources/list": {"resources": resources}, "resources/read": read}


async def test_events_of_a_server_are_fetched_from_the_cursor_on():
    server = Server("reminders", "1.0")
    reminders = server.feature_set("memory.proactive", "Surface reminders", inbox=True)

    @server.tool
    async def remind(id: str) -> str:
        return (await reminders.push("Ring", id=id)).inbox or "pushed"

    async with server.connect(STATELESS, mcpl=Mcpl(audit=[])) as client:
        assert client.mcpl is not None
        assert await client.mcpl.collect() == 0
        for id in ("evt_1", "evt_2"):
            assert await client.call("remind", id=id) == INBOX
        assert await client.mcpl.collect() == 2
        await client.call("remind", id="evt_3")
        assert await client.mcpl.collect() == 1
        assert [(await anext(client.mcpl.events())).id for _ in range(3)] == ["evt_1", "evt_2", "evt_3"]


async def test_messages_of_a_server_are_fetched_and_its_channels_with_them():
    server = Server("chat", "1.0")
    chat = server.channels("chat", feature_set=server.feature_set("chat.post", "Chat", inbox=True))
    chat.add(Channel("chat:hall"))

    @server.tool
    async def say() -> str:
        (receipt,) = await chat.incoming([ReceivedMessage("chat:hall", "Hello", Author("u_1"), id="m_1")])
        return str(receipt.accepted)

    async with server.connect(STATELESS, mcpl=Mcpl(audit=[])) as client:
        assert client.mcpl is not None
        assert await client.call("say") == "True"
        assert await client.mcpl.collect() == 1
        assert (await anext(client.mcpl.messages())).id == "m_1"
        assert "chat:hall" in client.mcpl.channels


async def test_messages_of_many_unknown_channels_are_one_question_for_the_channels():
    messages = [{"channelId": f"chat:{number}", "messageId": str(number)} for number in range(50)]
    replies: Json = {**keeping(*messages), "channels/list": {"channels": []}}
    server = stateless_server(replies=replies)
    async with hosting(server, Mcpl(["memory.proactive"], audit=[])) as mcpl:
        await mcpl.collect()
    assert len(server.asked("channels/list")) == 1


async def test_an_inbox_of_a_disabled_set_is_not_read():
    server = stateless_server(replies=keeping(event("a")))
    async with hosting(server, Mcpl(["memory.proactive"], audit=[])) as mcpl:
        await mcpl.collect()
        await mcpl.update(disabled=["*"])
        assert await mcpl.collect() == 0
    assert [params["uri"] for params in server.asked("resources/read")] == [INBOX]


async def test_what_is_broken_in_an_inbox_does_not_hold_up_the_rest(caplog: pytest.LogCaptureFixture):
    taken: list[str] = []
    entries = (event("a", payload=None), event("b", featureSet="memory.unheard"), event("c"))
    server = stateless_server({**MEMORY, "featureSets": SETS}, keeping(*entries))
    options = Mcpl(["memory.proactive"], on_event=lambda found: taken.append(found.id), audit=[])
    async with hosting(server, options) as mcpl:
        await mcpl.collect()
    assert taken == ["c"]
    assert "left out" in caplog.text


async def test_what_a_handler_fails_over_is_fetched_again_and_the_rest_counts_once():
    taken: list[str] = []

    def take(found: Any) -> None:
        taken.append(found.id)
        if taken == ["a", "b"]:
            raise RuntimeError("not now")

    server = stateless_server(replies=keeping(event("a"), event("b")))
    async with hosting(server, Mcpl(["memory.proactive"], on_event=take, audit=[])) as mcpl:
        with pytest.raises(RuntimeError):
            await mcpl.collect()
        await mcpl.collect()
    assert taken == ["a", "b", "b"]


async def test_what_the_host_has_no_room_for_is_fetched_again(monkeypatch: pytest.MonkeyPatch):
    server = stateless_server(replies=keeping(event("a"), event("b"), event("c")))
    async with hosting(server, Mcpl(["memory.proactive"], audit=[])) as mcpl:
        monkeypatch.setattr(mcpl._events, "inbox", Inbox[Any](2))
        assert await mcpl.collect() == 2
        assert [(await anext(mcpl.events())).id for _ in range(2)] == ["a", "b"]
        await mcpl.collect()
        assert (await anext(mcpl.events())).id == "c"
        assert await mcpl.collect() == 0


async def test_a_resource_that_is_no_inbox_is_an_error():
    replies = {**keeping(), "resources/read": {"contents": [{"uri": INBOX, "text": "Hello"}]}}
    async with hosting(stateless_server(replies=replies)) as mcpl:
        with pytest.raises(PeerError, match="not the inbox"):
            await mcpl.collect()


async def test_a_plain_server_has_no_inbox():
    server = live_server(None)
    async with hosting(server) as mcpl:
        assert await mcpl.collect() == 0
    assert server.asked("resources/list") == []


async def test_many_items_that_are_no_events_are_one_line_of_the_log_for_each_inbox(caplog: pytest.LogCaptureFixture):
    bad = [event(f"evt_{n}", featureSet="x" * 5_000) for n in range(1_000)]
    async with hosting(stateless_server(replies=keeping(*bad))) as mcpl:
        assert await mcpl.collect() == 2_000
    lines = [record.message for record in caplog.records if "left out" in record.message]
    assert len(lines) == 2 and all("1000 items" in line and len(line) < 2_000 for line in lines)
