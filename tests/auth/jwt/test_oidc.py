from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from defserve import Server
from defserve.auth import OIDC
from defserve.auth.signing_keys import RETRY
from defserve.errors import UsageError
from tests.auth.issuer import AUDIENCE, ISSUER, claims, jwk, key_set, private_key, signed
from tests.rows import for_each_row

KEYS = f"{ISSUER}/keys"
METADATA = f"{ISSUER}/.well-known/openid-configuration"
ONE = jwk(private_key(), "ES256", kid="one")


class Provider:
    """What an issuer publishes, and how often it was asked for each."""

    def __init__(self, **changed: Any) -> None:
        self.metadata = {"issuer": ISSUER, "jwks_uri": KEYS, **changed}
        self.keys = key_set(ONE)
        self.asked: list[str] = []
        self.verifier = OIDC(ISSUER, audience=AUDIENCE, fetch=self.fetch)

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        found = {METADATA: json.dumps(self.metadata).encode(), KEYS: self.keys}.get(url)
        if found is None:
            raise OSError("it answered with status 404")
        return found

    async def knows(self, token: str) -> bool:
        return await self.verifier.verify(token) is not None


def token(header: dict[str, Any] | None = None, **changed: Any) -> str:
    return signed(claims(**changed), headers={"kid": "one", **(header or {})})


def test_the_issuer_alone_is_enough_to_verify_its_tokens() -> None:
    async def scenario() -> None:
        provider = Provider()
        found = await provider.verifier.verify(token())
        assert found is not None and found.id == "alice" and found.scopes == {"read", "write"}
        assert [await provider.knows(token()) for _ in range(3)] == [True] * 3
        assert provider.asked == [METADATA, KEYS]
        assert not await provider.knows(token({"kid": "unknown"}))
        assert provider.asked == [METADATA, KEYS], "unknown keys cause no more than one fetch a minute"

    asyncio.run(scenario())


def test_a_provider_of_another_name_lends_no_keys() -> None:
    async def scenario() -> None:
        provider = Provider(issuer="https://evil.example")
        assert not await provider.knows(token())
        assert KEYS not in provider.asked

    asyncio.run(scenario())


def test_a_provider_that_was_away_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        provider = Provider(jwks_uri="http://login.example/keys")
        assert not await provider.knows(token())
        provider.metadata["jwks_uri"] = KEYS
        assert not await provider.knows(token()), "not at once"
        monkeypatch.setattr("defserve.auth.signing_keys.RETRY", RETRY * 0)
        assert await provider.knows(token())

    asyncio.run(scenario())


@for_each_row(
    "header, changed",
    [
        ({}, {"aud": "https://other.example/mcp"}),
        ({}, {"iss": f"{ISSUER}/"}),
        ({}, {"at_hash": "x"}),
        ({}, {"c_hash": "x"}),
        ({}, {"events": {}}),
        ({}, {"typ": "ID"}),
        ({}, {"typ": "Refresh"}),
        ({"typ": "dpop+jwt"}, {}),
        ({"typ": "logout+jwt"}, {}),
        ({"typ": "oauth-id-jag+jwt"}, {}),
        ({"typ": 7}, {}),
    ],
    ids=range(11),
)
def test_what_is_no_access_token_for_this_server_is_refused(header: dict[str, Any], changed: dict[str, Any]) -> None:
    assert asyncio.run(Provider().knows(token(header, **changed))) is False


@for_each_row("header", [{}, {"typ": "JWT"}, {"typ": "at+jwt"}, {"typ": "application/at+JWT"}])
def test_access_tokens_may_say_that_they_are(header: dict[str, Any]) -> None:
    assert asyncio.run(Provider().knows(token(header)))


@for_each_row("changed", [{"scope": None, "scp": "read write"}, {"scope": "read", "scp": ["write"]}])
def test_scopes_are_found_under_both_names(changed: dict[str, Any]) -> None:
    found = asyncio.run(Provider().verifier.verify(token(**changed)))
    assert found is not None and found.scopes == {"read", "write"}


def test_clients_are_told_of_the_issuer() -> None:
    server = Server("notes", auth=OIDC(ISSUER, audience=AUDIENCE))
    assert server.auth is not None and server.auth.resource is not None
    assert server.auth.resource.document()["authorization_servers"] == [ISSUER]


@for_each_row("options, problem", [({"audience": ""}, "issuer and an audience"), ({"algorithms": "HS256"}, "secrets")])
def test_settings_that_would_accept_anything_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        OIDC(ISSUER, **{"audience": AUDIENCE, **options})
