from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.principals import (
    LOCAL_PRINCIPAL,
    ApiKeyPrincipal,
    Principal,
    convert_permissions_to_scopes,
    make_anonymous_principal,
    parse_scopes,
)
from defserve.errors import UsageError
from tests.rows import for_each_row


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


@for_each_row(
    "name", ["", " ", "local", "anonymous:10.0.0.1", "a\nb", "a\x00", "\ud800", "x" * 257, "\u2028", "\u202eroot"]
)
def test_a_token_cannot_name_its_principal_so(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        Principal(name)


@for_each_row("name", ["alice", "auth0|12 34", "Ægir", "用户", "locale", "anonymous"])
def test_a_token_may_name_its_principal_so(name: str) -> None:
    assert Principal(name).id == name


def test_the_local_and_the_anonymous_have_ids_no_token_can_have() -> None:
    assert (LOCAL_PRINCIPAL.id, LOCAL_PRINCIPAL.kind) == ("local", "local")
    assert (make_anonymous_principal("::1").id, make_anonymous_principal("::1").kind) == ("anonymous:::1", "anonymous")


def test_what_is_missing_is_what_was_required_and_is_not_held() -> None:
    alice = Principal("alice", frozenset({"read"}))
    assert alice.missing(["read"]) == frozenset()
    assert alice.missing(["read", "write"]) == {"write"}
    assert make_anonymous_principal("10.0.0.1").missing(["read"]) == {"read"}
    assert LOCAL_PRINCIPAL.missing(["read"]) == frozenset()


def test_scopes_are_a_list_or_a_string() -> None:
    assert parse_scopes("read  write") == parse_scopes(["read", "write"]) == ("read", "write")


@for_each_row("scope", ["", "a b", 'a"', "a\\", "a\r\nX: y", "é", None, 1])
def test_a_scope_that_cannot_travel_is_refused(scope: Any) -> None:
    with pytest.raises(UsageError, match="is not a scope"):
        parse_scopes([scope])


# -- several credentials of one principal ----------------------------------------------------------------

NAMES = st.sampled_from(["add", "drop", "*"])
PERMISSIONS = st.one_of(
    NAMES.map(lambda tool: f"ToolInvoke({tool})"),
    NAMES.map(lambda tool: f"ToolRead({tool})"),
    st.sampled_from(["ToolsListAll", "AdminRead", "AdminWrite"]),
)
HOLDERS = st.builds(
    lambda name, key, permissions, scopes: ApiKeyPrincipal(
        name, convert_permissions_to_scopes(permissions) | scopes, credential=key
    ),
    st.sampled_from(["alice", "bob"]),
    st.sampled_from(["key:1", "key:2", "key:3"]),
    st.lists(PERMISSIONS, max_size=3),
    st.frozensets(st.sampled_from(["read", "write"])),
)


@given(HOLDERS, HOLDERS)
def test_a_key_covers_another_only_if_it_may_do_all_that_the_other_may(
    one: ApiKeyPrincipal, other: ApiKeyPrincipal
) -> None:
    if not one.covers(other):
        return
    assert one.id == other.id
    if one.credential != other.credential:
        for tool in ("add", "drop", "anything"):
            assert one.may_invoke(tool) >= other.may_invoke(tool)
            assert one.may_read(tool) >= other.may_read(tool)
        for scope in ("read", "write", "admin:write", "admin:read", "tools:list"):
            assert (scope in one.scopes) >= (scope in other.scopes)


@given(HOLDERS, HOLDERS)
def test_keys_of_one_class_of_rights_cover_each_other(one: ApiKeyPrincipal, other: ApiKeyPrincipal) -> None:
    if one.id == other.id and one.rights_class == other.rights_class:
        assert one.covers(other) and other.covers(one)


@given(HOLDERS, HOLDERS)
def test_rights_that_were_remembered_count_as_the_key_itself(one: ApiKeyPrincipal, other: ApiKeyPrincipal) -> None:
    if one.id == other.id:
        assert one.has_rights(json.loads(json.dumps(other.rights))) is one.covers(other)


def test_a_key_for_every_tool_covers_a_key_for_one() -> None:
    every = ApiKeyPrincipal("alice", convert_permissions_to_scopes(["ToolInvoke(*)"]), credential="every")
    one = ApiKeyPrincipal("alice", convert_permissions_to_scopes(["ToolInvoke(add)"]), credential="one")
    assert every.covers(one) and not one.covers(every)


def test_kinds_of_principals_that_cannot_be_compared_do_not_cover_each_other() -> None:
    class Graded(Principal):
        """An author's own, with rights that nobody else knows of."""

        def may_invoke(self, tool: str) -> bool:
            return self.credential == "high"

    low, high = Graded("alice", credential="low"), Graded("alice", credential="high")
    plain = Principal("alice", credential="plain")
    holder = ApiKeyPrincipal("alice", convert_permissions_to_scopes(["ToolInvoke(*)"]), credential="key")
    everyone = (low, high, plain, holder)
    for one in everyone:
        assert [one.covers(other) for other in everyone] == [one is other for other in everyone]
        assert [one.rights_class == other.rights_class for other in everyone] == [one is other for other in everyone]


def test_a_principal_s_credential_is_not_part_of_who_it_is() -> None:
    assert Principal("alice", credential="a") == Principal("alice", credential="b")
    assert not Principal("alice", credential="a").covers(Principal("bob", credential="a"))
    assert LOCAL_PRINCIPAL.covers(LOCAL_PRINCIPAL) and make_anonymous_principal("10.0.0.1").covers(
        make_anonymous_principal("10.0.0.1")
    )
    assert not make_anonymous_principal("10.0.0.1").covers(make_anonymous_principal("10.0.0.2"))
