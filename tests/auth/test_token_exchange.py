"""Tools act at other APIs in the name of their caller: `ctx.token_for`, `ctx.http` and imported APIs."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from joserfc import jwk, jwt

from defserve import Context, Server, ToolError, UsageError
from defserve.auth import JWT, Auth, DeniedTokens, OnBehalfOf, Principal, StaticTokens
from defserve.auth.oauth import parse_oauth_challenge
from defserve.auth.token_exchange import TokenExchanger, format_step_up_challenge
from defserve.errors import StepUpRequired
from defserve.guard.network import Egress
from defserve.openapi import CallerToken
from tests.auth.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    Provider,
    documents_at_address,
    provider_at_address,
)
from tests.auth.web import client, post

pytestmark = pytest.mark.anyio

AUDIENCE = "https://tools.example.com/"


@pytest.fixture
def company() -> Iterator[Provider]:
    with provider_at_address() as provider:
        yield provider


def token_of(company: Provider, subject: str, **more: Any) -> str:
    now = int(time.time())
    said = {"iss": company.issuer, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 3600, "jti": subject}
    return jwt.encode({"alg": "ES256", "kid": "first", "typ": "at+jwt"}, {**said, **more}, company.key)


def target(company: Provider, **options: Any) -> OnBehalfOf:
    given = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "audience": "billing", "scopes": ["read"]}
    return OnBehalfOf(f"{company.issuer}/token", **{**given, **options})


def make_server(company: Provider, *, denied: DeniedTokens | None = None, **targets: Any) -> Server:
    verifier = JWT(audience=AUDIENCE, issuer=company.issuer, jwks_url=f"{company.issuer}/jwks", denied=denied)
    server = Server("desk", auth=Auth(verifier, targets=targets or {"billing": target(company)}))

    @server.tool
    async def charge(ctx: Context, scopes: list[str] | None = None) -> str:
        return await ctx.token_for("billing", scopes=scopes or ())

    @server.tool
    def charge_in_a_thread(ctx: Context) -> str:
        return ctx.wait(ctx.token_for("billing"))

    @server.tool
    async def charge_or_explain(ctx: Context) -> str:
        try:
            return await ctx.token_for("billing")
        except StepUpRequired as error:
            return f"caught {error.error}"

    return server


async def call(http: httpx2.AsyncClient, token: str | None, tool: str = "charge", **arguments: Any) -> httpx2.Response:
    return await post(http, token, "tools/call", name=tool, arguments=arguments)


def text_of(reply: httpx2.Response) -> str:
    return reply.json()["result"]["content"][0]["text"]


def claims_of(token: str, company: Provider) -> dict[str, Any]:
    return jwt.decode(token, company.keys).claims


async def test_a_tool_gets_a_token_of_its_caller_for_another_api(company: Provider) -> None:
    ann = token_of(company, "ann")
    async with client(make_server(company)) as http:
        got = text_of(await call(http, ann))
        assert claims_of(got, company) | {"n": 0} == {
            "iss": company.issuer,
            "sub": "ann",
            "aud": "billing",
            "scope": "read",
            "n": 0,
        }
        assert got != ann
        assert text_of(await call(http, ann, "charge_in_a_thread")) == got
    form = company.forms[0]
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
    assert form["subject_token_type"] == "urn:ietf:params:oauth:token-type:access_token"
    assert (form["subject_token"], form["audience"], form["scope"]) == (ann, "billing", "read")


async def test_entra_is_asked_in_its_own_form(company: Provider) -> None:
    graph = OnBehalfOf.entra(
        "contoso", client_id=CLIENT_ID, client_secret=CLIENT_SECRET, scopes=["https://graph.microsoft.com/User.Read"]
    )
    assert graph.token_endpoint == "https://login.microsoftonline.com/contoso/oauth2/v2.0/token"
    here = target(company, form="entra", audience="", scopes=["https://graph.microsoft.com/User.Read"])
    async with client(make_server(company, billing=here)) as http:
        got = text_of(await call(http, token_of(company, "ann")))
    assert claims_of(got, company)["sub"] == "ann"
    assert company.forms[0]["requested_token_use"] == "on_behalf_of"
    assert company.forms[0]["scope"] == "https://graph.microsoft.com/User.Read"


async def test_a_token_is_kept_for_its_caller_token_target_and_scopes_alone(company: Provider) -> None:
    targets = {"billing": target(company), "mail": target(company, audience="mail")}
    server = make_server(company, **targets)

    @server.tool
    async def send_mail(ctx: Context) -> str:
        return await ctx.token_for("mail")

    ann, again, bob = token_of(company, "ann"), token_of(company, "ann", jti="2"), token_of(company, "bob")
    async with client(server) as http:
        first = text_of(await call(http, ann))
        assert text_of(await call(http, ann)) == first
        assert company.exchanged == 1
        others = [
            text_of(await call(http, bob)),
            text_of(await call(http, again)),
            text_of(await call(http, ann, scopes=["write"])),
            text_of(await call(http, ann, "send_mail")),
        ]
        assert company.exchanged == 5
        assert len({first, *others}) == 5
        assert claims_of(others[0], company)["sub"] == "bob"
        assert claims_of(others[3], company)["aud"] == "mail"
        # The order of scopes is no difference.
        got = text_of(await call(http, ann, scopes=["b", "a"]))
        assert text_of(await call(http, ann, scopes=["a", "b"])) == got


async def test_a_kept_token_ends_with_its_time(company: Provider) -> None:
    company.lifetime = 30  # as long as a token has to last at least
    async with client(make_server(company)) as http:
        ann = token_of(company, "ann")
        assert text_of(await call(http, ann)) != text_of(await call(http, ann))


async def test_a_revoked_callers_token_gets_nothing_that_was_kept(company: Provider) -> None:
    """The call has begun with a token that was good. It is revoked before the tool asks."""
    denied = DeniedTokens("memory:")
    server = make_server(company, denied=denied)

    @server.tool
    async def revoke_then_charge(ctx: Context) -> str:
        before = await ctx.token_for("billing")
        assert before
        await denied.deny("ann", until=time.time() + 3600)
        return await ctx.token_for("billing")

    async with client(server) as http:
        reply = await call(http, token_of(company, "ann"), "revoke_then_charge")
        assert "revoked or has expired" in text_of(reply)
        assert company.exchanged == 1


async def test_an_expired_callers_token_gets_nothing_that_was_kept(company: Provider) -> None:
    now = [time.time()]
    verifier = JWT(audience=AUDIENCE, issuer=company.issuer, jwks_url=f"{company.issuer}/jwks", clock=lambda: now[0])
    auth = Auth(verifier, targets={"billing": target(company)})
    ann = token_of(company, "ann")
    principal = await auth.authenticate([f"Bearer {ann}".encode()])
    assert isinstance(principal, Principal) and auth.exchanges is not None
    assert await auth.exchanges.obtain_target_token(principal, "billing")
    now[0] += 4000
    with pytest.raises(ToolError, match="expired"):
        await auth.exchanges.obtain_target_token(principal, "billing")


async def test_one_caller_cannot_use_the_token_of_another(company: Provider) -> None:
    shown = token_of(company, "ann")
    auth = Auth(StaticTokens({shown: "ann"}), targets={"billing": target(company)})
    ann = await auth.authenticate([f"Bearer {shown}".encode()])
    assert auth.exchanges is not None and isinstance(ann, Principal)
    await auth.exchanges.obtain_target_token(ann, "billing")
    # A principal that claims the credential of another, and one whose credential was never shown.
    for stranger in (Principal("bob", credential=ann.credential), Principal("ann", credential="token:other")):
        with pytest.raises(ToolError):
            await auth.exchanges.obtain_target_token(stranger, "billing")


async def test_a_caller_without_a_token_gets_none(company: Provider) -> None:
    server = make_server(company)
    assert server.auth is not None and server.auth.exchanges is not None
    from defserve.auth.principals import LOCAL_PRINCIPAL, make_anonymous_principal

    for nobody in (LOCAL_PRINCIPAL, make_anonymous_principal("192.0.2.1")):
        with pytest.raises(ToolError, match="signed in"):
            await server.auth.exchanges.obtain_target_token(nobody, "billing")


async def test_a_client_is_asked_to_sign_its_user_in_again(company: Provider) -> None:
    company.wants_interaction = True
    async with client(make_server(company)) as http:
        reply = await call(http, token_of(company, "ann"))
        assert reply.status_code == 401
        challenge = parse_oauth_challenge(reply.headers["www-authenticate"])
        assert challenge.error == "interaction_required"
        assert json.loads(base64.b64decode(challenge.parameters["claims"])) == {
            "access_token": {"acrs": {"essential": True, "value": "c1"}}
        }
        # Who handles it in the tool answers as usual.
        caught = await call(http, token_of(company, "ann"), "charge_or_explain")
        assert (caught.status_code, text_of(caught)) == (200, "caught interaction_required")
        company.wants_interaction = False
        assert (await call(http, token_of(company, "ann"))).status_code == 200


async def test_a_client_with_a_session_is_asked_too(company: Provider) -> None:
    company.wants_interaction = True
    headers = {"authorization": f"Bearer {token_of(company, 'ann')}", "accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    async with client(make_server(company)) as http:

        async def send(method: str, params: dict[str, Any], id: int | None) -> httpx2.Response:
            message = {"jsonrpc": "2.0", "method": method, "params": params, **({"id": id} if id else {})}
            return await http.post("/", json=message, headers=headers)

        opened = await send("initialize", hello, 1)
        headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await send("notifications/initialized", {}, None)
        reply = await send("tools/call", {"name": "charge", "arguments": {}}, 2)
    assert reply.status_code == 401
    assert parse_oauth_challenge(reply.headers["www-authenticate"]).error == "interaction_required"


async def test_where_the_transport_cannot_ask_the_tool_is_refused_clearly(company: Provider) -> None:
    company.wants_interaction = True
    server = make_server(company)

    @server.tool
    async def late(ctx: Context) -> str:
        ctx.progress(1, 2)
        return await ctx.token_for("billing")

    async with client(server) as http:
        body_more = {"accept": "text/event-stream, application/json"}
        reply = await post(http, token_of(company, "ann"), "tools/call", more=body_more, name="late", arguments={})
    assert "interaction_required" in reply.text and "sign in again" in reply.text


async def test_a_refusal_names_no_token_and_keeps_nothing(company: Provider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ann = token_of(company, "ann")
    async with client(make_server(company, billing=target(company, client_secret="wrong"))) as http:
        reply = await call(http, ann)
    assert "invalid_client" in text_of(reply)
    assert ann not in reply.text and ann.split(".")[1] not in caplog.text


async def test_an_issuer_that_hands_back_the_callers_token_is_refused(company: Provider) -> None:
    def echo(form: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        given = {"access_token": form["subject_token"], "token_type": "Bearer", "expires_in": 300}
        return 200, json.dumps(given).encode()

    with documents_at_address(lambda address: {}, echo) as address:
        bad = OnBehalfOf(f"{address}/token", client_id="c", client_secret="s", audience="billing")
        async with client(make_server(company, billing=bad)) as http:
            ann = token_of(company, "ann")
            reply = await call(http, ann)
    assert "no token of its own" in text_of(reply)
    assert ann not in reply.text


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"access_token": 7}',
        b'{"access_token": ""}',
        b'{"access_token": "a b", "token_type": "Bearer"}',
        b'{"access_token": "a\\r\\nx: y", "token_type": "Bearer"}',
        b'{"access_token": "abc", "token_type": "mac"}',
        b'{"access_token": "' + b"a" * 20_000 + b'", "token_type": "Bearer"}',
    ],
)
async def test_what_an_issuer_answers_is_not_trusted(company: Provider, answer: bytes) -> None:
    with documents_at_address(lambda address: {}, lambda form, headers: (200, answer)) as address:
        bad = OnBehalfOf(f"{address}/token", client_id="c", client_secret="s", audience="billing")
        async with client(make_server(company, billing=bad)) as http:
            reply = await call(http, token_of(company, "ann"))
    assert reply.json()["result"]["isError"] is True


@pytest.mark.parametrize("seconds", [10**400, -(10**400), float("nan"), float("inf"), "3600", True, None])
async def test_whatever_an_issuer_says_of_a_tokens_time_the_token_is_got(company: Provider, seconds: Any) -> None:
    given = {"access_token": "abc", "token_type": "Bearer", "expires_in": seconds}
    with documents_at_address(lambda address: {}, lambda form, headers: (200, json.dumps(given).encode())) as address:
        odd = OnBehalfOf(f"{address}/token", client_id="c", client_secret="s", audience="billing")
        async with client(make_server(company, billing=odd)) as http:
            assert text_of(await call(http, token_of(company, "ann"))) == "abc"


def test_claims_that_are_no_text_can_still_be_asked_for() -> None:
    challenge = format_step_up_challenge(StepUpRequired("again", claims='{"a": "\ud800"}'), "")
    assert base64.b64decode(parse_oauth_challenge(challenge).parameters["claims"]) == b'{"a": "?"}'


async def test_the_server_proves_itself_by_a_key(company: Provider) -> None:
    key = jwk.ECKey.generate_key("P-256")
    shown: list[dict[str, str]] = []

    def answer(form: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        shown.append(form)
        return 200, b'{"access_token": "abc", "token_type": "Bearer", "expires_in": 300}'

    with documents_at_address(lambda address: {}, answer) as address:
        url = f"{address}/token"
        signs = OnBehalfOf(
            url, client_id="c", private_key=key.as_pem(private=True), algorithm="ES256", key_header={"kid": "k"}
        )
        async with client(make_server(company, billing=signs)) as http:
            assert text_of(await call(http, token_of(company, "ann"))) == "abc"
    made = jwt.decode(shown[0]["client_assertion"], key)
    assert (made.header["kid"], made.claims["aud"], made.claims["sub"]) == ("k", url, "c")
    assert "client_secret" not in shown[0]


# -- ctx.http and imported APIs.


class Api:
    """Another API on this machine, which keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[str | None] = []


@pytest.fixture
def api() -> Iterator[tuple[Api, str]]:
    api = Api()

    def answer(form: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        api.shown.append(headers.get("Authorization"))
        return 200, b'{"ok": true}'

    with documents_at_address(lambda address: {}, answer) as address:
        yield api, address


async def test_the_http_client_sends_a_token_of_the_caller_where_the_target_says(
    company: Provider, api: tuple[Api, str]
) -> None:
    kept, address = api
    host = address.removeprefix("http://")
    verifier = JWT(audience=AUDIENCE, issuer=company.issuer, jwks_url=f"{company.issuer}/jwks")
    server = Server(
        "desk",
        auth=Auth(verifier, targets={"billing": target(company, urls=[f"{address}/v1/"])}),
        egress=Egress(private=[host], ports=None),
    )

    @server.tool
    async def post_invoice(ctx: Context, path: str) -> str:
        return (await ctx.http.post(f"{address}{path}", token_for="billing", data={"a": "b"})).text

    ann = token_of(company, "ann")
    async with client(server) as http:
        assert text_of(await call(http, ann, "post_invoice", path="/v1/invoices")) == '{"ok": true}'
        got = str(kept.shown[0]).removeprefix("Bearer ")
        assert claims_of(got, company)["sub"] == "ann"
        for elsewhere in ("/v2/x", "/v1x", "/v1/../v2", "/v1/%2e%2e/v2"):
            reply = await call(http, ann, "post_invoice", path=elsewhere)
            assert reply.json()["result"]["isError"] is True, elsewhere
    assert len(kept.shown) == 1


def make_document(address: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "billing", "version": "1"},
        "servers": [{"url": address}],
        "paths": {
            "/invoices": {
                "post": {"operationId": "add_invoice", "responses": {"200": {"description": "ok"}}},
            }
        },
    }


async def test_an_imported_api_is_called_in_the_name_of_the_caller(company: Provider, api: tuple[Api, str]) -> None:
    kept, address = api
    verifier = JWT(audience=AUDIENCE, issuer=company.issuer, jwks_url=f"{company.issuer}/jwks")
    server = Server("desk", auth=Auth(verifier, targets={"billing": target(company)}))
    server.add_openapi(make_document(address), auth=CallerToken("billing", scopes=["write"]), base_url=address)
    ann, bob = token_of(company, "ann"), token_of(company, "bob")
    async with client(server) as http:
        for token in (ann, bob, ann):
            assert (await call(http, token, "add_invoice")).json()["result"].get("isError") is not True
    seen = [claims_of(str(shown).removeprefix("Bearer "), company) for shown in kept.shown]
    assert [(each["sub"], each["scope"]) for each in seen] == [("ann", "write"), ("bob", "write"), ("ann", "write")]
    assert company.exchanged == 2
    assert not {f"Bearer {ann}", f"Bearer {bob}"} & set(kept.shown)


async def test_a_document_cannot_choose_where_tokens_go(company: Provider) -> None:
    with pytest.raises(UsageError, match="base_url"):
        Server.from_openapi(make_document("https://api.example.com"), auth=CallerToken("billing"))


# -- settings


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"token_endpoint": "http://login.example.com/token"}, "https"),
        ({"client_secret": ""}, "client_secret or a private_key"),
        ({"private_key": "k"}, "client_secret or a private_key"),
        ({"form": "other"}, "not known"),
        ({"urls": ["ftp://x"]}, "urls"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    good = {"token_endpoint": "https://login.example.com/token", "client_id": "c", "client_secret": "s"}
    with pytest.raises(UsageError, match=problem):
        OnBehalfOf(**{**good, **options})


def test_secrets_are_not_shown() -> None:
    made = OnBehalfOf("https://login.example.com/token", client_id="c", client_secret="hush")
    assert "hush" not in repr(made)


async def test_an_unknown_target_says_which_there_are(company: Provider) -> None:
    exchanges = TokenExchanger({"billing": target(company)}, None, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="biling"):
        await exchanges.obtain_target_token(Principal("ann"), "biling")
