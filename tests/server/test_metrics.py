"""`/metrics`: what Prometheus reads, for whoever may call, and only where it was asked for."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from defserve import Context, Server, ToolError
from defserve.auth import ApiKeys, Auth, Principal, StaticTokens
from defserve.auth.local_token import add_local_token_auth
from defserve.auth.principals import ApiKeyPrincipal, convert_permissions_to_scopes
from defserve.errors import UsageError
from defserve.server.metrics import BUCKETS, Metrics, format_metric_labels
from tests.raw import HANDSHAKE, STATELESS, raw, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def shop() -> tuple[Server, Metrics]:
    server, metrics = Server("shop", extensions=[found := Metrics()]), found

    @server.tool
    def buy(what: str) -> str:
        if what == "stars":
            raise ToolError("sold out")
        return what

    @server.tool
    async def ask(ctx: Context) -> str:
        return await ctx.ask("Which?", str)

    return server, metrics


def client(server: Server, **options: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=server.asgi(**options))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost")


@for_each_row("version", [HANDSHAKE[-1], STATELESS])
async def test_calls_are_counted_by_tool_and_outcome(version: str):
    server, metrics = shop()
    async with raw(server, version) as peer:
        for what in ("bread", "stars", "milk"):
            await peer.call("buy", {"what": what})
        await peer.ask("tools/call", {"name": "x" * 99})
        await peer.ask("tools/list")
        text = metrics.text(server.composition)
    lines = text.splitlines()
    assert 'defserve_tool_calls_total{tool="buy",outcome="ok"} 2' in lines
    assert 'defserve_tool_calls_total{tool="buy",outcome="error"} 1' in lines
    assert 'defserve_tool_calls_total{tool="",outcome="error"} 1' in lines  # a name that is the caller's alone
    assert 'defserve_tool_call_duration_seconds_count{tool="buy"} 3' in lines
    assert f'defserve_tool_call_duration_seconds_bucket{{tool="buy",le="{BUCKETS[-1]:g}"}} 3' in lines
    assert 'defserve_tool_call_duration_seconds_bucket{tool="buy",le="+Inf"} 3' in lines
    assert "defserve_tool_calls_in_flight 0" in lines and "defserve_sessions 1" in lines


async def test_a_call_that_waits_for_an_answer_is_in_flight_or_asked():
    server, metrics = shop()
    async with raw(server, HANDSHAKE[-1], {"elicitation": {}}) as peer:
        asked = await peer.begin("tools/call", {"name": "ask"})
        await turns()
        assert "defserve_tool_calls_in_flight 1" in metrics.text(server.composition).splitlines()
        await peer.tell("notifications/cancelled", {"requestId": asked})
    assert metrics.calls == {("ask", "cancelled"): 1}
    server, metrics = shop()
    async with raw(server, STATELESS, {"elicitation": {"form": {}}}) as peer:
        assert (await peer.ask("tools/call", {"name": "ask"}))["result"]["resultType"] == "input_required"
    assert metrics.calls == {("ask", "asked"): 1}


async def test_prometheus_finds_them_beside_the_endpoint():
    server, _ = shop()
    async with client(server, metrics=True) as http:
        answer = await http.get("/metrics")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
        assert "# TYPE defserve_tool_calls_total counter" in answer.text
        assert (await http.post("/metrics")).status_code == 405


async def test_without_the_option_there_are_none():
    server, _ = shop()
    async with client(server) as http:
        assert (await http.get("/metrics")).status_code == 404


async def test_where_tokens_are_wanted_the_metrics_want_one_with_their_own_right():
    names = ["plain", "tools", "reader", "admin", "writer"]
    scopes = [[], ["tool:invoke:*", "tools:list"], ["metrics:read"], ["admin:read"], ["admin:write"]]
    holders = {name: Principal(name, frozenset(given)) for name, given in zip(names, scopes, strict=True)}
    server = Server("shop", auth=StaticTokens(holders))
    async with client(server, metrics=True) as http:
        assert (await http.get("/metrics")).status_code == 401
        found = {name: await http.get("/metrics", headers={"authorization": f"Bearer {name}"}) for name in names}
    statuses = {name: answer.status_code for name, answer in found.items()}
    assert statuses == {"plain": 403, "tools": 403, "reader": 200, "admin": 200, "writer": 403}
    assert 'scope="metrics:read"' in found["plain"].headers["www-authenticate"]
    assert "defserve_" not in found["plain"].text


async def test_a_key_needs_the_permission_for_metrics_and_otherwise_learns_no_names():
    keys = ApiKeys("memory:", pepper="p" * 32)
    server = Server("shop", auth=keys, extensions=[found := Metrics()])

    @server.tool
    def secret_plan() -> str:
        return "x"

    found.calls[("secret_plan", "ok")] = 1
    given = {"ToolInvoke(buy)": 403, "ToolsListAll": 403, "ToolRead(*)": 403, "AdminWrite": 403}
    async with client(server, metrics=True) as http:
        for permission, status in {**given, "MetricsRead": 200, "AdminRead": 200}.items():
            token = (await keys.create("ada", permissions=[permission])).token
            answer = await http.get("/metrics", headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == status, permission
            assert ("secret_plan" in answer.text) is (status == 200)


async def test_the_right_to_read_metrics_gives_no_tool():
    holder = ApiKeyPrincipal("prometheus", convert_permissions_to_scopes(["MetricsRead"]))
    assert not holder.may_read("buy") and not holder.may_invoke("buy")


async def test_who_runs_the_server_needs_no_further_right_for_its_metrics():
    server = Server("shop", auth=add_local_token_auth("k" * 43, Auth(StaticTokens({"plain": "ada"}))))
    async with client(server, metrics=True) as http:
        for token, status in (("k" * 43, 200), ("plain", 403), ("x" * 43, 401)):
            answer = await http.get("/metrics", headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == status


async def test_they_cannot_be_asked_for_once_the_server_serves():
    server = Server("late")
    assert server.composition.extensions
    with pytest.raises(UsageError, match="after the server has started"):
        server.asgi(metrics=True)


def test_a_name_is_escaped_as_the_format_wants():
    assert format_metric_labels(tool='a"b\\c\nd') == r'{tool="a\"b\\c\nd"}'
