"""Signing in to a server, over real sockets: what is asked of whom, and what is refused."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from defserve.client import (
    ClientCredentials,
    CrossAppAccess,
    RemoteServer,
    SignIn,
    SignInError,
    StoredSignIn,
    WorkloadIdentity,
    connect_url,
)
from defserve.client.link import HttpChallenge
from defserve.client.signin.authorizer import ServerAuthorizer
from defserve.client.signin.credentials import Credential, MemoryCredentialStore, Tokens
from defserve.client.signin.fetching import NetworkReach
from defserve.client.signin.grants import Attempt
from defserve.client.signin.issuer import ClientRegistration, DiscoveredIssuer, IssuerMetadata, ResourceMetadata
from defserve.errors import PeerError, UsageError
from defserve.serve.address import CredentialsRequired
from tests.client.signin.company import Company, Person, basic_pair, company
from tests.client.web import Exchange, web
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there() -> AsyncIterator[Company]:
    async with company() as made:
        yield made


async def call(there: Company, auth: Any = None, store: MemoryCredentialStore | None = None, **options: Any) -> Any:
    auth = auth or SignIn(redirect=there, store=store or MemoryCredentialStore(), **options)
    async with RemoteServer(there.url, auth=auth).connect() as client:
        return await client.call("add")


@pytest.mark.req("MCP-AUTH-1", "MCP-AUTH-2", "MCP-AUTH-3")
async def test_a_person_signs_in_once_and_the_token_is_used_again(there: Company) -> None:
    store = MemoryCredentialStore()
    assert await call(there, store=store) == "3"
    assert await call(there, store=store) == "3"
    (visit,), (registered,) = there.visits, there.registered
    assert visit["resource"] == there.url and visit["scope"] == "read" and visit["code_challenge_method"] == "S256"
    assert registered["redirect_uris"] == [visit["redirect_uri"]] and registered["application_type"] == "native"
    assert there.forms[0]["resource"] == there.url and there.forms[0]["client_id"] == "client-1"


async def test_without_a_token_the_server_is_asked_as_ever_and_nobody_is_asked_for_a_stored_sign_in(
    there: Company,
) -> None:
    with pytest.raises(CredentialsRequired):
        await call(there, StoredSignIn(MemoryCredentialStore()))
    assert not there.visits and not there.list_requested_uris("/.well-known/oauth-protected-resource/mcp")


async def test_an_ending_token_is_renewed_before_it_is_sent(there: Company) -> None:
    store = MemoryCredentialStore()
    there.token_fields["expires_in"] = 5
    await call(there, store=store)
    there.tokens.clear()
    assert await call(there, StoredSignIn(store)) == "3"
    kept = store.load_credential(there.url)
    assert len(there.visits) == 1 and kept is not None and kept.tokens is not None
    assert kept.tokens.refresh_token == f"refresh-{there.given}", "the rotated one is kept"


async def test_a_refused_token_is_renewed_by_its_refresh_token_and_else_by_the_person(there: Company) -> None:
    store = MemoryCredentialStore()
    await call(there, store=store)
    there.tokens.clear()
    await call(there, store=store)
    assert len(there.visits) == 1 and there.forms[-1]["grant_type"] == "refresh_token"
    there.tokens.clear()
    there.refreshing.clear()
    await call(there, store=store)
    assert len(there.visits) == 2 and len(there.registered) == 1


CLAIMS = '{"access_token": {"acrs": {"value": "c1"}}}'


@pytest.mark.parametrize(
    ("claims", "asked"),
    [
        (b64encode(CLAIMS.encode()).decode(), CLAIMS),
        (b64encode(b"[]").decode(), None),
        ("not base64", None),
        ("A" * 9_000, None),
    ],
)
async def test_a_server_that_wants_more_proof_has_the_person_sign_in_again(
    there: Company, claims: str, asked: str | None
) -> None:
    """A refreshed token would not do, and the issuer is told what the server wants."""
    store = MemoryCredentialStore()
    await call(there, store=store)
    there.tokens.clear()
    place = f'resource_metadata="{there.origin}/.well-known/oauth-protected-resource/mcp"'
    there.challenge = f'Bearer error="interaction_required", claims="{claims}", {place}'
    await call(there, store=store)
    assert len(there.visits) == 2 and there.forms[-1]["grant_type"] == "authorization_code"
    assert there.visits[1].get("claims") == asked


async def test_a_sign_in_that_has_ended_is_not_renewed_for_ever(there: Company) -> None:
    store = MemoryCredentialStore()
    await call(there, store=store)
    there.tokens.clear()
    there.refreshing.clear()
    for _ in range(2):
        with pytest.raises(CredentialsRequired):
            await call(there, StoredSignIn(store))
    assert len([form for form in there.forms if form["grant_type"] == "refresh_token"]) == 1


@pytest.mark.req("MCP-AUTH-5")
async def test_more_scopes_are_asked_for_beside_those_of_before_and_only_once(there: Company) -> None:
    there.wanted["tools/call"] = "write"
    await call(there)
    assert [visit["scope"] for visit in there.visits] == ["read", "read write"]
    assert [asked["scope"] for asked in there.registered] == ["read", "read write"], "some issuers refuse what is more"
    there.visits.clear()
    there.tokens.clear()
    there._granted = lambda form: "read"  # pyright: ignore[reportPrivateUsage] - gives less than it was asked for
    with pytest.raises(CredentialsRequired, match="more scopes"):
        await call(there)
    assert len(there.visits) == 2


async def test_a_server_that_always_wants_another_scope_gets_three_tries(there: Company) -> None:
    class Greedy(dict[str, str]):
        def get(self, method: str, default: str = "") -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return f"scope-{len(there.visits)}" if method == "tools/call" else ""

    there.wanted = Greedy()
    with pytest.raises(PeerError):
        await call(there)
    assert len(there.visits) <= 3


async def test_a_server_that_refuses_every_token_is_given_up(there: Company) -> None:
    class Nothing(dict[str, str]):
        def get(self, *_: Any) -> None:
            return None

    there.tokens = Nothing()
    with pytest.raises(SignInError, match="refuses the tokens"):
        await call(there)
    assert len(there.visits) <= 2


async def test_requests_that_wait_for_a_person_do_not_time_out_and_open_one_page(there: Company) -> None:
    """The person takes longer than the probe for the era, and than the limit of each request."""
    decided = asyncio.Event()

    class Slow(Person):
        async def visit(self, url: str, is_answer: Callable[[str], bool]) -> str:
            await decided.wait()
            return there.say_yes(url)

    class Waiting:
        @asynccontextmanager
        async def open(self, preferred: str, mark: str) -> AsyncIterator[Person]:
            yield Slow(there.say_yes, mark)

    async def work() -> str:
        auth = SignIn(redirect=Waiting(), store=MemoryCredentialStore())
        async with RemoteServer(there.url, auth=auth).connect(timeout=0.05) as client:
            return client.version

    working = asyncio.create_task(work())
    await until(lambda: bool(there.registered))
    await asyncio.sleep(0.2)  # the limit of the request passes, several times
    decided.set()
    assert await working == "2026-07-28" and len(there.visits) == 1


@pytest.mark.req("MCP-AUTH-7")
async def test_a_new_issuer_sees_nothing_of_the_old_one(there: Company) -> None:
    store = MemoryCredentialStore()
    await call(there, store=store)
    there.tokens.clear()
    async with company() as other:
        other.tokens = there.tokens
        there.resource["authorization_servers"] = [other.origin]
        await call(there, SignIn(redirect=other, store=store))
        assert len(other.registered) == 1 and other.visits[0]["client_id"] == "client-1"
        assert other.visits[0]["redirect_uri"] != there.visits[0]["redirect_uri"], "each issuer has one of its own"
        assert [form["grant_type"] for form in other.forms] == ["authorization_code"]
    assert len(there.forms) == 1


# Each row: what the company does, what the error says. In none of them a token is asked for.
REFUSED: list[tuple[Any, str]] = [
    (lambda it: it.resource.update(resource="https://bank.example/mcp"), "about another server"),
    (lambda it: it.resource.update(resource=it.url + "/other"), "about another server"),
    (lambda it: it.resource.update(authorization_servers=[]), "does not say who issues"),
    (lambda it: it.issuer.update(issuer="https://honest.example"), "about another one"),
    (lambda it: it.issuer.update(issuer=it.origin + "/"), "about another one"),
    (lambda it: it.issuer.pop("code_challenge_methods_supported"), "PKCE"),
    (lambda it: it.issuer.update(code_challenge_methods_supported=["plain"]), "PKCE"),
    (lambda it: it.issuer.pop("authorization_endpoint"), "no page"),
    (lambda it: it.issuer.pop("registration_endpoint"), "takes no new clients"),
    (lambda it: it.issuer.update(authorization_endpoint=it.origin + "/a?x=1&client_id=evil"), "fixes client_id"),
    (lambda it: it.issuer.update(authorization_endpoint="javascript:alert(1)"), "authorization endpoint"),
    (lambda it: it.issuer.update(authorization_endpoint="http://evil.example/authorize"), "only https"),
    (lambda it: it.issuer.update(authorization_endpoint="file:///etc/passwd"), "authorization endpoint"),
    (lambda it: it.answer_fields.update(state="another"), "does not belong"),
    (lambda it: it.answer_fields.update(state=""), "does not belong"),
    (lambda it: it.answer_fields.update(iss="https://evil.example"), "is from https://evil.example"),
    (lambda it: it.answer_fields.update(iss=it.origin + "/"), "not from"),
    (lambda it: it.issuer.update(authorization_response_iss_parameter_supported=True), "does not name http"),
    (lambda it: it.answer_fields.update(code="", error="access_denied"), "refused the sign-in: access_denied"),
    (lambda it: it.answer_fields.update(code=""), "no code"),
]


@pytest.mark.req("MCP-AUTH-2", "MCP-AUTH-3", "MCP-AUTH-6")
@for_each_row(("change", "said"), REFUSED)
async def test_what_is_not_right_ends_before_a_token_is_asked_for(change: Any, said: str) -> None:
    async with company() as there:
        change(there)
        with pytest.raises(SignInError, match=said):
            await call(there)
        assert not there.forms


@for_each_row(
    ("fields", "said"),
    [
        ({"token_type": "mac"}, "type 'mac'"),
        ({"token_type": "DPoP"}, "type 'DPoP'"),
        ({"access_token": ""}, "without an access token"),
        ({"access_token": "two words"}, "without an access token"),
        ({"access_token": "line\r\nX: y"}, "without an access token"),
        ({"access_token": "x" * 40_000}, "without an access token"),
        ({"access_token": 7}, "without an access token"),
    ],
)
async def test_a_token_that_cannot_be_sent_is_not_kept(fields: dict[str, Any], said: str) -> None:
    async with company() as there:
        there.token_fields.update(fields)
        store = MemoryCredentialStore()
        with pytest.raises(SignInError, match=said):
            await call(there, store=store)
        assert list(store.servers()) == []


async def test_a_code_of_another_sign_in_is_of_no_use(there: Company) -> None:
    """Somebody puts the code of their own sign-in into ours: its verifier is not ours."""
    there.say_yes("http://x/?state=s&redirect_uri=http://127.0.0.1:1/callback&code_challenge=theirs")
    there.answer_fields["code"] = "code-0"
    with pytest.raises(SignInError, match="invalid_grant"):
        await call(there)


async def test_secrets_are_in_no_message_log_or_text(there: Company, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = MemoryCredentialStore()
    await call(there, store=store, client_id="me", client_secret="s3cret-s3cret")
    there.tokens.clear()
    described = "client_secret=s3cret-s3cret refresh_token=refresh-1 Bearer access-1-access-1"
    there.token_errors.append({"error": "server_error", "error_description": described})
    with pytest.raises(SignInError, match="server_error") as caught:
        await call(there, store=store, client_id="me", client_secret="s3cret-s3cret")
    kept = store.load_credential(there.url)
    for text in (str(caught.value), caplog.text, repr(kept)):
        assert not any(secret in text for secret in ("s3cret", "access-1", "refresh-1", "code-0"))


async def test_given_credentials_come_first_and_nothing_is_registered(there: Company) -> None:
    there.issuer["client_id_metadata_document_supported"] = True
    await call(there, client_id="a client", client_secret="p:w%")
    assert basic_pair(there.list_requested_uris("/token")[0]) == ("a client", "p:w%") and not there.registered
    assert "client_id" not in there.forms[0] and "client_secret" not in there.forms[0]


@pytest.mark.req("MCP-AUTH-4")
async def test_a_url_id_is_used_where_the_issuer_takes_one_and_else_we_register(there: Company) -> None:
    id = "https://client.example/metadata.json"
    await call(there, client_id=id)
    there.issuer["client_id_metadata_document_supported"] = True
    await call(there, client_id=id)
    assert [visit["client_id"] for visit in there.visits] == ["client-1", id] and len(there.registered) == 1


async def test_an_issuer_that_has_forgotten_us_is_registered_with_anew(there: Company) -> None:
    store = MemoryCredentialStore()
    await call(there, store=store)
    there.tokens.clear()
    there.refreshing.clear()
    # The refresh token is refused, and then the client itself, before a browser is sent there.
    there.token_errors = [{"error": "invalid_client"}, {"error": "invalid_client"}]
    assert await call(there, store=store) == "3"
    assert [visit["client_id"] for visit in there.visits] == ["client-1", "client-2"]


async def test_an_issuer_that_does_not_say_whether_it_knows_us_is_asked_as_before(there: Company) -> None:
    store = MemoryCredentialStore()
    await call(there, store=store)
    there.tokens.clear()
    there.refreshing.clear()
    there.token_errors = [{"error": "invalid_grant"}, {"error": "temporarily_unavailable"}]
    assert await call(there, store=store) == "3"
    assert [visit["client_id"] for visit in there.visits] == ["client-1", "client-1"]


async def test_offline_access_is_asked_for_only_if_the_issuer_lists_it(there: Company) -> None:
    await call(there)
    there.issuer["scopes_supported"] = ["read", "offline_access"]
    await call(there)
    assert [visit["scope"] for visit in there.visits] == ["read", "read offline_access"]
    assert [visit.get("prompt") for visit in there.visits] == [None, "consent"]


async def test_several_issuers_and_one_is_preferred(there: Company) -> None:
    there.resource["authorization_servers"] = ["https://other.example", there.origin]
    await call(there, issuer=there.origin)
    assert len(there.visits) == 1


async def test_an_issuer_that_was_given_is_the_only_one(there: Company) -> None:
    for change in (lambda: None, there.resource.clear):
        change()
        there.challenge = "" if not there.resource else None
        with pytest.raises(SignInError, match="the issuer that was given"):
            await call(there, issuer="https://trusted.example")
    assert not there.visits and not there.forms


async def test_a_server_does_not_decide_who_gets_a_secret(there: Company) -> None:
    async with company() as other:
        there.resource["authorization_servers"] = [other.origin]
        secrets: list[Callable[..., Any]] = [
            lambda **more: ClientCredentials("me", "secret", **more),
            lambda **more: WorkloadIdentity("token", client_id="me", **more),
            lambda **more: SignIn(
                redirect=other, store=MemoryCredentialStore(), client_id="me", client_secret="secret", **more
            ),
        ]
        for made in secrets:
            with pytest.raises(SignInError, match=r"nobody has said that the secret is for it"):
                await call(there, made())
        assert not other.forms and not other.visits
        for made in secrets:
            with pytest.raises(SignInError, match="refuses the tokens"):
                await call(there, made(issuer=other.origin))
        assert other.forms and not there.forms


async def test_a_server_of_2025_03_26_is_its_own_issuer(there: Company) -> None:
    there.resource.clear()
    there.issuer.clear()
    there.challenge = ""
    await call(there)
    assert there.visits[0]["resource"] == there.url and len(there.forms) == 1


@for_each_row("status", [429, 500, 503])
async def test_metadata_that_cannot_be_had_now_is_not_taken_for_metadata_that_is_not_there(status: int) -> None:
    async with company() as there:
        there.missing_status = status
        for cleared in (there.issuer, there.resource):
            cleared.clear()
            there.challenge = "" if not there.resource else None
            with pytest.raises(SignInError, match=f"cannot be had: HTTP {status}"):
                await call(there)
        assert not there.visits and not there.forms


async def test_a_client_acts_for_itself(there: Company) -> None:
    assert await call(there, ClientCredentials("me", "secret")) == "3"
    assert there.forms[0]["grant_type"] == "client_credentials" and there.forms[0]["scope"] == "read"
    assert basic_pair(there.list_requested_uris("/token")[0]) == ("me", "secret")
    with pytest.raises(UsageError, match="secret or a private key"):
        ClientCredentials("me")
    for key, algorithm in (
        ("no key", "ES256"),
        ("a shared secret", "HS256"),
        ("{}", "RS256"),
        ("x", "none"),
    ):
        with pytest.raises(SignInError, match=f"cannot sign with {algorithm}"):
            await call(there, ClientCredentials("me", private_key=key, algorithm=algorithm))


async def test_a_client_that_acts_for_itself_asks_anew_where_others_refresh(there: Company) -> None:
    there.token_fields["expires_in"] = 5
    async with RemoteServer(there.url, auth=ClientCredentials("me", "secret")).connect() as client:
        assert await client.call("add") == "3"
        there.tokens.clear()
        assert await client.call("add") == "3"
    assert [form["grant_type"] for form in there.forms] == ["client_credentials"] * 2


async def test_a_signed_assertion_and_dpop_are_checked_with_the_public_keys(there: Company) -> None:
    key = generate_private_key(SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    there.token_fields["token_type"] = "DPoP"
    auth = ClientCredentials("me", private_key=pem, dpop=True)
    await call(there, auth)
    (form,) = there.forms
    claims = jwt.decode(form["client_assertion"], key.public_key(), ["ES256"], audience=there.origin)
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("me", "me", there.origin)
    sent = [exchange.headers["dpop"] for exchange in there.web.seen if "dpop" in exchange.headers]
    proofs = []
    for proof in sent:
        header = jwt.get_unverified_header(proof)
        assert header["typ"] == "dpop+jwt" and "d" not in header["jwk"]
        proofs.append(jwt.decode(proof, jwt.PyJWK(header["jwk"]), ["ES256"]))
    assert len({proof["jti"] for proof in proofs}) == len(proofs) > 2
    assert [proof["htu"] for proof in proofs][:2] == [f"{there.origin}/token", there.url]
    assert "ath" not in proofs[0] and all("ath" in proof for proof in proofs[1:])


async def test_a_token_that_is_not_bound_is_refused_where_bound_ones_were_asked_for(there: Company) -> None:
    there.token_fields["token_type"] = "Bearer"
    with pytest.raises(SignInError, match="not bound to our key"):
        await call(there, ClientCredentials("me", "secret", dpop=True))


@for_each_row("algorithms", [[], ["ES256"]])
async def test_where_a_server_takes_both_kinds_of_tokens_its_issuer_decides(
    there: Company, algorithms: list[str]
) -> None:
    there.challenge = 'DPoP algs="ES256", Bearer'
    there.issuer["dpop_signing_alg_values_supported"] = algorithms
    there.token_fields["token_type"] = "DPoP" if algorithms else "Bearer"
    assert await call(there) == "3"
    assert ("dpop" in there.forms[-1]["headers"]) == bool(algorithms)


async def test_nonces_of_the_issuer_and_of_the_server_are_sent_back_to_each(there: Company) -> None:
    there.nonces, there.token_fields["token_type"] = True, "DPoP"
    there.resource["dpop_bound_access_tokens_required"] = True
    assert await call(there) == "3"
    assert len(there.visits) == 1 and len(there.list_requested_uris("/token")) == 2
    assert len([each for each in there.list_requested_uris("/mcp") if each.method == "tools/call"]) == 1, (
        "the nonce is kept"
    )


async def test_a_registration_that_is_refused_says_why_and_what_helps(there: Company) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(400, b'{"error": "invalid_redirect_uri", "error_description": "no loopback here"}')

    there.register = refuse
    with pytest.raises(SignInError, match=r"invalid_redirect_uri: no loopback here\n  fix: register a client by hand"):
        await call(there)


async def test_a_companys_identity_provider_vouches_for_a_person(there: Company) -> None:
    jag = "urn:ietf:params:oauth:token-type:id-jag"
    async with company() as idp:
        idp.token_fields = {"access_token": "assertion", "issued_token_type": jag, "token_type": "N_A"}
        auth = CrossAppAccess(
            idp_token_endpoint=f"{idp.origin}/token", id_token="who I am", client_id="me", idp_client_id="me there"
        )
        assert await call(there, auth) == "3"
        (exchanged,) = idp.forms
        assert exchanged["subject_token"] == "who I am" and exchanged["audience"] == there.origin
        assert exchanged["resource"] == there.url and exchanged["client_id"] == "me there"
        assert there.forms[0]["assertion"] == "assertion" and there.forms[0]["client_id"] == "me"
        idp.token_fields = {"token_type": "Bearer"}
        there.tokens.clear()
        there.refreshing.clear()
        with pytest.raises(SignInError, match="gave no assertion"):
            await call(there, auth)


async def test_a_workload_shows_its_own_token_and_does_not_try_again(there: Company) -> None:
    async def fresh() -> str:
        return "workload token"

    assert await call(there, WorkloadIdentity(fresh, client_id="me")) == "3"
    assert there.forms[0]["assertion"] == "workload token"
    there.token_errors.append({"error": "invalid_grant"})
    with pytest.raises(SignInError, match="invalid_grant"):
        await call(there, WorkloadIdentity("expired", client_id="me"))
    assert len(there.forms) == 2


@pytest.mark.req("MCP-AUTH-8")
async def test_a_token_is_not_sent_over_a_connection_that_others_can_read() -> None:
    with pytest.raises(UsageError, match="only https is safe"):
        SignIn(store=MemoryCredentialStore()).authorizer("http://mcp.example/mcp")


async def test_a_token_that_cannot_be_renewed_yet_is_used_until_it_ends(there: Company) -> None:
    store = MemoryCredentialStore()
    there.token_fields["expires_in"] = 20
    await call(there, store=store)
    there.token_errors += [{"error": "temporarily_unavailable"}] * 9
    assert await call(there, StoredSignIn(store)) == "3"
    kept = store.load_credential(there.url)
    assert kept is not None and kept.tokens is not None
    store.store_credential(replace(kept, tokens=replace(kept.tokens, expires_at=1.0)))
    with pytest.raises(SignInError, match="temporarily_unavailable"):
        await call(there, StoredSignIn(store))


def keep_old_tokens(store: MemoryCredentialStore, origin: str) -> str:
    """The address of a server for which tokens are kept that are about to expire."""
    url = f"{origin}/mcp"
    tokens = Tokens("old", expires_at=time.time() + 5, refresh_token="r1")
    issuer = IssuerMetadata(origin, token_endpoint=f"{origin}/token")
    kept = Credential(url, url, issuer, ClientRegistration("me"), tokens, reach=NetworkReach.MACHINE)
    store.store_credential(kept)
    return url


async def test_a_client_that_is_closed_while_it_renews_its_tokens_keeps_the_new_ones() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def renew(exchange: Exchange) -> None:
        asked.set()
        await answer.wait()
        body = json.dumps({"access_token": "new", "token_type": "Bearer", "refresh_token": "r2"}).encode()
        await exchange.respond(200, body, content_type="application/json")

    async with web(renew) as server:
        store = MemoryCredentialStore()
        url = keep_old_tokens(store, server.url.rstrip("/"))
        authorizer = ServerAuthorizer(url, store, None)
        sending = asyncio.create_task(authorizer.headers("GET", url))
        await asked.wait()
        closing = asyncio.create_task(authorizer.aclose())
        await asyncio.sleep(0.05)
        answer.set()
        await closing
        await asyncio.gather(sending, return_exceptions=True)
    kept = store.load_credential(url)
    assert kept is not None and kept.tokens is not None and kept.tokens.refresh_token == "r2"


class FullStore(MemoryCredentialStore):
    """It keeps what it has."""

    def store_credential(self, credential: Credential) -> None:
        if self._kept:
            raise UsageError("the disk is full")
        super().store_credential(credential)


async def test_new_tokens_that_could_not_be_stored_are_never_replaced_by_the_old_ones() -> None:
    sent: list[str] = []

    async def renew(exchange: Exchange) -> None:
        sent.append(parse_qs(exchange.body.decode())["refresh_token"][0])
        number = len(sent) + 1
        tokens = {"access_token": f"new{number}", "token_type": "Bearer", "refresh_token": f"r{number}"}
        await exchange.respond(200, json.dumps(tokens).encode(), content_type="application/json")

    async with web(renew) as server:
        store = FullStore()
        url = keep_old_tokens(store, server.url.rstrip("/"))
        authorizer = ServerAuthorizer(url, store, None)
        await authorizer.headers("GET", url)
        assert (await authorizer.headers("GET", url))["authorization"] == "Bearer new2"
        assert authorizer.credential is not None and authorizer.credential.tokens is not None
        ending = replace(authorizer.credential.tokens, expires_at=time.time() + 5)
        authorizer.credential = replace(authorizer.credential, tokens=ending)
        await authorizer.headers("GET", url)
        assert (await authorizer.headers("GET", url))["authorization"] == "Bearer new3"
    assert sent == ["r1", "r2"]


async def test_a_renewal_that_is_given_up_while_it_waits_for_the_lock_never_keeps_it() -> None:
    store = MemoryCredentialStore()
    url = keep_old_tokens(store, "http://127.0.0.1:1")
    authorizer = ServerAuthorizer(url, store, None)
    with store.hold_credential_lock(url):
        sending = asyncio.create_task(authorizer.headers("GET", url))
        await asyncio.sleep(0.1)
        await authorizer.aclose()
        await sending

    def take_lock() -> None:
        with store.hold_credential_lock(url):
            pass

    await asyncio.wait_for(asyncio.to_thread(take_lock), 5)


async def test_a_client_that_is_closed_gives_up_its_sign_in(there: Company) -> None:
    class Absent(Person):
        async def visit(self, url: str, is_answer: Callable[[str], bool]) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    class Waiting:
        @asynccontextmanager
        async def open(self, preferred: str, mark: str) -> AsyncIterator[Person]:
            yield Absent(there.say_yes, mark)

    authorizer = SignIn(redirect=Waiting(), store=MemoryCredentialStore()).authorizer(there.url)
    waiting = asyncio.create_task(authorizer.handle_challenge(HttpChallenge(401, {}, "", ["127.0.0.1"])))
    await until(lambda: bool(there.registered))
    assert authorizer.is_signing_in
    await authorizer.aclose()
    with pytest.raises(SignInError, match="was closed"):
        await waiting
    with pytest.raises(UsageError, match="both a token"):
        await connect_url(there.url, token="t0ken", auth=SignIn(store=MemoryCredentialStore()))


async def test_what_another_process_renewed_meanwhile_is_taken_from_the_store(there: Company) -> None:
    store = MemoryCredentialStore()
    await call(there, store=store)
    mine = ServerAuthorizer(there.url, store, None)
    before = await mine.headers("POST", there.url)
    kept = store.load_credential(there.url)
    assert kept is not None and kept.tokens is not None
    # Another process uses the refresh token: it counts no more.
    there.tokens = {"access-9": "read"}
    there.refreshing.clear()
    store.store_credential(kept.with_tokens(replace(kept.tokens, access_token="access-9", expires_at=time.time() + 99)))
    async with RemoteServer(there.url, auth=_Given(mine)).connect() as client:
        assert await client.call("add") == "3"
    assert (await mine.headers("POST", there.url)) != before and len(there.visits) == 1


class _Given:
    def __init__(self, authorizer: ServerAuthorizer) -> None:
        self._authorizer = authorizer

    def authorizer(self, url: str) -> ServerAuthorizer:
        return self._authorizer


def test_the_address_of_a_sign_in_page_may_end_with_a_question_mark() -> None:
    issuer = IssuerMetadata("https://i.example", "https://i.example/authorize?")
    found = DiscoveredIssuer(ResourceMetadata("https://s.example/mcp"), issuer)
    url = Attempt(found, ClientRegistration("me"), "http://127.0.0.1:1/callback", ()).url
    assert url.startswith("https://i.example/authorize?response_type=code&")
