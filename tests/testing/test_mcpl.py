"""`client.mcpl` in synchronous tests, over what the mark says."""

from __future__ import annotations

import pytest

from defserve import Text
from defserve.client import Delivery, Mcpl, ScriptedModel
from defserve.errors import PeerTimeout, UsageError
from defserve.protocols.mcpl.content import Turn
from defserve.testing.client import SyncClient
from tests.client.mcpl import lively

TURN = Turn(inference_id="inf_1", user_message="Hello")


@pytest.mark.serves("tests.client.mcpl.lively:server", mcpl=Mcpl(audit=[]), over=["memory", "http", "ws"])
def test_hooks_in_both_eras(client: SyncClient):
    assert client.mcpl.version == "0.4"
    assert client.mcpl.server_id == "lively"
    assert client.mcpl.before_inference(TURN)[0].content == [Text("Turn 0")]
    assert client.mcpl.after_inference(TURN, "It is sk-123").text == "It is [REDACTED]"
    client.mcpl.update(disabled=["memory.retrieval"])
    assert not client.mcpl.feature_sets.is_enabled("memory.retrieval")
    assert client.mcpl.before_inference(TURN) == []


@pytest.mark.eras("handshake")
@pytest.mark.serves("tests.client.mcpl.lively:server", mcpl=Mcpl(model=ScriptedModel("Short"), audit=[]))
def test_what_a_server_sends_can_be_waited_for(client: SyncClient):
    lively.heard.clear()
    assert client.call("remind", text="Ring", id="evt_1") == "True None"
    assert client.mcpl.next_event().id == "evt_1"
    with pytest.raises(PeerTimeout, match="no event within 0.01 s"):
        client.mcpl.next_event(within=0.01)
    assert client.call("summarise", text="Long") == ["Short"]
    assert client.mcpl.open("chat", {"room": "hall"}).id == "chat:hall"
    assert client.mcpl.publish("chat:hall", "Hello") == Delivery(True, "m_1")
    client.mcpl.outgoing("chat:hall", "Hi ", "all", inference_id="inf_1", conversation_id="c")
    client.call("say", room="hall", text="What's up?")
    assert client.mcpl.next_message().content == [Text("What's up?")]
    assert [channel.id for channel in client.mcpl.refresh_channels()] == ["chat:hall"]
    assert "chat:hall" in client.mcpl.channels
    assert client.mcpl.close("chat:hall")


@pytest.mark.eras("handshake")
@pytest.mark.serves("tests.client.mcpl.lively:server", mcpl=Mcpl(approve=lambda _: True, audit=[]))
def test_a_scoped_tool_is_called_with_its_scope(client: SyncClient):
    assert client.mcpl.call("edit", "/etc/hosts", path="/etc/hosts").startswith("/etc/hosts")


@pytest.mark.eras("handshake")
@pytest.mark.serves("tests.client.mcpl.lively:server")
def test_a_client_without_mcpl_says_how_to_get_it(client: SyncClient):
    with pytest.raises(UsageError, match="does not speak MCPL"):
        _ = client.mcpl
