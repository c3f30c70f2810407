"""A client and its user's browser at an authorization server of ours, step by step, so that a test can change any."""

from __future__ import annotations

import html
import re
import secrets
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

REDIRECT = "http://127.0.0.1:3333/callback"


class Visit:
    """One sign-in. `http` is the browser and the client at once; `vendor` is where the user signs in."""

    def __init__(self, http: httpx2.AsyncClient, vendor: Any, redirect: str = REDIRECT) -> None:
        self.http, self.vendor, self.redirect = http, vendor, redirect
        self.verifier = secrets.token_urlsafe(48)
        self.state = secrets.token_urlsafe(8)
        self.client: dict[str, Any] = {}

    async def register(self, **changed: Any) -> httpx2.Response:
        wanted = {"redirect_uris": [self.redirect], "token_endpoint_auth_method": "none", "client_name": "A client"}
        answer = await self.http.post("/register", json={**wanted, **changed})
        if answer.status_code == 201:
            self.client = answer.json()
        return answer

    def request(self, **changed: Any) -> dict[str, str]:
        """The parameters of an authorization request; None leaves one out."""
        challenge = urlsafe_b64encode(sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        good = {
            "response_type": "code",
            "client_id": self.client.get("client_id"),
            "redirect_uri": self.redirect,
            "state": self.state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    async def authorize(self, **changed: Any) -> httpx2.Response:
        return await self.http.get("/authorize", params=self.request(**changed))

    async def decide(self, page: httpx2.Response, decision: str = "allow", **form: str) -> httpx2.Response:
        found = re.search(r'name="request" value="([^"]+)"', page.text)
        assert found is not None, page.text
        given = {"request": found[1], "decision": decision, **form}
        return await self.http.post("/consent", data=given, headers={"origin": origin(self.http)})

    async def come_back(self, left: httpx2.Response) -> httpx2.Response:
        """The user signs in at the vendor, which sends the browser back."""
        return await self.http.get(path_of(self.vendor.sign_in(leads_to(left))))

    async def code(self, **changed: Any) -> str:
        """The code that comes of a whole sign-in."""
        if not self.client:
            await self.register()
        page = await self.authorize(**changed)
        back = page if page.status_code == 302 else await self.come_back(await self.decide(page))
        found = answer_of(back)
        assert found.get("state") == self.state and "code" in found, found
        return found["code"]

    async def exchange(self, code: str, **changed: Any) -> httpx2.Response:
        good = {
            "grant_type": "authorization_code",
            "code": code,
            "client_id": self.client["client_id"],
            "redirect_uri": self.redirect,
            "code_verifier": self.verifier,
        }
        return await self.token(**{**good, **changed})

    async def refresh(self, token: str, **changed: Any) -> httpx2.Response:
        return await self.token(
            **{
                "grant_type": "refresh_token",
                "refresh_token": token,
                "client_id": self.client["client_id"],
                **changed,
            }
        )

    async def token(self, **form: Any) -> httpx2.Response:
        return await self.http.post("/token", data={name: value for name, value in form.items() if value is not None})

    async def tokens(self, **changed: Any) -> dict[str, Any]:
        answer = await self.exchange(await self.code(**changed))
        assert answer.status_code == 200, answer.text
        return answer.json()


def origin(http: httpx2.AsyncClient) -> str:
    return str(http.base_url).rstrip("/")


def leads_to(answer: httpx2.Response) -> str:
    """Where an answer sends the browser: by a redirect, or by the page that says so."""
    if "location" in answer.headers:
        return answer.headers["location"]
    found = re.search(r'http-equiv="refresh" content="0;url=([^"]+)"', answer.text)
    assert found is not None, answer.text
    return html.unescape(found[1])


def answer_of(answer: httpx2.Response) -> dict[str, str]:
    """What a client is told at its redirect."""
    return dict(parse_qsl(urlsplit(leads_to(answer)).query))


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


async def browse(url: str, redirect: str) -> str:
    """Open a URL as a browser does whose user signs in and allows everything: the address of the client's redirect
    to which it is sent in the end."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        page = await http.get(url)
        for _ in range(20):
            if fields := _form(page):
                action = str(page.url.join(html.unescape(fields.pop("action"))))
                page = await http.post(action, data=fields, headers={"origin": "/".join(action.split("/")[:3])})
                continue
            to = str(page.url.join(leads_to(page)))
            if to.startswith(redirect):
                return to
            page = await http.get(to)
    raise AssertionError(f"{url} leads nowhere")


def _form(page: httpx2.Response) -> dict[str, str]:
    """The form of a page, filled in by a user who allows everything; empty if there is none."""
    found = re.search(r'<form[^>]*action="([^"]+)"[^>]*>(.*?)</form>', page.text, re.DOTALL)
    if found is None:
        return {}
    fields = {"action": found[1]}
    for tag in re.findall(r"<(?:input|button)[^>]*>", found[2]):
        name, value = (re.search(rf'{what}="([^"]*)"', tag) for what in ("name", "value"))
        if name is not None and 'type="checkbox"' not in tag:
            fields.setdefault(name[1], html.unescape(value[1]) if value is not None else "alice")
    return fields
