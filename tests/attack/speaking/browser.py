"""A browser and a client at an authorization server, on raw sockets. Every step can be made otherwise."""

from __future__ import annotations

import html
import json
import re
import secrets
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.attack.speaking.http import Response, request
from tests.attack.speaking.sockets import Place

REDIRECT = "http://127.0.0.1:3333/callback"
ORIGIN = "http://localhost:8080"
FORM = "application/x-www-form-urlencoded"


class Browser:
    """Keeps cookies, as one user's browser does."""

    def __init__(self, place: Place) -> None:
        self.place, self.cookies = place, dict[str, str]()

    def send(self, verb: str, target: str, body: bytes | None = None, kind: str = FORM, **more: str) -> Response:
        headers = {"Host": "localhost:8080", **({"Content-Type": kind} if body is not None else {})}
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        found = request(self.place, verb, target, headers, body)
        assert found is not None, f"{verb} {target} was not answered"
        if match := re.match(r"([^=]+)=([^;]*);", found.headers.get("set-cookie", "")):
            self.cookies[match[1]] = match[2]
        return found

    def get(self, target: str, fields: dict[str, Any] | None = None, **more: str) -> Response:
        return self.send("GET", f"{target}?{urlencode(fields)}" if fields else target, **more)

    def post(self, target: str, fields: dict[str, Any], **more: str) -> Response:
        return self.send("POST", target, urlencode(fields).encode(), **more)


class Client:
    """A registered client. `verifier` is its secret of one sign-in."""

    def __init__(self, browser: Browser, redirect: str = REDIRECT, name: str = "a client") -> None:
        self.browser, self.redirect = browser, redirect
        about = {"redirect_uris": [redirect], "token_endpoint_auth_method": "none", "client_name": name}
        made = browser.send("POST", "/register", json.dumps(about).encode(), "application/json")
        self.registered = made.status == 201
        self.id = json.loads(made.body).get("client_id", "")
        self.verifier, self.state = secrets.token_urlsafe(48), secrets.token_urlsafe(8)

    def request(self, **changed: Any) -> dict[str, str]:
        challenge = urlsafe_b64encode(sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        good = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": self.redirect,
            "state": self.state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return {**good, **changed}

    def exchange(self, code: str, **changed: Any) -> Response:
        good = {"grant_type": "authorization_code", "code": code, "client_id": self.id, "code_verifier": self.verifier}
        return self.browser.post("/token", {**good, **changed})


def leads_to(answer: Response) -> str:
    """Where an answer sends the browser; empty if nowhere."""
    found = re.search(r'content="0;url=([^"]+)"', answer.text)
    return answer.headers.get("location") or (html.unescape(found[1]) if found else "")


def said(answer: Response) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(leads_to(answer)).query))


def sealed(page: Response) -> str:
    """What the form of the consent page carries; empty if there is no form."""
    found = re.search(r'name="request" value="([^"]+)"', page.text)
    return found[1] if found else ""


def target_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"
