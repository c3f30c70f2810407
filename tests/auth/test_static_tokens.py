from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.auth.bearer_tokens import StaticTokens, TokenVerifier
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.errors import UsageError
from tests.rows import for_each_row

BOB = Principal("bob", frozenset({"admin"}))
TOKENS = StaticTokens(
    {
        "t-alice": "alice",
        "t-bob": BOB,
        "t-carol": {"principal": "carol", "scopes": ["read"]},
        "t-dan": {"principal": "dan"},
    }
)


@for_each_row(
    ("token", "principal"),
    [
        ("t-alice", Principal("alice")),
        ("t-bob", BOB),
        ("t-carol", Principal("carol", frozenset({"read"}))),
        ("t-dan", Principal("dan")),
        ("", None),
        ("t-alic", None),
        ("t-alice ", None),
        ("T-ALICE", None),
        ("t-alicé", None),
        ("\ud800", None),
        ("t-alice\x00", None),
        ("a" * 20_000, None),
    ],
)
def test_a_token_is_its_principal_s_or_nobody_s(token: str, principal: Principal | None) -> None:
    assert asyncio.run(TOKENS.verify(token)) == principal


def test_no_token_is_kept() -> None:
    assert "t-alice" not in repr(vars(TOKENS))


def test_it_is_a_verifier() -> None:
    assert isinstance(TOKENS, TokenVerifier)


@for_each_row(
    "tokens",
    [
        {},
        {"": "alice"},
        {"with space": "alice"},
        {"clé": "alice"},
        {"t": ""},
        {"t": "local"},
        {"t": LOCAL_PRINCIPAL},
        {"t": 1},
        {"t": {"scopes": ["read"]}},
        {"t": {"principal": "alice", "scope": ["read"]}},
        {"t": {"principal": "alice", "scopes": ["re ad"]}},
    ],
)
def test_a_table_that_cannot_work_is_refused(tokens: Any) -> None:
    with pytest.raises(UsageError):
        StaticTokens(tokens)


def test_a_refusal_does_not_show_the_token() -> None:
    with pytest.raises(UsageError) as refusal:
        StaticTokens({"hunter2 hunter2": "alice"})
    assert "hunter2" not in str(refusal.value)
