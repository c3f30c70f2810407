"""Who may come in over HTTP, what they see, and how often they may call: challenges, metadata, scopes, rates."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from defserve import Auth, Context, Limits, Server, UsageError
from defserve.auth import JWT, StaticTokens
from tests.auth.issuer import AUDIENCE, claims, pem, private_key, signed
from tests.auth.issuer import ISSUER as JWT_ISSUER
from tests.auth.web import client, post, stateless
from tests.rows import for_each_row

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


@for_each_row(
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


@for_each_row(("token", "who"), [("alice-token", "alice"), ("bob-token", "bob")])
async def test_functions_know_their_caller(token: str, who: str):
    async with client(guarded()) as http:
        answer = await post(http, token, "tools/call", name="whoami")
    assert answer.json()["result"]["content"][0]["text"] == who


async def test_functions_read_the_claims_of_their_callers_token():
    server = Server("s", "1", auth=Auth(JWT(key=pem(private_key()), audience=AUDIENCE, issuer=JWT_ISSUER)))

    @server.tool
    async def mail(ctx: Context) -> str:
        return ctx.claims.get("email", "unknown")

    async with client(server) as http:
        answer = await post(http, signed(claims(email="alice@example.com")), "tools/call", name="mail")
        other = await post(http, signed(claims()), "tools/call", name="mail")
    assert answer.json()["result"]["content"][0]["text"] == "alice@example.com"
    assert other.json()["result"]["content"][0]["text"] == "unknown"
    async with server.connect() as local:
        assert await local.call("mail") == "unknown"


@for_each_row(("token", "seen"), [("alice-token", ["whoami", "erase"]), ("bob-token", ["whoami"])])
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


async def guesses(http: httpx2.AsyncClient, count: int = 12, **more: str) -> list[int]:
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    return [(await post(http, f"guess-{number}", "tools/list", more=headers)).status_code for number in range(count)]


async def test_an_address_that_keeps_guessing_tokens_has_to_wait_and_its_good_tokens_have_not():
    async with client(guarded(), "203.0.113.9") as http:
        statuses = await guesses(http)
        good = [(await post(http, "alice-token", "tools/list")).status_code for _ in range(20)]
        guess = await post(http, "another-guess", "tools/list")
        unharmed = await post(http, None, "tools/list")
    assert statuses[:10] == [401] * 10 and statuses[-1] == 429
    assert good == [200] * 20
    assert guess.status_code == 429 and int(guess.headers["retry-after"]) > 0
    assert unharmed.status_code == 401


async def test_a_token_that_lacks_a_scope_is_not_counted_as_a_guess():
    server = Server("s", "1", auth=Auth(StaticTokens({"t": "carol"}), scopes=["use"]))
    async with client(server, "203.0.113.9") as http:
        statuses = {(await post(http, "t", "tools/list")).status_code for _ in range(20)}
        assert statuses == {403} and await guesses(http, 1) == [401]


@for_each_row("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
async def test_callers_on_this_machine_never_have_to_wait_for_one_another(address: str):
    async with client(guarded(), address) as http:
        assert set(await guesses(http, 40)) == {401}


async def test_behind_a_proxy_the_forwarded_address_is_counted_and_the_proxy_s_own_is_not():
    async with client(guarded(), "203.0.113.9", trusted_proxy=True) as http:
        # The runner has put the forwarded address in the place of the proxy's.
        assert (await guesses(http, x_forwarded_for="203.0.113.9"))[-1] == 429
    async with client(guarded(), "10.0.0.5", trusted_proxy=True) as http:
        assert set(await guesses(http, 40)) == {401}
        assert set(await guesses(http, 40, x_forwarded_for="203.0.113.9")) == {401}


async def test_without_a_proxy_nobody_can_write_off_guesses_to_another_address():
    async with client(guarded(), "203.0.113.9") as http:
        statuses = [(await guesses(http, 1, x_forwarded_for=f"198.51.100.{number}"))[0] for number in range(12)]
    assert statuses[-1] == 429


def test_scopes_that_nobody_could_prove_are_refused_when_serving_on_the_network():
    server = Server("s", "1")

    @server.tool(scopes=["write"])
    async def erase() -> str:
        return "erased"

    with pytest.raises(UsageError, match=r"test_over_http\.py:\d+: tool 'erase' needs scopes \['write'\].*\n.*auth"):
        server.asgi()
