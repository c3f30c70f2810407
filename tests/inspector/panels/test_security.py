"""The verbs of the Security panel, against servers of both eras, with and without MGP and a log that can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.errors import PeerError, UsageError
from defserve.inspector.inspection import LIFECYCLE, MAX_STATES, Inspection, ServerAuditLog
from defserve.inspector.protocol import BadMessage
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.stores.audit.stored_log import StoredAuditLog
from tests.inspector.asking import do, following
from tests.inspector.guarded import KEY, audited, guarded, target
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

ERAS = ["handshake", "stateless"]


def of(told: Any, name: str) -> dict[str, Any]:
    return next(each for each in told["permissions"] if each["name"] == name)


@for_each_row("era", ERAS)
async def test_a_permission_is_granted_denied_and_left_open_while_the_server_runs(era: str):
    async with Inspection(target(guarded(), era)) as inspection:
        told = await do(inspection, "security.overview")
        assert of(told, "network.outbound") == {
            "name": "network.outbound",
            "risk": "moderate",
            "tools": ["forecast", "survey"],
            "say": "ask",
            "decision": "deferred",
        }
        await do(inspection, "security.permit", permission="filesystem.read", say="grant")
        told = await do(inspection, "security.permit", permission="network.outbound", say="grant")
        assert of(told, "network.outbound")["decision"] == "approved"
        client = await inspection.client()
        assert await client.call("survey") == 5
        told = await do(inspection, "security.permit", permission="network.outbound", say="deny")
        assert (of(told, "network.outbound")["say"], of(told, "network.outbound")["decision"]) == ("deny", "denied")
        with pytest.raises(PermissionDenied):
            await client.call("survey")
        told = await do(inspection, "security.reset")
        assert {each["decision"] for each in told["permissions"]} == {"deferred"}
        assert inspection.granted == {}


async def test_the_server_itself_is_told_in_a_session():
    async with Inspection(target(guarded(), "handshake")) as inspection:
        client = await inspection.client()
        await do(inspection, "security.permit", permission="filesystem.read", say="grant")
        for say, expected in (("grant", "approved"), ("deny", "denied"), ("ask", "deferred")):
            await do(inspection, "security.permit", permission="network.outbound", say=say)
            asked = {"request_id": "1", "permissions": ["network.outbound"], "policy": "interactive", "message": "?"}
            told = await client.request("mgp/permission/request", asked)
            assert expected in str(told)


async def test_saying_it_in_the_panel_answers_the_call_that_asks():
    async with Inspection(target(guarded(), "handshake")) as inspection:
        client = await inspection.client()
        await do(inspection, "security.permit", permission="filesystem.read", say="grant")
        waiting = asyncio.create_task(client.call("survey"))
        await until(lambda: bool(inspection.questions.waiting))
        await do(inspection, "security.permit", permission="network.outbound", say="grant")
        assert await waiting == 5
        assert inspection.questions.waiting == []


async def test_both_eras_follow_what_is_said_in_one():
    async with Inspection(target(guarded(), "handshake")) as inspection:
        await inspection.client("stateless")
        await do(inspection, "security.permit", era="handshake", permission="network.outbound", say="deny")
        told = await do(inspection, "security.overview", era="stateless")
        assert of(told, "network.outbound")["decision"] == "denied"


@for_each_row("era", ERAS)
async def test_entries_of_access_are_looked_up_set_and_revoked(era: str):
    async with Inspection(target(guarded(), era)) as inspection:
        about = {"agent": "agent.helper", "tool": "survey"}
        assert (await do(inspection, "security.access", **about))["source"] == "default_policy"
        await do(inspection, "security.grant", **about, permission="deny")
        found = await do(inspection, "security.access", **about)
        assert (found["permission"], found["source"], found["granted_by"]) == ("deny", "tool_grant", "local")
        assert (await do(inspection, "security.revoke", **about))["revoked"] is True
        assert (await do(inspection, "security.grant", agent="agent.night"))["entry_type"] == "server_grant"


async def test_what_the_page_says_wrong_is_refused():
    async with Inspection(target(guarded(), "handshake")) as inspection:
        wrong: list[Callable[[], Any]] = [
            lambda: do(inspection, "security.permit", permission="network.outbound", say="perhaps"),
            lambda: do(inspection, "security.grant", agent="a", permission="perhaps"),
            lambda: do(inspection, "security.access", agent=" "),
        ]
        for each in wrong:
            with pytest.raises(BadMessage):
                await each()


async def test_the_log_of_the_server_and_its_verdict(tmp_path: Path):
    with audited(tmp_path) as log:
        async with Inspection(target(guarded(log), "handshake", log)) as inspection:
            for name in ("network.outbound", "filesystem.read"):
                await do(inspection, "security.permit", permission=name, say="grant")
            await (await inspection.client()).call("survey")
            found = await do(inspection, "security.audit")
            lines = found["log"]["lines"]
            assert found["log"]["name"] == "audit.jsonl"
            assert [each["line"] for each in lines] == list(range(len(lines), 0, -1))
            assert lines[0]["type"] == "TOOL_EXECUTED"
            assert all(len(each["mac"]) == 64 for each in lines)
            verdict = await do(inspection, "security.verify")
            assert (verdict["ok"], verdict["events"]) == (True, len(lines))
            assert {"TOOL_EXECUTED", "PERMISSION_GRANTED"} <= {each["event_type"] for each in found["seen"]}


async def test_a_line_that_was_changed_is_found_and_the_rest_can_still_be_read(tmp_path: Path):
    with audited(tmp_path) as log:
        for number in range(3):
            log.append({"event_type": "com.example.refill", "details": {"tank": number}})
        log.settle()
        raw = log.path.read_bytes().splitlines(keepends=True)
        raw[1] = raw[1].replace(b'"tank":1', b'"tank":9')
        log.path.write_bytes(b"".join((*raw, b"no record\n")))
        kept = ServerAuditLog(lambda: log)
        verdict, told = await asyncio.to_thread(kept.verify), await asyncio.to_thread(kept.list_newest_lines)
        assert (verdict["ok"], verdict["first_bad_line"], verdict["events"]) == (False, 2, 1)
        assert told is not None
        assert [(each["line"], each.get("odd", False)) for each in told["lines"]] == [
            (4, True), (3, False), (2, False), (1, False)
        ]  # fmt: skip


async def test_a_log_in_a_store_has_no_file_to_read_macs_from():
    log = StoredAuditLog("memory:", key=KEY)
    log.append({"event_type": "com.example.refill"})
    told = await asyncio.to_thread(ServerAuditLog(lambda: log).list_newest_lines)
    assert told is not None
    assert [(each["line"], each["type"], each["mac"]) for each in told["lines"]] == [(1, "com.example.refill", None)]


@for_each_row("era", ERAS)
async def test_a_server_without_marks_and_without_a_log(era: str):
    async with Inspection(target(Server("plain"), era)) as inspection:
        assert (await do(inspection, "security.overview"))["permissions"] == []
        assert (await do(inspection, "security.audit"))["log"] is None
        with pytest.raises(UsageError, match="no audit log"):
            await do(inspection, "security.verify")
        with pytest.raises(PeerError, match="offers no access control"):
            await do(inspection, "security.access", agent="agent.helper")
        assert (await do(inspection, "security.health"))["status"] == "healthy"


@pytest.mark.parametrize("era", ERAS)
async def test_events_of_channels_come_as_parts(era: str):
    server = guarded()
    frost = server.event_channel("com.example.frost")
    async with (
        Inspection(target(server, era)) as inspection,
        following(inspection, "security.events", pattern="com.example.*") as parts,
    ):
        await until(lambda: bool(parts))
        await frost.emit({"degrees": -2}, severity="warning")
        await until(lambda: len(parts) > 1)
        found = parts[1]["event"]
        assert (found["channel"], found["data"], found["severity"]) == (
            "com.example.frost",
            {"degrees": -2},
            "warning",
        )


async def test_an_entry_that_expires_is_told_with_its_end():
    async with Inspection(target(guarded(), "handshake")) as inspection:
        await do(inspection, "security.grant", agent="agent.helper", seconds=3600)
        told = await do(inspection, "security.access", agent="agent.helper")
        left = datetime.fromisoformat(told["expires_at"]) - datetime.now(UTC)
        assert timedelta(minutes=50) < left <= timedelta(hours=1)
        for seconds in (0, -1, 1e12, "soon"):
            with pytest.raises(BadMessage):
                await do(inspection, "security.grant", agent="agent.helper", seconds=seconds)


async def test_states_that_a_server_tells_are_kept_and_bounded():
    async with Inspection(target(guarded(), "handshake")) as inspection:
        await inspection.client()
        await until(lambda: bool(inspection.lifecycle))
        (told,) = (await do(inspection, "security.overview"))["lifecycle"]
        assert (told["new_state"], told["era"]) == ("connected", "handshake")
        pushed = list[Any]()
        inspection.pages.append(lambda topic, data: pushed.append((topic, data)))
        for number in range(100):
            inspection._heard("handshake", LIFECYCLE, {"new_state": "x" * 9_999, "reason": number})  # pyright: ignore[reportPrivateUsage]
        assert len(inspection.lifecycle) == MAX_STATES and len(inspection.lifecycle[-1]["new_state"]) < 1_000
        assert ("lifecycle", inspection.lifecycle[-1]) in pushed


async def test_the_log_of_a_server_elsewhere_cannot_be_checked_and_says_so():
    bare = target(guarded(), "handshake")
    async with Inspection(replace(bare, audit=None)) as inspection:
        assert (await do(inspection, "security.audit"))["remote"] is True
        with pytest.raises(UsageError, match="the server runs elsewhere"):
            await do(inspection, "security.verify")


async def test_the_panel_says_why_as_the_command_does(tmp_path: Path):
    server = guarded(audited(tmp_path))
    async with Inspection(replace(target(server, "stateless"), server=server)) as inspection:
        assert (await do(inspection, "security.overview"))["explains"]
        told = await do(inspection, "security.why", caller="anonymous", tool="open_vents")
        assert (told["would_run"], told["steps"][-1]["gate"]) == (False, "permission com.example.vents")
        assert told["steps"][-1]["outcome"] == "refused" and told["steps"][-1]["fix"]
        assert (await do(inspection, "security.why", caller="pipe", tool="open_vents"))["verdict"] == "would run."
        with pytest.raises(UsageError, match="did you mean 'open_vents'"):
            await do(inspection, "security.why", caller="pipe", tool="open_vent")
    assert "open_vents" not in (tmp_path / "audit.jsonl").read_text()


async def test_a_server_elsewhere_cannot_be_asked_why():
    async with Inspection(target(guarded(), "stateless")) as inspection:
        assert not (await do(inspection, "security.overview"))["explains"]
        with pytest.raises(BadMessage, match="only a server that the inspector runs"):
            await do(inspection, "security.why", caller="pipe", tool="survey")
