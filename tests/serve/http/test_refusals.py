"""Every refusal has words: in a JSON-RPC error for who asks for JSON or sends it, as text for everybody else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import unescape
from typing import Any

import pytest

from defserve import Auth, Limits, Server
from defserve.auth import StaticTokens
from tests.asgi import BOTH, Exchange, Web, living, request
from tests.listening import listening
from tests.listening import request as raw_request
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

JSON = {"accept": BOTH}
PLAIN = {"accept": "text/html, */*;q=0.8"}
TOKEN = "a-good-token"
AUTH = Auth(StaticTokens({TOKEN: "alice"}), scopes=["use"])
SEND_ONE = "Authorization: Bearer <token>"


def shop(auth: Auth | StaticTokens | None = None) -> Server:
    server = Server("shop", "1", auth=auth)

    @server.tool
    async def buy() -> str:
        return "bought"

    return server


async def refused(auth: Any, verb: str, headers: Mapping[str, str | None], path: str = "/", **more: Any) -> Exchange:
    async with living(shop(auth).asgi(legacy_sse=True)) as app:
        return await Web(app, path=path).begin(verb, b"", headers, **more).ended()


REFUSALS: dict[str, tuple[int, str, Any, str, dict[str, str], str]] = {
    "no token": (401, SEND_ONE, AUTH, "POST", {}, "/"),
    "a wrong token": (401, "unknown, expired or revoked", AUTH, "POST", {"authorization": "Bearer wrong"}, "/"),
    "no token to read": (400, SEND_ONE, AUTH, "POST", {"authorization": "Bearer a b"}, "/"),
    "a scope missing": (403, "lacks a scope", AUTH, "POST", {"authorization": f"Bearer {TOKEN}"}, "/"),
    "another host": (421, "allowed_hosts", None, "POST", {"host": "evil.example"}, "/"),
    "no host to read": (400, "Host header", None, "POST", {"host": "a b"}, "/"),
    "another origin": (403, "allowed_origins", None, "POST", {"origin": "https://evil.example"}, "/"),
    "another site": (403, "another site", None, "POST", {"sec-fetch-site": "cross-site"}, "/"),
    "another path": (404, "nothing is served", None, "POST", {}, "/mpc"),
    "another path with auth": (404, "nothing is served", AUTH, "GET", {}, "/.well-known/oauth-protected-resource"),
    "another method": (405, "POST, GET, DELETE", None, "PUT", {}, "/"),
    "another method of a probe": (405, "GET", None, "POST", {}, "/healthz"),
    "another method of the old stream": (405, "GET", None, "POST", {}, "/sse"),
    "GET in the stateless era": (405, "POST", None, "GET", {"mcp-protocol-version": "2026-07-28"}, "/"),
    "DELETE in the stateless era": (405, "POST", None, "DELETE", {"mcp-protocol-version": "2026-07-28"}, "/"),
}


@for_each_row("asked", [JSON, {"content-type": "application/json"}], ids=["accepts", "sends"])
@for_each_row("why", REFUSALS)
async def test_who_asks_for_json_or_sends_it_gets_a_json_rpc_error(why: str, asked: dict[str, str]):
    status, words, auth, verb, headers, path = REFUSALS[why]
    response = await refused(auth, verb, {**asked, **headers}, path)
    assert (response.status, response.headers["content-type"]) == (status, "application/json")
    assert (response.json["jsonrpc"], response.json["id"], response.json["error"]["code"]) == ("2.0", None, -32600)
    assert words in response.json["error"]["message"]


@for_each_row("why", REFUSALS)
async def test_a_browser_gets_the_same_words_as_a_page(why: str):
    status, words, auth, verb, headers, path = REFUSALS[why]
    response = await refused(auth, verb, {**PLAIN, **headers}, path)
    is_page = verb == "GET" and not any("protocol-version" in name.lower() for name in headers)
    kind = "text/html" if is_page else "text/plain"
    assert (response.status, response.headers["content-type"]) == (status, f"{kind}; charset=utf-8")
    assert words.lower() in unescape(response.body.decode()).lower()
    assert not is_page or "default-src 'none'; style-src 'sha256-" in response.headers["content-security-policy"]


@for_each_row("asked", [{}, {"accept": "application/json;q=0, */*"}], ids=["none", "not"])
@for_each_row("why", REFUSALS)
async def test_everybody_else_gets_the_same_words_as_text(why: str, asked: dict[str, str]):
    status, words, auth, verb, headers, path = REFUSALS[why]
    response = await refused(auth, verb, {**asked, **headers}, path)
    assert (response.status, response.headers["content-type"]) == (status, "text/plain; charset=utf-8")
    assert words in response.body.decode()


@for_each_row(
    ("status", "headers", "body"),
    [(415, {"content-type": "text/plain"}, b"{}"), (406, {"accept": "text/html"}, b"{}"), (400, {}, b"{")],
)
async def test_an_error_about_a_message_has_an_id_that_clients_can_read(
    status: int, headers: dict[str, str], body: bytes
):
    async with living(shop().asgi()) as app:
        response = await Web(app).post(body, headers).ended()
    assert response.status == status and response.json["id"] is None and response.json["error"]["message"]


async def test_guessing_tokens_is_refused_with_the_time_to_wait():
    async with living(shop(StaticTokens({TOKEN: "alice"})).asgi()) as app:
        web = Web(app)
        web.address, web.token = "192.0.2.7", "wrong"
        for _ in range(50):
            response = await web.post(request("ping", {})).ended()
            if response.status == 429:
                break
    assert response.status == 429 and int(response.headers["retry-after"]) >= 1
    assert "Too many bad tokens" in response.json["error"]["message"]


async def test_who_guesses_from_many_addresses_of_one_network_is_refused_too():
    async with living(shop(StaticTokens({TOKEN: "alice"})).asgi()) as app:
        statuses: set[int] = set()
        for number in range(50):
            web = Web(app)
            web.address, web.token = f"2001:db8::{number:x}", "wrong"
            statuses.add((await web.post(request("ping", {})).ended()).status)
    assert statuses == {401, 429}


async def test_what_is_refused_before_it_is_read_has_such_a_body_too():
    async with listening(shop()) as where:
        long = raw_request(*(f"x-{n}: y" for n in range(12_000)))
        reader, writer = await where.connect()
        writer.write(long)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 431 ") and b"content-type: application/json" in head
    assert b"content-length: %d\r\n" % len(body) in head
    assert json.loads(body)["id"] is None and "head of a request" in json.loads(body)["error"]["message"]


async def test_a_head_that_comes_too_late_is_told_so():
    server = Server("shop", "1", limits=Limits(header=0.05))
    async with listening(server) as where:
        reader, writer = await where.connect()
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: x")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 408 ") and "in time" in json.loads(body)["error"]["message"]


# Without an authorization server, nothing sends a client to look for one.

DISCOVERY = [
    f"/.well-known/{name}{below}"
    for name in ("oauth-protected-resource", "oauth-authorization-server", "openid-configuration")
    for below in ("", "/mcp")
]


@for_each_row("token", [None, "wrong"])
async def test_a_challenge_names_no_metadata_where_there_is_none(token: str | None):
    headers = {**JSON, "authorization": f"Bearer {token}" if token else None}
    response = await refused(StaticTokens({TOKEN: "alice"}), "POST", headers)
    assert response.status == 401
    assert response.headers["www-authenticate"] == ("Bearer" if token is None else 'Bearer error="invalid_token"')
    assert "well-known" not in response.body.decode()


@for_each_row("path", DISCOVERY)
async def test_no_metadata_is_published_for_fixed_tokens(path: str):
    assert (await refused(StaticTokens({TOKEN: "alice"}), "GET", JSON, path)).status == 404


async def test_a_client_that_registers_all_the_same_is_told_to_send_a_token():
    response = await refused(StaticTokens({TOKEN: "alice"}), "POST", {"content-type": "application/json"}, "/register")
    assert response.status == 404
    assert response.json["error"] == "invalid_request" and SEND_ONE in response.json["error_description"]


@for_each_row(
    "auth",
    [
        None,
        Auth(StaticTokens({TOKEN: "a"}), resource="https://a.example/mcp", authorization_servers=["https://b.example"]),
    ],
    ids=["no tokens", "an authorization server"],
)
async def test_only_servers_with_fixed_tokens_answer_a_registration(auth: Auth | None):
    response = await refused(auth, "POST", {"content-type": "application/json"}, "/register")
    assert (response.status, response.json["error"]["code"]) == (404, -32600)
