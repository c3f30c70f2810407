from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from defserve.auth import OAuthProxy, Vendor
from defserve.auth.issuers import HttpRequest, HttpResponse
from defserve.auth.oauth import check_oauth_url
from defserve.auth.proxy.site_messages import OAuthError
from defserve.auth.proxy.vendors import VENDORS, VendorLogin, resolve_vendor
from defserve.errors import UsageError
from tests.auth.browsing import answer_of, leads_to
from tests.auth.proxied import URL, proxy, visiting
from tests.auth.vendor import FakeVendor
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PLACES = {"tenant": "", "domain": "", "issuer": ""}
GIVEN = {
    "google": {},
    "github": {},
    "entra": {"tenant": "0f0f0f0f-0000-0000-0000-000000000000"},
    "auth0": {"domain": "shop.eu.auth0.com"},
    "okta": {"domain": "shop.okta.com"},
    "keycloak": {"issuer": "https://login.example/realms/shop"},
    "oidc": {"issuer": "https://login.example"},
}


def test_every_vendor_of_the_table_has_safe_addresses() -> None:
    assert set(GIVEN) == set(VENDORS)
    for name, places in GIVEN.items():
        vendor = resolve_vendor(name, {**PLACES, **places})
        for url in (vendor.issuer,) if vendor.issuer else (vendor.authorize, vendor.token, vendor.user):
            assert check_oauth_url(url, name).scheme == "https" and "{" not in url
        assert vendor.subject in vendor.names and "email" not in VENDORS["entra"].names


@for_each_row(
    "vendor, places, problem",
    [
        ("gogle", {}, "not a known vendor"),
        ("entra", {}, "tenant of tenant, domain and issuer"),
        ("google", {"issuer": "https://x.example"}, "none of tenant, domain and issuer"),
        ("oidc", {"domain": "x"}, "issuer of tenant, domain and issuer"),
    ],
)
def test_what_does_not_fit_a_vendor_is_refused(vendor: str, places: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        resolve_vendor(vendor, {**PLACES, **places})


class GitHub:
    """What GitHub answers: 200 to a bad code as well, and a user with a number for an id."""

    def __init__(self, **user: Any) -> None:
        self.user: dict[str, Any] = {"id": 583231, "login": "octocat", **user}
        self.asked: list[HttpRequest] = []
        self.is_valid = True

    async def send(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request)
        if request.url == VENDORS["github"].user:
            good = self.is_valid and request.headers["authorization"] == "Bearer gho_x"
            return HttpResponse(200 if good else 401, {}, json.dumps(self.user).encode())
        good = (request.form or {}).get("code") == "good"
        said = {"access_token": "gho_x", "token_type": "bearer"} if good else {"error": "bad_verification_code"}
        return HttpResponse(200, {}, json.dumps(said).encode())


async def test_a_vendor_without_discovery_is_asked_who_the_user_is() -> None:
    github = GitHub()
    login = VendorLogin(VENDORS["github"], "id", "secret", "https://x.example/callback", send=github.send)
    url = await login.make_sign_in_url("state", "verifier")
    fields = dict(parse_qsl(urlsplit(url).query))
    assert url.startswith("https://github.com/login/oauth/authorize?") and fields["scope"] == "read:user"
    assert "nonce" not in fields and fields["code_challenge_method"] == "S256"
    user = await login.finish_sign_in("good", "state", "verifier")
    assert user.claims == {"id": 583231, "login": "octocat", "sub": "583231"}
    assert "gho_x" not in repr(user), "no traceback and no log shows the vendor's tokens"
    assert user.tokens == {"access_token": "gho_x"} == await login.renew_tokens(user.tokens)
    github.user["login"] = "renamed"
    assert await login.reconfirm_user(user.tokens) == {**user.claims, "login": "renamed"}
    with pytest.raises(OAuthError, match="not accepted"):
        await login.finish_sign_in("bad", "state", "verifier")
    github.is_valid = False
    with pytest.raises(OAuthError, match="not accepted"):
        await login.reconfirm_user(user.tokens)
    with pytest.raises(OAuthError, match="another authorization server"):
        await login.check_issuer("https://evil.example")


async def test_github_names_itself_where_it_sends_users_back() -> None:
    login = VendorLogin(VENDORS["github"], "id", "secret", "https://x.example/callback", send=GitHub().send)
    for issuer in ("https://github.com/login/oauth", None):
        await login.check_issuer(issuer)
    for issuer in ("https://github.com", "", "https://github.com/login/oauth/"):
        with pytest.raises(OAuthError, match="another authorization server"):
            await login.check_issuer(issuer)


@for_each_row("id", [None, True, 1.5, [], {"id": 1}, "", "local"])
async def test_an_account_whose_id_is_none_has_no_name_here(id: Any) -> None:
    github = GitHub(id=id)
    login = VendorLogin(VENDORS["github"], "id", "secret", "https://x.example/callback", send=github.send)
    with pytest.raises(OAuthError, match="no usable id"):
        await login.finish_sign_in("good", "state", "verifier")


@for_each_row(
    "status, body, error",
    [
        (400, b'{"error": "invalid_grant"}', "invalid_grant"),
        (200, b'{"error": "bad_refresh_token"}', "invalid_grant"),
        (401, b'{"error": "invalid_client"}', "temporarily_unavailable"),
        (200, b'{"error": "incorrect_client_credentials"}', "temporarily_unavailable"),
        (200, b'{"error": ["invalid_grant"]}', "temporarily_unavailable"),
        (429, b"slow down", "temporarily_unavailable"),
        (403, b'{"message": "API rate limit exceeded"}', "temporarily_unavailable"),
        (404, b"", "temporarily_unavailable"),
        (503, b'{"error": "invalid_grant"}', "temporarily_unavailable"),
        (200, b"[]", "temporarily_unavailable"),
    ],
    ids=range(10),
)
async def test_only_a_grant_that_has_ended_is_called_ended(status: int, body: bytes, error: str) -> None:
    async def send(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status, {}, body)

    login = VendorLogin(VENDORS["github"], "id", "secret", "https://x.example/callback", send=send)
    with pytest.raises(OAuthError) as caught:
        await login.renew_tokens({"refresh_token": "ghr_x"})
    assert caught.value.error == error
    if status not in (200, 400):
        with pytest.raises(OAuthError) as caught:
            await login.reconfirm_user({"access_token": "gho_x"})
        assert caught.value.error == ("invalid_grant" if status == 401 else error)


async def test_a_user_of_such_a_vendor_comes_in_by_login() -> None:
    fake = FakeVendor()
    fake.user = {"id": 583231, "login": "octocat", "bio": "x" * 9000}
    base = fake.issuer
    vendor = Vendor(
        "Fake", authorize=f"{base}/auth", token=f"{base}/token", user=f"{base}/user", subject="id", names=("login",)
    )
    for allow, is_in in (("octocat", True), ("hubot", False)):
        auth = proxy(fake, which=vendor, issuer="", allow=[allow])
        async with visiting(fake, auth=auth) as visit:
            await visit.register()
            fake.metadata = {}
            left = await visit.decide(await visit.authorize())
            back = fake.sign_in(leads_to(left))
            said = answer_of(await visit.http.get(f"{urlsplit(back).path}?{urlsplit(back).query.split('&iss')[0]}"))
            assert ("code" in said) is is_in
            if is_in:
                tokens = (await visit.exchange(said["code"])).json()
                principal = await auth.verifier.verify(tokens["access_token"])
                assert principal is not None and principal.id == "583231" and "bio" not in principal.claims


@for_each_row(
    "said, seen",
    [
        ({"email": "ann@x.example", "email_verified": True}, {"email": "ann@x.example", "email_verified": True}),
        ({"email": "ann@x.example", "email_verified": False}, {"email_verified": False}),
        ({"email": "ann@x.example", "email_verified": "true"}, {"email_verified": "true"}),
        ({"email": "ann@x.example"}, {}),
        ({"email": ["ann@x.example"], "email_verified": True}, {"email_verified": True}),
    ],
    ids=range(5),
)
async def test_no_rule_of_the_author_sees_an_address_that_nobody_verified(said: dict[str, Any], seen: Any) -> None:
    shown: list[Any] = []

    def allow(claims: Any) -> bool:
        shown.append(claims)
        return True

    def scopes_for(claims: Any) -> list[str]:
        shown.append(claims)
        return ["more"]

    vendor = FakeVendor()
    vendor.user = {"sub": "u-1", **said}
    async with visiting(vendor, allow=allow, optional_scopes=["more"], scopes_for=scopes_for) as visit:
        tokens = await visit.tokens(scope="more")
        assert (await visit.refresh(tokens["refresh_token"])).status_code == 200
    assert len(shown) >= 4 and all(claims == {"sub": "u-1", **seen} for claims in shown)


@for_each_row("count, is_in", [(1, True), (2_000, True), (20_000, False)])
async def test_a_claim_is_seen_whole_or_the_sign_in_is_refused(count: int, is_in: bool) -> None:
    vendor, seen = FakeVendor(), list[int]()
    vendor.user["groups"] = [f"club-{i:06}" for i in range(count)]

    def allow(claims: Any) -> bool:
        seen.append(len(claims["groups"]))
        return True

    async with visiting(vendor, allow=allow) as visit:
        await visit.register()
        said = answer_of(await visit.come_back(await visit.decide(await visit.authorize())))
        assert ("code" in said) is is_in and set(seen) == ({count} if is_in else set())
        if not is_in:
            assert (
                said["error"] == "access_denied" and "groups of this account is too long" in said["error_description"]
            )


async def test_groups_that_the_vendor_leaves_out_because_they_are_many_are_not_taken_for_none() -> None:
    vendor = FakeVendor()
    vendor.user |= {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://x.example"}}}
    async with visiting(vendor, allow=lambda claims: "suspended" not in claims.get("groups", [])) as visit:
        await visit.register()
        said = answer_of(await visit.come_back(await visit.decide(await visit.authorize())))
        assert said["error"] == "access_denied" and "all groups of this account" in said["error_description"]


@for_each_row("listed, is_asked", [(["openid", "offline_access"], True), (["openid"], False), (None, False)])
async def test_a_vendor_that_can_renew_is_asked_to(listed: Any, is_asked: bool) -> None:
    vendor = FakeVendor()
    vendor.metadata |= {"scopes_supported": listed}
    async with visiting(vendor) as visit:
        await visit.register()
        url = leads_to(await visit.decide(await visit.authorize()))
        assert ("offline_access" in dict(parse_qsl(urlsplit(url).query))["scope"].split()) is is_asked


@for_each_row(
    "options, problem",
    [
        ({"client_secret": ""}, "needs a client_id and a client_secret"),
        ({"allow": []}, "lets nobody in"),
        ({"allow": ""}, "lets nobody in"),
        ({"store": "sqlite:///x.db"}, "no secret"),
        ({"secret": "short"}, "at least 32"),
        ({"url": "http://tools.example.com/mcp"}, "only https is safe"),
        ({"scopes": ["offline_access"]}, "between a client"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        proxy(FakeVendor(), **options)


def test_the_callback_is_said_for_the_vendor_s_form() -> None:
    made = proxy(FakeVendor())
    assert isinstance(made, OAuthProxy) and made.callback_url == URL.replace("/mcp", "/callback")
