"""The host's audit trail (§6) and what it does about errors (§14): retries, fallback tools, typed exceptions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from defserve.client import Answers, AuditServer, Client, Decline, Mgp
from defserve.client import audit as audit_module
from defserve.client.mgp.server_claims import MgpFailure
from defserve.errors import BadArguments, Draining, PeerError, Rejected, TimedOut, ToolError
from defserve.protocols.mgp import errors
from defserve.protocols.mgp.audit import EVENT_TYPES
from defserve.protocols.mgp.errors import PermissionDenied, RateLimited
from defserve.protocols.mgp.permissions import NotConfirmed
from defserve.protocols.mgp.terms import MGP_EXTENSION_ID
from defserve.protocols.mgp.vocabulary import GRANT_META_KEYS
from defserve.server import AuditLog
from tests.client.mgp import guarded
from tests.client.mgp.hosts import DONE, ERAS, Trail, connected, mgp_block, plain, risky, speaking, tool, trusting
from tests.client.pretend import SILENCE, STATELESS, Fail, PretendServer
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def forget_attempts() -> None:
    guarded.attempts.clear()


def kinds(events: list[Any], actor: str = "client") -> list[str]:
    return [event["event_type"] for event in events if event["actor"]["type"] == actor]


# -- the trail (§6) --------------------------------------------------------------------------------------


@pytest.mark.req("MGP-6.3f")
@pytest.mark.parametrize("road", ["memory", "stdio", "http"])
@pytest.mark.parametrize("version", ERAS)
async def test_a_servers_events_are_forwarded_to_the_hosts_sinks(road: str, version: str):
    events: list[Any] = []
    async with connected(road, version, mgp=trusting(audit=Trail(events))) as client:
        await client.call("add", a=1, b=2)
    executed = [event for event in events if event["event_type"] == "TOOL_EXECUTED" and "reported_by" in event]
    assert [event["target"] for event in executed] == [{"server_id": "test.guarded", "tool_name": "add"}]
    assert executed[0]["reported_by"] == "test.guarded"
    assert kinds(events) == ["SERVER_CONNECTED", "PERMISSION_GRANTED", "TOOL_EXECUTED", "SERVER_DISCONNECTED"]


@pytest.mark.req("MGP-6.3f")
async def test_without_a_sink_events_are_logged_locally(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "defserve.audit"):
        async with guarded.server.connect(mgp=Mgp("auto_approve")) as client:
            await client.call("add", a=1, b=2)
    assert any('"TOOL_EXECUTED"' in line for line in caplog.messages)


@pytest.mark.req("MGP-6.3f")
async def test_an_audit_server_gets_every_event_and_the_log_what_it_cannot(caplog: pytest.LogCaptureFixture):
    keeper = PretendServer()
    async with Client(keeper, version=ERAS[0]) as away:
        audit = AuditServer(away)
        async with guarded.server.connect(mgp=trusting(audit=[audit])) as client:
            await client.call("add", a=1, b=2)
        await audit.flush()
    told = [event["event_type"] for event in keeper.asked("notifications/mgp.audit")]
    assert told == ["SERVER_CONNECTED", "PERMISSION_GRANTED", *["TOOL_EXECUTED"] * 2, "SERVER_DISCONNECTED"]
    with caplog.at_level(logging.INFO, "defserve.audit"):
        audit.append({"event_type": "com.example.late"})
        await audit.flush()
    assert any("com.example.late" in line for line in caplog.messages)
    with pytest.raises(PeerError, match="AuditLog"):
        audit.append({}, durable=True)


async def test_what_an_audit_server_is_too_slow_for_is_logged_instead(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_module, "MAX_UNREAD_BYTES", 50_000)
    async with Client(PretendServer(), version=ERAS[0]) as away:
        audit = AuditServer(away)
        with caplog.at_level(logging.INFO, "defserve.audit"):
            for number in range(10):
                audit.append({"event_type": f"com.example.n{number}", "details": "x" * 10_000})
            await audit.flush()
    kept_here = "\n".join(caplog.messages)
    assert "com.example.n0" not in kept_here and "com.example.n9" in kept_here


async def test_a_file_keeps_the_trail(tmp_path: Path):
    log = AuditLog(tmp_path / "host.log", key="x" * 32)
    async with guarded.server.connect(mgp=trusting(audit=[log])):
        pass
    log.close()
    assert "SERVER_CONNECTED" in (tmp_path / "host.log").read_text()


async def test_the_host_tells_of_calls_to_a_server_that_does_not():
    events: list[Any] = []
    server = plain(tool("greet", "name"))
    async with Client(server, version=ERAS[0], mgp=trusting(audit=Trail(events)), info={"name": "me"}) as client:
        await client.call("greet", name="Ann")
        server.replies["tools/call"] = Fail(-32000, "no")
        with pytest.raises(PeerError):
            await client.call("greet", name="Ann")
    told = [event for event in events if event["event_type"] == "TOOL_EXECUTED"]
    assert [event["result"] for event in told] == ["SUCCESS", "FAILURE"]
    names = {"timestamp", "trace_id", "event_type", "actor", "target", "result", "details", "observed_by"}
    assert set(told[0]) == names and told[0]["observed_by"] == "me"
    assert (told[0]["actor"], told[0]["target"]["server_id"]) == ({"type": "client", "id": "me"}, "pretend")


def auditing(**replies: Any) -> PretendServer:
    """A server that agrees to report its calls, and does not."""
    listed = {"tools": [tool("act", "x"), tool("hang", "x")]}
    block = mgp_block(extensions=["security", "audit", "access_control", "lifecycle"])
    return speaking(block, {"tools/list": listed, "tools/call": DONE, **replies})


async def test_a_server_that_agreed_to_report_and_keeps_silent_is_audited_all_the_same():
    events: list[Any] = []
    async with Client(auditing(), version=ERAS[0], mgp=trusting(audit=Trail(events)), info={"name": "me"}) as client:
        await client.call("act", x="1")
    assert [event["event_type"] for event in events] == ["SERVER_CONNECTED", "TOOL_EXECUTED", "SERVER_DISCONNECTED"]
    assert all(event["observed_by"] == "me" and "reported_by" not in event for event in events)
    assert events[-1]["details"] | {"calls_seen": 1, "events_reported": 0} == events[-1]["details"]


async def test_what_a_server_claims_is_never_taken_for_what_the_host_saw():
    events: list[Any] = []
    server = auditing(ping={})
    lie = {
        "event_type": "TOOL_EXECUTED",
        "actor": {"type": "client", "id": "me"},
        "observed_by": "me",
        "result": "SUCCESS",
    }
    async with Client(server, version=ERAS[0], mgp=trusting(audit=Trail(events)), info={"name": "me"}) as client:
        server.say({"method": "notifications/mgp.audit", "params": {**lie, "reported_by": "somebody else"}})
        await client.ping()
    (claim,) = [event for event in events if event["event_type"] == "TOOL_EXECUTED"]
    assert claim["reported_by"] == "pretend.mgp" and "observed_by" not in claim


@pytest.mark.parametrize("ending", ["cancelled", "timeout", "gone"])
async def test_a_call_without_an_answer_is_told_of(ending: str):
    events: list[Any] = []
    server = auditing(**{"tools/call": SILENCE})
    async with Client(server, version=ERAS[0], mgp=trusting(audit=Trail(events)), timeout=20) as client:
        calling = asyncio.create_task(client.call_raw("hang", {"x": "1"}, timeout=0.3 if ending == "timeout" else None))
        await server.told(lambda message: message.get("method") == "tools/call")
        if ending == "cancelled":
            calling.cancel()
        elif ending == "gone":
            server.leave()
        with pytest.raises((PeerError, asyncio.CancelledError)):
            await calling
    told = [event for event in events if event["event_type"] == "TOOL_EXECUTED"]
    assert [event["result"] for event in told] == ["CANCELLED" if ending == "cancelled" else "FAILURE"]


async def test_what_the_host_changes_at_a_server_is_told_of_whether_or_not_it_worked():
    events: list[Any] = []
    server = auditing(**{"mgp/access/grant": {}, "mgp/access/revoke": Fail(-32000, "no")})
    async with Client(server, version=ERAS[0], mgp=trusting(audit=Trail(events))) as client:
        await client.access_grant("agent.helper", "act")
        with pytest.raises(PeerError):
            await client.access_revoke("agent.helper")
    told = [(event["event_type"], event["result"], event["details"]) for event in events[1:-1]]
    assert told == [
        ("ACCESS_GRANTED", "SUCCESS", {"agent_id": "agent.helper", "tool_name": "act"}),
        ("ACCESS_REVOKED", "FAILURE", {"agent_id": "agent.helper", "error": "PeerError"}),
    ]


@pytest.mark.parametrize(
    ("listed", "options", "refusal", "told"),
    [
        (tool("act", "x"), {"validators": {"act": "sandbox"}}, Rejected, ["VALIDATION_FAILED", "TOOL_BLOCKED"]),
        (tool("act", "x"), {"validators": {"act": "code_safety"}}, Rejected, ["CODE_REJECTED", "TOOL_BLOCKED"]),
        (risky("dangerous"), {"confirm": lambda *_: False}, NotConfirmed, ["TOOL_BLOCKED"]),
        (
            risky("moderate", None, "camera"),
            {"approval": "deny_all"},
            PermissionDenied,
            ["PERMISSION_DENIED", "TOOL_BLOCKED"],
        ),
    ],
)
async def test_a_call_that_never_left_is_told_of(
    listed: dict[str, Any], options: dict[str, Any], refusal: type[Exception], told: list[str]
):
    events: list[Any] = []
    mgp = trusting(audit=Trail(events), **options)
    async with Client(plain(listed), version=ERAS[0], mgp=mgp) as client:
        with pytest.raises(refusal):
            await client.call("act", x="import os; rm -rf / # token=sk-12345678901234567890")
    assert kinds(events)[1:-1] == told
    assert "sk-123456789" not in str(events)
    assert {event["trace_id"] for event in events if "tool_name" in event["target"]} == {events[-2]["trace_id"]}


async def test_the_trace_of_a_call_is_the_same_on_both_sides():
    events: list[Any] = []
    trace_id = "550e8400-e29b-41d4-a716-446655440000"
    async with guarded.server.connect(mgp=trusting(audit=Trail(events))) as client:
        params = {"name": "add", "arguments": {"a": 1, "b": 2}, "trace_id": trace_id}
        await client.request("tools/call", params)
        await client.call("flaky", fails=1)
    executed = [event for event in events if event["event_type"] == "TOOL_EXECUTED"]
    assert executed[0]["trace_id"] == trace_id
    retried = next(event for event in events if event["event_type"] == "dev.defserve.tool_retried")
    assert retried["trace_id"] == executed[-1]["trace_id"]


async def test_a_sink_that_fails_does_not_stop_the_host(caplog: pytest.LogCaptureFixture):
    class Full:
        def append(self, event: Any, *, durable: bool = False) -> None:
            raise OSError("disk full at https://bob:hunter2-canary@store/x")

    async with guarded.server.connect(mgp=trusting(audit=Full())) as client:
        assert await client.call("add", a=1, b=2) == 3
    assert "is lost: disk full at https://[redacted]@store/x" in caplog.text


async def test_events_that_were_not_negotiated_are_not_kept():
    events: list[Any] = []
    server = PretendServer({"ping": {}})
    async with Client(server, version=ERAS[0], mgp=trusting(audit=Trail(events))) as client:
        server.say({"method": "notifications/mgp.audit", "params": {"event_type": "TOOL_EXECUTED"}})
        await client.ping()
    assert [event["event_type"] for event in events] == ["SERVER_CONNECTED", "SERVER_DISCONNECTED"]
    assert {"SERVER_CONNECTED", "SERVER_DISCONNECTED"} <= EVENT_TYPES


# -- trying again (§14.6) --------------------------------------------------------------------------------


@pytest.mark.req("MGP-14.6")
@pytest.mark.parametrize("version", ERAS)
async def test_a_retryable_error_is_retried_as_often_as_the_server_says(version: str):
    events: list[Any] = []
    async with guarded.server.connect(version, mgp=trusting(audit=Trail(events))) as client:
        assert await client.call("flaky", fails=2) == "after 3"
        guarded.attempts.clear()
        with pytest.raises(RateLimited) as limited:
            await client.call("flaky", fails=9)
    assert len(guarded.attempts) == 3  # the call, and max_retries more
    assert limited.value.data["retry_after_ms"] == 1
    retries = [event for event in events if event["event_type"] == "dev.defserve.tool_retried"]
    assert [event["details"]["attempt"] for event in retries] == [1, 2, 1, 2]
    assert retries[0]["details"] == {"attempt": 1, "wait_ms": 1, "code": 3000}


@pytest.mark.req("MGP-14.6")
@pytest.mark.parametrize("version", ERAS)
async def test_the_fallback_tool_is_tried_last(version: str):
    events: list[Any] = []
    async with guarded.server.connect(version, mgp=trusting(audit=Trail(events))) as client:
        assert await client.call("moody", name="Ann") == "hello Ann"
    assert guarded.attempts == ["moody", "moody"]
    assert kinds(events)[2:] == [
        "dev.defserve.tool_retried",
        "TOOL_EXECUTED",
        "dev.defserve.tool_fell_back",
        "TOOL_EXECUTED",
        "SERVER_DISCONNECTED",
    ]


async def test_without_retry_the_first_error_is_reported():
    async with guarded.server.connect(mgp=trusting(retry=False)) as client:
        with pytest.raises(errors.UpstreamUnavailable) as error:
            await client.call("moody", name="Ann")
    assert guarded.attempts == ["moody"]
    assert error.value.data["fallback_tool"] == "steady"


@pytest.mark.req("MGP-14.6")
async def test_what_is_not_retryable_is_never_repeated_nor_replaced():
    block = {"retryable": False, "retry_after_ms": 1, "max_retries": 3, "fallback_tool": "other"}
    server = failing(3002, block)
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        with pytest.raises(errors.QuotaExceeded):
            await client.call("act", x="1")
    assert len(server.asked("tools/call")) == 1


async def test_a_fallback_goes_through_the_same_gates_and_not_in_circles():
    def called(request: dict[str, Any]) -> Any:
        other = {"first": "second", "second": "first"}[request["params"]["name"]]
        raise Fail(5002, "down", {"_mgp": {"retryable": True, "max_retries": 0, "fallback_tool": other}})

    listed = [tool("first", "x"), tool("second", "x", security={"risk_level": "dangerous"})]
    server = speaking(mgp_block(), {"tools/call": called, "tools/list": {"tools": listed}})
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        with pytest.raises(errors.UpstreamUnavailable):
            await client.call("first", x="1")
    assert [call["name"] for call in server.asked("tools/call")] == ["first", "second"]
    async with Client(server, version=ERAS[0], mgp=trusting(confirm=lambda *_: False)) as client:
        with pytest.raises(NotConfirmed):
            await client.call("first", x="1")


def falling_back(*listed: dict[str, Any]) -> PretendServer:
    """A server whose tool `first` fails, and names `second` to be called instead."""

    def called(request: dict[str, Any]) -> Any:
        if request["params"]["name"] == "first":
            raise Fail(5002, "down", {"_mgp": {"retryable": True, "max_retries": 0, "fallback_tool": "second"}})
        return DONE

    return speaking(mgp_block(), {"tools/call": called, "tools/list": {"tools": list(listed)}})


def behind(server_id: str) -> dict[str, Any]:
    return {"_meta": {"dev.defserve/server": server_id}}


@for_each_row(
    ("first", "second", "follows"),
    [
        (tool("first"), tool("second"), True),
        (tool("first", **behind("a")), tool("second", **behind("a")), True),
        (tool("first", **behind("a")), tool("second", **behind("b")), False),
        (tool("first", **behind("a")), tool("second"), False),
        (tool("first"), tool("other"), False),
    ],
)
async def test_a_fallback_leads_only_to_a_listed_tool_of_the_same_server(
    first: dict[str, Any], second: dict[str, Any], follows: bool
):
    server = falling_back(first, second)
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        with nullcontext() if follows else pytest.raises(errors.UpstreamUnavailable):
            await client.call("first")
    assert [call["name"] for call in server.asked("tools/call")] == ["first", "second"][: 1 + follows]


async def test_a_dangerous_fallback_is_always_confirmed_and_named_as_one():
    block = {"risk_level": "dangerous", "permissions_required": ["camera"], "confirmation_required": False}
    server, questions = falling_back(tool("first"), tool("second", security=block)), list[str]()
    answers = Answers(ask=lambda message, schema: questions.append(message) or Decline)
    async with Client(server, version=ERAS[0], answers=answers, mgp=trusting(confirm=None)) as client:
        with pytest.raises(NotConfirmed):
            await client.call("first", x="1")
    assert questions == ["Run second (dangerous), because first failed?\n  x: 1"]
    assert [call["name"] for call in server.asked("tools/call")] == ["first"]


async def test_a_yes_to_a_tool_is_no_yes_to_its_fallback():
    server = falling_back(tool("second"))
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        await client.call("first")  # not listed, so it was confirmed
    first, second = server.asked("tools/call")
    assert first["_meta"] == {"dev.defserve/confirmed": True}
    assert "_meta" not in second


async def test_without_a_session_a_fallback_carries_the_permissions_granted_for_itself():
    needs = {"camera": "first", "microphone": "second"}
    listed = [{**risky("safe", None, permission), "name": name} for permission, name in needs.items()]
    server, block = falling_back(*listed), mgp_block(extensions=["security", "permissions"])
    capabilities = {"tools": {}, "extensions": {MGP_EXTENSION_ID: block}}
    server.replies |= STATELESS
    server.replies["server/discover"] = {**STATELESS["server/discover"], "capabilities": capabilities}
    async with Client(server, version=ERAS[1], mgp=trusting()) as client:
        await client.call("first")
    first, second = (call["_meta"][GRANT_META_KEYS[0]] for call in server.asked("tools/call"))
    assert first == {"camera": "approved"}
    assert second == {"camera": "approved", "microphone": "approved"}


async def test_a_plain_servers_words_are_not_taken_for_mgp():
    server = PretendServer({"tools/list": {"tools": []}, "tools/call": Fail(3000, "x", {"_mgp": {"retryable": True}})})
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        with pytest.raises(PeerError) as error:
            await client.call("act")
    assert error.value.code == 3000 and len(server.asked("tools/call")) == 1


@pytest.mark.parametrize(
    ("block", "delays"),
    [
        ({"retryable": True, "retry_strategy": "immediate", "max_retries": 2}, [0, 0, None]),
        ({"retryable": True, "retry_strategy": "immediate", "retry_after_ms": 50, "max_retries": 1}, [0.05, None]),
        ({"retryable": True, "retry_strategy": "fixed_delay", "retry_after_ms": 500}, [0.5, 0.5, 0.5, None]),
        ({"retryable": True, "retry_strategy": "immediate", "retry_after_ms": 10**400, "max_retries": 1}, [0, None]),
        ({"retryable": True, "retry_strategy": "exponential_backoff", "retry_after_ms": 500}, [0.5, 1, 2, None]),
        ({"retryable": True}, [1, 2, 4, None]),
        ({"retryable": True, "retry_after_ms": 86_400_000}, [None]),
        ({"retryable": True, "retry_after_ms": -5, "max_retries": 1}, [1, None]),
        ({"retryable": "yes"}, [None]),
        ({"retryable": False, "max_retries": 3}, [None]),
    ],
)
def test_the_wait_before_each_retry(block: dict[str, Any], delays: list[float | None]):
    assert [MgpFailure(0, "", block, {}).delay(retried) for retried in range(len(delays))] == delays


def test_no_server_can_have_a_call_repeated_for_ever():
    greedy = {"retryable": True, "retry_strategy": "immediate", "max_retries": 10**9}
    failure = MgpFailure(0, "", greedy, {})
    assert failure.delay(9) == 0 and failure.delay(10) is None


@pytest.mark.parametrize(
    ("block", "tool_name"),
    [
        ({"retryable": True, "fallback_tool": "b"}, "b"),
        ({"retryable": False, "fallback_tool": "b"}, None),
        ({"retryable": True, "fallback_tool": 3}, None),
    ],
)
def test_a_fallback_is_only_for_what_may_be_retried(block: dict[str, Any], tool_name: str | None):
    assert MgpFailure(0, "", block, {}).fallback == tool_name


# -- typed errors (§14.3) --------------------------------------------------------------------------------


def failing(code: int, block: dict[str, Any]) -> PretendServer:
    return speaking(mgp_block(), {"tools/call": Fail(code, "no", {"_mgp": block})})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1000, errors.PermissionDenied),
        (1001, errors.AccessDenied),
        (1002, errors.AuthRequired),
        (1003, errors.AuthExpired),
        (1010, Rejected),
        (1011, Rejected),
        (2000, errors.ServerNotReady),
        (2001, Draining),
        (2002, errors.ServerRestarting),
        (3000, errors.RateLimited),
        (3001, errors.ResourceExhausted),
        (3002, errors.QuotaExceeded),
        (3003, TimedOut),
        (4000, BadArguments),
        (4001, PeerError),
        (4002, errors.ToolDisabled),
        (5000, errors.UpstreamError),
        (5001, errors.UpstreamTimeout),
        (5002, errors.UpstreamUnavailable),
        (5099, PeerError),
        (-32603, PeerError),
    ],
)
async def test_an_error_is_raised_as_the_exception_of_its_code(code: int, kind: type[Exception]):
    server = failing(code, {"category": "x", "retryable": False, "details": {"limit": 3}})
    async with Client(server, version=ERAS[0], mgp=trusting()) as client:
        with pytest.raises(kind) as raised:
            await client.call("act", x="1")
    assert type(raised.value) is kind
    if kind is not PeerError:
        assert isinstance(raised.value.__cause__, PeerError)


async def test_garbled_recovery_fields_change_nothing():
    for data in (None, "x", {"_mgp": 3}, {"_mgp": {"details": [1], "max_retries": "x", "retryable": []}}):
        server = speaking(mgp_block(), {"tools/call": Fail(4000, "no", data)})
        async with Client(server, version=ERAS[0], mgp=trusting()) as client:
            with pytest.raises(BadArguments, match="no"):
                await client.call("act", x="1")


@pytest.mark.parametrize("version", ERAS)
async def test_bad_arguments_and_failures_of_a_tool_keep_their_kind(version: str):
    async with guarded.server.connect(version, mgp=trusting()) as client:
        with pytest.raises(BadArguments) as bad:
            await client.call("add", a="x", b=2)
        assert bad.value.problems[0].field == "a"
        with pytest.raises(BadArguments):
            await client.call_raw("add", {"a": "x", "b": 2})
        with pytest.raises(PeerError):
            await client.call("nothing")


async def test_an_error_that_is_not_mgps_stays_a_tool_error():
    server = PretendServer({**STATELESS, "tools/list": {"tools": []}, "tools/call": {**DONE, "isError": True}})
    async with Client(server, mgp=trusting()) as client:
        with pytest.raises(ToolError, match="done"):
            await client.call("act")
