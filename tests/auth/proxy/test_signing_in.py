from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest

from defserve.stores.store import MemoryStore
from tests.auth.browsing import answer_of, leads_to, path_of
from tests.auth.proxied import CIMD, SITE, URL, call, everything, visiting
from tests.auth.web import stateless
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


async def test_a_client_on_the_web_may_sign_in_in_a_window_of_its_own() -> None:
    async with visiting() as visit:
        await visit.register()
        page = await visit.authorize()
        for shown in (page, await visit.decide(page), await visit.authorize(client_id="unknown")):
            assert shown.headers["cross-origin-opener-policy"] == "unsafe-none", "else the window loses who opened it"
            assert "frame-ancestors 'none'" in shown.headers["content-security-policy"], "but in no frame"


async def test_a_client_registers_signs_its_user_in_and_calls() -> None:
    async with visiting() as visit:
        assert (await visit.register()).status_code == 201
        page = await visit.authorize(resource=URL)
        assert page.status_code == 200 and "A client" in page.text and "127.0.0.1:3333" in page.text
        left = await visit.decide(page)
        assert leads_to(left).startswith(f"{visit.vendor.issuer}/auth?")
        back = answer_of(await visit.come_back(left))
        assert back["state"] == visit.state and back["iss"] == SITE
        answer = await visit.exchange(back["code"], resource=URL)
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
        tokens = answer.json()
        assert tokens["token_type"] == "Bearer" and "vendor" not in answer.text
        called = await call(visit.http, tokens["access_token"])
        assert called.json()["result"]["content"][0]["text"] == "u-1"
        assert (await call(visit.http, tokens["refresh_token"])).status_code == 401
        assert (await call(visit.http, back["code"])).status_code == 401


async def test_a_sign_in_that_is_given_up_leaves_nothing_in_the_store() -> None:
    store = MemoryStore()
    async with visiting(store=store, secret="k" * 32) as visit:
        await visit.register()
        back = visit.vendor.sign_in(leads_to(await visit.decide(await visit.authorize())))
        state = dict(parse_qsl(urlsplit(back).query))["state"]
        refused = {"state": state, "iss": visit.vendor.issuer, "error": "access_denied"}
        answer = await visit.http.get("/callback", params=refused)
        assert answer_of(answer)["error"] == "access_denied"
        assert [space async for space in store.spaces("") if "nonce:" in space] == []


async def test_clients_find_everything_from_the_first_refusal() -> None:
    async with visiting(scopes=["notes:read"], optional_scopes=["notes:write"], scopes_for=everything) as visit:
        body, headers = stateless("tools/list")
        refused = await visit.http.post("/mcp", json=body, headers=headers)
        assert refused.status_code == 401
        found = re.search(r'resource_metadata="([^"]+)"', refused.headers["www-authenticate"])
        assert found is not None and 'scope="notes:read"' in refused.headers["www-authenticate"]
        resource = (await visit.http.get(path_of(found[1]))).json()
        assert resource["resource"] == URL and resource["authorization_servers"] == [SITE]
        metadata = (await visit.http.get("/.well-known/oauth-authorization-server")).json()
        assert metadata["issuer"] == SITE and metadata["code_challenge_methods_supported"] == ["S256"]
        assert metadata["client_id_metadata_document_supported"] is True
        assert metadata["authorization_response_iss_parameter_supported"] is True
        assert metadata["scopes_supported"] == ["notes:read", "notes:write"]
        for name in ("authorization", "token", "registration", "revocation"):
            assert metadata[f"{name}_endpoint"].startswith(f"{SITE}/")
        assert (await visit.http.get("/.well-known/openid-configuration")).json()["jwks_uri"] == f"{SITE}/jwks"
        assert (await visit.http.get("/jwks")).json() == {"keys": []}


async def test_head_has_the_headers_of_get_where_metadata_and_keys_are_and_begins_no_sign_in() -> None:
    well_known = (f"/.well-known/{name}" for name in ("oauth-authorization-server", "openid-configuration"))
    async with visiting(scopes=["notes:read"]) as visit:
        for path in ("/.well-known/oauth-protected-resource/mcp", *well_known, "/jwks"):
            got, head = await visit.http.get(path), await visit.http.head(path)
            assert (head.status_code, head.headers) == (200, got.headers), path
        refused = await visit.http.put("/jwks")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert (await visit.http.head("/authorize")).status_code == 405


async def test_a_tool_that_needs_more_is_reached_by_signing_in_again() -> None:
    async with visiting(scopes=["notes:read"], optional_scopes=["notes:write"], scopes_for=everything) as visit:
        tokens = await visit.tokens()
        assert tokens["scope"] == "notes:read"
        refused = await call(visit.http, tokens["access_token"], "write")
        assert refused.status_code == 403
        challenge = refused.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge and 'scope="notes:read notes:write"' in challenge
        assert (await call(visit.http, tokens["access_token"])).status_code == 200
        more = await visit.tokens(scope="notes:read notes:write unknown:scope")
        assert more["scope"] == "notes:read notes:write"
        assert (await call(visit.http, more["access_token"], "write")).status_code == 200


async def test_a_client_with_a_document_needs_no_registration() -> None:
    async with visiting() as visit:
        visit.client, visit.redirect = {"client_id": CIMD}, "http://127.0.0.1:4444/callback"
        page = await visit.authorize()
        assert CIMD in page.text and "remember" not in page.text, "any program here may say that it is this client"
        assert (await visit.exchange(await visit.code())).status_code == 200
        visit.client = {"client_id": "https://app.example/another.json"}
        refused = await visit.authorize()
        assert refused.status_code == 400 and "cannot read what the client" in refused.text
        assert "at app.example." in refused.text, (
            "who has the document is named; the rest of the address is a stranger's"
        )


async def test_a_user_may_ask_not_to_be_asked_again_by_that_client_for_that() -> None:
    async with visiting(optional_scopes=["more"], scopes_for=everything) as visit:
        visit.client, visit.redirect = {"client_id": CIMD}, "https://app.example/cb"
        left = await visit.decide(await visit.authorize(), remember="yes")
        assert "code" in answer_of(await visit.come_back(left))
        again = await visit.authorize()
        assert again.status_code == 302 and again.headers["location"].startswith(visit.vendor.issuer)
        assert "code" in answer_of(await visit.come_back(again))
        assert (await visit.authorize(scope="more")).status_code == 200, "it asks for more"
        assert (await visit.authorize(prompt="consent")).status_code == 200
        kept = [name for name in visit.http.cookies if "allowed" in name]
        visit.http.cookies.set(kept[0], "x" * 80, domain="tools.example.com")
        assert (await visit.authorize()).status_code == 200, "the cookie is not ours"


async def test_a_user_may_refuse() -> None:
    async with visiting() as visit:
        await visit.register()
        said = answer_of(await visit.decide(await visit.authorize(), "refuse"))
        assert said["error"] == "access_denied" and said["state"] == visit.state and said["iss"] == SITE


@for_each_row(
    "changed, error",
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "unsupported_response_type"),
        ({"response_mode": "fragment"}, "invalid_request"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"resource": "https://other.example/mcp"}, "invalid_target"),
        ({"request": "x"}, "request_not_supported"),
        ({"state": "x" * 2000}, "invalid_request"),
    ],
)
async def test_a_request_that_is_not_good_sends_nobody_away_and_has_a_link_to_its_client(
    changed: dict[str, Any], error: str
) -> None:
    async with visiting() as visit:
        await visit.register()
        answer = await visit.authorize(**changed)
        assert answer.status_code == 400 and "location" not in answer.headers and "refresh" not in answer.text
        (link,) = re.findall(r'href="([^"]+)"', answer.text)
        told = dict(parse_qsl(urlsplit(html.unescape(link)).query))
        assert link.startswith(visit.redirect) and told["error"] == error and told["iss"] == SITE


@for_each_row(
    "changed",
    [
        {"client_id": "unknown"},
        {"client_id": None},
        {"client_id": "https://app.example/../client.json"},
        {"redirect_uri": "https://evil.example/callback"},
        {"redirect_uri": "http://127.0.0.1:3333/callback/../x"},
        {"redirect_uri": "http://127.0.0.1:3333/callback?x"},
        {"redirect_uri": "http://localhost:3333/callback"},
        {"redirect_uri": "http://127.0.0.1.evil.example:3333/callback"},
        {"redirect_uri": "http://127.0.0.1:3333@evil.example/callback"},
        {"redirect_uri": ""},
    ],
)
async def test_nobody_is_sent_to_an_address_that_was_not_registered(changed: dict[str, Any]) -> None:
    async with visiting() as visit:
        await visit.register()
        answer = await visit.authorize(**changed)
        assert answer.status_code == 400 and "location" not in answer.headers and "refresh" not in answer.text


async def test_parameters_that_come_twice_are_refused() -> None:
    async with visiting() as visit:
        await visit.register()
        pairs = [*visit.request().items(), ("redirect_uri", "https://evil.example")]
        assert (await visit.http.get("/authorize", params=pairs)).status_code == 400
        answer = await visit.http.post(
            "/token",
            content="grant_type=refresh_token&grant_type=authorization_code",
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        assert answer.json()["error"] == "invalid_request"


# ------------------------------------------------------------------------------------------ who has said yes, and where


async def test_an_answer_counts_only_from_the_page_and_the_browser_that_was_asked() -> None:
    async with visiting() as visit:
        await visit.register()
        page = await visit.authorize()
        sealed = re.search(r'name="request" value="([^"]+)"', page.text)
        assert sealed is not None
        form = {"request": sealed[1], "decision": "allow"}
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            answer = await visit.http.post("/consent", data=form, headers=headers)
            assert answer.status_code == 403 and "refresh" not in answer.text
        visit.http.cookies.clear()
        assert (await visit.http.post("/consent", data=form)).status_code == 403
        for bad in ("", "x" * 100, visit.client["client_id"]):
            assert (await visit.http.post("/consent", data={**form, "request": bad})).status_code == 400
        assert (await visit.http.get("/consent")).status_code == 405


async def test_nobody_can_finish_a_sign_in_that_another_browser_has_begun() -> None:
    async with visiting() as visit:
        await visit.register()
        left = await visit.decide(await visit.authorize())
        url = path_of(visit.vendor.sign_in(leads_to(left)))
        cookies = httpx2.Cookies(visit.http.cookies)
        visit.http.cookies.clear()
        assert (await visit.http.get(url)).status_code == 403
        visit.http.cookies = cookies
        state = httpx2.URL(url).params["state"]
        assert (await visit.http.get(url.replace(state, state[:16] + "x" * 27))).status_code == 403
        assert "code" in answer_of(await visit.http.get(url))
        visit.http.cookies = cookies
        assert (await visit.http.get(url)).status_code == 403, "and only once"


async def test_the_pages_cannot_be_framed_and_load_nothing() -> None:
    async with visiting() as visit:
        await visit.register(client_name='<script>alert(1)</script>"\u202e')
        page = await visit.authorize(state='"><script>')
        assert "<script" not in page.text and "\u202e" not in page.text
        for other in ("iframe", "image", "empty"):
            framed = await visit.http.get("/authorize", params=visit.request(), headers={"sec-fetch-dest": other})
            assert framed.status_code == 403 and "set-cookie" not in framed.headers
        policy = page.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy and "default-src 'none'" in policy and "form-action 'self'" in policy
        assert page.headers["x-frame-options"] == "DENY" and page.headers["referrer-policy"] == "same-origin"
        cookie = page.headers["set-cookie"]
        assert cookie.startswith("__Host-") and "HttpOnly; SameSite=Strict; Secure" in cookie


# ------------------------------------------------------------------------------------------------------- the vendor


@for_each_row(
    "claims",
    [
        {"aud": "another-app"},
        {"iss": "https://evil.example"},
        {"nonce": "of another request"},
        {"nonce": None},
        {"exp": 1},
        {"azp": "another-app"},
        {"sub": None},
    ],
)
async def test_an_id_token_that_is_not_for_this_sign_in_lets_nobody_in(claims: dict[str, Any]) -> None:
    async with visiting() as visit:
        visit.vendor.claims = claims
        await visit.register()
        said = answer_of(await visit.come_back(await visit.decide(await visit.authorize())))
        assert said["error"] == "access_denied" and "code" not in said


async def test_while_the_vendors_keys_cannot_be_read_nobody_is_refused_for_good() -> None:
    async with visiting() as visit:
        visit.vendor.metadata["jwks_uri"] = f"{visit.vendor.issuer}/nowhere"
        await visit.register()
        said = answer_of(await visit.come_back(await visit.decide(await visit.authorize())))
        assert said["error"] == "temporarily_unavailable"


async def test_an_answer_of_another_vendor_is_refused() -> None:
    async with visiting() as visit:
        await visit.register()
        for wrong in ("https://evil.example", ""):
            left = await visit.decide(await visit.authorize())
            url = httpx2.URL(visit.vendor.sign_in(leads_to(left)))
            url = url.copy_set_param("iss", wrong) if wrong else url.copy_remove_param("iss")
            said = answer_of(await visit.http.get(path_of(str(url))))
            assert said["error"] == "access_denied"
            assert not [one for one in visit.vendor.asked if one.url.endswith("/token")], "the code went nowhere"


async def test_a_vendor_that_is_away_or_says_no_is_told_to_the_client() -> None:
    async with visiting() as visit:
        await visit.register()
        visit.vendor.is_shut = True
        assert answer_of(await visit.decide(await visit.authorize()))["error"] == "temporarily_unavailable"
        visit.vendor.is_shut = False
        left = await visit.decide(await visit.authorize())
        url = httpx2.URL(visit.vendor.sign_in(leads_to(left))).copy_remove_param("code")
        said = answer_of(await visit.http.get(path_of(str(url.copy_set_param("error", "access_denied")))))
        assert said["error"] == "access_denied" and said["state"] == visit.state


@for_each_row(
    "allow, user, is_in",
    [
        (["alice@example.com"], {}, True),
        (["ALICE@example.com"], {}, True),
        (["@example.com"], {}, True),
        ("u-1", {}, True),
        (lambda claims: claims["sub"] == "u-1", {}, True),
        (["bob@example.com"], {}, False),
        (["alice@example.com"], {"email_verified": False}, False),
        (["@example.com"], {"email": "alice@example.com.evil.example"}, False),
        (["@example.com"], {"email": "alice@evil-example.com"}, False),
        (lambda claims: False, {}, False),
    ],
    ids=range(10),
)
async def test_only_those_on_the_list_come_in(allow: Any, user: dict[str, Any], is_in: bool) -> None:
    async with visiting(allow=allow) as visit:
        visit.vendor.user |= user
        await visit.register()
        said = answer_of(await visit.come_back(await visit.decide(await visit.authorize())))
        assert ("code" in said) is is_in
