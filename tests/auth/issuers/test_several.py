from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server
from defserve.auth import JWT, Auth, Introspection, Issuers, Principal, StaticTokens
from defserve.auth.issuers import HttpRequest, HttpResponse, read_claimed_issuer
from defserve.errors import UsageError
from tests.auth.issuer import AUDIENCE, ISSUER, claims, pem, private_key, raw, signed
from tests.rows import for_each_row

OTHER = "https://other.example"
MINE, THEIRS = private_key(), private_key("ES256", "other")


class Watched(JWT):
    """Counts how often it is asked."""

    asked = 0

    async def verify(self, token: str) -> Principal | None:
        self.asked += 1
        return await super().verify(token)


def two() -> tuple[Watched, Watched, Issuers]:
    one = Watched(key=pem(MINE), audience=AUDIENCE, issuer=ISSUER)
    other = Watched(key=pem(THEIRS), audience=AUDIENCE, issuer=OTHER)
    return one, other, Issuers([one, other, StaticTokens({"plain-token": "robot"})])


def test_the_token_s_issuer_chooses_and_no_other_verifier_sees_it() -> None:
    one, other, both = two()
    found = asyncio.run(both.verify(signed()))
    assert found is not None and found.id == f"{ISSUER}|alice" and (one.asked, other.asked) == (1, 0)
    found = asyncio.run(both.verify(signed(claims(iss=OTHER), key=THEIRS)))
    assert found is not None and found.id == f"{OTHER}|alice" and (one.asked, other.asked) == (1, 1)
    found = asyncio.run(both.verify("plain-token"))
    assert found is not None and found.id == "robot" and (one.asked, other.asked) == (1, 1)


@for_each_row(
    "token",
    [
        signed(claims(iss=OTHER)),  # signed by one, in the name of the other
        signed(key=THEIRS),
        signed(claims(iss="https://third.example")),
        signed(claims(iss=None)),
        signed(claims(iss=[ISSUER])),
        signed(claims(sub="x" * 250)),
        raw({"alg": "none"}, claims()),
        "no-such-token",
        "a.b.c",
        "",
    ],
    ids=range(10),
)
def test_nobody_is_let_in_in_the_name_of_another_issuer(token: str) -> None:
    assert asyncio.run(two()[2].verify(token)) is None


def test_opaque_tokens_go_to_the_only_verifier_that_can_read_them() -> None:
    async def send(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, {}, json.dumps({"active": True, "sub": "alice", "aud": AUDIENCE}).encode())

    def asks(issuer: str) -> Introspection:
        url = f"{issuer}/introspect"
        return Introspection(url, client_id="me", client_secret="s", audience=AUDIENCE, issuer=issuer, send=send)

    one = two()[0]
    found = asyncio.run(Issuers([one, asks(OTHER)]).verify("opaque"))
    assert found is not None and found.id == f"{OTHER}|alice"
    assert asyncio.run(Issuers([one, asks(OTHER), asks("https://third.example")]).verify("opaque")) is None
    assert asyncio.run(Issuers([one, asks(OTHER), StaticTokens({"other": "x"})]).verify("opaque")) is None


def test_the_verifier_without_an_issuer_names_no_users_of_the_others() -> None:
    keys = StaticTokens({"taken": f"{ISSUER}|alice", "free": "https://free.example|alice"})
    both = Issuers([two()[0], keys])
    assert asyncio.run(both.verify("taken")) is None
    assert asyncio.run(both.verify("free")) is not None


def test_a_list_of_verifiers_will_do_and_clients_are_told_of_all_issuers() -> None:
    one, other, _ = two()
    server = Server("notes", auth=[one, other])
    assert server.auth is not None and server.auth.resource is not None
    assert server.auth.resource.url == AUDIENCE
    assert server.auth.resource.authorization_servers == (ISSUER, OTHER)


@for_each_row(
    "verifiers, problem",
    [
        ([], "lets nobody in"),
        ([StaticTokens({"a": "a"}), StaticTokens({"b": "b"})], "name no issuer"),
        ([two()[0], two()[0]], "two verifiers are for the issuer"),
        ([7], "int cannot verify tokens"),
    ],
    ids=range(4),
)
def test_verifiers_that_do_not_go_together_are_refused(verifiers: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Auth(verifiers)


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.=", max_size=200))
def test_any_text_has_an_issuer_or_none(token: str) -> None:
    assert read_claimed_issuer(token) is None or isinstance(read_claimed_issuer(token), str)
