from __future__ import annotations

from typing import Any

import pytest

from defserve.auth.principals import LOCAL, Principal, anonymous, checked_scopes
from defserve.errors import UsageError


def test_a_principal_cannot_be_changed() -> None:
    claims: dict[str, Any] = {"sub": "alice"}
    alice: Any = Principal("alice", frozenset({"read"}), claims)
    claims["sub"] = "bob"
    assert alice.claims == {"sub": "alice"}
    with pytest.raises(AttributeError):
        alice.id = "bob"
    with pytest.raises(TypeError):
        alice.claims["sub"] = "bob"


def test_a_principal_is_hashable_and_its_repr_keeps_its_claims_to_itself() -> None:
    alice = Principal("alice", claims={"email": "alice@example.com"})
    assert {alice: 1}[alice] == 1
    assert "alice@example.com" not in repr(alice)


@pytest.mark.parametrize(
    "name", ["", " ", "local", "anonymous:10.0.0.1", "a\nb", "a\x00", "\ud800", "x" * 257, "\u2028", "\u202eroot"]
)
def test_a_token_cannot_name_its_principal_so(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        Principal(name)


@pytest.mark.parametrize("name", ["alice", "auth0|12 34", "Ægir", "用户", "locale", "anonymous"])
def test_a_token_may_name_its_principal_so(name: str) -> None:
    assert Principal(name).id == name


def test_the_local_and_the_anonymous_have_ids_no_token_can_have() -> None:
    assert (LOCAL.id, LOCAL.kind) == ("local", "local")
    assert (anonymous("::1").id, anonymous("::1").kind) == ("anonymous:::1", "anonymous")


def test_what_is_missing_is_what_was_required_and_is_not_held() -> None:
    alice = Principal("alice", frozenset({"read"}))
    assert alice.missing(["read"]) == frozenset()
    assert alice.missing(["read", "write"]) == {"write"}
    assert anonymous("10.0.0.1").missing(["read"]) == {"read"}
    assert LOCAL.missing(["read"]) == frozenset()


def test_scopes_are_a_list_or_a_string() -> None:
    assert checked_scopes("read  write") == checked_scopes(["read", "write"]) == ("read", "write")


@pytest.mark.parametrize("scope", ["", "a b", 'a"', "a\\", "a\r\nX: y", "é", None, 1])
def test_a_scope_that_cannot_travel_is_refused(scope: Any) -> None:
    with pytest.raises(UsageError, match="is not a scope"):
        checked_scopes([scope])
