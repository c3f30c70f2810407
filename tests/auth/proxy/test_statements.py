"""`ctx.token_for` for people who came by an identity assertion: this server vouches for them, where it is trusted."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from authlib.oauth2.rfc6749 import BaseGrant
from authlib.oauth2.rfc7523 import JWTBearerGrant
from joserfc import jwk, jwt

from defserve import Context, Server, UsageError
from defserve.auth import Auth, OAuthProxy, OnBehalfOf, RegisteredClient, StaticTokens, TrustedIssuer
from defserve.auth.proxy.assertions import JWT_BEARER_GRANT
from tests.auth.identity_provider import CLIENT_ID, CLIENT_SECRET, ID_JAG, AtProvider, Provider, provider_at_address
from tests.auth.proxied import SITE, URL, browser, call

pytestmark = pytest.mark.anyio

KEY = jwk.ECKey.generate_key("P-256")
PEM = KEY.as_pem(private=True).decode()
BASIC = ("claude", "s" * 40)


class StatementGrant(JWTBearerGrant):
    """Authlib checks the statement: its signature, dates and audience."""

    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic"]

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()
        super().validate_token_request()

    def resolve_issuer_client(self, issuer: str) -> Any:
        return AtProvider() if issuer == SITE else None

    def resolve_client_public_key(self, client: Any) -> Any:
        return self.server.trusted

    def get_audiences(self) -> list[str]:
        return [self.server.issuer]

    def authenticate_user(self, subject: str) -> str:
        return subject

    def has_granted_permission(self, client: Any, user: str) -> bool:
        return True

    def validate_requested_scope(self) -> None: ...

    def create_token_response(self) -> Any:
        made = self.server.make_token(self.request.user, self.request.payload.data["scope"])
        return 200, {"access_token": made, "token_type": "Bearer", "expires_in": 300}, []


class Partner(Provider):
    """The issuer of another API. It takes statements that are signed with the `trusted` keys of our server."""

    def __init__(self) -> None:
        super().__init__()
        self.trusted = jwk.KeySet([])

    def take_jwt_grant(self) -> type[BaseGrant]:
        return StatementGrant

    def make_token(self, subject: str, scope: str) -> str:
        self.exchanged += 1
        said = {"iss": self.issuer, "sub": subject, "aud": "billing", "scope": scope, "n": self.exchanged}
        return jwt.encode({"alg": "ES256", "kid": "first"}, said, self.key)

    def make_access_token(self, subject_token: str, audience: str, scope: str) -> str:
        """The same by a token exchange."""
        claims = jwt.decode(subject_token, self.trusted).claims
        jwt.JWTClaimsRegistry(aud={"essential": True, "value": self.issuer}).validate(claims)
        return self.make_token(claims["sub"], scope)


@pytest.fixture(scope="module")
def company() -> Iterator[Provider]:
    with provider_at_address() as provider:
        yield provider


@pytest.fixture
def partner() -> Iterator[Partner]:
    with provider_at_address(Partner) as provider:
        yield provider


def target(partner: Provider, **options: Any) -> OnBehalfOf:
    given: dict[str, Any] = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "audience": "billing"}
    given |= {"scopes": ["read"], "statement_audience": partner.issuer, "form": "rfc7523"}
    return OnBehalfOf(f"{partner.issuer}/token", **{**given, **options})


def make_proxy(company: Provider, billing: OnBehalfOf, **options: Any) -> OAuthProxy:
    given: dict[str, Any] = {
        "url": URL,
        "scopes": ["notes:read"],
        "issuers": [TrustedIssuer(company.issuer)],
        "clients": [
            RegisteredClient(BASIC[0], secret=BASIC[1]),
            RegisteredClient("job", secret="j" * 40, scopes=["notes:read"]),
        ],
        "signing_key": PEM,
        "targets": {"billing": billing},
    }
    return OAuthProxy(**{**given, **options})


@asynccontextmanager
async def at(auth: OAuthProxy, partner: Provider | None = None) -> AsyncGenerator[httpx2.AsyncClient]:
    """A server with a tool that gets a token. The partner trusts the keys that the server publishes."""
    server = Server("desk", auth=auth)

    @server.tool
    async def charge(ctx: Context) -> str:
        return await ctx.token_for("billing")

    async with browser(server) as http:
        if isinstance(partner, Partner):
            partner.trusted = jwk.KeySet.import_key_set((await http.get("/jwks")).json())
        yield http


async def sign_in(http: httpx2.AsyncClient, company: Provider, **claims: Any) -> str:
    form = {"grant_type": JWT_BEARER_GRANT, "assertion": company.make_id_jag(SITE, "claude", **claims)}
    return (await http.post("/token", data=form, auth=BASIC)).json()["access_token"]


def text_of(reply: httpx2.Response) -> str:
    return reply.json()["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    ("form", "shown_as", "kind"),
    [("rfc7523", "assertion", "authorization-grant+jwt"), ("rfc8693", "subject_token", "JWT")],
)
async def test_who_came_by_an_assertion_gets_a_token_where_this_server_is_trusted(
    company: Provider, partner: Partner, form: Any, shown_as: str, kind: str
) -> None:
    async with at(make_proxy(company, target(partner, form=form)), partner) as http:
        token = await sign_in(http, company)
        got = text_of(await call(http, token, "charge"))
        assert text_of(await call(http, token, "charge")) == got
    assert partner.exchanged == 1
    made = jwt.decode(got, partner.keys).claims
    assert (made["sub"], made["scope"]) == (f"{company.issuer}|ann", "read")
    (sent,) = partner.forms
    statement = jwt.decode(sent[shown_as], KEY)
    assert statement.header["typ"] == kind
    assert sent.get("subject_token_type") == (
        "urn:ietf:params:oauth:token-type:jwt" if shown_as == "subject_token" else None
    )
    claims = statement.claims
    assert claims["exp"] - claims["iat"] <= 120 and claims["iat"] <= time.time()
    assert {name: claims[name] for name in claims.keys() - {"exp", "iat", "jti"}} == {
        "iss": SITE,
        "sub": f"{company.issuer}|ann",
        "aud": partner.issuer,
        "client_id": CLIENT_ID,
        "sub_id": {"format": "iss_sub", "iss": company.issuer, "sub": "ann"},
    }


async def test_a_person_of_a_tenant_is_named_by_it_and_not_by_the_provider_alone(
    company: Provider, partner: Partner
) -> None:
    auth = make_proxy(company, target(partner), issuers=[TrustedIssuer(company.issuer, tenant="red")])
    async with at(auth, partner) as http:
        assert text_of(await call(http, await sign_in(http, company, tenant="red"), "charge"))
    claims = jwt.decode(partner.forms[0]["assertion"], KEY).claims
    assert claims["sub"] == f"{company.issuer}#red|ann" and "sub_id" not in claims


async def test_a_program_is_vouched_for_under_its_own_name(company: Provider, partner: Partner) -> None:
    async with at(make_proxy(company, target(partner)), partner) as http:
        answer = await http.post("/token", data={"grant_type": "client_credentials"}, auth=("job", "j" * 40))
        got = text_of(await call(http, answer.json()["access_token"], "charge"))
    assert jwt.decode(got, partner.keys).claims["sub"] == f"{SITE}|job"


async def test_a_statement_is_good_at_its_issuer_alone(company: Provider, partner: Partner) -> None:
    """Neither at another issuer, nor at this server: not as a token, and not as an identity assertion."""
    with provider_at_address(Partner) as other:
        async with at(make_proxy(company, target(partner)), partner) as http:
            token = await sign_in(http, company)
            assert text_of(await call(http, token, "charge"))
            statement = partner.forms[0]["assertion"]
            other.trusted = partner.trusted
            form = {"grant_type": JWT_BEARER_GRANT, "assertion": statement, "scope": "read"}
            elsewhere = httpx2.post(f"{other.issuer}/token", data=form, auth=(CLIENT_ID, CLIENT_SECRET))
            assert elsewhere.json()["error"] == "invalid_grant"
            assert (await http.post("/token", data=form, auth=BASIC)).json()["error"] == "invalid_grant"
            assert (await call(http, statement)).status_code == 401


async def test_a_revoked_token_is_vouched_for_no_more(company: Provider, partner: Partner) -> None:
    auth = make_proxy(company, target(partner))
    server = Server("desk", auth=auth)

    @server.tool
    async def charge_twice(ctx: Context) -> str:
        first = await ctx.token_for("billing")
        await http.post("/revoke", data={"token": token}, auth=BASIC)
        assert first
        return await ctx.token_for("billing")

    async with browser(server) as http:
        partner.trusted = jwk.KeySet.import_key_set((await http.get("/jwks")).json())
        token = await sign_in(http, company)
        assert "revoked or has expired" in text_of(await call(http, token, "charge_twice"))
    assert partner.exchanged == 1


async def test_an_issuer_that_does_not_trust_this_server_gives_nothing(company: Provider, partner: Partner) -> None:
    async with at(make_proxy(company, target(partner))) as http:
        partner.trusted = jwk.KeySet([jwk.ECKey.generate_key("P-256", {"kid": "other"})])
        assert "its issuer refuses" in text_of(await call(http, await sign_in(http, company), "charge"))
    assert partner.exchanged == 0


@pytest.mark.parametrize("form", ["rfc8693", "entra"])
async def test_without_a_statement_the_answer_says_what_to_configure(
    company: Provider, partner: Partner, form: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What the company's provider has signed is for this server: it is shown to nobody, not to the provider either."""
    billing = target(partner, form=form, statement_audience="")
    async with at(make_proxy(company, billing, signing_key=None)) as http:
        reply = await call(http, await sign_in(http, company), "charge")
    assert reply.json()["result"]["isError"] is True
    assert "whoever signed you in gave this server no token" in text_of(reply)
    assert ("statement_audience" if form == "rfc8693" else 'OAuthProxy("entra", …)') in caplog.text
    assert partner.forms == [] and not any(ID_JAG in str(sent) for sent in company.forms)


async def test_keys_are_published_and_can_be_replaced(company: Provider, partner: Partner, tmp_path: Path) -> None:
    newer = jwk.RSAKey.generate_key(2048)
    file = tmp_path / "signing.pem"
    file.write_text(PEM)
    file.chmod(0o600)
    async with at(make_proxy(company, target(partner), signing_key=[f"file:{file}", PEM]), partner) as http:
        described = (await http.get("/.well-known/oauth-authorization-server")).json()
        assert described["jwks_uri"] == f"{SITE}/jwks"
        token = await sign_in(http, company)
        assert text_of(await call(http, token, "charge"))
        file.write_text(newer.as_pem(private=True).decode())
        published = (await http.get("/jwks")).json()["keys"]
        assert [(key["kty"], key["alg"], key["use"]) for key in published] == [
            ("RSA", "RS256", "sig"),
            ("EC", "ES256", "sig"),
        ]
        assert not any({"d", "p", "q"} & key.keys() for key in published)
        assert [key["kid"] for key in published] == [newer.thumbprint(), KEY.thumbprint()]
        partner.trusted = jwk.KeySet.import_key_set({"keys": published})
        # Another token, for which nothing is kept.
        assert text_of(await call(http, await sign_in(http, company), "charge"))
    assert jwt.decode(partner.forms[1]["assertion"], newer).header["alg"] == "RS256"


async def test_without_a_signing_key_none_is_published(company: Provider, partner: Partner) -> None:
    billing = target(partner, form="rfc8693", statement_audience="")
    async with at(make_proxy(company, billing, signing_key=None)) as http:
        assert (await http.get("/jwks")).json() == {"keys": []}
        assert "jwks_uri" not in (await http.get("/.well-known/oauth-authorization-server")).json()


async def test_nothing_of_a_statement_is_logged(
    company: Provider, partner: Partner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with at(make_proxy(company, target(partner)), partner) as http:
        assert text_of(await call(http, await sign_in(http, company), "charge"))
    statement = partner.forms[0]["assertion"]
    assert statement.split(".")[1] not in caplog.text and statement.split(".")[2] not in caplog.text


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: OnBehalfOf("https://x.example/token", client_id="c", client_secret="s", form="rfc7523"), "for whom"),
        (
            lambda: OnBehalfOf.entra(
                "contoso", client_id="c", client_secret="s", scopes=["x"], statement_audience="https://x.example"
            ),
            "Entra takes no statement",
        ),
        (lambda: OAuthProxy(url=URL, issuers=[TrustedIssuer("https://x.example")], signing_key="text"), "private key"),
        (
            lambda: OAuthProxy(
                url=URL,
                issuers=[TrustedIssuer("https://x.example")],
                signing_key=jwk.ECKey.generate_key("secp256k1").as_pem(private=True).decode(),
            ),
            "of a kind",
        ),
        (
            lambda: OAuthProxy(
                url=URL, issuers=[TrustedIssuer("https://x.example")], targets={"billing": wants_statement()}
            ),
            "nobody here signs",
        ),
        (lambda: Auth(StaticTokens({"t" * 32: "ann"}), targets={"billing": wants_statement()}), "nobody here signs"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        make()
    assert PEM.splitlines()[1] not in str(caught.value)


def wants_statement() -> OnBehalfOf:
    return OnBehalfOf(
        "https://x.example/token", client_id="c", client_secret="s", statement_audience="https://x.example"
    )
