"""The consent page of `OAuthProxy` in a real browser: its cookies, its policy and its way to the vendor and back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest

from defserve.auth import OAuthProxy
from tests.auth.served import served
from tests.auth.vendor import CLIENT_ID, CLIENT_SECRET, vendor_at_address
from tests.waiting import wait_until

from .accessibility import EVERY, UNREACHABLE, serious
from .origins import anything, origin

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser


@pytest.fixture
def server() -> Iterator[str]:
    with vendor_at_address() as vendor:

        def make(url: str) -> OAuthProxy:
            made = {"issuer": vendor.issuer, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
            meanings = {"notes:write": "Change your notes"}
            more: dict[str, Any] = {"optional_scopes": meanings, "scopes_for": lambda claims: ["notes:write"]}
            return OAuthProxy("oidc", url=url, allow="*", **more, **made)

        with served(make, "127.0.0.1") as url:
            yield url.removesuffix("/mcp")


def authorize(issuer: str, redirect: str) -> str:
    about = {"redirect_uris": [redirect], "token_endpoint_auth_method": "none", "client_name": "Bob's <b>tool</b>"}
    client = httpx2.post(f"{issuer}/register", json=about, trust_env=False).json()["client_id"]
    asked = {
        "response_type": "code",
        "client_id": client,
        "redirect_uri": redirect,
        "state": "the client's own",
        "scope": "notes:write",
        "code_challenge": "c" * 43,
        "code_challenge_method": "S256",
    }
    return f"{issuer}/authorize?{urlencode(asked)}"


def address(browser: Browser) -> str:
    return str(browser.page("location.href"))


def test_a_user_allows_a_client_signs_in_and_the_client_gets_its_code(browser: Browser, server: str) -> None:
    with origin(anything) as client:
        browser.open(authorize(server, f"{client.url}/callback"))
        shown = str(browser.page("document.body.innerText"))
        assert "Bob's <b>tool</b>" in shown and "notes:write" in shown and urlsplit(client.url).netloc in shown
        assert "Change your notes" in shown
        for width, scheme in product((390, 768, 1024, 1440), ("light", "dark")):
            browser.look(width, 800, scheme)
            assert serious(browser, EVERY) == []
            assert browser.page("document.documentElement.scrollWidth <= innerWidth")
            if shots := os.environ.get("DEFSERVE_SHOTS"):
                browser.shot(Path(shots) / f"consent-{width}-{scheme}.png", whole=True)
        for width in (195, 384, 512, 720):
            browser.look(width, 400)
            assert browser.page("document.documentElement.scrollWidth <= innerWidth"), width
            assert browser.page(UNREACHABLE) == "none", width
        browser.press("button.yes")
        wait_until(lambda: address(browser).startswith(f"{client.url}/callback"))
        fields = dict(parse_qsl(urlsplit(address(browser)).query))
        assert fields["state"] == "the client's own" and fields["iss"] == server and fields["code"]


@pytest.mark.slow
def test_a_user_refuses(browser: Browser, server: str) -> None:
    with origin(anything) as client:
        browser.open(authorize(server, f"{client.url}/callback"))
        browser.press("button[value=refuse]")
        wait_until(lambda: address(browser).startswith(f"{client.url}/callback"))
        assert dict(parse_qsl(urlsplit(address(browser)).query))["error"] == "access_denied"


def test_no_other_page_can_frame_the_question_or_press_its_button(browser: Browser, server: str) -> None:
    with origin(anything) as other:
        url = authorize(server, f"{other.url}/callback")
        browser.open(other.url)
        frame = (
            f"document.body.append(Object.assign(document.createElement('iframe'), {{src: {json.dumps(url)}}})) || 1"
        )
        browser.page(frame)
        wait_until(lambda: any("frame" in text for text in browser.complaints()))
        page = httpx2.get(url, trust_env=False).text
        sealed = page.partition('name="request" value="')[2].partition('"')[0]
        browser.page(
            f"""(() => {{
                const form = document.createElement('form');
                form.method = 'post';
                form.action = {json.dumps(f"{server}/consent")};
                form.innerHTML = '<input name="request" value="{sealed}"><input name="decision" value="allow">';
                document.body.append(form);
                form.submit();
                return true;
            }})()"""
        )
        wait_until(lambda: "Another site" in str(browser.page("document.body.innerText")))
