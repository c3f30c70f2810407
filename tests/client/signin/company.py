"""A server that wants tokens, the issuer that gives them, and a person who says yes: all on one loopback port.

What the issuer does can be changed by the attributes of `Company`. It keeps what it was asked.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tests.client.pretend import STATELESS
from tests.client.web import Exchange, Web, web

Json = dict[str, Any]
RESULTS = {
    "server/discover": STATELESS["server/discover"],
    "tools/list": {"tools": [{"name": "add", "inputSchema": {"type": "object"}}], "ttlMs": 0, "cacheScope": "private"},
    "tools/call": {"content": [{"type": "text", "text": "3"}]},
}


class Company:
    """`wanted`: the scopes that each method of the server needs."""

    def __init__(self, origin: str) -> None:
        self.origin, self.url = origin, f"{origin}/mcp"
        self.wanted: dict[str, str] = {}
        self.tokens: dict[str, str] = {}
        """The access tokens that count, and their scopes."""
        self.refreshing: dict[str, str] = {}
        """The refresh tokens that count, and their scopes. Each counts once."""
        self.revoked: list[str] = []
        self.forms: list[Json] = []
        self.registered: list[Json] = []
        self.visits: list[dict[str, str]] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.given = 0
        self.challenge: str | None = None
        """What the server says to who has no token; None for the usual."""
        self.resource: Json = {
            "resource": self.url,
            "authorization_servers": [origin],
            "scopes_supported": ["read"],
        }
        self.issuer: Json = {
            "issuer": origin,
            "authorization_endpoint": f"{origin}/authorize",
            "token_endpoint": f"{origin}/token",
            "registration_endpoint": f"{origin}/register",
            "revocation_endpoint": f"{origin}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        }
        self.pages: dict[str, Json] = {}
        """Further documents, by their path."""
        self.missing_status = 404
        """What a path without a document is answered with."""
        self.token_fields: Json = {"token_type": "Bearer", "expires_in": 3600}
        self.answer_fields: dict[str, str] = {}
        """What the issuer adds to, or changes in, the address that the person is sent back to."""
        self.nonces = False
        """Whether the issuer and the server want a nonce in each proof (DPoP)."""
        self.token_errors: list[Json] = []
        """What the token endpoint answers to the next requests instead of tokens."""
        self.web: Web

    # -- what a person does ------------------------------------------------------------------------------

    def say_yes(self, url: str) -> str:
        """Where the person is sent back to."""
        asked = dict(parse_qsl(urlsplit(url).query))
        self.visits.append(asked)
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        fields = {"code": code, "state": asked["state"], **self.answer_fields}
        return f"{asked['redirect_uri']}?{urlencode({name: value for name, value in fields.items() if value})}"

    @asynccontextmanager
    async def open(self, preferred: str, mark: str) -> AsyncGenerator[Person]:
        """The company is its own `Redirect`."""
        yield Person(self.say_yes, mark)

    # -- what it answers ---------------------------------------------------------------------------------

    async def handle(self, exchange: Exchange) -> None:
        path = urlsplit(exchange.path).path
        if path == "/mcp":
            await self._serve(exchange)
        elif path in ("/token", "/register", "/revoke"):
            await getattr(self, path[1:])(exchange)
        else:
            documents = {
                "/.well-known/oauth-protected-resource/mcp": self.resource,
                "/.well-known/oauth-authorization-server": self.issuer,
                **self.pages,
            }
            await _json(exchange, 200 if documents.get(path) else self.missing_status, documents.get(path) or {})

    async def _serve(self, exchange: Exchange) -> None:
        scheme, _, token = exchange.headers.get("authorization", "").partition(" ")
        scopes, needed = self.tokens.get(token), self.wanted.get(exchange.method, "")
        place = f'resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
        if self.nonces and scheme == "DPoP" and not _has_nonce(exchange, "of-the-server"):
            said = 'DPoP error="use_dpop_nonce"'
            await exchange.respond(401, b"", www_authenticate=said, dpop_nonce="of-the-server")
        elif scopes is None:
            error = 'error="invalid_token", ' if scheme else ""
            said = self.challenge if self.challenge is not None else f"Bearer {error}{place}"
            await exchange.respond(401, b"", **({"www_authenticate": said} if said else {}))
        elif not set(needed.split()) <= set(scopes.split()):
            said = f'Bearer error="insufficient_scope", scope="{needed}", {place}'
            await exchange.respond(403, b"", www_authenticate=said)
        else:
            result = RESULTS.get(exchange.method)
            await (exchange.answer(result) if result else exchange.refuse(404, -32601, "there is no such method"))

    async def register(self, exchange: Exchange) -> None:
        asked = exchange.message
        self.registered.append(asked)
        await _json(exchange, 201, {**asked, "client_id": f"client-{len(self.registered)}"})

    async def token(self, exchange: Exchange) -> None:
        form: Json = {**dict(parse_qsl(exchange.body.decode())), "headers": exchange.headers}
        self.forms.append(form)
        if self.nonces and not _has_nonce(exchange, "of-the-issuer"):
            await _json(exchange, 400, {"error": "use_dpop_nonce"}, dpop_nonce="of-the-issuer")
            return
        if self.token_errors:
            await _json(exchange, 400, self.token_errors.pop(0))
            return
        scopes = self._granted(form)
        if scopes is None:
            await _json(exchange, 400, {"error": "invalid_grant", "error_description": "used, or not yours"})
            return
        self.given += 1
        access, refresh = f"access-{self.given}", f"refresh-{self.given}"
        self.tokens[access], self.refreshing[refresh] = scopes, scopes
        await _json(exchange, 200, {"access_token": access, "refresh_token": refresh, **self.token_fields})

    def _granted(self, form: Json) -> str | None:
        if form["grant_type"] == "refresh_token":
            return self.refreshing.pop(form["refresh_token"], None)
        if form["grant_type"] != "authorization_code":
            return form.get("scope", "")
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != form["redirect_uri"]:
            return None
        return asked.get("scope", "")

    async def revoke(self, exchange: Exchange) -> None:
        token = dict(parse_qsl(exchange.body.decode()))["token"]
        self.revoked.append(token)
        self.tokens.pop(token, None)
        await exchange.respond(200)

    def list_requested_uris(self, path: str) -> list[Exchange]:
        """The requests to a path of the company."""
        return [exchange for exchange in self.web.seen if urlsplit(exchange.path).path == path]


class Person:
    """Goes to the issuer and back."""

    def __init__(self, say_yes: Callable[[str], str], mark: str) -> None:
        self._say_yes = say_yes
        self.uri = f"http://127.0.0.1:1/callback{mark and f'/{mark}'}"

    async def visit(self, url: str, is_answer: Callable[[str], bool]) -> str:
        return self._say_yes(url)


@asynccontextmanager
async def company() -> AsyncIterator[Company]:
    """A company while the block runs."""
    made: list[Company] = []

    async def handle(exchange: Exchange) -> None:
        await made[0].handle(exchange)

    async with web(handle) as served:
        made.append(Company(served.url.removesuffix("/mcp")))
        made[0].web = served
        yield made[0]


async def _json(exchange: Exchange, status: int, document: Json, **headers: str) -> None:
    await exchange.respond(status, json.dumps(document).encode(), content_type="application/json", **headers)


def _has_nonce(exchange: Exchange, nonce: str) -> bool:
    claims = json.loads(base64.urlsafe_b64decode(exchange.headers["dpop"].split(".")[1] + "=="))
    return claims.get("nonce") == nonce


def basic_pair(exchange: Exchange) -> tuple[str, str]:
    """The client id and secret of a request."""
    pair = base64.b64decode(exchange.headers["authorization"].removeprefix("Basic ")).decode()
    name, _, secret = pair.partition(":")
    return unquote(name), unquote(secret)
