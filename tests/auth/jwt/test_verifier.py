from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth import signed_tokens
from defserve.auth.principals import Principal
from defserve.auth.signed_tokens import ENTRY_BYTES, JWT, DeniedTokens
from defserve.errors import UsageError
from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, claims, jwk, key_set, part, pem, private_key, raw, signed
from tests.rows import for_each_row

NOW = int(time.time())
PEM = pem(private_key())
VERIFIER = JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER)


def verified(token: str, verifier: JWT = VERIFIER) -> Principal | None:
    return asyncio.run(verifier.verify(token))


def test_a_good_token_gives_its_principal() -> None:
    alice = verified(signed())
    assert alice is not None
    assert (alice.id, alice.scopes, alice.kind) == ("alice", {"read", "write"}, "token")
    assert alice.claims["iss"] == ISSUER


@for_each_row("algorithm", ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_every_public_key_algorithm_works_with_a_fixed_key_and_a_key_set(algorithm: str) -> None:
    key = private_key("RS256" if algorithm[0] in "RP" else algorithm)
    token = signed(key=key, algorithm=algorithm, headers={"kid": "k"})
    fixed = JWT(key=pem(key), audience=AUDIENCE, issuer=ISSUER)
    published = published_by(key_set(jwk(key, algorithm, kid="k")))
    assert (
        verified(token, fixed)
        == verified(token, published)
        == Principal("alice", frozenset({"read", "write"}), claims_of(token))
    )


def test_a_certificate_stands_for_its_key() -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "login.example")])
    start = datetime(2020, 1, 1)
    builder = x509.CertificateBuilder(name, name, private_key().public_key(), 1, start, start + timedelta(days=1))
    certificate = builder.sign(private_key(), SHA256()).public_bytes(Encoding.PEM)
    assert verified(signed(), JWT(key=certificate, audience=AUDIENCE, issuer=ISSUER)) is not None


def claims_of(token: str) -> dict[str, Any]:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))


def published_by(document: bytes) -> JWT:
    async def fetch(url: str) -> bytes:
        return document

    return JWT(jwks_url="https://login.example/keys", audience=AUDIENCE, issuer=ISSUER, fetch=fetch)


@for_each_row(
    ("changed", "why"),
    [
        ({"aud": "https://other.example"}, "wrong audience"),
        ({"aud": AUDIENCE + "/"}, "nearly the audience"),
        ({"aud": [AUDIENCE, 1]}, "odd audiences"),
        ({"aud": []}, "empty audience"),
        ({"aud": {AUDIENCE: 1}}, "audience as an object"),
        ({"aud": None}, "no audience"),
        ({"iss": "https://evil.example"}, "wrong issuer"),
        ({"iss": [ISSUER]}, "issuer as a list"),
        ({"iss": None}, "no issuer"),
        ({"exp": None}, "no expiry"),
        ({"exp": NOW - 1}, "expired"),
        ({"exp": str(NOW + 3600)}, "expiry as text"),
        ({"exp": True}, "expiry as a truth"),
        ({"exp": float("inf")}, "expiry at infinity"),
        ({"exp": float("nan")}, "expiry at no number"),
        ({"exp": {}}, "expiry as an object"),
        ({"nbf": NOW + 600}, "not yet valid"),
        ({"nbf": "0"}, "not-before as text"),
        ({"iat": NOW + 600}, "issued in the future"),
        ({"sub": None}, "no subject"),
        ({"sub": ""}, "empty subject"),
        ({"sub": 7}, "subject as a number"),
        ({"sub": "local"}, "subject passing for the local user"),
        ({"sub": "anonymous:10.0.0.1"}, "subject passing for an address"),
        ({"sub": "alice\r\nlevel=ERROR"}, "subject with a line break"),
        ({"sub": "\ud800"}, "subject that is no text"),
        ({"sub": "a" * 257}, "subject too long"),
    ],
)
def test_a_truly_signed_token_with_wrong_claims_is_nobody_s(changed: dict[str, Any], why: str) -> None:
    assert verified(signed(claims(**changed))) is None, why


@for_each_row(
    "changed",
    [
        {"aud": ["https://other.example", AUDIENCE]},
        {"nbf": 20},
        {"exp": 60.5},
        {"sub": "Ægir"},
    ],
)
def test_unusual_claims_that_are_right_are_accepted(changed: dict[str, Any]) -> None:
    now = int(time.time())  # not when the module was loaded: a slow run must not outlive the token
    changed = {name: now + value if name in ("exp", "nbf") else value for name, value in changed.items()}
    assert verified(signed(claims(**changed))) is not None


HOSTILE: dict[str, str] = {
    "empty": "",
    "no dots": "abc",
    "two parts": "a.b",
    "four parts": signed() + ".x",
    "unsigned, alg none": raw({"alg": "none"}, claims()),
    "unsigned, alg None": raw({"alg": "None"}, claims()),
    "signed, alg none": raw({"alg": "none"}, claims(), key=private_key()),
    "no alg": raw({"typ": "JWT"}, claims(), key=private_key()),
    "alg as a list": raw({"alg": ["ES256"]}, claims(), key=private_key()),
    "alg as null": raw({"alg": None}, claims(), key=private_key()),
    "alg in lower case": raw({"alg": "es256"}, claims(), key=private_key()),
    "public key as the HMAC secret": raw({"alg": "HS256"}, claims()) + part(b"x" * 32),
    "another key's signature": signed(key=private_key("ES256", "other")),
    "signature cut off": signed().rpartition(".")[0] + ".",
    "payload swapped": ".".join([signed().split(".")[0], part(claims(sub="root")), signed().split(".")[2]]),
    "header is no object": raw([], claims(), key=private_key()),
    "header is no JSON": raw(b"{", claims(), key=private_key()),
    "header is no UTF-8": raw(b"\xff\xfe", claims(), key=private_key()),
    "header nested deep": raw(b"[" * 10_000, claims(), key=private_key()),
    "payload is no object": raw({"alg": "ES256"}, ["alice"], key=private_key()),
    "payload nested deep": raw({"alg": "ES256"}, b'{"a":' + b"[" * 10_000, key=private_key()),
    "critical header": raw({"alg": "ES256", "crit": ["b64"], "b64": True}, claims(), key=private_key()),
    "unencoded payload": raw({"alg": "ES256", "crit": ["b64"], "b64": False}, claims(), key=private_key()),
    "kid as an object": signed(headers={"kid": {"$ne": ""}}),
    "kid far too long": signed(headers={"kid": "k" * 257}),
    "larger than 16 KiB": signed(claims(padding="x" * 16_384)),
    "unicode": signed() + "é",
    "unicode that looks right": signed().replace(".", "。"),
    "lone surrogate": "\ud800.\ud800.\ud800",
    "line break": signed() + "\n",
    "NUL": signed() + "\x00",
    "scheme and all": "Bearer " + signed(),
}


@for_each_row("token", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_token_is_nobody_s(token: str) -> None:
    assert verified(token) is None


@for_each_row("where", ["jku", "jwk", "x5u", "x5c"])
def test_a_token_cannot_bring_its_own_key(where: str) -> None:
    mine = private_key("ES256", "mine")
    brought = {"jwk": jwk(mine, "ES256"), "x5c": ["MII"]}.get(where, "https://evil.example/keys")
    assert verified(signed(key=mine, headers={where: brought})) is None


def test_a_public_key_is_never_a_secret() -> None:
    import hashlib
    import hmac

    body = f"{part({'alg': 'HS256'})}.{part(claims())}"
    forged = f"{body}.{part(hmac.digest(PEM.encode(), body.encode(), hashlib.sha256))}"
    assert verified(forged) is None


def test_an_algorithm_that_was_not_allowed_is_refused_though_the_key_fits() -> None:
    key = private_key("RS256")
    narrow = JWT(key=pem(key), audience=AUDIENCE, issuer=ISSUER, algorithms="RS256")
    assert verified(signed(key=key, algorithm="RS256"), narrow) is not None
    assert verified(signed(key=key, algorithm="RS512"), narrow) is None


def test_a_shared_secret_works_when_asked_for() -> None:
    verifier = JWT(key=SECRET, audience=AUDIENCE, issuer=ISSUER, algorithms=("HS256",))
    assert verified(signed(key=SECRET, algorithm="HS256"), verifier) is not None
    assert verified(signed(key="t" * 64, algorithm="HS256"), verifier) is None
    assert verified(raw({"alg": "none"}, claims()), verifier) is None


@given(st.text(max_size=200))
def test_any_text_is_nobody_s(text: str) -> None:
    assert verified(text) is None


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_any_three_parts_are_nobody_s(header: bytes, payload: bytes, signature: bytes) -> None:
    assert verified(f"{part(header)}.{part(payload)}.{part(signature)}") is None


@for_each_row(
    ("held", "scopes"),
    [
        ("read write", {"read", "write"}),
        (" read  write ", {"read", "write"}),
        (["read", "write"], {"read", "write"}),
        (["read", 1, None, "a b", 'x"'], {"read"}),
        ("", set[str]()),
        (None, set[str]()),
        ({"read": True}, set[str]()),
        (7, set[str]()),
    ],
)
def test_scopes_are_a_string_or_a_list_and_nothing_else_grants_any(held: Any, scopes: set[str]) -> None:
    alice = verified(signed(claims(scope=held)))
    assert alice is not None and alice.scopes == scopes


def test_scopes_may_be_in_another_claim() -> None:
    verifier = JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER, scopes_claim="scp")
    alice = verified(signed(claims(scp=["admin"])), verifier)
    assert alice is not None and alice.scopes == {"admin"}


def test_several_audiences_may_be_ours() -> None:
    verifier = JWT(key=PEM, audience=[AUDIENCE, "api://tools"], issuer=ISSUER)
    assert verified(signed(claims(aud="api://tools")), verifier) is not None
    assert verified(signed(claims(aud="api://other")), verifier) is None


@for_each_row(
    ("settings", "problem"),
    [
        ({"audience": ""}, "audience"),
        ({"audience": ()}, "audience"),
        ({"issuer": ""}, "issuer"),
        ({"leeway": -1}, "leeway"),
        ({"leeway": 3600}, "leeway"),
        ({"key": None}, "either key or jwks_url"),
        ({"jwks_url": "https://login.example/keys"}, "either key or jwks_url"),
        ({"key": None, "jwks_url": "http://login.example/keys"}, "only https"),
        ({"key": None, "jwks_url": "file:///etc/passwd"}, "absolute"),
        ({"key": None, "jwks_url": "https://login.example/keys", "algorithms": "HS256"}, "cannot be secrets"),
        ({"algorithms": ()}, "accepts no token"),
        ({"algorithms": ("none",)}, "'none'"),
        ({"algorithms": ("ES256", "none")}, "'none'"),
        ({"algorithms": ("ES256", "HS256")}, "mix"),
        ({"algorithms": "HS256"}, "PEM key, but"),
        ({"algorithms": "RS256"}, "fits none"),
        ({"algorithms": "ES384"}, "fits none"),
        ({"key": SECRET}, "not a PEM public key"),
        ({"key": "short", "algorithms": "HS256"}, "5 bytes long"),
        ({"key": "s" * 47, "algorithms": ("HS256", "HS384")}, "need at least 48"),
        ({"key": "-----BEGIN PUBLIC KEY-----\nno\n-----END PUBLIC KEY-----"}, "cannot be read"),
        ({"key": "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----"}, "private key"),
        ({"key": pem(private_key("RS256", "weak"))}, "fits none"),
    ],
)
def test_a_verifier_that_cannot_work_is_not_built(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        JWT(**{"key": PEM, "audience": AUDIENCE, "issuer": ISSUER, **settings})


def test_a_missing_library_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(UsageError, match=r'pip install "defserve\[auth\]"'):
        JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER)


def test_importing_the_verifiers_imports_no_library() -> None:
    heavy = "{'jwt', 'cryptography', 'anyio', 'asyncio', 'pydantic', 'httpx2', 'urllib.request'}"
    program = f"import sys, defserve.auth.auth_options, defserve.auth.rates; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# -- the end of a token ----------------------------------------------------------------------------------


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


def test_a_token_ends_at_its_expiry_whatever_the_leeway() -> None:
    clock, token = Clock(), signed(claims(iat=NOW, exp=NOW + 60))
    verifier = JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER, clock=clock, leeway=300)
    clock.now += 59.9
    assert verified(token, verifier) is not None
    clock.now += 0.1
    assert verified(token, verifier) is None


def test_the_leeway_is_for_an_issuer_whose_clock_is_ahead() -> None:
    clock, token = Clock(), signed(claims(nbf=NOW + 40, iat=NOW + 40))
    assert verified(token, JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER, clock=clock)) is None
    assert verified(token, JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER, clock=clock, leeway=40)) is not None


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens whose signature was checked, in order."""
    import jwt

    decoded: list[str] = []

    def decode(token: str, *args: Any, **options: Any) -> Any:
        decoded.append(token)
        return original(token, *args, **options)

    original = jwt.decode
    monkeypatch.setattr(jwt, "decode", decode)
    return decoded


def test_a_signature_is_checked_once_and_the_claims_of_each_caller_are_its_own(decoded: list[str]) -> None:
    verifier, good = JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER), signed(claims(roles=["reader"]))
    bad = good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB")
    for _ in range(3):
        alice = verified(good, verifier)
        assert alice is not None and alice.claims["roles"] == ["reader"]
        alice.claims["roles"].append("admin")  # an author's mistake must not last
        assert verified(bad, verifier) is None
    assert decoded == [good, bad]


def test_what_is_remembered_of_tokens_is_bounded_in_bytes(decoded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("GOOD_BYTES", "BAD_BYTES"):
        monkeypatch.setattr(signed_tokens, bound, 8 * ENTRY_BYTES)
    verifier = JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER)
    for make in (lambda number: signed(claims(jti=str(number))), lambda number: signed(claims(aud=str(number)))):
        tokens = [make(number) for number in range(20)]
        for token in tokens:
            verified(token, verifier)
        decoded.clear()
        for token in (tokens[-1], tokens[0]):
            verified(token, verifier)
        assert decoded == [tokens[0]]  # the latest are remembered, and the first made room for them


def test_tokens_of_a_key_that_is_no_longer_published_end() -> None:
    """Once the set is fetched again, although the signature of the token was good before."""
    one, two = private_key("ES256", "one"), private_key("ES256", "two")
    document = [key_set(jwk(one, "ES256", kid="one"), jwk(two, "ES256", kid="two"))]

    async def fetch(url: str) -> bytes:
        return document[0]

    async def scenario() -> None:
        verifier = JWT(jwks_url="https://login.example/keys", audience=AUDIENCE, issuer=ISSUER, fetch=fetch)
        tokens = [signed(key=key, headers={"kid": kid}) for key, kid in ((one, "one"), (two, "two"))]
        assert [await verifier.verify(token) is not None for token in tokens] == [True, True]
        document[0] = key_set(jwk(two, "ES256", kid="two"))
        keys: Any = verifier._keys  # pyright: ignore[reportPrivateUsage]
        keys._fetched -= keys.ttl
        keys._tried -= keys.ttl
        assert [await verifier.verify(token) is not None for token in tokens] == [False, True]

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["memory:", "sqlite:///{}/tokens.db"])
def test_a_denied_token_is_nobody_s_and_is_forgotten_when_it_has_expired(address: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()
        denied = DeniedTokens(address.format(tmp_path), server="notes", clock=clock)
        verifier = JWT(key=PEM, audience=AUDIENCE, issuer=ISSUER, denied=denied, clock=clock)
        tokens = {jti: signed(claims(jti=jti, iat=NOW, exp=NOW + 100)) for jti in ("one", "two")}
        assert [await verifier.verify(token) is not None for token in tokens.values()] == [True, True]
        await denied.deny("one", until=NOW + 100)
        assert [await verifier.verify(token) is not None for token in tokens.values()] == [False, True]
        # Without an id there is nothing to deny it by.
        assert await verifier.verify(signed(claims(jti=None))) is None
        clock.now += 101
        await denied.deny("two", until=clock.now + 100)
        assert await denied.accepts({"jti": "one"}) and not await denied.accepts({"jti": "two"})
        await denied.close()

    asyncio.run(scenario())


def test_an_id_that_no_token_has_cannot_be_denied() -> None:
    with pytest.raises(UsageError, match="token's id"):
        asyncio.run(DeniedTokens("memory:").deny("", until=0))
