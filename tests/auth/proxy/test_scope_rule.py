from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.proxy import authorization_requests
from defserve.auth.proxy.authorization_requests import RequestableAccess, ScopeRule, select_scopes
from defserve.errors import UsageError
from tests.auth.proxied import URL, call, proxy, visiting
from tests.auth.vendor import FakeVendor
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ADMIN = "tickets:admin"
OFFERED = RequestableAccess(URL, ("a",), ("b", "c"))


def by_admin_list(admins: set[str]) -> Callable[[Mapping[str, Any]], list[str]]:
    return lambda claims: [ADMIN] if claims["sub"] in admins else []


def test_a_scope_that_users_could_take_by_themselves_is_refused_at_declaration() -> None:
    with pytest.raises(UsageError, match="optional_scopes") as refused:
        proxy(FakeVendor(), optional_scopes=[ADMIN])
    assert "scopes_for=" in (refused.value.fix or "") and ADMIN in str(refused.value)


def test_a_rule_without_anything_to_decide_is_refused_at_declaration() -> None:
    with pytest.raises(UsageError, match="optional_scopes"):
        proxy(FakeVendor(), scopes=["a"], scopes_for=lambda claims: ["a"])


async def test_a_user_whom_the_rule_does_not_name_cannot_take_a_scope() -> None:
    admins: set[str] = set()
    async with visiting(scopes=["tickets:read"], optional_scopes=[ADMIN], scopes_for=by_admin_list(admins)) as visit:
        tokens = await visit.tokens(scope=f"tickets:read {ADMIN}")
        assert tokens["scope"] == "tickets:read"
        admins.add("u-1")
        assert (await visit.refresh(tokens["refresh_token"], scope=ADMIN)).json()["error"] == "invalid_scope"
        assert (await visit.tokens(scope=ADMIN))["scope"] == f"tickets:read {ADMIN}"
        assert (await visit.tokens())["scope"] == "tickets:read", "a client may leave it out"


@for_each_row(("given", "is_told"), [([ADMIN], False), ([ADMIN, "tickets:read"], False), (["tickets:typo"], True)])
async def test_a_rule_that_gives_an_unknown_scope_is_told_of(
    given: list[str], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    async with visiting(scopes=["tickets:read"], optional_scopes=[ADMIN], scopes_for=lambda claims: given) as visit:
        assert "tickets:typo" not in (await visit.tokens(scope=ADMIN))["scope"]
    assert ("which optional_scopes does not list" in caplog.text) == is_told


async def test_a_tool_behind_a_scope_stays_shut_for_who_may_not_have_it() -> None:
    async with visiting(optional_scopes=["notes:write"], scopes_for=lambda claims: ()) as visit:
        tokens = await visit.tokens(scope="notes:write")
        assert (await call(visit.http, tokens["access_token"], "write")).status_code == 403


async def test_a_scope_that_the_rule_no_longer_gives_is_dropped_at_the_refresh() -> None:
    admins = {"u-1"}
    async with visiting(scopes=["a"], optional_scopes=[ADMIN], scopes_for=by_admin_list(admins)) as visit:
        first = await visit.tokens(scope=ADMIN)
        assert first["scope"] == f"a {ADMIN}"
        admins.clear()
        second = (await visit.refresh(first["refresh_token"])).json()
        assert second["scope"] == "a"
        third = (await visit.refresh(second["refresh_token"], scope=ADMIN)).json()
        assert ADMIN not in third.get("scope", "")


async def test_a_registration_and_its_scope_field_give_no_scope() -> None:
    async with visiting(optional_scopes=[ADMIN], scopes_for=by_admin_list(set())) as visit:
        await visit.register(scope=ADMIN)
        assert (await visit.tokens(scope=ADMIN))["scope"] == ""


async def test_the_rule_may_be_asynchronous() -> None:
    async def scopes_for(claims: Mapping[str, Any]) -> list[str]:
        await asyncio.sleep(0)
        return [ADMIN] if claims["sub"] == "u-1" else []

    async with visiting(optional_scopes=[ADMIN], scopes_for=scopes_for) as visit:
        assert (await visit.tokens(scope=ADMIN))["scope"] == ADMIN


async def test_the_page_says_which_scopes_depend_on_the_user_and_the_metadata_names_all() -> None:
    async with visiting(scopes=["a"], optional_scopes=[ADMIN], scopes_for=by_admin_list(set())) as visit:
        await visit.register()
        page = (await visit.authorize(scope=ADMIN)).text
        assert f"<li>{ADMIN}" in page and "Also, if your account has it" in page
        assert "if this server gives it" not in (await visit.authorize()).text
        metadata = (await visit.http.get("/.well-known/oauth-authorization-server")).json()
        assert metadata["scopes_supported"] == ["a", ADMIN]


def fails(claims: Mapping[str, Any]) -> list[str]:
    raise KeyError("groups")


async def hangs(claims: Mapping[str, Any]) -> list[str]:
    await asyncio.Event().wait()
    return ["b", "c"]


@for_each_row(
    "rule, given",
    [
        (fails, ()),
        (hangs, ()),
        (lambda claims: None, ()),
        (lambda claims: True, ()),
        (lambda claims: 7, ()),
        (lambda claims: [1, None, "b"], ("b",)),
        (lambda claims: "b", ("b",)),
        (lambda claims: "b c", ("b", "c")),
        (lambda claims: {"b": True}, ("b",)),
        (lambda claims: ["b", "unknown"], ("b",)),
        (lambda claims: ["*"], ()),
    ],
    ids=range(11),
)
async def test_a_rule_that_fails_or_answers_nonsense_gives_nothing_more(
    rule: Any, given: tuple[str, ...], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization_requests, "RULE_SECONDS", 0.01)
    with caplog.at_level(logging.CRITICAL, "defserve.auth"):
        granted = await ScopeRule(OFFERED, rule).grant_scopes({"sub": "u-1"}, ("a", "b", "c"))
    assert granted == ("a", *given)


async def test_what_a_rule_raises_is_logged_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    def asks(claims: Mapping[str, Any]) -> list[str]:
        raise ConnectionError("the directory refused password=hunter2-of-the-directory")

    assert await ScopeRule(OFFERED, asks).grant_scopes({"sub": "u-1"}, ("a", "b")) == ("a",)
    assert "the directory refused password=[redacted]" in caplog.text and "hunter2" not in caplog.text


@given(
    asked=st.lists(st.sampled_from(["a", "b", "c", "d"])),
    allowed=st.sets(st.sampled_from(["a", "b", "c", "d"])),
)
async def test_what_is_granted_was_asked_for_and_is_the_rules_or_everybodys(
    asked: list[str], allowed: set[str]
) -> None:
    requested = select_scopes(asked, OFFERED)
    granted = set(await ScopeRule(OFFERED, lambda claims: allowed).grant_scopes({"sub": "x"}, requested))
    assert "a" in granted and granted - {"a"} == {"b", "c"} & set(asked) & allowed
