"""The HTTP paths of the reference gateway, beside the socket: over raw connections, as its command line uses them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.gateway import listener as api
from defserve.gateway import policy as issued
from defserve.gateway.gateway import HISTORY_BYTES, GatewayTopic, TopicMember
from defserve.gateway.policy import (
    FirstMatchPolicy,
    GuestRules,
    IssuedTokenPolicy,
    ParticipantEntry,
    StaticPolicy,
    parse_config,
)
from tests.gateway.topics import CONFIG, Running, eventually, gateway, tool_call
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ADMIN = {"authorization": "Bearer t-admin"}
ROOT = {"authorization": "Bearer t-root"}
GUESTS: dict[str, Any] = {"names": ["human-*"], "topics": ["demo"]}
PROPOSER = ["mcp/proposal:*", "mcp/withdraw", "mcp/response:*", "chat"]


async def ask(running: Running, path: str, **headers: str) -> tuple[int, Any]:
    status, text = await running.http("GET", path, **headers)
    return status, json.loads(text)


async def token(running: Running, name: str = "human-ann", topic: str = "demo", **more: Any) -> tuple[int, Any]:
    headers = more.pop("headers", {})
    body = {"participantId": name, "topic": topic, **more}
    status, text = await running.http("POST", "/v0.1/auth/token", body, **headers)
    return status, json.loads(text)


# -- topics, participants, history


async def test_topics_are_listed_for_those_who_may_enter_them():
    people = {**CONFIG["participants"], "agent": {"token": "t-agent", "topics": ["one"]}}
    async with gateway(participants=people) as running, running.joined("admin", "one"), running.joined("admin", "two"):
        assert await ask(running, "/v0.1/topics", **ADMIN) == (200, {"topics": ["one", "two"]})
        assert await ask(running, "/v0.1/topics", authorization="Bearer t-agent") == (200, {"topics": ["one"]})
        assert await ask(running, "/v0.1/topics", authorization="Bearer wrong") == (200, {"topics": []})
        assert (await ask(running, "/v0.1/topics"))[0] == 401


async def test_the_participants_of_a_topic_are_listed_as_the_reference_lists_them():
    async with gateway() as running, running.joined("agent"), running.joined("worker"):
        status, body = await ask(running, "/v0.1/topics/demo/participants", **ADMIN)
    held = ["mcp/response:*", "mcp/reject", "chat"]
    listed = [{"id": "agent", "capabilities": PROPOSER}, {"id": "worker", "capabilities": held}]
    assert (status, body) == (200, {"participants": listed})


async def test_history_is_newest_first_and_pages_backwards():
    async with gateway() as running, running.joined("admin") as admin:
        ids = [await admin.say("chat", {"text": str(number)}) for number in range(5)]
        while (await admin.hear()).get("id") != ids[-1]:
            pass

        async def history(query: str = "") -> list[str]:
            status, body = await ask(running, f"/v0.1/topics/demo/history{query}", **ADMIN)
            assert status == 200
            return [envelope["payload"]["text"] for envelope in body["history"]]

        assert await history() == ["4", "3", "2", "1", "0"]
        assert await history("?limit=2") == ["4", "3"]
        assert await history(f"?limit=2&before={ids[3]}") == ["2", "1"]
        for limit in ("0", "1001", "x", "-1", "%D9%A3", "9" * 40):
            assert (await ask(running, f"/v0.1/topics/demo/history?limit={limit}", **ADMIN))[0] == 400
    async with gateway(history=0) as running, running.joined("admin") as admin:
        await admin.is_well()
        assert await ask(running, "/v0.1/topics/demo/history", **ADMIN) == (200, {"history": []})


async def test_history_shows_a_directed_participant_only_what_it_would_have_heard():
    async with gateway() as running, running.joined("admin") as admin, running.joined("agent"):
        await admin.say("mcp/request:ping", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, to=["agent"])
        await admin.say("chat", {"text": "for you"}, to=["watcher"])
        await admin.say("chat", {"text": "for all"})
        await admin.is_well()
        body = (await ask(running, "/v0.1/topics/demo/history", authorization="Bearer t-watcher"))[1]
    assert [one["payload"]["text"] for one in body["history"]] == ["well", "for all", "for you"]


async def test_what_is_refused_is_not_history_and_history_ends_with_its_topic():
    async with gateway() as running:
        async with running.joined("agent") as agent:
            await agent.say("mcp/request:tools/call:add", tool_call(), to=["worker"])
            await agent.error()
            await agent.is_well()
            body = (await ask(running, "/v0.1/topics/demo/history", **ADMIN))[1]
            assert [one["kind"] for one in body["history"]] == ["chat"]
        await eventually(lambda: not running.gateway.topics)
        assert await ask(running, "/v0.1/topics/demo/history", **ADMIN) == (200, {"history": []})


async def test_a_participant_reads_how_much_it_has_sent_in_this_minute():
    async with gateway() as running:
        path = "/v0.1/topics/demo/rate-limit"
        assert (await ask(running, path, **ADMIN))[0] == 404
        assert (await ask(running, path))[0] == 401
        assert (await ask(running, path, authorization="Bearer wrong"))[0] == 403
        async with running.joined("admin") as admin, running.joined("agent"):
            for kind, payload in (("chat", {"text": "hi"}), ("mcp/request:ping", tool_call())):
                await admin.say(kind, payload)
            await admin.is_well()  # a chat
            status, told = await ask(running, path, **ADMIN)
            assert status == 200 and told.keys() == {"messages", "chatMessages", "resetTime"}
            assert (told["messages"], told["chatMessages"]) == (3, 2)
            ends = datetime.fromisoformat(told["resetTime"])
            assert timedelta(0) < ends - datetime.now(UTC) <= timedelta(seconds=60)
            assert (await ask(running, path, authorization="Bearer t-agent"))[1]["messages"] == 0
            assert (await running.http("POST", path, {}, **ADMIN))[0] == 405


async def test_the_response_to_a_head_request_has_no_body():
    async with gateway() as running:
        assert await running.http("HEAD", "/healthz") == (405, "")
        assert await running.http("HEAD", "/nothing") == (404, "")
        assert await running.http("HEAD", "/healthz", transfer_encoding="chunked") == (411, "")


def test_messages_are_counted_by_the_minute():
    member = GatewayTopic("demo")
    window = TopicMember.__new__(TopicMember)
    window.topic, window.messages, window.chat_messages, window.window_ends = member, 5, 2, 160.0
    window.reset_expired_window(159.9)
    assert (window.messages, window.window_ends) == (5, 160.0)
    window.reset_expired_window(160.0)
    assert (window.messages, window.chat_messages, window.window_ends) == (0, 0, 220.0)


def test_history_is_bounded_in_messages_and_in_bytes():
    topic = GatewayTopic("demo", keep=3)
    for number in range(5):
        topic.remember(b"%d" % number)
    assert list(topic.history) == [b"2", b"3", b"4"]
    topic.remember(b"x" * (HISTORY_BYTES - 1))
    assert [len(frame) for frame in topic.history] == [1, HISTORY_BYTES - 1]
    topic.remember(b"y" * (HISTORY_BYTES + 1))
    assert list(topic.history) == []


@for_each_row("page", ["participants", "history"])
async def test_a_topic_is_shown_to_nobody_who_may_not_enter_it(page: str):
    people = {**CONFIG["participants"], "agent": {"token": "t-agent", "topics": ["other"]}}
    async with gateway(participants=people) as running, running.joined("admin"):
        assert (await ask(running, f"/v0.1/topics/demo/{page}"))[0] == 401
        answers = [
            await ask(running, f"/v0.1/topics/{name}/{page}", authorization=f"Bearer {shown}")
            for name, shown in (("demo", "t-agent"), ("demo", "wrong"), ("%2e%2e", "t-admin"))
        ]
        assert answers == [(403, {"error": "invalid token or topic"})] * 3


async def test_other_paths_and_verbs_are_named():
    async with gateway() as running:
        assert (await ask(running, "/v0.1/nothing", **ADMIN))[0] == 404
        assert (await running.http("POST", "/v0.1/topics", **ADMIN))[0] == 405
        assert (await ask(running, "/v0.1/auth/token", **ADMIN))[0] == 405
        assert (await running.http("GET", "/v0.1/topics", origin="https://evil.example", **ADMIN))[0] == 403
        assert await ask(running, "/health") == (200, {"status": "healthy", "protocol": "mcpx/v0.1"})


# -- tokens


async def test_without_guests_nobody_is_given_a_token():
    async with gateway() as running:
        status, body = await token(running)
        assert (status, "[guests]" in body["error"]) == (403, True)


async def test_a_guest_joins_with_the_token_it_is_given_as_the_reference_command_line_does():
    async with gateway(guests=GUESTS) as running:
        status, body = await token(running)
        assert (status, body["capabilities"]) == (200, PROPOSER)
        async with running.open(body["token"]) as guest:
            you = (await guest.until("system/welcome"))["payload"]["you"]
            assert you == {"id": "human-ann", "capabilities": PROPOSER}
        async with running.open(body["token"], running.topic("other")) as elsewhere:
            assert (await elsewhere.closed())[0] == 1008


async def test_what_a_guest_is_given_is_for_its_token_and_not_for_its_name():
    path = "/admin/participants/human-ann/capabilities"

    async def guest(running: Running, topic: str) -> str:
        return (await token(running, topic=topic))[1]["token"]

    async def held(running: Running, shown: str, topic: str = "demo") -> list[str]:
        async with running.open(shown, running.topic(topic)) as peer:
            return (await peer.until("system/welcome"))["payload"]["you"]["capabilities"]

    async with gateway(guests={**GUESTS, "topics": ["*"]}) as running:
        ann, namesake = await guest(running, "demo"), await guest(running, "lobby")
        async with running.open(ann) as one, running.open(namesake, running.topic("lobby")) as other:
            await one.until("system/welcome")
            await other.until("system/welcome")
            status, text = await running.http("POST", path, {"add": ["mcp/*"]}, **ROOT)
            assert (status, "say in which `topic`" in text) == (409, True)
            more = {"add": ["mcp/*"], "topic": "demo"}
            assert (await running.http("POST", path, more, **ROOT))[0] == 200
            assert "mcp/*" in (await one.until("system/welcome"))["payload"]["you"]["capabilities"]
            assert "mcp/*" not in running.gateway.topics["lobby"].members["human-ann"].capabilities.patterns
        assert "mcp/*" in await held(running, ann)
        assert "mcp/*" not in await held(running, await guest(running, "demo"))


@for_each_row(
    ("asked", "status"),
    [
        ({"name": "admin"}, 403),
        ({"name": "root"}, 403),
        ({"topic": "other"}, 403),
        ({"capabilities": ["mcp/*"]}, 403),
        ({"capabilities": ["*"]}, 403),
        ({"capabilities": ["system/welcome"]}, 400),
        ({"capabilities": "chat"}, 400),
        ({"name": "system:gateway"}, 400),
        ({"name": "human-a b"}, 400),
        ({"name": 3}, 400),
        ({"topic": "../x"}, 400),
        ({"topic": None}, 400),
        ({"capabilities": ["chat"]}, 200),
        ({"headers": {"authorization": "Bearer t-admin"}}, 401),
        ({"headers": {"authorization": "Bearer wrong"}}, 401),
    ],
)
async def test_a_guest_gets_what_the_operator_allows_and_nothing_else(asked: dict[str, Any], status: int):
    async with gateway(guests=GUESTS) as running:
        assert (await token(running, **asked))[0] == status


@for_each_row("body", [b"", b"{", b"[]", b"{}", b'{"participantId": "human-a"}', b"\xff"])
async def test_a_body_that_names_nobody_is_refused(body: bytes):
    async with gateway(guests=GUESTS) as running:
        assert (await running.http("POST", "/v0.1/auth/token", body))[0] == 400


async def test_a_name_in_use_is_given_to_no_other_guest_and_an_older_token_ends_with_a_newer():
    async with gateway(guests=GUESTS) as running:
        first = (await token(running))[1]["token"]
        second = (await token(running))[1]["token"]
        async with running.open(first) as old:
            assert (await old.closed())[0] == 1008
        async with running.open(second) as guest:
            await guest.until("system/welcome")
            assert (await token(running))[0] == 409
            await guest.socket.send("{}")
            assert (await guest.error())["payload"]["error"] == "wrong_version"


async def test_an_administrator_gives_a_token_to_anyone_with_any_capability():
    async with gateway() as running:
        given: dict[str, Any] = {"capabilities": ["mcp/*", "chat"], "headers": ROOT}
        status, body = await token(running, "builder", **given)
        assert status == 200
        async with running.open(body["token"]) as builder:
            you = (await builder.until("system/welcome"))["payload"]["you"]
            assert you == {"id": "builder", "capabilities": ["mcp/*", "chat"], "authenticated": True}
        assert (await token(running, "builder", headers=ROOT))[1]["capabilities"] == PROPOSER


async def test_an_administrator_gives_nobody_a_name_that_a_guest_could_take_over():
    async with gateway(guests=GUESTS) as running:
        assert (await token(running, "human-bob", headers=ROOT))[0] == 403
        assert (await token(running, "bob", headers=ROOT))[0] == 200


async def test_topics_that_the_file_closes_are_closed_to_tokens_of_our_own():
    async with gateway(topics=["demo"], guests={"names": ["human-*"]}) as running:
        assert (await token(running, topic="other"))[0] == 403
        assert (await token(running, topic="other", headers=ROOT))[0] == 403


async def test_who_asks_for_many_tokens_has_to_wait():
    async with gateway(guests=GUESTS) as running:
        answers = [(await token(running, f"human-{number}"))[0] for number in range(api.ISSUING.burst + 5)]
        assert answers[: api.ISSUING.burst] == [200] * api.ISSUING.burst and 429 in answers


async def admits(policy: IssuedTokenPolicy, shown: str) -> bool:
    return await policy.admit(shown, "demo") is not None


async def test_many_addresses_of_one_network_get_no_more_tokens_than_one():
    async with gateway(guests=GUESTS, trusted_proxy=True) as running:
        near = [{"x_forwarded_for": f"2001:db8::{number:x}"} for number in range(2 * api.ISSUING.burst)]
        assert 429 in [(await token(running, f"human-{n}", headers=each))[0] for n, each in enumerate(near)]
        assert (await token(running, headers={"x_forwarded_for": "2001:db8:1::1"}))[0] == 200


async def test_tokens_expire_are_bounded_and_those_of_idle_guests_give_way(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    policy = IssuedTokenPolicy(FirstMatchPolicy(()), GuestRules(), seconds=10, clock=lambda: now[0])

    def issue(name: str, *, is_guest: bool = True, connected: Callable[[str, str], bool] = lambda _, __: False):
        return policy.issue_token(name, "demo", ("chat",), is_guest=is_guest, is_connected=connected)

    monkeypatch.setattr(issued, "MAX_TOKENS", 2)
    kept, first = issue("a", is_guest=False), issue("guest-b")
    second = issue("guest-c")
    assert kept and first and second
    assert [await admits(policy, each) for each in (kept, first, second)] == [True, False, True]
    assert issue("guest-d", connected=lambda _, __: True) is None
    now[0] = 10.0
    assert not await admits(policy, kept)
    assert issue("guest-d", connected=lambda _, __: True) is not None


async def test_a_guests_name_is_nobody_elses():
    others = StaticPolicy(
        {"t-1": "alice", "t-2": "guest-eve"}, {name: ParticipantEntry() for name in ("alice", "guest-eve")}
    )
    policy = IssuedTokenPolicy(others, GuestRules(), seconds=10)
    assert [await admits(policy, shown) for shown in ("t-1", "t-2")] == [True, False]
    with pytest.raises(UsageError, match=r"participants\.admin has a name that guests may take"):
        parse_config({**CONFIG, "guests": {"names": ["*"]}})
    assert parse_config({"guests": {"names": ["*"]}}).issued is not None


@for_each_row(
    ("change", "complaint"),
    [
        ({"guests": {"secret": "x"}}, "guests has 'secret'"),
        ({"guests": {"hours": 0.5, "profile": "none"}}, "there is no profile"),
        ({"guests": {"hours": -1}}, r"guests\.hours cannot be -1"),
        ({"history": 5000}, "history cannot be 5000"),
        ({"history": True}, "history cannot be True"),
    ],
)
def test_mistakes_in_the_file_are_named(change: dict[str, Any], complaint: str):
    with pytest.raises(UsageError, match=complaint):
        parse_config({**CONFIG, **change})


# -- tokens in URLs


async def test_a_token_in_the_url_is_refused_with_the_reason_unless_the_operator_allows_it():
    async with gateway() as running, running.open(None, running.topic(token="t-admin")) as refused:
        code, reason = await refused.closed()
        assert (code, "tokens_in_urls" in reason, "Authorization" in reason) == (1008, True, True)
    async with gateway(tokens_in_urls=True) as running:
        async with running.open(None, running.topic(token="t-admin")) as allowed:
            assert (await allowed.until("system/welcome"))["payload"]["you"]["id"] == "admin"
        for url in (
            running.topic(token="wrong"),
            running.topic(token="t-admin&token=t-agent"),
            running.topic(token="%00"),
        ):
            async with running.open(None, url) as wrong:
                assert (await wrong.closed())[0] == 1008
        async with running.open("wrong", running.topic(token="t-admin")) as both:
            assert (await both.closed())[0] == 1008
