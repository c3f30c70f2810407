"""Several credentials of one principal in one session: each message counts as what its own sender may do."""

from __future__ import annotations

from typing import Any

from defserve import Context, Server
from defserve.auth.principals import Principal
from defserve.core.extension import OutgoingMessage
from defserve.core.messages import MalformedMessage, Notification, Reply, Request
from tests.core.stepping import Gate, Talk
from tests.rows import for_each_row


def served() -> Server:
    server = Server("s", "1")

    @server.tool
    async def wait() -> str:
        return await Gate()

    @server.tool
    async def ask_roots(ctx: Context) -> str:
        return f"{len(await ctx.roots())} roots"

    return server


WEAK = Principal("alice", credential="weak")
STRONG = Principal("alice", frozenset({"all"}), credential="strong")


def asking() -> tuple[Talk, int]:
    """A session of the weak one in which the strong one is asked something."""
    talk = Talk(served().composition, principal="alice", identity=WEAK).open("2025-03-26", roots={})
    params = {"name": "ask_roots", "arguments": {}}
    talk.session.feed_message(Request(1, "tools/call", params, {}), None, STRONG)
    (question,) = talk.step()
    return talk, question["id"]


@for_each_row("batched", [False, True])
@for_each_row("broken", [False, True])
def test_an_answer_counts_from_who_was_asked_and_from_no_weaker_one(batched: bool, broken: bool):
    talk, question = asking()
    answer: Any = (
        MalformedMessage(-32600, "broken", question, is_reply=True) if broken else Reply(question, {"roots": []}, None)
    )
    assert talk.session.feed_message([answer] if batched else answer, None, WEAK)
    assert talk.step() == []
    assert talk.session.feed_message([answer] if batched else answer, None, STRONG)
    (reply,) = talk.step()
    assert reply["id"] == 1


@for_each_row("batched", [False, True])
def test_a_call_is_cancelled_by_who_made_it_and_by_no_weaker_one(batched: bool):
    talk, _ = asking()
    cancelled: Any = Notification("notifications/cancelled", {"requestId": 1}, {})
    talk.session.feed_message([cancelled] if batched else cancelled, None, WEAK)
    talk.step()
    assert 1 in talk.session.in_flight
    talk.session.feed_message([cancelled] if batched else cancelled, None, STRONG)
    talk.step()
    assert talk.session.in_flight == {}


def test_the_calls_of_a_credential_that_ends_fail_and_others_go_on():
    talk, _ = asking()
    talk.session.feed_message(Request(2, "tools/call", {"name": "wait", "arguments": {}}, {}), None, WEAK)
    talk.step()
    talk.session.end_credential("strong")
    told = talk.step()
    (reply,) = [message for message in told if message.get("id") == 1 and "result" in message]
    assert reply["result"]["isError"] and "revoked or has expired" in reply["result"]["content"][0]["text"]
    assert list(talk.session.in_flight) == [2]


@for_each_row(("identity", "audience"), [(None, WEAK), (STRONG, STRONG)])
def test_a_question_outside_any_call_is_for_who_it_is_meant_for(identity: Principal | None, audience: Principal):
    talk, sent = Talk(served().composition, principal="alice", identity=WEAK).open(roots={}), list[OutgoingMessage]()
    talk.session.outlet = sent.append
    talk.engine.spawn(talk.session.request("roots/list", {}, identity=identity))
    talk.engine.step()
    assert [(message.asks, message.audience) for message in sent] == [(True, (audience,))]
