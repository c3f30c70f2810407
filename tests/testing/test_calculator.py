"""The fixtures against a server of ours; each test runs in both eras."""

from __future__ import annotations

import pytest

from defserve.errors import PeerError, ToolError
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.testing import Decline, SyncClient, UnusedAnswer, assert_schemas
from tests.rows import for_each_row
from tests.testing.calculator import server

# Tools have had `_meta`, which carries the type of a lone text, since 2025-06-18.
UNTYPED, TYPED = HANDSHAKE_VERSIONS[:2], (*HANDSHAKE_VERSIONS[2:], *STATELESS_VERSIONS)


@pytest.fixture(params=["handshake", "stateless"])
def client(request: pytest.FixtureRequest):
    """The fixture's own client, made by hand: this suite may run without the plugin installed."""
    with SyncClient(server, request.param, timeout=10) as client:
        yield client


@for_each_row("version", UNTYPED)
def test_values_are_text_where_types_cannot_be_published(version: str):
    with SyncClient(server, version) as client:
        assert client.version == version
        assert client.call("add", a=1) == "3"
        assert client.call("names") == '["Ann","Bo"]'


@for_each_row("version", TYPED)
def test_values_come_back_as_they_were_returned(version: str):
    with SyncClient(server, version) as client:
        assert client.version == version
        assert client.call("add", a=1) == 3
        assert client.call("half", of=3) == 1.5
        assert client.call("half", of=0) is None
        assert client.call("names") == ["Ann", "Bo"]
        assert client.call("mirror", point={"x": 1}) == {"x": 0, "y": 1}


def test_the_server_introduces_itself(client: SyncClient):
    assert client.server_info["name"] == "calculator"
    assert client.instructions == "Count on me."
    assert "tools" in client.capabilities


def test_a_failed_tool_raises(client: SyncClient):
    with pytest.raises(ToolError, match="internal error") as caught:
        client.call("broken")
    assert "secret" not in str(caught.value)


def test_an_unknown_tool_is_an_error_of_the_peer(client: SyncClient):
    with pytest.raises(PeerError) as caught:
        client.call("nothing")
    assert caught.value.code == -32602


def test_questions_get_their_scripted_answers(client: SyncClient):
    client.will_answer({"name": "Ann"}, Decline)
    assert client.call("greet") == "hello Ann"
    with pytest.raises(ToolError):
        client.call("greet")


def test_a_client_that_offers_nothing_cannot_be_asked(client: SyncClient):
    client.offers()
    with pytest.raises((ToolError, PeerError)):
        client.call("greet")


def test_progress_and_logs_are_there_when_the_call_returns(client: SyncClient):
    client.call("work")
    assert client.progress == [(0, 3, None), (1, 3, None), (2, 3, None)]
    assert [log["level"] for log in client.logs] == ["info"]


def test_resources_and_prompts_are_read(client: SyncClient):
    assert client.read_text("note://today") == "buy milk"
    assert client.read_bytes("note://today") == b"buy milk"
    assert client.prompt("hi", name="Bo")["messages"][0]["content"]["text"] == "hi Bo"
    assert [prompt["name"] for prompt in client.prompts()] == ["hi"]
    assert [resource["uri"] for resource in client.resources()] == ["note://today"]
    assert client.templates() == []


def test_news_of_a_resource_are_waited_for(client: SyncClient):
    client.listen(uris=["note://today"])
    client.call("touch")
    assert client.wait_for("notifications/resources/updated")["uri"] == "note://today"


def test_a_subscription_reports_until_it_ends(client: SyncClient):
    client.subscribe("note://today")
    client.call("touch")
    client.wait_for("notifications/resources/updated")
    client.unsubscribe("note://today")
    client.call("touch")
    client.ping()
    assert len([method for method, _ in client.notifications if method == "notifications/resources/updated"]) == 1


def test_schemas_are_written_and_compared(client: SyncClient, tmp_path):
    path = tmp_path / "{era}.json"
    assert_schemas(client, path, update=True)
    assert_schemas(client, path)
    (tmp_path / f"{client.era}.json").write_text("[]\n")
    with pytest.raises(AssertionError, match='"name": "add"'):
        assert_schemas(client, path)


def test_leaving_with_answers_unused_is_a_failure():
    with pytest.raises(UnusedAnswer, match="never used"), SyncClient(server) as client:
        client.will_answer({"name": "Ann"})
