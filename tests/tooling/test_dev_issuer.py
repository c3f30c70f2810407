"""The issuer for development: it signs in the users of its list, for programs on this machine, and nobody else."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest

from defserve.auth.oauth import encode_client_basic_auth, make_pkce_challenge
from defserve.auth.proxy.site_messages import SiteRequest, SiteResponse
from defserve.errors import UsageError
from defserve.tooling import dev_issuer
from defserve.tooling.dev_issuer import DEV_ISSUER_WARNING, DevIssuer, serve_dev_issuer
from tests.rows import for_each_row

ISSUER, REDIRECT, VERIFIER = "http://127.0.0.1:9000", "http://127.0.0.1:8000/callback", "v" * 43
ASKED = {
    "response_type": "code",
    "client_id": "notes",
    "redirect_uri": REDIRECT,
    "state": "s1",
    "nonce": "n1",
    "code_challenge": make_pkce_challenge(VERIFIER),
    "code_challenge_method": "S256",
}
AUTHORIZATION = encode_client_basic_auth("notes", "any")


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer(clock: Clock) -> DevIssuer:
    return DevIssuer(["ann@example.com", "bob@example.com"], ISSUER, clock=clock)


def get(issuer: DevIssuer, path: str, query: dict[str, str] | None = None, **headers: str) -> SiteResponse:
    return issuer.answer_request(
        SiteRequest("GET", path, urlencode(query or {}), {"host": "127.0.0.1:9000", **headers})
    )


def post(issuer: DevIssuer, path: str, form: dict[str, str], **headers: str) -> SiteResponse:
    kind = {"host": "127.0.0.1:9000", "content-type": "application/x-www-form-urlencoded"}
    return issuer.answer_request(SiteRequest("POST", path, "", {**kind, **headers}, urlencode(form).encode()))


def click(issuer: DevIssuer, page: SiteResponse, user: str, **headers: str) -> SiteResponse:
    found = re.search(rb'name="request" value="([^"]+)"', page.body)
    assert found is not None, page.body
    return post(issuer, "/authorize", {"request": found[1].decode(), "user": user}, **headers)


def code_for(issuer: DevIssuer, user: str = "ann@example.com") -> str:
    back = click(issuer, get(issuer, "/authorize", ASKED), user)
    location = urlsplit(dict(back.headers)["location"])
    fields = dict(parse_qsl(location.query))
    assert back.status == 302 and location._replace(query="").geturl() == REDIRECT
    assert fields["state"] == "s1" and fields["iss"] == ISSUER
    return fields["code"]


def exchange(issuer: DevIssuer, code: str, authorization: str = AUTHORIZATION, **changed: str) -> SiteResponse:
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT, "code_verifier": VERIFIER}
    return post(issuer, "/token", {**form, **changed}, authorization=authorization)


def read(answer: SiteResponse) -> Any:
    return json.loads(answer.body)


def test_the_page_lists_the_users_and_says_that_it_is_for_development(issuer: DevIssuer):
    page = get(issuer, "/authorize", ASKED)
    text = page.body.decode()
    assert page.status == 200 and DEV_ISSUER_WARNING in text
    assert re.findall(r'<button name="user" value="([^"]+)"', text) == ["ann@example.com", "bob@example.com"]


def test_who_is_clicked_is_signed_in(issuer: DevIssuer):
    tokens = read(exchange(issuer, code_for(issuer, "bob@example.com")))
    said = read(get(issuer, "/user", authorization=f"Bearer {tokens['access_token']}"))
    assert said["sub"] == said["email"] == "bob@example.com" and said["email_verified"] is True
    assert get(issuer, "/user", authorization="Bearer other").status == 401


def test_a_code_is_good_once_for_its_client_its_verifier_and_a_minute(issuer: DevIssuer, clock: Clock):
    assert exchange(issuer, code_for(issuer), code_verifier="w" * 43).status == 400
    assert exchange(issuer, code_for(issuer), redirect_uri=f"{REDIRECT}2").status == 400
    assert exchange(issuer, code_for(issuer), encode_client_basic_auth("other", "any")).status == 400
    assert exchange(issuer, code_for(issuer), encode_client_basic_auth("notes", "")).status == 401
    code = code_for(issuer)
    assert exchange(issuer, code).status == 200
    assert read(exchange(issuer, code))["error"] == "invalid_grant"
    late = code_for(issuer)
    clock.now += 61
    assert exchange(issuer, late).status == 400


def test_a_refresh_token_renews_once(issuer: DevIssuer):
    first = read(exchange(issuer, code_for(issuer)))["refresh_token"]
    form = {"grant_type": "refresh_token", "refresh_token": first, "client_id": "notes", "client_secret": "any"}
    assert read(post(issuer, "/token", form))["refresh_token"] != first
    assert read(post(issuer, "/token", form))["error"] == "invalid_grant"
    assert read(post(issuer, "/token", {**form, "grant_type": "password"}))["error"] == "unsupported_grant_type"


@for_each_row(
    "changed, said",
    [
        ({"redirect_uri": "https://notes.example.com/callback"}, "only to programs on this machine"),
        ({"redirect_uri": "javascript:alert(1)"}, "only to programs on this machine"),
        ({"redirect_uri": "http://evil.example\\@127.0.0.1/callback"}, "only to programs on this machine"),
        ({"redirect_uri": "http://127.0.0.1/\r\nset-cookie: a=b"}, "only to programs on this machine"),
        ({"code_challenge_method": "plain"}, "PKCE with S256"),
        ({"response_type": "token"}, "response_type=code"),
        ({"client_id": ""}, "client_id is missing"),
    ],
)
def test_nobody_is_sent_away_from_this_machine_or_without_pkce(issuer: DevIssuer, changed: dict[str, str], said: str):
    page = get(issuer, "/authorize", {**ASKED, **changed})
    assert page.status == 400 and said in page.body.decode() and "<form" not in page.body.decode()


def test_pages_of_other_sites_can_neither_reach_it_nor_click(issuer: DevIssuer):
    assert get(issuer, "/keys", host="evil.example:9000").status == 403
    page = get(issuer, "/authorize", ASKED)
    assert click(issuer, page, "ann@example.com", origin="https://evil.example").status == 403
    assert click(issuer, page, "eve@example.com").status == 400
    assert click(issuer, page, "ann@example.com").status == 400, "a page is used once"


def test_what_is_begun_and_never_ended_is_forgotten(issuer: DevIssuer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dev_issuer, "MAX_KEPT", 2)
    pages = [get(issuer, "/authorize", ASKED) for _ in range(3)]
    assert [click(issuer, page, "ann@example.com").status for page in pages] == [400, 302, 302]


def test_a_user_without_a_name_is_refused():
    with pytest.raises(UsageError, match="cannot be a user"):
        DevIssuer(["ann@example.com", ""], ISSUER)


@pytest.mark.anyio
async def test_it_listens_on_loopback_and_answers_at_the_address_that_it_names():
    async with serve_dev_issuer(["ann@example.com"]) as issuer, httpx2.AsyncClient(trust_env=False) as http:
        assert issuer.issuer.startswith("http://127.0.0.1:")
        described = (await http.get(f"{issuer.issuer}/.well-known/openid-configuration")).json()
        assert described["issuer"] == issuer.issuer
        assert (await http.get(described["jwks_uri"])).json()["keys"][0]["alg"] == "RS256"
        assert (await http.get(issuer.issuer)).status_code == 404
        assert (await http.post(described["token_endpoint"], data={"a": "b"})).status_code == 401
