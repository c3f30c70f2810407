"""MGP §6: who hears of what happened, in which form, and under which trace."""

from __future__ import annotations

import logging
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pytest

from defserve import Code, Context, Server, ShellCommand, ToolError, UsageError, dangerous, moderate
from defserve.auth.principals import LOCAL_PRINCIPAL
from defserve.protocols.mgp.audit import EVENT_TYPES
from defserve.server import AuditLog, AuditLogger
from defserve.stores.audit.log_file import verify_audit_log
from tests.protocols.mgp.callers import ALICE, STRANGER, Trail, speaking
from tests.raw import ERAS, HANDSHAKE, Json, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
AUDIT = "notifications/mgp.audit"
STARTED = "dev.defserve.tool_started"
UUID = "0b8f0c66-3d0b-4c43-9d0e-6f6a2f7d8a10"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
KEY = "k" * 32


def made(*sinks: Any, **options: Any) -> Server:
    server = Server("desk", "1", audit=sinks, confirm="never", **options)

    @server.tool
    def plain(n: int = 0) -> int:
        return n

    @server.tool
    @dangerous("shell.execute")
    def run(command: ShellCommand) -> str:
        return "ran"

    @server.tool
    @moderate("code_execution")
    def evaluate(code: Annotated[str, Code()]) -> str:
        return "evaluated"

    @server.tool
    def fail() -> str:
        raise ToolError("no")

    @server.tool
    def crash() -> str:
        raise RuntimeError("oh")

    @server.tool
    def tell(ctx: Context, event: str = "com.example.told") -> str:
        ctx.audit(event, amount=12)
        return "told"

    return server


async def heard(peer: Any, tool: str, arguments: Json | None = None, **more: Any) -> list[Json]:
    """The events a peer hears of while its call runs."""
    await peer.ask("tools/call", {"name": tool, "arguments": arguments or {}, **more})
    return [message["params"] for message in await peer.news() if message["method"] == AUDIT]


# -- the form --------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-6.3", "MGP-6.4")
@for_each_row("version", ERAS)
@for_each_row("who", [LOCAL_PRINCIPAL, ALICE, STRANGER])
async def test_an_event_says_when_who_what_and_how_it_ended(version: str, who: Any):
    trail = Trail()
    async with speaking(made(trail), version, ["audit"], who=who) as peer:
        (event,) = await heard(peer, "plain", {"n": 7})
    assert set(event) == {"timestamp", "trace_id", "event_type", "actor", "target", "result", "details"}
    assert datetime.fromisoformat(event["timestamp"]).tzinfo is not None
    assert event["event_type"] == "TOOL_EXECUTED"
    assert event["actor"] == {"type": "user" if who is LOCAL_PRINCIPAL else "agent", "id": who.id}
    assert event["target"] == {"server_id": "desk", "tool_name": "plain"}
    assert event["result"] == "SUCCESS"
    assert event["details"]["arguments_bytes"] == len('{"n":7}')
    assert re.fullmatch("[0-9a-f]{16}", event["details"]["arguments_fingerprint"])
    assert event["details"]["duration_ms"] >= 0
    (kept,) = trail.events
    assert kept == event | {"durable": False}


@pytest.mark.req("MGP-6.4")
def test_there_are_eleven_event_types():
    assert len(EVENT_TYPES) == 11


@pytest.mark.slow
@pytest.mark.req("MGP-6.4")
@for_each_row(
    ("tool", "arguments", "told"),
    [
        ("plain", {}, [("TOOL_EXECUTED", "SUCCESS")]),
        ("plain", {"n": "x"}, [("VALIDATION_FAILED", "BLOCKED")]),
        ("run", {"command": "ls"}, [(STARTED, "STARTED"), ("TOOL_EXECUTED", "SUCCESS")]),
        (
            "run",
            {"command": "id; id"},
            [(STARTED, "STARTED"), ("VALIDATION_FAILED", "BLOCKED"), ("TOOL_BLOCKED", "BLOCKED")],
        ),
        ("evaluate", {"code": "import os"}, [("CODE_REJECTED", "BLOCKED"), ("TOOL_BLOCKED", "BLOCKED")]),
        ("fail", {}, [("TOOL_EXECUTED", "FAILURE")]),
        ("crash", {}, [("TOOL_EXECUTED", "FAILURE")]),
        ("tell", {}, [("com.example.told", "SUCCESS"), ("TOOL_EXECUTED", "SUCCESS")]),
    ],
)
@for_each_row("version", ERAS)
@for_each_row("extensions", [(), ("security", "audit")], ids=["plain", "mgp"])
async def test_every_end_of_a_call_has_its_events(
    tool: str, arguments: Json, told: list[tuple[str, str]], extensions: Any, version: str
):
    trail = Trail()
    async with speaking(made(trail), version, extensions) as peer:
        events = await heard(peer, tool, arguments)
    assert [(event["event_type"], event["result"]) for event in trail.events] == told
    assert [event["event_type"] for event in events] == ([name for name, _ in told] if extensions else [])
    assert {event["durable"] for event in trail.events} == {tool == "run"}


async def test_a_call_that_is_not_permitted_is_blocked():
    trail = Trail()
    async with speaking(made(trail, permissions="deny_all"), SESSION) as peer:
        await heard(peer, "evaluate", {"code": "1"})
    assert trail.told("TOOL_BLOCKED")[0][1]["reason"] == "permission_denied"


@pytest.mark.req("MGP-6.4")
@for_each_row("event", ["TOOL_EATEN", "tool_executed", "example.told", "", "com.example.Told\n"])
async def test_a_type_that_is_neither_standard_nor_in_reverse_domain_form_is_refused(event: str):
    trail = Trail()
    async with speaking(made(trail), SESSION) as peer:
        assert (await peer.call("tell", {"event": event}))["isError"] is True
    assert [e["event_type"] for e in trail.events] == ["TOOL_EXECUTED"]


# -- traces ----------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-6.5")
@for_each_row("version", ERAS)
@for_each_row(
    ("more", "trace"),
    [({"trace_id": UUID}, UUID), ({"_meta": {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}}, TRACE)],
)
async def test_the_callers_trace_is_that_of_every_event_and_error(more: Json, trace: str, version: str):
    trail = Trail()
    async with speaking(made(trail), version, ["audit"]) as peer:
        params = {"name": "run", "arguments": {"command": "id; id"}, **more}
        reply = await peer.ask("tools/call", params)
    assert {event["trace_id"] for event in trail.events} == {trace}
    assert reply["error"]["data"]["trace_id"] == trace


KEPT = ["550e8400-e29b-41d4-a716-446655440000", "t-1", "a" * 128, "kernel:7/step.2@host+x=y~z_", "0"]
NOT_KEPT = ["", "a" * 129, "two words", "line\nbreak", "nul\0", "<b>", '"', "é", "\u202e", 7, 0, True, [], {}, 1.5]


@pytest.mark.req("MGP-6.5")
@for_each_row("version", ERAS)
@for_each_row("trace", KEPT)
async def test_a_trace_id_by_the_rule_is_kept_as_it_is(trace: str, version: str):
    trail = Trail()
    async with speaking(made(trail), version, ["audit"]) as peer:
        parent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        await peer.ask("tools/call", {"name": "plain", "trace_id": trace, "_meta": parent})
    assert {event["trace_id"] for event in trail.events} == {trace}


@pytest.mark.slow
@pytest.mark.req("MGP-6.5")
@for_each_row("version", ERAS)
@for_each_row("trace", NOT_KEPT)
async def test_any_other_trace_id_is_refused_and_never_replaced(trace: Any, version: str):
    trail = Trail()
    async with speaking(made(trail), version, ["audit", "lifecycle"]) as peer:
        for method, params in (("tools/call", {"name": "plain"}), ("mgp/health/ping", {})):
            error = (await peer.ask(method, {**params, "trace_id": trace}))["error"]
            assert error["code"] == -32602 and "trace_id" in error["message"]
        # Without MGP it is a member like any other, and means nothing.
        async with speaking(made(Trail()), version) as plain:
            assert "result" in await plain.ask("tools/call", {"name": "plain", "trace_id": trace})
    assert trail.events == []


@pytest.mark.req("MGP-6.5")
async def test_a_trace_beside_the_params_counts_too_and_without_one_each_call_has_its_own():
    trail = Trail()
    async with raw(made(trail), SESSION) as peer:
        message: Json = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "plain"}}
        await peer.send(message | {"trace_id": UUID})
        await peer.reply_to(77)
        await peer.call("plain")
        await peer.call("plain")
    first, *others = [event["trace_id"] for event in trail.events]
    assert first == UUID
    assert len(set(others)) == 2


# -- sinks -----------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-6.3f", "GGEN-P4-3")
async def test_events_go_to_every_sink(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "defserve.audit")
    trail, log = Trail(), AuditLog(tmp_path / "audit.log", key=KEY)
    server = made(trail, log, AuditLogger())
    async with speaking(server, SESSION, ["audit"]) as peer:
        (event,) = await heard(peer, "plain")
    server.mgp.audit.close()
    assert trail.events[0]["trace_id"] == event["trace_id"]
    assert event["trace_id"] in caplog.text
    assert event["trace_id"] in (tmp_path / "audit.log").read_text()
    assert verify_audit_log(tmp_path / "audit.log", key=KEY)


async def test_without_a_sink_and_without_a_listener_nothing_is_made(monkeypatch: pytest.MonkeyPatch):
    def make(*_: Any) -> None:
        pytest.fail("an event was made")

    server = made()
    monkeypatch.setattr("defserve.protocols.mgp.audit.AuditTrail._event", make)
    async with speaking(server, SESSION, ["security"]) as peer:
        assert not (await peer.call("run", {"command": "ls"})).get("isError")


@for_each_row("sink", [7, object(), [None]])
def test_what_takes_no_events_is_no_sink(sink: Any):
    server = Server("x", "1", audit=sink)
    with pytest.raises(UsageError, match="is not an audit sink"):
        _ = server.mgp.audit
