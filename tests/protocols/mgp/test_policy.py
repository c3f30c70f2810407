"""A policy decides about every call, and fails closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.auth import ApiKeys
from defserve.client.targets import RemoteServer
from defserve.errors import UsageError
from defserve.protocols.mgp import policy as policies
from defserve.protocols.mgp.policy import PolicyDecision, PolicyRequest, allow_call, refuse_call, require_confirmation
from defserve.server.call_decision import explain_call, resolve_named_caller
from tests.at_address import at_address
from tests.raw import ERAS, HANDSHAKE, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


class Kept:
    """A sink of audit events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def append(self, event: Any, *, durable: bool = False) -> None:
        self.events.append(event)


def make_shop(policy: Callable[[PolicyRequest], Any], **options: Any) -> tuple[Server, Kept, list[int]]:
    """A server, its audit, and what its tool was run with."""
    kept, run = Kept(), list[int]()
    server = Server("shop", policy=policy, audit=kept, **options)

    @server.tool
    def refund(amount: int, note: str = "none") -> str:
        run.append(amount)
        return "done"

    return server, kept, run


def decide(request: PolicyRequest) -> PolicyDecision:
    if request.arguments["amount"] > 100:
        return refuse_call("more than 100")
    if request.arguments["amount"] > 10:
        return require_confirmation("more than 10")
    return allow_call("a small amount")


async def decide_later(request: PolicyRequest) -> PolicyDecision:
    await asyncio.sleep(0)
    return decide(request)


@for_each_row("version", ERAS)
@for_each_row("policy", [decide, decide_later])
async def test_a_call_runs_or_is_refused_as_the_policy_decides(version: str, policy: Any):
    server, kept, run = make_shop(policy)
    async with raw(server, version) as peer:
        assert "isError" not in await peer.call("refund", {"amount": 5})
        refused = await peer.call("refund", {"amount": 500})
    assert run == [5]
    assert refused["isError"] is True and "more than 100" in refused["content"][0]["text"]
    assert refused["_meta"]["dev.defserve/error"]["error_type"] == "policy_refused"
    allowed, blocked = kept.events
    assert allowed["event_type"] == "TOOL_EXECUTED" and blocked["event_type"] == "TOOL_BLOCKED"
    assert allowed["details"]["policy"] == {"decision": "allow", "reason": "a small amount"}
    assert blocked["details"]["policy"] == {"decision": "refuse", "reason": "more than 100"}


async def test_a_policy_sees_the_caller_its_rights_and_the_arguments_that_the_tool_would_get():
    seen: list[PolicyRequest] = []

    def look(request: PolicyRequest) -> PolicyDecision:
        seen.append(request)
        request.arguments["amount"] = 1_000_000  # type: ignore[index]
        return allow_call()

    server, _, run = make_shop(look)
    async with raw(server) as peer:
        await peer.call("refund", {"amount": 5})
    (request,) = seen
    assert run == [5], "a policy has a copy"
    assert (request.tool, request.server_id, request.risk_level) == ("refund", None, "")
    assert request.is_local and request.caller.id == "local" and request.rights == frozenset()
    assert "note" not in request.arguments, "what was left out is absent"
    assert request.trace_id


async def test_over_http_a_policy_sees_whose_key_it_is_and_what_the_key_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DEFSERVE_KEYS_PEPPER", "p" * 43)
    keys, seen = ApiKeys(str(tmp_path / "keys.json")), list[PolicyRequest]()

    def look(request: PolicyRequest) -> PolicyDecision:
        seen.append(request)
        return allow_call() if "refunds" in request.rights else refuse_call("no right to refunds")

    server, _, run = make_shop(look, auth=keys)
    for name, scopes, times in (("ada", ["refunds"], 1), ("bob", [], 0)):
        run.clear()
        token = (await keys.create(name, permissions=["ToolInvoke(*)"], scopes=scopes)).token
        async with at_address(server) as url, RemoteServer(url, token=token).connect(timeout=10) as client:
            result = await client.call_raw("refund", {"amount": 5})
        assert result.get("isError", False) is (times == 0) and run == [5] * times
        assert seen[-1].caller.id == name and seen[-1].caller.kind == "token" and not seen[-1].is_local


BROKEN: list[tuple[str, Any]] = [
    ("raises", lambda request: 1 / 0),
    ("None", lambda request: None),
    ("True", lambda request: True),
    ("a text", lambda request: "allow"),
    ("an unknown outcome", lambda request: PolicyDecision("perhaps")),  # pyright: ignore[reportArgumentType]
]


@for_each_row(("title", "policy"), BROKEN)
async def test_a_policy_that_fails_refuses(title: str, policy: Any, caplog: pytest.LogCaptureFixture):
    server, kept, run = make_shop(policy)
    async with raw(server) as peer:
        result = await peer.call("refund", {"amount": 5})
    assert result["isError"] is True and "could not decide" in result["content"][0]["text"]
    assert run == [] and "the policy failed" in caplog.text
    (event,) = kept.events
    assert event["event_type"] == "TOOL_BLOCKED" and event["details"]["policy"]["decision"] == "error"


async def test_a_policy_that_does_not_answer_refuses(monkeypatch: pytest.MonkeyPatch):
    async def never(request: PolicyRequest) -> PolicyDecision:
        await asyncio.Event().wait()
        return allow_call()

    monkeypatch.setattr(policies, "POLICY_SECONDS", 0.05)
    server, _, run = make_shop(never)
    async with raw(server) as peer:
        result = await peer.call("refund", {"amount": 5})
    assert result["isError"] is True and run == []


@for_each_row(("action", "times"), [("accept", 1), ("decline", 0)])
@for_each_row("confirm", ["auto", "never"])
async def test_what_needs_confirmation_is_asked_of_a_person_whatever_the_server_says(
    action: str, times: int, confirm: str
):
    server, kept, run = make_shop(decide, confirm=confirm)
    async with raw(server, HANDSHAKE[-1], {"elicitation": {}}) as peer:
        id = await peer.begin("tools/call", {"name": "refund", "arguments": {"amount": 50}})
        question = await peer.hear()
        assert question["method"] == "elicitation/create" and "refund" in question["params"]["message"]
        content = dict.fromkeys(question["params"]["requestedSchema"]["properties"], True)
        answer: Json = {"action": action, **({"content": content} if action == "accept" else {})}
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        await peer.reply_to(id)
    assert run == [50] * times
    assert kept.events[-1]["details"]["policy"]["decision"] == "confirm"


async def test_a_client_that_cannot_be_asked_is_refused_what_needs_confirmation():
    server, _, run = make_shop(decide)
    async with raw(server) as peer:
        result = await peer.call("refund", {"amount": 50})
    assert result["isError"] is True and run == []


async def test_a_policy_is_asked_only_after_the_arguments_were_checked():
    seen: list[PolicyRequest] = []
    server, _, _ = make_shop(lambda request: seen.append(request))
    async with raw(server) as peer:
        await peer.ask("tools/call", {"name": "refund", "arguments": {"amount": "x"}})
    assert seen == []


WHY: list[tuple[Json | None, str, str, bool]] = [
    ({"amount": 5}, "passed", "a small amount", True),
    ({"amount": 500}, "refused", "more than 100", False),
    ({"amount": 50}, "depends", "more than 10", False),
    (None, "refused", "could not decide", False),
]


@for_each_row(("arguments", "outcome", "sentence", "would_run"), WHY)
async def test_why_tells_what_the_policy_decides(arguments: Json | None, outcome: str, sentence: str, would_run: bool):
    server, kept, run = make_shop(decide)
    decision = await explain_call(server, await resolve_named_caller(server, "pipe"), "refund", arguments)
    (step,) = [step for step in decision.steps if step.gate == "policy"]
    assert step.outcome == outcome and sentence in step.sentence
    assert decision.would_run is would_run and run == kept.events == []


def test_a_policy_that_is_no_function_is_a_mistake():
    with pytest.raises(UsageError, match="policy"):
        Server("shop", policy="decide")  # pyright: ignore[reportArgumentType]
