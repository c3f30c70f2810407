"""People whom a company's identity provider vouches for (ID-JAG), and clients that sign: taken, and refused."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from joserfc import jwk, jwt

from defserve import UsageError
from defserve.auth import DPoP, OAuthProxy, RegisteredClient, TrustedIssuer
from defserve.auth.proxy.assertions import ID_JAG_PROFILE, JWT_BEARER_GRANT
from defserve.stores.store import MemoryStore
from tests.auth.identity_provider import Provider, documents_at_address, provider_at_address
from tests.auth.proofs import THUMBPRINT, proof
from tests.auth.proxied import SITE, URL, browser, call, proxy
from tests.auth.served import notes
from tests.auth.vendor import FakeVendor

pytestmark = pytest.mark.anyio

LONG_URL = f"https://{'a' * 60}.example.com/mcp"
BASIC = ("claude", "s" * 40)
SIGNS = jwk.ECKey.generate_key("P-256", {"kid": "agent-1"})


@pytest.fixture(scope="module")
def company() -> Iterator[Provider]:
    with provider_at_address() as provider:
        yield provider


def make_proxy(company: Provider, **options: Any) -> OAuthProxy:
    given: dict[str, Any] = {
        "url": URL,
        "scopes": ["notes:read"],
        "optional_scopes": ["notes:write"],
        "issuers": [TrustedIssuer(company.issuer, scopes=["notes:read", "notes:write"])],
        "clients": [
            RegisteredClient(*BASIC[:1], secret=BASIC[1]),
            RegisteredClient("agent", key=SIGNS.as_pem(private=False), scopes=["notes:read"], name="Agent"),
            RegisteredClient("job", secret="j" * 40, scopes=["notes:read", "notes:write"]),
        ],
    }
    return OAuthProxy(**{**given, **options})


@asynccontextmanager
async def at(auth: OAuthProxy, address: str = "127.0.0.1"):
    async with browser(notes(auth), address) as http:
        yield http
    await auth.close()


async def exchange(
    http: httpx2.AsyncClient, assertion: str, auth: tuple[str, str] | None = BASIC, headers: Any = None, **form: str
) -> httpx2.Response:
    fields = {"grant_type": JWT_BEARER_GRANT, "assertion": assertion, **form}
    return await http.post("/token", data=fields, auth=auth, headers=headers)


@pytest.mark.req("MCP-AUTH-10")
async def test_a_person_of_the_company_comes_in_without_a_further_sign_in(company: Provider) -> None:
    async with at(make_proxy(company)) as http:
        answer = (await exchange(http, company.make_id_jag(SITE, "claude", scope="notes:read"), resource=URL)).json()
        assert answer["token_type"] == "Bearer"
        assert answer["scope"] == "notes:read"
        assert "refresh_token" not in answer
        reply = await call(http, answer["access_token"])
        assert reply.json()["result"]["content"][0]["text"] == f"{company.issuer}|ann"


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "typ is that of any token": (lambda: {"header": {"typ": "JWT"}}, "typ"),
    "typ is that of an access token": (lambda: {"header": {"typ": "at+jwt"}}, "typ"),
    "typ is missing": (lambda: {"header": {"typ": None}}, "typ"),
    "kid is missing": (lambda: {"header": {"kid": None}}, "kid"),
    "kid is unknown": (lambda: {"header": {"kid": "third"}}, "kid"),
    "kid is of another key": (lambda: {"header": {"kid": "second"}}, "signature"),
    "crit is there": (lambda: {"header": {"typ": "oauth-id-jag+jwt", "crit": ["b64"], "b64": True}}, "crit"),
    "iss is unknown": (lambda: {"iss": "https://other.example"}, "iss"),
    "iss is missing": (lambda: {"iss": None}, "iss"),
    "iss is this server": (lambda: {"iss": SITE}, "iss"),
    "sub is missing": (lambda: {"sub": None}, "sub"),
    "sub is empty": (lambda: {"sub": ""}, "sub"),
    "sub is a number": (lambda: {"sub": 7}, "sub"),
    "sub is too long": (lambda: {"sub": "a" * 300}, "sub"),
    "sub breaks lines": (lambda: {"sub": "ann\nbob"}, "sub"),
    "aud is another server": (lambda: {"aud": "https://other.example"}, "aud"),
    "aud is the resource": (lambda: {"aud": URL}, "aud"),
    "aud is missing": (lambda: {"aud": None}, "aud"),
    "aud is two": (lambda: {"aud": [SITE, "https://other.example"]}, "aud"),
    "aud is none": (lambda: {"aud": []}, "aud"),
    "client_id is another client": (lambda: {"client_id": "job"}, "client_id"),
    "client_id is missing": (lambda: {"client_id": None, "jti": "x1"}, "client_id"),
    "client_id is a list": (lambda: {"client_id": ["claude"], "jti": "x2"}, "client_id"),
    "jti is missing": (lambda: {"jti": None}, "jti"),
    "jti is a number": (lambda: {"jti": 7}, "jti"),
    "jti is too long": (lambda: {"jti": "j" * 2000}, "jti"),
    "exp has passed": (lambda: {"exp": int(time.time()) - 1}, "exp"),
    "exp is missing": (lambda: {"exp": None}, "exp"),
    "exp is a text": (lambda: {"exp": "tomorrow"}, "exp"),
    "exp is far away": (lambda: {"exp": int(time.time()) + 90_000}, "exp"),
    "exp is larger than any float": (lambda: {"exp": 10**400}, "exp"),
    "iat is to come": (lambda: {"iat": int(time.time()) + 600}, "iat"),
    "iat is missing": (lambda: {"iat": None}, "iat"),
    "iat is a text": (lambda: {"iat": "now"}, "iat"),
    "nbf is to come": (lambda: {"nbf": int(time.time()) + 600}, "nbf"),
    "resource is another server": (lambda: {"resource": "https://other.example/mcp"}, "resource"),
    "resource is others": (lambda: {"resource": ["https://a.example/", "https://b.example/"]}, "resource"),
    "resource is a number": (lambda: {"resource": 7}, "resource"),
    "scope is a list": (lambda: {"scope": ["notes:read"]}, "scope"),
    "tenant is unknown": (lambda: {"tenant": "t1"}, "tenant"),
    "aud_tenant is set": (lambda: {"aud_tenant": "t1"}, "aud_tenant"),
    "authorization_details are set": (lambda: {"authorization_details": [{"type": "x"}]}, "authorization_details"),
    "cnf without a proof": (lambda: {"cnf": {"jkt": "x" * 43}}, "cnf"),
    "cnf by a certificate": (lambda: {"cnf": {"x5t#S256": "x" * 43}}, "cnf"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.req("MCP-AUTH-9")
async def test_one_wrong_thing_is_enough(company: Provider, wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    changed, check = WRONG[wrong]
    caplog.set_level(logging.DEBUG)
    assertion = company.make_id_jag(SITE, "claude", **changed())
    async with at(make_proxy(company)) as http:
        answer = await exchange(http, assertion)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")
    assert f": {check}" in answer.json()["error_description"]
    assert assertion.split(".")[1] not in caplog.text
    assert assertion.split(".")[1] not in answer.text


async def test_signatures_of_others_are_refused(company: Provider) -> None:
    good = company.make_id_jag(SITE, "claude", jti="s1").split(".")
    other = jwk.ECKey.generate_key("P-256", {"kid": "first"})
    claims = {"iss": company.issuer, "sub": "ann", "aud": SITE, "client_id": "claude", "jti": "s2"}
    claims |= {"iat": int(time.time()), "exp": int(time.time()) + 60}
    forged = jwt.encode({"alg": "ES256", "typ": "oauth-id-jag+jwt", "kid": "first"}, claims, other)
    secret = jwk.OctKey.import_key(json.dumps(company.keys.as_dict(private=False)))
    confused = jwt.encode({"alg": "HS256", "typ": "oauth-id-jag+jwt", "kid": "first"}, claims, secret)
    none = "eyJhbGciOiJub25lIiwidHlwIjoib2F1dGgtaWQtamFnK2p3dCIsImtpZCI6ImZpcnN0In0." + good[1] + "."
    async with at(make_proxy(company)) as http:
        for assertion in (forged, confused, none, ".".join([*good[:2], good[2][::-1]]), "a.b.c", "", "x" * 20_000):
            answer = await exchange(http, assertion)
            expected = "invalid_request" if not assertion else "invalid_grant"
            assert answer.json()["error"] == expected, assertion[:40]
        assert (await exchange(http, ".".join(good))).status_code == 200


async def test_optional_claims_may_be_there(company: Provider) -> None:
    more = {"email": "ann@example.com", "acr": "2", "amr": ["pwd"], "auth_time": 1, "act": {"sub": "agent"}}
    async with at(make_proxy(company)) as http:
        for resource in (URL, [URL], ["https://other.example", URL], f"{URL}/"):
            assertion = company.make_id_jag(SITE, "claude", resource=resource, **more)
            assert (await exchange(http, assertion)).status_code == 200
        assert (await exchange(http, company.make_id_jag(SITE, "claude", aud=[SITE]))).status_code == 200


@pytest.mark.parametrize(
    ("asserted", "asked", "granted"),
    [
        ("notes:read notes:write", None, "notes:read notes:write"),
        ("notes:read notes:write", "notes:write", "notes:write"),
        ("notes:read", "notes:read notes:write", "notes:read"),
        ("notes:read admin", "notes:read admin", "notes:read"),
        (None, None, "notes:read"),
        (None, "notes:read notes:write", "notes:read"),
    ],
)
@pytest.mark.req("MCP-AUTH-10")
async def test_scopes_are_the_intersection(
    company: Provider, asserted: str | None, asked: str | None, granted: str
) -> None:
    async with at(make_proxy(company)) as http:
        assertion = company.make_id_jag(SITE, "claude", **({"scope": asserted} if asserted else {}))
        answer = await exchange(http, assertion, **({"scope": asked} if asked else {}))
        assert answer.json()["scope"] == granted


async def test_an_issuer_gives_no_more_than_the_operator_lets_it(company: Provider) -> None:
    async with at(make_proxy(company, issuers=[TrustedIssuer(company.issuer)])) as http:
        assertion = company.make_id_jag(SITE, "claude", scope="notes:read notes:write")
        answer = (await exchange(http, assertion)).json()
        assert answer["scope"] == "notes:read"
        refused = await exchange(http, company.make_id_jag(SITE, "claude", scope="notes:write"), scope="notes:write")
        assert refused.json()["error"] == "invalid_scope"


@pytest.mark.req("MCP-AUTH-10")
async def test_an_assertion_is_good_once_in_all_processes_and_after_a_restart(company: Provider, tmp_path: Any) -> None:
    shared: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/grants.db", "secret": "k" * 32}
    assertion = company.make_id_jag(SITE, "claude")
    async with at(make_proxy(company, **shared)) as one, at(make_proxy(company, **shared)) as other:
        assert (await exchange(one, assertion)).status_code == 200
        for http in (one, other):
            assert (await exchange(http, assertion)).json()["error"] == "invalid_grant"
    async with at(make_proxy(company, **shared)) as restarted:
        assert (await exchange(restarted, assertion)).json()["error"] == "invalid_grant"


async def test_an_assertion_may_be_used_again_where_the_operator_says_so(company: Provider) -> None:
    assertion = company.make_id_jag(SITE, "claude")
    async with at(make_proxy(company, issuers=[TrustedIssuer(company.issuer, reuse=True)])) as http:
        assert [(await exchange(http, assertion)).status_code for _ in range(2)] == [200, 200]


async def test_a_refused_request_does_not_use_an_assertion_up(company: Provider) -> None:
    assertion = company.make_id_jag(SITE, "claude")
    async with at(make_proxy(company)) as http:
        assert (await exchange(http, assertion, resource="https://other.example")).json()["error"] == "invalid_target"
        assert (await exchange(http, assertion, auth=("claude", "wrong"))).status_code == 401
        assert (await exchange(http, assertion, auth=("job", "j" * 40))).json()["error"] == "invalid_grant"
        assert (await exchange(http, assertion)).status_code == 200


async def test_a_token_is_bound_to_the_key_that_the_assertion_names(company: Provider) -> None:
    token_url = f"{SITE}/token"
    bound = {"cnf": {"jkt": THUMBPRINT}}
    other = jwk.ECKey.generate_key("P-256")
    stranger = proof("", token_url, ath=None, key=other.private_key, header={"jwk": other.as_dict(private=False)})
    async with at(make_proxy(company, dpop=DPoP())) as http:
        for bad in ({}, {"dpop": stranger}, {"dpop": proof("", f"{SITE}/other", ath=None)}):
            answer = await exchange(http, company.make_id_jag(SITE, "claude", **bound), headers=bad)
            assert answer.json()["error"] in ("invalid_grant", "invalid_dpop_proof")
        made = proof("", token_url, ath=None)
        answer = await exchange(http, company.make_id_jag(SITE, "claude", **bound), headers={"dpop": made})
        token = answer.json()["access_token"]
        assert answer.json()["token_type"] == "DPoP"
        assert (await call(http, token)).status_code == 401
        again = await exchange(http, company.make_id_jag(SITE, "claude", **bound), headers={"dpop": made})
        assert again.json()["error"] == "invalid_dpop_proof"


async def test_equal_subjects_of_two_issuers_never_meet(company: Provider) -> None:
    with provider_at_address() as second:
        issuers = [TrustedIssuer(company.issuer), TrustedIssuer(second.issuer)]
        async with at(make_proxy(company, issuers=issuers)) as http:
            names = set()
            for provider in (company, second):
                token = (await exchange(http, provider.make_id_jag(SITE, "claude"))).json()["access_token"]
                names.add((await call(http, token)).json()["result"]["content"][0]["text"])
            assert names == {f"{company.issuer}|ann", f"{second.issuer}|ann"}
            # Signed by one in the name of the other.
            assertion = second.make_id_jag(SITE, "claude", iss=company.issuer)
            assert (await exchange(http, assertion)).json()["error"] == "invalid_grant"


async def test_a_vendors_user_cannot_have_the_name_of_a_companys(company: Provider) -> None:
    vendor = FakeVendor()
    auth = proxy(vendor, issuers=[TrustedIssuer(company.issuer)])
    tokens = auth._tokens
    from defserve.auth.proxy.tokens import UserGrant

    def is_allowed(subject: str, source: str = "") -> bool:
        grant = UserGrant("g", "c", subject, (), URL, {"sub": subject}, "", time.time() + 60, 1, source=source)
        return tokens._is_allowed(grant)

    assert is_allowed("ann")
    assert not is_allowed(f"{company.issuer}|ann")
    assert is_allowed(f"{company.issuer}|ann", company.issuer)
    assert not is_allowed(f"{SITE}|job")
    assert not is_allowed("https://gone.example|ann", "https://gone.example")


async def test_people_are_named_by_their_tenant_too(company: Provider) -> None:
    issuers = [TrustedIssuer(company.issuer, tenant="red"), TrustedIssuer(company.issuer, tenant="blue")]
    async with at(make_proxy(company, issuers=issuers)) as http:
        for tenant in ("red", "blue"):
            token = (await exchange(http, company.make_id_jag(SITE, "claude", tenant=tenant))).json()["access_token"]
            name = (await call(http, token)).json()["result"]["content"][0]["text"]
            assert name == f"{company.issuer}#{tenant}|ann"
        for bad in ({}, {"tenant": "green"}):
            answer = await exchange(http, company.make_id_jag(SITE, "claude", **bad))
            assert answer.json()["error"] == "invalid_grant"


async def test_the_keys_of_one_tenant_do_not_speak_for_another(company: Provider) -> None:
    theirs = jwk.ECKey.generate_key("P-256", {"kid": "first"})

    async def fetch(url: str) -> bytes:
        return json.dumps(jwk.KeySet([theirs]).as_dict(private=False)).encode()

    own = TrustedIssuer(company.issuer, tenant="t2", jwks_url="https://t2.example/keys", fetch=fetch)
    other_algorithm = TrustedIssuer(company.issuer, tenant="t3", algorithms="RS256")
    async with at(
        make_proxy(company, issuers=[TrustedIssuer(company.issuer, tenant="t1"), own, other_algorithm])
    ) as http:
        taken = {
            tenant: (await exchange(http, company.make_id_jag(SITE, "claude", tenant=tenant))).status_code
            for tenant in ("t1", "t2", "t3", "t4")
        }
    assert taken == {"t1": 200, "t2": 400, "t3": 400, "t4": 400}


async def test_whoever_is_not_allowed_any_more_is_out_at_once(company: Provider) -> None:
    welcome = {"ann"}
    trusted = TrustedIssuer(company.issuer, allow=lambda claims: claims["sub"] in welcome)
    async with at(make_proxy(company, issuers=[trusted])) as http:
        token = (await exchange(http, company.make_id_jag(SITE, "claude"))).json()["access_token"]
        assert (await call(http, token)).status_code == 200
        welcome.clear()
        assert (await call(http, token)).status_code == 401
        answer = await exchange(http, company.make_id_jag(SITE, "claude"))
        assert answer.json()["error"] == "invalid_grant"


@pytest.mark.req("MCP-AUTH-11")
async def test_the_metadata_says_what_is_taken_and_never_who_is_trusted(company: Provider) -> None:
    async with at(make_proxy(company)) as http:
        answer = await http.get("/.well-known/oauth-authorization-server")
    found = answer.json()
    assert found["authorization_grant_profiles_supported"] == [ID_JAG_PROFILE]
    assert found["grant_types_supported"] == [JWT_BEARER_GRANT, "client_credentials"]
    assert {"private_key_jwt", "client_secret_basic"} <= set(found["token_endpoint_auth_methods_supported"])
    assert "ES256" in found["token_endpoint_auth_signing_alg_values_supported"]
    assert "none" not in [name.lower() for name in found["token_endpoint_auth_signing_alg_values_supported"]]
    assert "registration_endpoint" not in found
    assert company.issuer not in answer.text


async def test_without_issuers_nothing_is_said_and_taken(company: Provider) -> None:
    async with at(make_proxy(company, issuers=[])) as http:
        found = (await http.get("/.well-known/oauth-authorization-server")).json()
        assert "authorization_grant_profiles_supported" not in found
        answer = await exchange(http, company.make_id_jag(SITE, "claude"))
        assert answer.json()["error"] == "unsupported_grant_type"


async def test_keys_come_through_the_guard(company: Provider, caplog: pytest.LogCaptureFixture) -> None:
    """A provider whose metadata names an address of this machine that the operator did not write."""
    with provider_at_address() as inner:

        def find(address: str) -> dict[str, Any]:
            return {"/.well-known/openid-configuration": {"issuer": address, "jwks_uri": f"{inner.issuer}/jwks"}}

        with documents_at_address(find) as address:
            assertion = inner.make_id_jag(SITE, "claude", iss=address)
            async with at(make_proxy(company, issuers=[TrustedIssuer(address)])) as http:
                answer = await exchange(http, assertion)
            assert (answer.status_code, answer.json()["error"]) == (503, "temporarily_unavailable")
            assert "no keys from" in caplog.text
            # The same keys are taken from where the operator says.
            trusted = TrustedIssuer(address, jwks_url=f"{inner.issuer}/jwks")
            async with at(make_proxy(company, issuers=[trusted])) as http:
                assert (await exchange(http, assertion)).status_code == 200


# -- Clients that act for themselves.


def client_assertion(key: Any = SIGNS, header: dict[str, Any] | None = None, **changed: Any) -> dict[str, str]:
    now = int(time.time())
    good = {"iss": "agent", "sub": "agent", "aud": SITE, "jti": os.urandom(9).hex(), "iat": now, "exp": now + 300}
    claims = {name: value for name, value in {**good, **changed}.items() if value is not None}
    made = jwt.encode({"alg": "ES256", "kid": "agent-1", **(header or {})}, claims, key)
    return {
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": made,
    }


async def act(http: httpx2.AsyncClient, auth: tuple[str, str] | None = None, **form: str) -> httpx2.Response:
    return await http.post("/token", data={"grant_type": "client_credentials", **form}, auth=auth)


@pytest.mark.req("MCP-AUTH-12")
async def test_a_client_acts_for_itself_with_a_secret_or_a_signature(company: Provider) -> None:
    async with at(make_proxy(company)) as http:
        signed = (await act(http, **client_assertion(), resource=URL)).json()
        secret = (await act(http, ("job", "j" * 40), scope="notes:write")).json()
        assert (signed["scope"], secret["scope"]) == ("notes:read", "notes:write")
        assert "refresh_token" not in signed and "refresh_token" not in secret
        reply = await call(http, signed["access_token"])
        assert reply.json()["result"]["content"][0]["text"] == f"{SITE}|agent"
        posted = await act(http, client_id="job", client_secret="j" * 40)
        assert posted.status_code == 200


BAD_CLIENT: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "of another key": (lambda: {"key": jwk.ECKey.generate_key("P-256", {"kid": "agent-1"})}, "signature"),
    "aud is another server": (lambda: {"aud": "https://other.example"}, "aud"),
    "aud is two": (lambda: {"aud": [SITE, "https://other.example"]}, "aud"),
    "aud is missing": (lambda: {"aud": None}, "aud"),
    "iss is another": (lambda: {"iss": "job"}, "sub"),
    "exp has passed": (lambda: {"exp": int(time.time()) - 1}, "exp"),
    "exp is missing": (lambda: {"exp": None}, "exp"),
    "exp is far away": (lambda: {"exp": int(time.time()) + 90_000}, "exp"),
    "exp is larger than any float": (lambda: {"exp": 10**400}, "exp"),
    "jti is missing": (lambda: {"jti": None}, "jti"),
    "it is an identity assertion": (lambda: {"header": {"typ": "oauth-id-jag+jwt"}}, "typ"),
}


@pytest.mark.parametrize("wrong", BAD_CLIENT)
async def test_one_wrong_thing_in_a_clients_assertion_is_enough(company: Provider, wrong: str) -> None:
    changed, check = BAD_CLIENT[wrong]
    async with at(make_proxy(company)) as http:
        answer = await act(http, **client_assertion(**changed()))
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")
    assert f": {check}" in answer.json()["error_description"]


@pytest.mark.parametrize("path", ["/token", "/revoke"])
async def test_a_stranger_cannot_guess_the_secret_of_a_client_nor_lock_it_out(company: Provider, path: str) -> None:
    auth = make_proxy(company)
    async with at(auth, "198.51.100.7") as own, at(auth, "203.0.113.9") as http:
        assert (await act(own, ("job", "j" * 40))).status_code == 200

        async def guess(secret: str) -> httpx2.Response:
            return await http.post(path, data={"grant_type": "client_credentials", "token": "x"}, auth=("job", secret))

        refused = [await guess(f"wrong {n}") for n in range(12)]
        assert [answer.status_code for answer in refused] == [401] * 10 + [429] * 2
        last = await guess("j" * 40)
        assert (last.status_code, last.json()["error"]) == (429, "temporarily_unavailable")
        assert 1 <= int(last.headers["retry-after"]) <= 7 and "www-authenticate" not in last.headers
        assert "too many wrong secrets" in last.json()["error_description"]
        # The client itself, at its own address, and others at the stranger's go on.
        assert [(await act(own, ("job", "j" * 40))).status_code for _ in range(20)] == [200] * 20
        assert (await act(http, ("claude", "s" * 40))).json()["error"] == "unauthorized_client"


async def test_a_clients_assertion_is_good_once(company: Provider, tmp_path: Any) -> None:
    shared: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/grants.db", "secret": "k" * 32}
    form = client_assertion()
    async with at(make_proxy(company, **shared)) as one, at(make_proxy(company, **shared)) as other:
        assert (await act(one, **form)).status_code == 200
        assert (await act(one, **form)).json()["error"] == "invalid_client"
        assert (await act(other, **form)).json()["error"] == "invalid_client"


@pytest.mark.req("MCP-AUTH-12")
async def test_only_clients_that_the_operator_lets_may_act_for_themselves(company: Provider) -> None:
    vendor = FakeVendor()
    known = [RegisteredClient("job", secret="j" * 40, scopes=[])]
    async with at(proxy(vendor, clients=[*known, RegisteredClient("claude", secret="s" * 40)])) as http:
        assert (await act(http, BASIC)).json()["error"] == "unauthorized_client"
        redirects = {"redirect_uris": ["https://app.example/cb"]}
        made = (await http.post("/register", json=redirects)).json()
        answer = await act(http, (made["client_id"], made["client_secret"]))
        assert answer.json()["error"] == "unauthorized_client"
        refused = await http.post("/register", json={**redirects, "grant_types": ["client_credentials"]})
        assert refused.status_code == 400
        assert (await act(http, ("job", "j" * 40))).status_code == 200


@pytest.mark.parametrize(
    ("auth", "form"),
    [
        (("job", "wrong"), {}),
        (("nobody", "j" * 40), {}),
        (("agent", "x"), {}),
        (None, {"client_id": "job"}),
        (None, {"client_id": "agent"}),
        (None, {"client_id": "job", **client_assertion()}),
        (None, {**client_assertion(), "client_assertion_type": "other"}),
    ],
)
async def test_clients_have_to_prove_who_they_are(
    company: Provider, auth: tuple[str, str] | None, form: dict[str, str]
) -> None:
    async with at(make_proxy(company)) as http:
        answer = await act(http, auth, **form)
        assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")


async def test_one_way_to_authenticate_is_enough(company: Provider) -> None:
    async with at(make_proxy(company)) as http:
        answer = await act(http, ("job", "j" * 40), **client_assertion())
        assert answer.json()["error"] == "invalid_request"


async def test_a_client_revokes_its_token(company: Provider) -> None:
    async with at(make_proxy(company)) as http:
        token = (await act(http, ("job", "j" * 40))).json()["access_token"]
        assert (await call(http, token)).status_code == 200
        await http.post("/revoke", data={"token": token}, auth=("job", "j" * 40))
        assert (await call(http, token)).status_code == 401


DOCUMENT = "https://app.example/signs.json"


def documents_of_a_signing_client(where: str = "jwks") -> Callable[[str], Awaitable[bytes]]:
    keys = {"keys": [SIGNS.as_dict(private=False)]}
    document = {
        "client_id": DOCUMENT,
        "redirect_uris": ["https://app.example/cb"],
        "token_endpoint_auth_method": "private_key_jwt",
        where: keys if where == "jwks" else "https://app.example/keys.json",
    }

    async def fetch(url: str) -> bytes:
        return json.dumps({DOCUMENT: document, "https://app.example/keys.json": keys}[url]).encode()

    return fetch


async def test_a_client_that_describes_itself_leaves_nothing_in_the_store_without_a_grant(company: Provider) -> None:
    store, who = MemoryStore(), {"iss": DOCUMENT, "sub": DOCUMENT}
    made = make_proxy(company, fetch=documents_of_a_signing_client(), store=store, secret="k" * 32)
    async with at(made) as http:
        wrong = {"code": "none", "code_verifier": "x" * 64, "refresh_token": "none", "assertion": "none"}
        for grant_type in ("client_credentials", JWT_BEARER_GRANT, "refresh_token", "password"):
            answer = await http.post("/token", data={"grant_type": grant_type, **wrong, **client_assertion(**who)})
            assert answer.status_code == 400, answer.text
        answer = await http.post("/revoke", data={"token": "none", **client_assertion(**who)})
        assert answer.status_code == 200
        assert [space async for space in store.spaces("") if "nonce:" in space] == []


@pytest.mark.parametrize("where", ["jwks", "jwks_uri"])
async def test_a_client_that_describes_itself_may_sign(company: Provider, where: str) -> None:
    fetch, who = documents_of_a_signing_client(where), {"iss": DOCUMENT, "sub": DOCUMENT}
    async with at(make_proxy(company, fetch=fetch)) as http:
        assertion = company.make_id_jag(SITE, DOCUMENT)
        assert (await exchange(http, assertion, auth=None, client_id=DOCUMENT)).json()["error"] == "invalid_client"
        answer = await exchange(http, assertion, auth=None, **client_assertion(**who))
        assert answer.status_code == 200, answer.text
        # It proves who it is, and still may not act for itself: anybody can write such a document.
        assert (await act(http, **client_assertion(**who))).json()["error"] == "unauthorized_client"


async def test_a_public_client_is_taken_only_where_the_operator_says_so(company: Provider) -> None:
    document = {"client_id": DOCUMENT, "redirect_uris": ["https://app.example/cb"]}

    async def fetch(url: str) -> bytes:
        return json.dumps(document).encode()

    for is_taken in (False, True):
        issuers = [TrustedIssuer(company.issuer, public_clients=is_taken)]
        async with at(make_proxy(company, fetch=fetch, issuers=issuers)) as http:
            answer = await exchange(http, company.make_id_jag(SITE, DOCUMENT), auth=None, client_id=DOCUMENT)
            assert (answer.status_code == 200) is is_taken
            assert is_taken or answer.json()["error"] == "invalid_grant"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: TrustedIssuer("ftp://x"), "issuer"),
        (lambda: TrustedIssuer("https://x.example", seconds=1), "seconds"),
        (lambda: TrustedIssuer("https://x.example", tenant="a|b"), "tenant"),
        (lambda: TrustedIssuer("https://x.example", algorithms="HS256"), "secrets"),
        (lambda: RegisteredClient("a"), "one way"),
        (lambda: RegisteredClient("a", secret=["s", ""]), "empty"),
        (lambda: RegisteredClient("https://x.example/c", secret="s"), "cannot be called"),
        (lambda: RegisteredClient("a", key="not a key"), "RegisteredClient"),
        (lambda: OAuthProxy(url=URL), "nobody"),
        (lambda: OAuthProxy(url=LONG_URL, clients=[RegisteredClient("c" * 200, secret="s", scopes=[])]), "too long"),
        (lambda: OAuthProxy(url=URL, issuers=[TrustedIssuer(SITE)]), "itself"),
        (lambda: OAuthProxy(url=URL, issuers=[TrustedIssuer("https://x.example", scopes=["a"])]), "scope"),
        (lambda: OAuthProxy(url=URL, clients=[RegisteredClient("a", secret="s")] * 2), "twice"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        make()
