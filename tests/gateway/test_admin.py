from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from defserve.auth import StaticTokens
from defserve.auth.rates import FAILED_AUTH
from tests.gateway.topics import eventually, gateway, tool_call
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PATH = "/admin/participants/agent/capabilities"
CALL = "mcp/request:tools/call:add"
ROOT = {"authorization": "Bearer t-root"}


@pytest.mark.req("MCPX-11.3", "MCPX-5.1")
async def test_a_promoted_participant_is_welcomed_again_and_may_do_more():
    async with gateway() as running, running.joined("admin") as admin, running.joined("agent") as agent:
        await agent.say(CALL, tool_call(), to=["worker"])
        assert (await agent.error())["payload"]["error"] == "capability_violation"
        status, text = await running.http("POST", PATH, {"add": ["mcp/request:tools/*"], "remove": ["chat"]}, **ROOT)
        welcome = await agent.until("system/welcome")
        await admin.until("system/presence")
        notice = await admin.until("system/presence")
        await agent.say(CALL, tool_call(), to=["worker"])
        assert (await admin.hear())["kind"] == CALL
        assert (await agent.error())["payload"]["error"] == "not_present"
        await agent.say("chat", {"text": "hi"})
        assert (await agent.error())["payload"]["attempted_kind"] == "chat"
    new = ["mcp/proposal:*", "mcp/withdraw", "mcp/response:*", "mcp/request:tools/*"]
    body = json.loads(text)
    assert (status, body["participantId"], body["modifiedBy"]) == (200, "agent", "root")
    assert (body["oldCapabilities"], body["newCapabilities"]) == (
        ["mcp/proposal:*", "mcp/withdraw", "mcp/response:*", "chat"],
        new,
    )
    assert body["modifiedAt"].endswith("Z")
    assert welcome["payload"]["you"] == notice["payload"]["participant"]
    assert welcome["payload"]["you"] == {"id": "agent", "capabilities": new, "authenticated": True}
    assert [other["id"] for other in welcome["payload"]["participants"]] == ["admin"]


async def test_nobody_gets_back_what_was_taken_by_connecting_again():
    async with gateway() as running:
        async with running.joined("agent"):
            assert (await running.http("POST", PATH, {"remove": ["chat"]}, **ROOT))[0] == 200
        await eventually(lambda: not running.gateway.topics)
        async with running.joined("agent") as agent:
            await agent.say("chat", {"text": "hi"})
            assert (await agent.error())["payload"]["error"] == "capability_violation"
            assert (await running.http("POST", PATH, {"add": ["chat"]}, **ROOT))[0] == 200
            await agent.is_well()


@pytest.mark.req("MCPX-11.3")
@for_each_row("token", [None, "Bearer t-admin", "Bearer wrong", "Basic dDpy", "Bearer"])
async def test_only_an_administrator_s_token_promotes(token: str | None):
    headers = {"authorization": token} if token else {}
    async with gateway() as running, running.joined("agent"):
        assert (await running.http("POST", PATH, {"add": ["mcp/*"]}, **headers))[0] == 401
        assert "mcp/*" not in running.gateway.topics["demo"].members["agent"].capabilities.patterns


async def test_an_address_that_shows_many_bad_tokens_has_to_wait_and_no_other():
    near, far = {"x_forwarded_for": "203.0.113.7"}, {"x_forwarded_for": "198.51.100.1"}
    async with gateway(trusted_proxy=True) as running, running.joined("agent"):
        bad = {"authorization": "Bearer wrong"}
        answers = [(await running.http("POST", PATH, {}, **bad, **near))[0] for _ in range(FAILED_AUTH.burst + 5)]
        assert answers[: FAILED_AUTH.burst] == [401] * FAILED_AUTH.burst and 429 in answers
        assert (await running.http("POST", PATH, {}, **bad, **far))[0] == 401
        assert (await running.http("POST", PATH, {"add": ["chat"]}, **ROOT, **near))[0] == 200


@for_each_row(
    ("verb", "path", "body", "status"),
    [
        ("POST", PATH, b"{", 400),
        ("POST", PATH, {}, 400),
        ("POST", PATH, [], 400),
        ("POST", PATH, {"add": "chat"}, 400),
        ("POST", PATH, {"add": [""]}, 400),
        ("POST", PATH, {"add": ["system/*"]}, 400),
        ("POST", PATH, {"grant": ["chat"]}, 400),
        ("POST", PATH, b"x" * 70_000, 413),
        ("POST", PATH.replace("agent", "nobody"), {"add": ["chat"]}, 404),
        ("POST", "/admin", {"add": ["chat"]}, 404),
        ("GET", PATH, None, 405),
        ("PUT", PATH, {"add": ["chat"]}, 405),
        ("POST", "/healthz", {}, 405),
        ("POST", "/ws?topic=demo", {}, 404),
    ],
)
async def test_a_request_that_asks_for_nothing_is_told_so(verb: str, path: str, body: Any, status: int):
    async with gateway() as running, running.joined("agent") as agent:
        assert (await running.http(verb, path, body, **ROOT))[0] == status
        await agent.is_well()


async def test_without_administrators_there_is_no_administration():
    async with gateway(admins={}) as running, running.joined("agent"):
        assert (await running.http("POST", PATH, {"add": ["chat"]}, **ROOT))[0] == 404


async def test_a_host_that_is_not_ours_is_refused():
    async with gateway() as running:
        assert (await running.http("POST", PATH, {"add": ["chat"]}, **ROOT, host="evil.example"))[0] == 421
        assert (await running.http("GET", "/metrics", host="evil.example"))[0] == 421


async def test_health_and_metrics_are_plain_to_read():
    async with gateway() as running, running.joined("admin") as admin, running.joined("agent") as agent:
        await agent.say(CALL, tool_call())
        await agent.error()
        await admin.is_well()
        assert await running.http("GET", "/healthz") == (200, '{"status":"ok"}')
        status, text = await running.http("GET", "/metrics")
    lines = text.splitlines()
    assert status == 200
    assert "# TYPE defserve_gateway_participants gauge" in lines
    assert "defserve_gateway_topics 1" in lines and "defserve_gateway_participants 2" in lines
    assert "defserve_gateway_received_total 2" in lines and "defserve_gateway_delivered_total 2" in lines
    assert 'defserve_gateway_refused_total{error="capability_violation"} 1' in lines
    assert "agent" not in text and "demo" not in text


@for_each_row("head", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"POST\r\n\r\n", b"POST / HTTP/1.1\r\nno colon\r\n\r\n"])
async def test_what_is_no_request_is_answered_with_400(head: bytes):
    async with gateway() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(head)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


@for_each_row("verb", ["GET", "POST"])
async def test_at_a_target_that_is_no_address_there_is_nothing(verb: str):
    async with gateway() as running:
        assert (await running.http(verb, "//["))[0] == 404


async def test_a_request_that_cannot_be_judged_is_answered_all_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    async def verify(self: StaticTokens, token: str) -> None:
        raise KeyError(token)

    monkeypatch.setattr(StaticTokens, "verify", verify)
    async with gateway() as running:
        found = await running.http("POST", PATH, {"add": ["chat"]}, authorization="Bearer a-token-of-somebody")
    assert found[0] == 500
    assert "KeyError" in caplog.text and "a-token-of-somebody" not in caplog.text


async def test_a_request_may_come_in_single_bytes():
    request = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t-root\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    async with gateway() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for byte in request.encode():
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
