from __future__ import annotations

import asyncio
import gc
import json
import secrets
import time
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import pytest

from defserve.auth import DPoP, OAuthProxy, Principal
from defserve.auth.issuers import HttpRequest, HttpResponse
from defserve.auth.proxy import sign_in
from defserve.auth.proxy import tokens as grants
from defserve.auth.proxy import tokens as tokens_module
from defserve.auth.proxy.site_messages import SiteRequest
from defserve.errors import ToolError
from defserve.stores.store import MemoryStore, StoreChange, StoreUnavailable
from tests.auth.browsing import Visit
from tests.auth.proofs import proof
from tests.auth.proxied import SITE, URL, call, everything, proxy, visiting
from tests.auth.vendor import FakeVendor
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


class Clock:
    """The module `time` for those who ask it what time it is, some seconds ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.monotonic = time.monotonic

    def time(self) -> float:
        return time.time() + self.ahead


async def is_in(visit: Any, token: str) -> bool:
    return (await call(visit.http, token)).status_code == 200


@for_each_row(
    "changed",
    [
        {"code_verifier": secrets.token_urlsafe(48)},
        {"code_verifier": "short"},
        {"redirect_uri": "http://127.0.0.1:9/callback"},
    ],
    ids=range(3),
)
async def test_a_code_is_of_no_use_to_another(changed: dict[str, Any]) -> None:
    async with visiting() as visit:
        code = await visit.code()
        answer = await visit.exchange(code, **changed)
        assert answer.status_code == 400 and answer.json()["error"] == "invalid_grant"
        assert (await visit.exchange(code)).status_code == 200, "and the client itself can still use it"


async def test_a_code_of_one_client_is_not_good_for_another() -> None:
    async with visiting() as visit:
        code, mine = await visit.code(), visit.client
        await visit.register(client_name="another")
        assert (await visit.exchange(code)).json()["error"] == "invalid_grant"
        visit.client = mine
        assert (await visit.exchange(code)).status_code == 200


async def test_a_refused_request_leaves_nothing_in_memory() -> None:
    def count_requests() -> int:
        gc.collect()
        return sum(isinstance(each, SiteRequest) for each in gc.get_objects())

    async with visiting() as visit:
        await visit.register()
        before = count_requests()
        for _ in range(5):
            assert (await visit.exchange("x" * 100)).json()["error"] == "invalid_grant"
            assert (await visit.refresh("x" * 100)).json()["error"] == "invalid_grant"
        assert count_requests() == before


async def test_a_code_that_is_used_twice_takes_back_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "KEPT_SECONDS", 0.0)
    async with visiting() as visit:
        code = await visit.code()
        tokens = (await visit.exchange(code)).json()
        assert await is_in(visit, tokens["access_token"])
        assert (await visit.exchange(code)).json()["error"] == "invalid_grant"
        assert not await is_in(visit, tokens["access_token"])
        assert (await visit.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"


async def test_a_refresh_gives_new_tokens_and_asks_the_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "KEPT_SECONDS", 0.0)
    async with visiting(scopes=["a"], optional_scopes=["b"], scopes_for=everything) as visit:
        first = await visit.tokens(scope="a b")
        second = (await visit.refresh(first["refresh_token"], resource=URL)).json()
        assert second["refresh_token"] != first["refresh_token"] and second["scope"] == "a b"
        assert await is_in(visit, second["access_token"])
        less = (await visit.refresh(second["refresh_token"], scope="a")).json()
        assert less["scope"] == "a"
        more = await visit.refresh(less["refresh_token"], scope="a c")
        assert more.json()["error"] == "invalid_scope"
        odd = await visit.refresh(less["refresh_token"], scope='a "quoted"')
        assert odd.json()["error"] == "invalid_scope"
        same = (await visit.refresh(less["refresh_token"], scope=" ")).json()
        assert same["scope"] == "a b"
        visit.vendor.refresh_tokens.clear()
        assert (await visit.refresh(same["refresh_token"])).json()["error"] == "invalid_grant"
        assert not await is_in(visit, same["access_token"]), "whom the vendor shuts out is shut out"


async def test_tokens_are_bound_to_a_key_from_the_first_request_that_proves_it() -> None:
    async with visiting(dpop=DPoP()) as visit:

        async def refresh(token: str, **headers: str) -> dict[str, Any]:
            form = {"grant_type": "refresh_token", "refresh_token": token, "client_id": visit.client["client_id"]}
            return (await visit.http.post("/token", data=form, headers=headers)).json()

        first = await visit.tokens()
        plain = await refresh(first["refresh_token"])
        assert plain["token_type"] == first["token_type"] == "Bearer"
        bound = await refresh(plain["refresh_token"], dpop=proof("", f"{SITE}/token", ath=None))
        assert bound["token_type"] == "DPoP" and not await is_in(visit, bound["access_token"])
        assert (await refresh(bound["refresh_token"]))["error"] == "invalid_dpop_proof"
        again = await refresh(bound["refresh_token"], dpop=proof("", f"{SITE}/token", ath=None))
        assert again["token_type"] == "DPoP"


async def test_a_vendor_that_is_away_ends_nothing() -> None:
    async with visiting() as visit:
        tokens = await visit.tokens()
        visit.vendor.is_shut = True
        assert (await visit.refresh(tokens["refresh_token"])).status_code == 503
        visit.vendor.is_shut = False
        assert (await visit.refresh(tokens["refresh_token"])).status_code == 200


def admins(claims: Any) -> list[str]:
    return ["more"] if "admins" in claims.get("groups", []) else []


@pytest.fixture(params=["the ID token", "the user endpoint", "the user endpoint, with the first access token"])
def telling(request: pytest.FixtureRequest) -> FakeVendor:
    """A vendor that says at a renewal what it says of its users, in one of the ways there are."""
    vendor = FakeVendor()
    vendor.user["groups"] = ["admins"]
    if request.param != "the ID token":
        vendor.lacks = {"id_token"}
        vendor.metadata["userinfo_endpoint"] = f"{vendor.issuer}/user"
    if request.param.endswith("access token"):
        vendor.lacks.add("refresh_token")
    return vendor


async def test_a_renewal_reads_anew_what_the_vendor_says_of_the_user(telling: FakeVendor) -> None:
    def allow(claims: Any) -> bool:
        return "suspended" not in claims["groups"]

    async with visiting(telling, allow=allow, optional_scopes=["more"], scopes_for=admins) as visit:
        tokens = await visit.tokens(scope="more")
        for groups, scope in (["admins"], "more"), ([], ""), (["admins", "staff"], "more"):
            telling.user["groups"] = groups
            tokens = (await visit.refresh(tokens["refresh_token"])).json()
            assert tokens["scope"] == scope
        assert await is_in(visit, tokens["access_token"])
        telling.user["groups"] = ["suspended"]
        assert (await visit.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
        telling.user["groups"] = []
        assert (await visit.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant", "the grant is ended"


@for_each_row(
    "changed", [{"sub": "u-2"}, {"sub": None}, {"aud": "another-app"}, {"nonce": "of another sign-in"}, {"exp": 1}]
)
async def test_a_renewal_speaks_of_the_same_user_and_to_us_or_ends_the_sign_in(changed: dict[str, Any]) -> None:
    async with visiting() as visit:
        tokens = await visit.tokens()
        visit.vendor.claims = changed
        assert (await visit.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
        visit.vendor.claims = {}
        assert (await visit.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"


async def test_a_claim_that_is_not_repeated_is_not_taken_for_empty(telling: FakeVendor) -> None:
    async with visiting(telling, allow=lambda claims: "suspended" not in claims.get("groups", [])) as visit:
        tokens = await visit.tokens()
        del telling.user["groups"]
        refused = (await visit.refresh(tokens["refresh_token"])).json()
        assert refused["error"] == "invalid_grant" and "sign in again" in refused["error_description"]


async def test_a_vendor_that_cannot_say_who_the_user_is_at_the_moment_ends_nothing(telling: FakeVendor) -> None:
    async with visiting(telling) as visit:
        tokens = await visit.tokens()
        telling.away = {"/user", "/token"}
        assert (await visit.refresh(tokens["refresh_token"])).status_code == 503
        telling.away = {"/user"}
        away = await visit.refresh(tokens["refresh_token"])
        if "id_token" in telling.lacks:
            # Its refresh token was used up for this: the next one must be kept.
            assert away.status_code == 503
            away = tokens
        else:
            away = away.json()
        telling.away = set()
        assert (await visit.refresh(away["refresh_token"])).status_code == 200


@for_each_row("lacks", [{"id_token"}, {"id_token", "refresh_token"}], ids=range(2))
async def test_who_cannot_be_confirmed_signs_in_again_after_hours(
    lacks: set[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grants, "KEPT_SECONDS", 0.0)
    vendor, clock = FakeVendor(), Clock()
    vendor.lacks = lacks
    auth = proxy(vendor)
    for module in (tokens_module, sign_in, grants):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(auth._tokens._grants, "_clock", clock.time)  # pyright: ignore[reportPrivateUsage]
    async with visiting(vendor, auth=auth) as visit:
        tokens = await visit.tokens()
        assert ("users sign in again after 8 hours" in caplog.text) is ("refresh_token" in lacks)
        clock.ahead = tokens_module.MAX_UNCONFIRMED_SECONDS - 60
        again = await visit.refresh(tokens["refresh_token"])
        assert again.status_code == 200 and again.json()["expires_in"] <= 60
        clock.ahead += 70
        assert not await is_in(visit, again.json()["access_token"])
        assert (await visit.refresh(again.json()["refresh_token"])).json()["error"] == "invalid_grant"


async def test_a_sign_in_that_was_long_unconfirmed_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    vendor, clock = FakeVendor(), Clock()
    vendor.lacks = {"id_token"}
    monkeypatch.setattr(tokens_module, "time", clock)
    async with visiting(vendor) as visit:
        tokens = await visit.tokens()
        clock.ahead = tokens_module.MAX_UNCONFIRMED_SECONDS + 60
        refused = (await visit.refresh(tokens["refresh_token"])).json()
        assert refused["error"] == "invalid_grant" and "sign in again" in refused["error_description"]


async def test_who_is_not_allowed_any_more_is_out_at_once() -> None:
    allowed = {"u-1"}
    async with visiting(allow=lambda claims: claims["sub"] in allowed) as visit:
        tokens = await visit.tokens()
        allowed.clear()
        assert not await is_in(visit, tokens["access_token"])
        assert (await visit.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
        allowed.add("u-1")
        assert (await visit.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant", "the grant is ended"


async def test_a_refresh_token_that_comes_back_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "KEPT_SECONDS", 0.0)
    async with visiting() as visit:
        stolen = await visit.tokens()
        mine = (await visit.refresh(stolen["refresh_token"])).json()
        assert (await visit.refresh(stolen["refresh_token"])).json()["error"] == "invalid_grant"
        assert (await visit.refresh(mine["refresh_token"])).json()["error"] == "invalid_grant"
        assert not await is_in(visit, mine["access_token"])


async def test_a_token_is_taken_back_by_its_client_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "KEPT_SECONDS", 0.0)
    async with visiting() as visit:
        tokens, mine = await visit.tokens(), visit.client["client_id"]
        await visit.register(client_name="another")
        for token in (tokens["access_token"], tokens["refresh_token"], "unknown"):
            form = {"token": token, "client_id": visit.client["client_id"]}
            assert (await visit.http.post("/revoke", data=form)).status_code == 200
        assert await is_in(visit, tokens["access_token"])
        done = await visit.http.post("/revoke", data={"token": tokens["access_token"], "client_id": mine})
        assert done.status_code == 200 and not await is_in(visit, tokens["access_token"])


@for_each_row("method", ["client_secret_post", "client_secret_basic"])
async def test_a_client_with_a_secret_must_show_it(method: str) -> None:
    async with visiting() as visit:
        await visit.register(token_endpoint_auth_method=method)
        code, id, secret = await visit.code(), visit.client["client_id"], visit.client["client_secret"]
        for bad in ({}, {"client_secret": "wrong"}, {"client_secret": visit.client["client_id"]}):
            refused = await visit.exchange(code, **bad)
            assert refused.status_code == 401 and refused.json()["error"] == "invalid_client"
        shown = b64encode(f"{id}:{secret}".encode()).decode()
        visit.http.headers["authorization"] = f"Basic {shown}"
        twice = await visit.exchange(code, client_secret=secret)
        assert twice.json()["error"] == "invalid_request"
        good = await visit.exchange(code, client_id=None)
        assert good.status_code == 200
        for bad in ("Bearer x", "Basic !", f"Basic {b64encode(b'no colon').decode()}"):
            visit.http.headers["authorization"] = bad
            assert (await visit.refresh(good.json()["refresh_token"])).status_code == 401


async def test_while_the_store_is_away_nobody_has_to_sign_in_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "KEPT_SECONDS", 0.0)
    store = MemoryStore()
    async with visiting(store=store, secret="s" * 32) as visit:
        tokens = await visit.tokens()

        async def away(*_: object) -> None:
            raise StoreUnavailable("gone")

        monkeypatch.setattr(store, "get", away)
        assert (await call(visit.http, tokens["access_token"])).status_code == 503
        refused = await visit.refresh(tokens["refresh_token"])
        assert refused.status_code == 503 and refused.json()["error"] == "temporarily_unavailable"
        monkeypatch.undo()
        assert (await visit.refresh(tokens["refresh_token"])).status_code == 200


async def test_a_refresh_whose_reply_from_the_store_was_lost_is_no_theft(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    async with visiting(store=store, secret="s" * 32) as visit:
        tokens = await visit.tokens()
        change = store.change

        async def repeated(what: StoreChange) -> bool:
            await change(what)
            return await change(what)

        monkeypatch.setattr(store, "change", repeated)
        assert (await visit.refresh(tokens["refresh_token"])).status_code == 200
        assert (await visit.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant", "used twice, it is"


async def test_every_kind_of_token_is_good_for_its_own_purpose_only() -> None:
    async with visiting() as visit:
        code = await visit.code()
        tokens = (await visit.exchange(code)).json()
        for wrong in (code, tokens["access_token"], visit.client["client_id"]):
            assert (await visit.refresh(wrong)).json()["error"] == "invalid_grant"
        for wrong in (tokens["access_token"], tokens["refresh_token"]):
            assert (await visit.exchange(wrong)).json()["error"] == "invalid_grant"
        assert (await visit.token(grant_type="password", client_id=visit.client["client_id"])).json() == {
            "error": "unsupported_grant_type",
            "error_description": "use authorization_code or refresh_token",
        }
        assert (await visit.exchange(code, resource="https://other.example")).json()["error"] in (
            "invalid_target",
            "invalid_grant",
        )


async def test_the_vendor_s_token_is_for_the_server_alone() -> None:
    vendor = FakeVendor()
    made = proxy(vendor)
    async with visiting(vendor, auth=made) as visit:
        tokens = await visit.tokens()
        principal = await made.verifier.verify(tokens["access_token"])
        assert principal is not None and principal.claims["email"] == "alice@example.com"
        found = await made.vendor_token(principal)
        assert found is not None and found.startswith("vendor-access-")


def count_renewals(vendor: FakeVendor) -> int:
    return sum((request.form or {}).get("grant_type") == "refresh_token" for request in vendor.asked)


Signed: TypeAlias = tuple[OAuthProxy, Principal]


@asynccontextmanager
async def signed_in_at_two(vendor: FakeVendor) -> AsyncGenerator[tuple[Visit, str, list[Signed]]]:
    """A visit, its refresh token, and its caller as two processes know it that share a store."""
    store, secret = MemoryStore(), "one secret for both of them" * 2
    both = [proxy(vendor, store=store, secret=secret) for _ in range(2)]
    async with visiting(vendor, auth=both[0]) as visit, visiting(vendor, auth=both[1]):
        tokens = await visit.tokens()
        known = [(one, await one.verifier.verify(tokens["access_token"])) for one in both]
        yield visit, tokens["refresh_token"], [(one, principal) for one, principal in known if principal is not None]


async def test_proofs_of_strangers_who_have_no_grant_do_not_use_up_what_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("defserve.auth.dpop.REMEMBERED", 3)
    async with visiting(dpop=DPoP()) as visit:
        code = await visit.code()
        client = {"client_id": visit.client["client_id"], "redirect_uri": visit.redirect}
        wrong = {"code": code, "code_verifier": "x" * 64, "refresh_token": "none", "assertion": "none", **client}
        for grant_type in ("authorization_code", "refresh_token", "client_credentials", "password") * 2:
            headers = {"dpop": proof("", f"{SITE}/token", ath=None)}
            answer = await visit.http.post("/token", data={"grant_type": grant_type, **wrong}, headers=headers)
            assert answer.status_code == 400
        good = {"grant_type": "authorization_code", "code": code, "code_verifier": visit.verifier, **client}
        shown = {"dpop": proof("", f"{SITE}/token", ath=None)}
        answer = await visit.http.post("/token", data=good, headers=shown)
        assert answer.json().get("token_type") == "DPoP", answer.text
        renewal = {"grant_type": "refresh_token", "refresh_token": answer.json()["refresh_token"], **client}
        again = await visit.http.post("/token", data=renewal, headers=shown)
        assert again.json()["error"] == "invalid_dpop_proof", "one that was good is good once"


class SlowVendor(FakeVendor):
    """A vendor whose answers take a moment, or as long as a test wants. Its tokens end soon, at first."""

    def __init__(self) -> None:
        super().__init__()
        self.lasts = 20
        self.may_answer = anyio.Event()
        self.may_answer.set()

    async def send(self, request: HttpRequest) -> HttpResponse:
        answer = self.answer(request)
        await anyio.sleep(0.01)
        await self.may_answer.wait()
        return answer


async def test_a_vendor_s_token_that_ends_is_renewed_once_for_all_who_ask_in_any_process() -> None:
    vendor = SlowVendor()
    async with signed_in_at_two(vendor) as (visit, token, both):
        vendor.lasts = 300
        found = await asyncio.gather(*(one.vendor_token(principal) for one, principal in both * 3))
        assert count_renewals(vendor) == 1 and set(found) == {f"vendor-access-{len(vendor.asked)}"}
        assert await both[0][0].vendor_token(both[0][1]) == found[0] and count_renewals(vendor) == 1
        assert (await visit.refresh(token)).status_code == 200, "with what the vendor gave last"


async def test_a_client_and_a_tool_that_renew_at_once_do_not_use_a_vendor_s_token_twice() -> None:
    vendor = SlowVendor()
    async with signed_in_at_two(vendor) as (visit, token, both):
        vendor.lasts = 300
        asking = asyncio.gather(*(one.vendor_token(principal) for one, principal in both))
        renewed, found = await asyncio.gather(visit.refresh(token), asking)
        assert renewed.status_code == 200, renewed.text
        assert all(found) and await is_in(visit, renewed.json()["access_token"])


async def test_a_tool_that_gives_up_does_not_lose_what_the_vendor_gave_for_its_refresh_token() -> None:
    vendor = SlowVendor()
    async with signed_in_at_two(vendor) as (visit, token, [(one, principal), (other, known)]):
        vendor.lasts, vendor.may_answer = 300, anyio.Event()
        asking = asyncio.create_task(one.vendor_token(principal))
        while not count_renewals(vendor):
            await anyio.lowlevel.checkpoint()
        asking.cancel()
        await asyncio.wait((asking,))
        vendor.may_answer.set()
        assert await other.vendor_token(known) == f"vendor-access-{len(vendor.asked)}"
        assert count_renewals(vendor) == 1
        assert (await visit.refresh(token)).status_code == 200


async def test_a_vendor_that_is_away_does_not_cost_a_token_that_is_still_good() -> None:
    vendor = SlowVendor()
    async with signed_in_at_two(vendor) as (_, _, [(one, principal), _]):
        vendor.is_shut = True
        assert (await one.vendor_token(principal) or "").startswith("vendor-access-")


async def test_a_tool_gets_no_vendor_s_token_that_has_ended() -> None:
    vendor = SlowVendor()
    vendor.lasts = 0.001
    async with signed_in_at_two(vendor) as (visit, token, [(one, principal), _]):
        vendor.is_shut = True
        with pytest.raises(ToolError, match="Try again"):
            await one.vendor_token(principal)
        vendor.is_shut = False
        vendor.refresh_tokens.clear()
        assert await one.vendor_token(principal) is None
        assert (await visit.refresh(token)).json()["error"] == "invalid_grant", (
            "the vendor has ended the access: sign in again"
        )


async def test_long_tokens_of_a_vendor_are_kept_whole() -> None:
    vendor, pad = FakeVendor(), "x" * 20_000
    plain = vendor.answer

    def answer(request: HttpRequest) -> HttpResponse:
        reply = plain(request)
        fields = json.loads(reply.body or b"{}")
        if "access_token" in fields:
            reply = reply._replace(body=json.dumps({**fields, "access_token": fields["access_token"] + pad}).encode())
        return reply

    vendor.answer = answer
    made = proxy(vendor)
    async with visiting(vendor, auth=made) as visit:
        tokens = await visit.tokens()
        principal = await made.verifier.verify(tokens["access_token"])
        assert principal is not None and (await made.vendor_token(principal) or "").endswith(pad)
        vendor.lacks.add("id_token")
        renewed = (await visit.refresh(tokens["refresh_token"])).json()
        assert await made.verifier.verify(renewed["access_token"]) is not None


async def test_pages_of_any_site_may_use_what_needs_no_cookie() -> None:
    async with visiting() as visit:
        for path in ("/token", "/register", "/revoke", "/.well-known/oauth-authorization-server"):
            asked = await visit.http.options(path, headers={"origin": "https://inspector.example"})
            assert asked.status_code == 204 and asked.headers["access-control-allow-origin"] == "*"
            assert "dpop" in asked.headers["access-control-allow-headers"].split(", "), "for tokens bound to a key"
        answer = await visit.http.post("/token", data={}, headers={"origin": "https://inspector.example"})
        assert answer.status_code == 400 and answer.headers["access-control-allow-origin"] == "*"
        assert "dpop-nonce" in answer.headers["access-control-expose-headers"].split(", ")
        page = await visit.authorize()
        assert "access-control-allow-origin" not in page.headers
        assert (await visit.http.post("/token", content=b"x" * 70_000)).status_code == 413
        assert (await visit.http.get("/authorize", headers={"host": "evil.example"})).status_code == 421
