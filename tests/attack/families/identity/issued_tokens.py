"""Tokens of issuers: none is accepted that another has signed, that is for another server, or that was only said."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from defserve.auth import (
    OIDC,
    Auth,
    DPoP,
    Introspection,
    OAuthProxy,
    OnBehalfOf,
    Principal,
    RegisteredClient,
    StaticTokens,
    TrustedIssuer,
)
from defserve.auth.issuers import HttpRequest, HttpResponse, IssuerUnavailable
from defserve.auth.proxy.site_messages import SiteRequest
from defserve.errors import DefserveError
from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import (
    forward_tokens,
    publish_private_keys,
    read_tokens_without_checking,
    take_any_introspection,
    take_any_number_of_secrets,
    take_assertions_again,
    take_proofs_again,
    vouch_everywhere,
)
from tests.attack.speaking.mcp import Caller
from tests.attack.trial import Control, Family, Trial
from tests.auth.issuer import claims, jwk, key_set, part, pem, private_key, raw, signed
from tests.auth.proofs import PUBLIC, THUMBPRINT, proof
from tests.auth.vendor import vendor_at_address

FAMILY = Family("issued tokens")
SERVER = "http://localhost:8080/mcp"
SECRET = "the secret of the attack suite, not a secret"
KEYS = {name: private_key("ES256", f"attack {name}") for name in "AB"}


def token(issuer: str, signer: str, **changed: Any) -> str:
    return signed(claims(**{"iss": f"https://{issuer.lower()}.example", "aud": SERVER, **changed}), key=KEYS[signer])


def hmac_signed(algorithm: str, payload: Any, secret: bytes, **header: str) -> str:
    body = f"{part({'alg': algorithm, **header})}.{part(payload)}"
    return f"{body}.{part(hmac.digest(secret, body.encode(), 'sha' + algorithm[2:]))}"


def old_nonce() -> str:
    return DPoP(nonce=True, secret=SECRET, clock=lambda: time.time() - 3600).new_nonce()


def accepting(trial: Trial, number: int = 0, store: str = "", **more: str) -> Served:
    env = {**{f"KEY_{name}": pem(key) for name, key in KEYS.items()}, **more}
    store = store or str(trial.arena.folder / "proofs.db")
    return trial.arena.serve(Kind("signed_in").with_env(**env, STORE=store, NUMBER=str(number)))


def status(served: Served, authorization: str, *proofs: str) -> int | None:
    headers = {"Authorization": authorization, **({"DPoP": proofs[0]} if proofs else {})}
    return Caller(served.place, headers=headers).call_alone("who")["status"]


@FAMILY.attack("mixed-up issuers", Control(read_tokens_without_checking, "A's name, B's key is accepted"))
def _(trial: Trial) -> None:
    served = accepting(trial)
    for name in "AB":
        trial.expect(status(served, f"Bearer {token(name, name)}") == 200, f"an honest token of {name} is refused")
    head = {"alg": "ES256"}
    for name, bad in {
        "A's name, B's key": token("A", "B"),
        "B's name, A's key": token("B", "A"),
        "an unknown issuer": token("C", "A"),
        "a list of issuers": raw(head, claims(iss=["https://a.example"], aud=SERVER), key=KEYS["A"]),
        "no issuer": raw(head, claims(iss=None, aud=SERVER), key=KEYS["A"]),
        "a slash more": raw(head, claims(iss="https://a.example/", aud=SERVER), key=KEYS["A"]),
        "no signature": raw({"alg": "none"}, claims(iss="https://a.example", aud=SERVER)),
        "for another server": signed(claims(iss="https://a.example", aud="https://x.example"), key=KEYS["A"]),
        "an ID token": token("A", "A", at_hash="x"),
        "a logout token": token("A", "A", events={}),
    }.items():
        trial.expect(status(served, f"Bearer {bad}") == 401, f"{name} is accepted")


@FAMILY.attack("replayed proofs (DPoP)", Control(take_proofs_again, "accepts a proof again"))
def _(trial: Trial) -> None:
    store = str(trial.arena.folder / "replayed.db")
    first, second = accepting(trial, 1, store), accepting(trial, 2, store)
    bound = token("A", "A", cnf={"jkt": THUMBPRINT})
    good = proof(bound, SERVER)
    trial.expect(status(first, f"DPoP {bound}", good) == 200, "an honest proof is refused")
    for name, served in (("the same process", first), ("another process", second)):
        trial.expect(status(served, f"DPoP {bound}", good) == 401, f"{name} accepts a proof again")
    thief = private_key("ES256", "thief")
    other = token("A", "A", cnf={"jkt": THUMBPRINT}, sub="bob")
    for name, bad in {
        "for another token": proof(other, SERVER),
        "for another method": proof(bound, SERVER, method="GET"),
        "for another server": proof(bound, "https://evil.example/mcp"),
        "of another key": proof(bound, SERVER, key=thief),
        "of yesterday": proof(bound, SERVER, iat=int(time.time()) - 86400),
        "of tomorrow": proof(bound, SERVER, iat=int(time.time()) + 86400),
        "with a secret": proof(bound, SERVER, header={"jwk": {**PUBLIC, "d": "AAAA"}}),
        "without a token": proof(bound, SERVER, ath=None),
    }.items():
        trial.expect(status(first, f"DPoP {bound}", bad) == 401, f"a proof {name} is accepted")
    trial.expect(status(first, f"Bearer {bound}") == 401, "a bound token is accepted without a proof")
    trial.expect(status(first, f"DPoP {bound}") == 401, "a bound token is accepted without a proof, as DPoP")
    plain = token("A", "A")
    trial.expect(status(first, f"DPoP {plain}", proof(plain, SERVER)) == 401, "a plain token passes for a bound one")
    trial.expect(status(second, f"DPoP {bound}", proof(bound, SERVER)) == 200, "a fresh proof is refused")
    for name, nonced in (("no nonce", None), ("another server's nonce", "A" * 32), ("an old nonce", old_nonce())):
        wanting = accepting(trial, 3, store, NONCE="1")
        held = status(wanting, f"DPoP {bound}", proof(bound, SERVER, nonce=nonced)) == 401
        trial.expect(held, f"where a nonce is wanted, {name} is accepted")


@FAMILY.attack("algorithms and keys that a token chooses", Control(read_tokens_without_checking, "is accepted"))
def _(trial: Trial) -> None:
    served = accepting(trial)
    public, key, good = pem(KEYS["A"]), KEYS["A"], claims(iss="https://a.example", aud=SERVER)
    mine = private_key("ES256", "attack thief")
    my_jwk = jwk(mine, "ES256")
    secret = public.encode()
    unsigned = f"{part({'alg': 'ES256'})}.{part(good)}."
    for name, bad in {
        "alg none": raw({"alg": "none"}, good),
        "alg None": raw({"alg": "None"}, good),
        "no alg": raw({}, good),
        "alg none, with a signature": raw({"alg": "none"}, good, key=key),
        "the public key as a secret": hmac_signed("HS256", good, secret),
        "the public key as a secret, without its last line": hmac_signed("HS256", good, secret.strip()),
        "the public key as a longer secret": hmac_signed("HS512", good, secret),
        "a key that it brings along": raw({"alg": "ES256", "jwk": my_jwk}, good, key=mine),
        "a key at an address that it names": raw({"alg": "ES256", "jku": "http://127.0.0.1:1/keys"}, good, key=mine),
        "a certificate that it brings along": raw({"alg": "ES256", "x5c": ["AAAA"]}, good, key=mine),
        "an id that is a path": raw({"alg": "ES256", "kid": "../../dev/null"}, good, key=mine),
        "an id that is an object": raw({"alg": "ES256", "kid": {"a": 1}}, good, key=key),
        "a signature of noughts": unsigned + part(bytes(64)),
        "no signature": unsigned,
        "a longer signature": signed(good, key=key) + "AA",
        "a critical field": raw({"alg": "ES256", "crit": ["exp"]}, good, key=key),
        "a payload that is not encoded": raw({"alg": "ES256", "b64": False, "crit": ["b64"]}, good, key=key),
        "a proof's type": raw({"alg": "ES256", "typ": "dpop+jwt"}, good, key=key),
        "an encrypted token": "a.b.c.d.e",
        "two tokens": signed(good, key=key) + "." + signed(good, key=key),
    }.items():
        trial.expect(status(served, f"Bearer {bad}") == 401, f"{name} is accepted")
    trial.expect(status(served, f"Bearer {signed(good, key=key)}") == 200, "an honest token is refused")


@FAMILY.attack("tokens for another audience, time or person", Control(read_tokens_without_checking, "^{'aud'.*: 200"))
def _(trial: Trial) -> None:
    served, now = accepting(trial), int(time.time())
    trial.expect(status(served, f"Bearer {token('A', 'A', aud=['https://x.example', SERVER])}") == 200, "two audiences")
    for changed in (
        *({"aud": aud} for aud in (
            "https://x.example", SERVER + "/", SERVER.upper(), SERVER[:-1], SERVER + "?x", "http://localhost:8080", "*",
            "", [], [SERVER + "2"], {SERVER: True}, None, 1, [[SERVER]], SERVER + " ", SERVER + "\0",
        )),
        *({"exp": exp} for exp in (now - 1, now - 86_400, str(now + 60), True, None, float("nan"), -1)),
        *({"nbf": nbf} for nbf in (now + 3600, str(now))),
        *({"sub": sub} for sub in ("", None, 1, ["alice"], "a\nb", "x" * 100_000)),
    ):  # fmt: skip
        payload = {**claims(iss="https://a.example", aud=SERVER), **changed}
        payload = {name: value for name, value in payload.items() if value is not None}
        bad = raw({"alg": "ES256"}, payload, key=KEYS["A"])
        refused = status(served, f"Bearer {bad}")
        trial.expect(refused in (400, 401, 431), f"{changed!r:.100}: {refused}")


Pages = dict[str, Any]


@contextmanager
def issuer_with(pages: Callable[[str], Pages]) -> Iterator[tuple[str, list[str]]]:
    """The address of an issuer with these pages, by path, and the paths that were asked for."""
    asked: list[str] = []
    with vendor_at_address() as vendor:

        def answer(request: HttpRequest) -> HttpResponse:
            asked.append(path := urlsplit(request.url).path)
            found = pages(vendor.issuer).get(path)
            if found is None or isinstance(found, HttpResponse):
                return found or HttpResponse(404, {}, b"")
            return HttpResponse(200, {}, found if isinstance(found, bytes) else json.dumps(found).encode())

        vendor.answer = answer  # type: ignore[method-assign]
        yield vendor.issuer, asked


METADATA = "/.well-known/openid-configuration"


@FAMILY.attack(
    "key sets and metadata of others",
    Control(read_tokens_without_checking, "another key under its id: a token is accepted", here=True),
)
def _(trial: Trial) -> None:
    good, bad = KEYS["A"], KEYS["B"]

    def described(issuer: str, /, **changed: Any) -> Pages:
        keys = key_set(jwk(good, "ES256", kid="k"))
        return {METADATA: {"issuer": issuer, "jwks_uri": f"{issuer}/keys", **changed}, "/keys": keys, "/theirs": keys}

    def accepts(pages: Callable[[str], Pages], make: Callable[[str], str]) -> tuple[bool, list[str]]:
        with issuer_with(pages) as (issuer, asked):
            found = asyncio.run(OIDC(issuer, audience=SERVER).verify(make(issuer)))
            return found is not None, asked

    def honest(issuer: str) -> str:
        return signed(claims(iss=issuer, aud=SERVER), key=good, headers={"kid": "k"})

    trial.expect(accepts(described, honest)[0], "an honest token is refused")
    elsewhere = HttpResponse(302, {"location": "/theirs"}, b"")
    for name, pages in {
        "metadata of another issuer": lambda issuer: described(issuer, issuer="https://evil.example"),
        "metadata with a slash more": lambda issuer: described(issuer, issuer=issuer + "/"),
        "keys at an address without https": lambda issuer: described(issuer, jwks_uri="http://192.0.2.1/keys"),
        "keys in a file": lambda issuer: described(issuer, jwks_uri="file:///etc/passwd"),
        "keys at a redirect": lambda issuer: {**described(issuer), "/keys": elsewhere},
        "metadata at a redirect": lambda issuer: {**described(issuer), METADATA: elsewhere},
        "too many keys": lambda issuer: {**described(issuer), "/keys": key_set(*[jwk(good, "ES256", kid="k")] * 500)},
        "too large a set": lambda issuer: {**described(issuer), "/keys": b" " * 500_000 + key_set()},
        "a key for encryption": lambda issuer: {
            **described(issuer), "/keys": key_set(jwk(good, "ES256", kid="k", use="enc"))
        },
        "a key of another algorithm": lambda issuer: {
            **described(issuer), "/keys": key_set(jwk(good, "ES256", kid="k", alg="ES384"))
        },
        "another key under its id": lambda issuer: {**described(issuer), "/keys": key_set(jwk(bad, "ES256", kid="k"))},
    }.items():  # fmt: skip
        trial.expect(not accepts(pages, honest)[0], f"{name}: a token is accepted")
    secret = {"kty": "oct", "kid": "s", "k": part(b"s" * 32), "alg": "HS256"}

    def with_secret(issuer: str) -> Pages:
        return {**described(issuer), "/keys": key_set(jwk(good, "ES256", kid="k"), secret)}

    def by_secret(issuer: str) -> str:
        return hmac_signed("HS256", claims(iss=issuer, aud=SERVER), b"s" * 32, kid="s")

    trial.expect(not accepts(with_secret, by_secret)[0], "a secret that was published is used")
    with issuer_with(described) as (issuer, asked):

        async def flood() -> bool:
            verifier = OIDC(issuer, audience=SERVER)
            for number in range(50):
                head = {"kid": f"unknown-{number}"}
                await verifier.verify(signed(claims(iss=issuer, aud=SERVER), key=bad, headers=head))
            return await verifier.verify(honest(issuer)) is not None

        trial.expect(asyncio.run(flood()), "after unknown keys an honest token is refused")
        trial.expect(asked.count("/keys") <= 2, f"unknown keys caused {asked.count('/keys')} fetches")


@FAMILY.attack("answers about opaque tokens", Control(take_any_introspection, "lets in", here=True))
def _(trial: Trial) -> None:
    """An answer counts for the token that was asked about, for its audience, and as long as it says."""
    now = int(time.time())
    fine = {"active": True, "sub": "alice", "aud": SERVER, "exp": now + 60}

    def verdict(answer: Any, shown: str = "opaque-token") -> str:
        with issuer_with(lambda issuer: {"/introspect": answer}) as (issuer, _):
            asking = Introspection(
                f"{issuer}/introspect", client_id="c", client_secret="s", audience=SERVER, issuer=issuer
            )
            try:
                return "in" if asyncio.run(asking.verify(shown)) is not None else "out"
            except IssuerUnavailable:
                return "away"

    trial.expect(verdict(fine) == "in", "an honest token is refused")
    for changed in (
        {"active": False}, {"active": "true"}, {"active": 1}, {"active": None}, {"aud": "https://x.example"},
        {"aud": []}, {"aud": None}, {"aud": SERVER + "/"}, {"iss": "https://evil.example"}, {"exp": now - 1},
        {"exp": str(now + 9)}, {"exp": True}, {"sub": ""}, {"sub": None}, {"sub": ["alice"]}, {"sub": "a\nb"},
    ):  # fmt: skip
        trial.expect(verdict({**fine, **changed}) != "in", f"{changed} lets in")
    for page in (
        HttpResponse(302, {"location": "/introspect2"}, b""), HttpResponse(200, {}, b"[" * 50_000), b"[]", b"null", b"",
        HttpResponse(401, {}, json.dumps(fine).encode()),
        HttpResponse(200, {}, json.dumps(fine).encode() + b" " * 400_000),
    ):  # fmt: skip
        trial.expect(verdict(page) == "away", f"{str(page)[:60]} is an answer")
    for odd in ("", "a b", "a\nb", "é", "a" * 100_000, "a,b"):
        trial.expect(verdict(fine, odd) == "out" or odd == "a,b", f"{odd[:20]!r} is asked about")

    async def poison() -> None:
        good = "the-good-token"

        async def send(request: HttpRequest) -> HttpResponse:
            shown = (request.form or {})["token"]
            found = {**fine, "sub": shown} if shown == good else {"active": False}
            return HttpResponse(200, {}, json.dumps(found).encode())

        asking = Introspection("https://i.example/x", client_id="c", client_secret="s", audience=SERVER, send=send)
        near = [good.upper(), good + "A", good[:-1], good + "=", "=" + good, good.replace("-", "_")]
        shown = [token for one in near for token in (one, good)]
        found = await asyncio.gather(*(asking.verify(token) for token in shown))
        for token, principal in zip(shown, found, strict=True):
            held = (principal is not None and principal.id == good) if token == good else principal is None
            trial.expect(held, f"{token!r} is answered with what was said about another")

    asyncio.run(poison())


@FAMILY.attack(
    "the caller's token at other services", Control(forward_tokens, "is given the caller's token", here=True)
)
def _(trial: Trial) -> None:
    """A tool gets a token for a target, whatever the target's issuer does, and whoever asks: never what was shown."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(f"{record.getMessage()} {record.exc_text} {record.exc_info}")

    listener, logger = Listener(), logging.getLogger("defserve.auth")
    shown = {name: token("A", "A", sub=name) for name in ("ann", "bob")}

    async def try_all() -> None:
        answers: dict[str, Any] = {
            "an honest issuer": lambda form: {"access_token": f"for-{form['audience']}", "token_type": "Bearer"},
            "an issuer that echoes": lambda form: {"access_token": form["subject_token"], "token_type": "Bearer"},
            "an issuer that refuses and quotes": lambda form: {"error": form["subject_token"]},
            "an issuer that says nothing": lambda form: {},
        }
        for name, answer in answers.items():

            async def send(request: HttpRequest, answer: Any = answer) -> HttpResponse:
                fields = answer(request.form)
                return HttpResponse(400 if "error" in fields else 200, {}, json.dumps(fields).encode())

            target = OnBehalfOf(
                "https://a.example/token",
                client_id="c",
                client_secret="s",
                audience="mail",
                send=send,
                urls=["https://mail.example/"],
            )
            auth = Auth(StaticTokens({text: who for who, text in shown.items()}), targets={"mail": target})
            assert auth.exchanges is not None
            for who, text in shown.items():
                principal = await auth.authenticate([f"Bearer {text}".encode()])
                assert isinstance(principal, Principal)
                try:
                    got = await auth.exchanges.obtain_target_token(principal, "mail")
                except DefserveError as error:
                    got = str(error)
                trial.expect(
                    not any(each in got for each in shown.values()), f"{name}: {who} is given the caller's token"
                )
                trial.expect(name != "an honest issuer" or got == "for-mail", f"{who} gets no token from {name}: {got}")
            for url in (
                "https://mail.example.evil.example/",
                "https://evil.example/",
                "http://mail.example/",
                "https://mail.example@evil.example/",
                "https://mail.example:444/",
            ):
                trial.expect(not target.may_send_to(url), f"a token may be sent to {url}")

    logger.addHandler(listener)
    level, logger.level = logger.level, logging.DEBUG
    try:
        asyncio.run(try_all())
    finally:
        logger.removeHandler(listener)
        logger.level = level
    trial.expect(not any(text in line for text in shown.values() for line in heard), "the log has a caller's token")


@FAMILY.attack(
    "identity assertions of a company",
    Control(take_assertions_again, "is taken again", here=True),
    Control(read_tokens_without_checking, "another key is taken", here=True),
)
def _(trial: Trial) -> None:
    """What a company's provider has signed is taken once, from the client and for the server that it names."""
    issuer, site = "https://a.example", "http://localhost:8080"

    async def fetch(url: str) -> bytes:
        return key_set(jwk(KEYS["A"], "ES256", kid="k"))

    def assertion(signer: str = "A", **changed: Any) -> str:
        said = {"iss": issuer, "aud": site, "client_id": "app", "jti": str(time.monotonic_ns()), "scope": None}
        now = int(time.time())
        head = {"kid": "k", "typ": "oauth-id-jag+jwt"}
        return signed(claims(**{**said, "exp": now + 60, **changed}), key=KEYS[signer], headers=head)

    async def try_all() -> None:
        auth = OAuthProxy(
            url=SERVER,
            issuers=[TrustedIssuer(issuer, jwks_url=f"{issuer}/keys", fetch=fetch)],
            clients=[RegisteredClient(name, secret=name * 9, scopes=[]) for name in ("app", "other")],
        )

        async def is_taken(text: str, client: str = "app") -> bool:
            form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": text}
            body = urlencode({**form, "client_id": client, "client_secret": client * 9}).encode()
            kind = {"content-type": "application/x-www-form-urlencoded"}
            assert auth.site is not None
            return (await auth.site.answer_request(SiteRequest("POST", "/token", "", kind, body))).status == 200

        good = assertion()
        trial.expect(await is_taken(good), "an honest assertion is refused")
        trial.expect(not await is_taken(good), "an assertion is taken again")
        trial.expect(not await is_taken(assertion("B")), "an assertion of another key is taken")
        trial.expect(not await is_taken(assertion(), "other"), "an assertion for another client is taken")
        trial.expect(not await is_taken(assertion(aud=SERVER)), "an assertion for the server itself is taken")
        trial.expect(not await is_taken(assertion(aud="https://x.example")), "one for another server is taken")
        trial.expect(not await is_taken(token("A", "A", aud=site)), "an access token is taken for an assertion")

    asyncio.run(try_all())


@FAMILY.attack("guessed secrets of clients", Control(take_any_number_of_secrets, "guesses are looked at", here=True))
def _(trial: Trial) -> None:
    """A secret can't be found by trying, from one address or from many, and the client itself is not locked out."""
    kind = {"content-type": "application/x-www-form-urlencoded"}

    async def try_all() -> None:
        auth = OAuthProxy(
            url=SERVER, clients=[RegisteredClient("app", secret="right", scopes=["read"])], scopes=["read"]
        )
        assert auth.site is not None

        async def status_of(secret: str, network: str) -> int:
            form = {"grant_type": "client_credentials", "client_id": "app", "client_secret": secret}
            request = SiteRequest("POST", "/token", "", kind, urlencode(form).encode(), network, network)
            return (await auth.site.answer_request(request)).status  # pyright: ignore[reportOptionalMemberAccess]

        trial.expect(await status_of("right", "198.51.100.7") == 200, "the client is refused")
        for told, networks in {
            "one address": ["203.0.113.9"] * 300,
            "many": [f"192.0.2.{n}" for n in range(300)],
        }.items():
            tried = [await status_of(f"guess {n}", network) for n, network in enumerate(networks)]
            trial.expect(set(tried) <= {401, 429}, f"from {told}: {set(tried)}")
            trial.expect(tried.count(401) <= 110, f"from {told}: {tried.count(401)} guesses are looked at")
            trial.expect(await status_of("right", networks[0]) == 429, f"from {told}: guesses are looked at for ever")
            trial.expect(await status_of("right", "198.51.100.7") == 200, f"from {told}: the client is locked out")

    asyncio.run(try_all())


@FAMILY.attack(
    "clients that sign for themselves",
    Control(take_assertions_again, "is taken again", here=True),
    Control(read_tokens_without_checking, "of another key is taken", here=True),
)
def _(trial: Trial) -> None:
    """A client's signature is taken once, for this server, from the client itself, and gives its own scopes alone."""
    site = "http://localhost:8080"
    clients = [
        RegisteredClient(name, key=pem(KEYS[key]), scopes=["read"]) for name, key in (("one", "A"), ("two", "B"))
    ]
    plain = RegisteredClient("plain", secret="plain" * 9, scopes=["read"])
    jwt_bearer = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

    def signature(signer: str = "A", *, typ: str = "JWT", **changed: Any) -> dict[str, str]:
        said = {"iss": "one", "sub": "one", "aud": site, "jti": str(time.monotonic_ns()), "exp": int(time.time()) + 60}
        made = signed(claims(**{**said, "scope": None, **changed}), key=KEYS[signer], headers={"typ": typ})
        return {"client_assertion_type": jwt_bearer, "client_assertion": made}

    async def try_all() -> None:
        auth = OAuthProxy(url=SERVER, scopes=["read"], optional_scopes=["write"], clients=[*clients, plain])

        async def ask(shown: dict[str, str], **form: str) -> dict[str, Any]:
            body = urlencode({"grant_type": "client_credentials", **shown, **form}).encode()
            kind = {"content-type": "application/x-www-form-urlencoded"}
            assert auth.site is not None
            return json.loads((await auth.site.answer_request(SiteRequest("POST", "/token", "", kind, body))).body)

        good = signature()
        trial.expect("access_token" in await ask(good), "an honest signature is refused")
        trial.expect("access_token" not in await ask(good), "a signature is taken again")
        for name, shown in {
            "of another key": signature("B"),
            "of another client under this name": signature("B", iss="two", sub="one"),
            "for another server": signature(aud="https://x.example"),
            "for two servers": signature(aud=[site, "https://x.example"]),
            "for the resource": signature(aud=SERVER),
            "that never ends": signature(exp=None),
            "that ends in ten years": signature(exp=2**31),
            "that has ended": signature(exp=int(time.time()) - 60),
            "without an id": signature(jti=None),
            "that is an identity assertion": signature(typ="oauth-id-jag+jwt"),
            "that is a proof": signature(typ="dpop+jwt"),
            "with a secret beside it": {**signature(), "client_id": "one", "client_secret": "x" * 40},
            "for the name of another": {**signature(), "client_id": "two"},
            "of a client that has a secret": signature(iss="plain", sub="plain"),
        }.items():
            trial.expect("access_token" not in await ask(shown), f"a signature {name} is taken")
        trial.expect("access_token" not in await ask(signature(), scope="write"), "a client gets scopes of others")

    asyncio.run(try_all())


@FAMILY.attack(
    "what a server vouches for at other services",
    Control(vouch_everywhere, "a statement is", here=True),
    Control(publish_private_keys, "the key set has", here=True),
)
def _(trial: Trial) -> None:
    """A caller gets a statement about itself alone, for one issuer and a short time; nobody gets the key, and what was
    shown to the issuer opens nothing here."""
    issuer, site, partner = "https://a.example", "http://localhost:8080", "https://partner.example"
    shown: list[str] = []

    async def fetch(url: str) -> bytes:
        return key_set(jwk(KEYS["A"], "ES256", kid="k"))

    async def send(request: HttpRequest) -> HttpResponse:
        shown.append(str((request.form or {})["assertion"]))
        return HttpResponse(200, {}, json.dumps({"access_token": f"t{len(shown)}", "token_type": "Bearer"}).encode())

    async def try_all() -> None:
        signing_key = KEYS["B"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        target = OnBehalfOf(
            f"{partner}/token", client_id="c", client_secret="s", form="rfc7523", statement_audience=partner, send=send
        )
        auth = OAuthProxy(
            url=SERVER,
            issuers=[TrustedIssuer(issuer, jwks_url=f"{issuer}/keys", fetch=fetch)],
            clients=[RegisteredClient("app", secret="app" * 9)],
            signing_key=signing_key,
            targets={"mail": target},
        )
        assert auth.site is not None and auth.exchanges is not None
        site_answers = auth.site.answer_request
        kind = {"content-type": "application/x-www-form-urlencoded"}

        async def redeem(assertion: str) -> HttpResponse | Any:
            form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}
            body = urlencode({**form, "client_id": "app", "client_secret": "app" * 9}).encode()
            return await site_answers(SiteRequest("POST", "/token", "", kind, body))

        now, head = int(time.time()), {"kid": "k", "typ": "oauth-id-jag+jwt"}
        said = {"iss": issuer, "aud": site, "client_id": "app", "exp": now + 60, "scope": None}
        # What a person of the company says about itself is no word of ours.
        extra = {
            "sub_id": {"format": "iss_sub", "iss": issuer, "sub": "boss"},
            "identity_provider": "https://evil.example",
        }
        for name in ("ann", "bob"):
            one = signed(claims(**said, **extra, sub=name, jti=name), key=KEYS["A"], headers=head)
            text = json.loads((await redeem(one)).body)["access_token"]
            principal = await auth.authenticate([f"Bearer {text}".encode()])
            assert isinstance(principal, Principal)
            forged = Principal(
                f"{issuer}|boss", frozenset(), {**principal.claims, "sub": "boss"}, credential=principal.credential
            )
            try:
                await auth.exchanges.obtain_target_token(forged, "mail")
                trial.expect(False, "somebody is vouched for under the name of another")
            except DefserveError:
                pass
            await auth.exchanges.obtain_target_token(principal, "mail")
            made = read_claims(shown[-1])
            named = {"format": "iss_sub", "iss": issuer, "sub": name}
            held = (made["iss"], made["sub"], made.get("sub_id")) == (site, f"{issuer}|{name}", named)
            trial.expect(held, f"a statement is about somebody else: {made}")
            held = made["aud"] == partner and made.get("client_id") == "c"
            trial.expect(held, f"a statement is for anybody: {made}")
            trial.expect(made["exp"] <= now + 600, f"a statement is good for {made['exp'] - now} s")
            trial.expect((await redeem(shown[-1])).status == 400, "a statement is taken here for an assertion")
            caller = await auth.authenticate([f"Bearer {shown[-1]}".encode()])
            trial.expect(not isinstance(caller, Principal), "a statement is taken here for a token")
        published = (await site_answers(SiteRequest("GET", "/jwks", "", {}, b""))).body
        trial.expect(b'"d"' not in published, "the key set has a private key")

    asyncio.run(try_all())


def read_claims(token: str) -> dict[str, Any]:
    """What a token says, whoever has signed it."""
    middle = token.split(".")[1]
    return json.loads(urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
