"""Who may come in over HTTP, what they see, and how often they may call: challenges, metadata, scopes, rates."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Auth, Context, Limits, Server, StaticTokens, UsageError
from tests.auth.web import client, post, stateless

pytestmark = pytest.mark.anyio

RESOURCE = "https://tools.example.com/mcp"
ISSUER = "https://login.example.com"
METADATA = "https://tools.example.com/.well-known/oauth-protected-resource/mcp"


def guarded(**limits: Any) -> Server:
    tokens = StaticTokens(
        {
            "alice-token": {"principal": "alice", "scopes": ["use", "write"]},
            "bob-token": {"principal": "bob", "scopes": ["use"]},
        }
    )
    auth = Auth(tokens, resource=RESOURCE, authorization_servers=[ISSUER], scopes=["use"])
    server = Server("guarded", "1", auth=auth, limits=Limits(**limits))

    @server.tool
    async def whoami(ctx: Context) -> str:
        return ctx.principal

    @server.tool(scopes=["write"])
    async def erase() -> str:
        return "erased"

    return server


@pytest.mark.parametrize(
    ("token", "status", "said"),
    [
        (None, 401, f'Bearer scope="use", resource_metadata="{METADATA}"'),
        ("wrong", 401, f'Bearer error="invalid_token", scope="use", resource_metadata="{METADATA}"'),
        ("a b", 400, f'Bearer error="invalid_request", scope="use", resource_metadata="{METADATA}"'),
    ],
)
async def test_who_has_no_good_token_is_told_how_to_get_one(token: str | None, status: int, said: str):
    async with client(guarded()) as http:
        answer = await post(http, token, "tools/list")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (status, said)


async def test_a_token_without_the_servers_scopes_is_forbidden():
    server = Server("s", "1", auth=Auth(StaticTokens({"t": "carol"}), scopes=["use"]))
    async with client(server) as http:
        answer = await post(http, "t", "tools/list")
    assert answer.status_code == 403
    assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="use"'


async def test_the_metadata_is_served_to_anybody():
    async with client(guarded()) as http:
        answer = await http.get("/.well-known/oauth-protected-resource/mcp")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    found = answer.json()
    assert (found["resource"], found["authorization_servers"]) == (RESOURCE, [ISSUER])


async def test_a_token_in_the_address_is_no_token():
    async with client(guarded()) as http:
        body, headers = stateless("tools/list")
        answer = await http.post("/?access_token=alice-token", json=body, headers=headers)
    assert answer.status_code == 401


@pytest.mark.parametrize(("token", "who"), [("alice-token", "alice"), ("bob-token", "bob")])
async def test_functions_know_their_caller(token: str, who: str):
    async with client(guarded()) as http:
        answer = await post(http, token, "tools/call", name="whoami")
    assert answer.json()["result"]["content"][0]["text"] == who


@pytest.mark.parametrize(("token", "seen"), [("alice-token", ["whoami", "erase"]), ("bob-token", ["whoami"])])
async def test_a_tool_is_listed_only_for_who_may_use_it(token: str, seen: list[str]):
    async with client(guarded()) as http:
        first = await post(http, token, "tools/list")
        await post(http, "alice-token", "tools/list")
        again = await post(http, token, "tools/list")
    for answer in (first, again):
        assert [tool["name"] for tool in answer.json()["result"]["tools"]] == seen


async def test_a_call_without_its_scopes_is_refused_with_all_it_needs():
    async with client(guarded()) as http:
        answer = await post(http, "bob-token", "tools/call", name="erase")
    assert answer.status_code == 403
    assert 'scope="use write"' in answer.headers["www-authenticate"]
    assert "insufficient_scope" in answer.headers["www-authenticate"]


async def test_a_caller_of_the_same_user_needs_no_scopes():
    async with guarded().connect() as local:
        assert await local.call("erase") == "erased"


async def test_another_principals_session_is_no_session():
    async with client(guarded()) as http:
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        base = {"accept": "application/json, text/event-stream"}
        opened = await http.post(
            "/",
            json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening},
            headers={**base, "authorization": "Bearer alice-token"},
        )
        session = {**base, "mcp-session-id": opened.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        own = await http.post("/", json=ping, headers={**session, "authorization": "Bearer alice-token"})
        foreign = await http.post("/", json=ping, headers={**session, "authorization": "Bearer bob-token"})
    assert (own.status_code, foreign.status_code) == (200, 404)


async def test_calls_past_the_rate_are_refused_for_that_caller_and_tool_only():
    async with client(guarded(rate=0.001, burst=2)) as http:
        answers = [await post(http, "bob-token", "tools/call", name="whoami") for _ in range(3)]
        other = await post(http, "alice-token", "tools/call", name="whoami")
    assert [answer.json()["result"].get("isError", False) for answer in (*answers, other)] == [
        False,
        False,
        True,
        False,
    ]
    detail = answers[2].json()["result"]["_meta"]["dev.defserve/error"]
    assert detail["limit"] == "rate" and detail["retry_after_ms"] > 0


async def test_an_address_that_keeps_guessing_tokens_has_to_wait():
    async with client(guarded()) as http:
        statuses = [(await post(http, f"guess-{number}", "tools/list")).status_code for number in range(12)]
        unharmed = await post(http, None, "tools/list")
    assert statuses[:10] == [401] * 10 and statuses[-1] == 429
    assert unharmed.status_code == 401


def test_scopes_that_nobody_could_prove_are_refused_when_serving_on_the_network():
    server = Server("s", "1")

    @server.tool(scopes=["write"])
    async def erase() -> str:
        return "erased"

    with pytest.raises(UsageError, match=r"test_over_http\.py:\d+: tool 'erase' needs scopes \['write'\].*\n.*auth"):
        server.asgi()
