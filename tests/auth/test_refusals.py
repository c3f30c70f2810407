"""Refused tokens: the operator's log says which check failed; the caller learns nothing of it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from defserve import Auth, Server
from defserve.auth import ApiKeys, DeniedTokens, Issuers, StaticTokens
from defserve.auth.bearer_tokens import TokenRefused, get_token_check_function
from defserve.auth.principals import Principal
from defserve.auth.rates import MAX_LOGGED_REFUSALS, RefusalLog
from defserve.auth.signed_tokens import JWT
from defserve.stores.store import MemoryStore
from tests.auth.issuer import AUDIENCE, ISSUER, claims, jwk, key_set, pem, private_key, raw, signed
from tests.auth.web import client, post
from tests.rows import for_each_row

PEPPER = "0123456789abcdef0123456789abcdef"
NOW = int(time.time())
HOSTILE = "evil\nWARNING forged line" + "x" * 500


def verifier(**changed: Any) -> JWT:
    options: dict[str, Any] = {"key": pem(private_key()), "audience": AUDIENCE, "issuer": ISSUER, **changed}
    return JWT(**options)


def refusal(token: str, by: Any = None) -> TokenRefused:
    async def check() -> Principal:
        return await get_token_check_function(by or verifier())(token)

    with pytest.raises(TokenRefused) as refused:
        asyncio.run(check())
    return refused.value


@for_each_row(
    ("changed", "said"),
    [
        ({"exp": 1_700_000_000}, "exp: it expired at 2023-11-14 22:13:20Z"),
        ({"exp": 1e300}, None),
        ({"exp": "tomorrow"}, "exp: it is not a date"),
        ({"nbf": 4_000_000_000}, "nbf: it is good from 2096-10-02 07:06:40Z"),
        ({"iat": 1e300}, "iat: it is good from a time that no calendar has"),
        ({"aud": "https://other.example"}, f"aud: it is for 'https://other.example', and this server is {AUDIENCE}"),
        ({"iss": "https://evil.example"}, f"iss: it is from 'https://evil.example', and this server trusts {ISSUER}"),
        ({"aud": None}, "aud: it has none"),
        ({"at_hash": "x"}, "typ: it is another kind of token, such as an ID token"),
        ({"sub": "local"}, "sub: it cannot be the name of a caller"),
    ],
)
def test_claims_that_fail_are_named_with_the_token_s_holder(changed: dict[str, Any], said: str | None):
    token = signed(claims(**{"jti": "t-1", **changed}), headers={"kid": "k"})
    if said is None:
        assert asyncio.run(verifier().verify(token)) is not None
        return
    for _ in range(2):  # the second time it is known
        found = refusal(token, VERIFIER)
        assert found.reason == said
        assert found.holder == {"sub": changed.get("sub", "alice"), "kid": "k", "jti": "t-1"}


VERIFIER = verifier()


@for_each_row(
    ("token", "said"),
    [
        ("opaque", "format: it cannot be read as a signed token (DecodeError)"),
        (signed(key=private_key(name="other")), "signature: it was not made with the issuer's key"),
        (raw({"alg": "none"}, claims()), "alg: 'none' is not one of "),
        (signed(headers={"crit": ["x"]}), "format: it cannot be read as a signed token (InvalidTokenError)"),
        (signed(headers={"typ": "logout+jwt"}), "typ: 'logout+jwt' is not an access token"),
        (signed(headers={"kid": "k" * 300}), "kid: it is not a text of at most 256 characters"),
    ],
)
def test_a_token_that_proves_nothing_has_no_holder(token: str, said: str):
    found = refusal(token)
    assert found.reason.startswith(said) and not found.holder
    assert "alice" not in str(found)


def test_an_unknown_key_id_is_quoted_short_and_on_one_line():
    async def fetch(url: str) -> bytes:
        return key_set(jwk(private_key(), "ES256", kid="known"))

    keys = verifier(key=None, jwks_url="https://login.example/keys", fetch=fetch)
    found = str(refusal(signed(headers={"kid": HOSTILE[:200]}), keys))
    assert found.startswith("kid: https://login.example/keys has no key 'evil\\nWARNING forged line")
    assert "\n" not in found and len(found) < 250


def test_keys_that_cannot_be_fetched_are_named():
    async def fetch(url: str) -> bytes:
        raise OSError("down")

    keys = verifier(key=None, jwks_url="https://login.example/keys", fetch=fetch)
    assert refusal(signed(), keys).reason == "keys: https://login.example/keys has given none"


def test_a_denied_id_is_named_revoked():
    async def check() -> str:
        denied = DeniedTokens(MemoryStore(), server="s")
        await denied.deny("t-1", until=NOW + 3600)
        with pytest.raises(TokenRefused) as refused:
            await verifier(denied=denied).check_token(signed(claims(jti="t-1")))
        return str(refused.value)

    assert asyncio.run(check()) == "revoked: its id is on the list of denied tokens (sub 'alice', jti 't-1')"


@for_each_row(
    ("payload", "said"),
    [
        (
            {"iss": "https://evil.example"},
            f"iss: it names the issuer 'https://evil.example', and this server trusts {ISSUER}",
        ),
        ({"iss": None}, f"iss: it names no issuer, and this server trusts {ISSUER}"),
    ],
)
def test_a_token_of_an_unknown_issuer_is_refused_for_it(payload: dict[str, Any], said: str):
    assert str(refusal(signed(claims(**payload)), Issuers([verifier()]))) == said


def test_api_keys_are_unknown_expired_or_of_another_form():
    async def check() -> list[str]:
        now = 1_800_000_000.0
        keys = ApiKeys(MemoryStore(), pepper=PEPPER, server="s", clock=lambda: now)
        short, gone = await keys.create("ci", expires_in=60), await keys.create("old")
        await keys.revoke(gone.key.id)
        now += 61
        said: list[str] = []
        for token in (short.token, gone.token, short.token[:-4] + "AAAA", "opaque"):
            with pytest.raises(TokenRefused) as refused:
                await keys.check_token(token)
            said.append(str(refused.value).replace(short.key.id, "ID"))
        return said

    assert asyncio.run(check()) == [
        "expired: the API key expired at 2027-01-15 08:01:00Z (principal 'ci', key 'ID')",
        "unknown: no API key has its id, or the key was revoked",
        "unknown: an API key has its id, and another secret",
        "format: it is not an API key of defserve",
    ]


def test_an_author_s_own_verify_decides_and_is_named():
    class Stricter(StaticTokens):
        async def verify(self, token: str) -> Principal | None:
            return None

    assert str(refusal("t", Stricter({"t": "alice"}))) == "token: Stricter does not accept it"


# -- the log, and what the caller learns


def guarded() -> Server:
    server = Server("guarded", "1", auth=Auth(verifier(), scopes=["admin"]))

    @server.tool
    def ping() -> str:
        return "pong"

    return server


@pytest.mark.anyio
async def test_the_log_says_what_failed_and_every_caller_is_told_the_same(caplog: pytest.LogCaptureFixture):
    tokens = {
        "exp": signed(claims(exp=1_700_000_000)),
        "aud": signed(claims(aud="https://other.example")),
        "signature": signed(key=private_key(name="other")),
        "format": "opaque",
    }
    answers: set[tuple[int, str, str]] = set()
    async with client(guarded()) as http:
        with caplog.at_level(logging.WARNING, "defserve.auth"):
            for check, token in tokens.items():
                caplog.clear()
                answer = await post(http, token, "tools/list")
                answers.add((answer.status_code, answer.headers["www-authenticate"], answer.json()["error"]["message"]))
                assert f"is refused: {check}: " in caplog.text
                assert token not in caplog.text
    text = "Unauthorized: this token is unknown, expired or revoked. Send another one"
    challenge = (
        'Bearer error="invalid_token", scope="admin", '
        'resource_metadata="https://tools.example/.well-known/oauth-protected-resource/mcp"'
    )
    metadata = ". https://tools.example/.well-known/oauth-protected-resource/mcp says who issues tokens"
    assert answers == {(401, challenge, text + metadata)}


@pytest.mark.anyio
async def test_a_missing_scope_and_a_header_without_a_token_are_logged(caplog: pytest.LogCaptureFixture):
    async with client(guarded()) as http:
        with caplog.at_level(logging.WARNING, "defserve.auth"):
            await post(http, signed(), "tools/list")
            await post(http, "a b", "tools/list")
            await post(http, None, "tools/list")
    lines = [record.getMessage().partition(" is refused: ")[2] for record in caplog.records]
    assert lines == ["scope: it lacks admin (sub 'alice')", "header: there is no token to read in Authorization"]


@pytest.mark.anyio
async def test_a_scope_that_a_tool_needs_is_logged_when_it_is_asked_for(caplog: pytest.LogCaptureFixture):
    server = Server("guarded", "1", auth=verifier())

    @server.tool(scopes=["notes.write"])
    def write() -> str:
        return "written"

    async with client(server) as http:
        with caplog.at_level(logging.WARNING, "defserve.auth"):
            answer = await post(http, signed(), "tools/call", name="write", arguments={})
    assert answer.status_code == 403
    assert caplog.records[0].getMessage().endswith("is refused: scope: it lacks notes.write (sub 'alice')")


@pytest.mark.anyio
async def test_a_flood_is_counted_not_written(caplog: pytest.LogCaptureFixture):
    now = 0.0
    refusals = RefusalLog(clock=lambda: now)
    with caplog.at_level(logging.WARNING, "defserve.auth"):
        for _ in range(MAX_LOGGED_REFUSALS + 1000):
            refusals.log_refusal("203.0.113.5", "exp: it expired")
        assert len(caplog.records) == MAX_LOGGED_REFUSALS
        assert caplog.records[0].getMessage() == "a token from 203.0.113.5 is refused: exp: it expired"
        now = 61
        refusals.log_refusal("", "exp: it expired")
    assert [record.getMessage() for record in caplog.records[MAX_LOGGED_REFUSALS:]] == [
        "… and 1000 more refused tokens",
        "a token from an unknown address is refused: exp: it expired",
    ]


@pytest.mark.anyio
async def test_the_rest_of_a_flood_is_reported_when_its_minute_ends(caplog: pytest.LogCaptureFixture):
    now = 59.99
    refusals = RefusalLog(clock=lambda: now - 59.99)
    with caplog.at_level(logging.WARNING, "defserve.auth"):
        refusals.log_refusal("", "one")
        now += 59.99
        for _ in range(MAX_LOGGED_REFUSALS):
            refusals.log_refusal("", "more")
        await asyncio.sleep(0.1)
    assert caplog.records[-1].getMessage() == "… and 1 more refused tokens"
