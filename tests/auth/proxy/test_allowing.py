from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from defserve import UsageError
from defserve.auth.proxy.allowing import allows_of
from defserve.auth.proxy.vendors.table import VENDORS
from tests.rows import for_each_row

UUID = "0f0f0f0f-0000-0000-0000-000000000000"


@for_each_row(
    "vendor, allow, claims, is_in",
    [
        ("github", "583231", {"sub": "583231", "login": "octocat"}, True),
        ("github", "583231", {"sub": "7", "login": "583231"}, False),
        ("github", "Octocat", {"sub": "7", "login": "octocat"}, True),
        ("github", UUID, {"sub": "7", "login": UUID}, False),
        ("github", "a@x.example", {"sub": "7", "login": "a@x.example", "email": "a@x.example"}, False),
        ("oidc", "bob@x.example", {"sub": "bob@x.example"}, False),
        ("oidc", "@x.example", {"sub": "bob@x.example"}, False),
        ("oidc", "@x.example", {"sub": "1", "email": "bob@x.example", "email_verified": "true"}, False),
        ("oidc", "@x.example", {"sub": "1", "email": "bob@x.example", "email_verified": True}, True),
        ("oidc", "1", {"sub": "2", "email": "1", "email_verified": True}, False),
        ("oidc", "Ab", {"sub": "ab"}, False),
        ("oidc", "None", {}, False),
        ("oidc", "bob", {"sub": "1", "preferred_username": "bob"}, False),
        ("entra", "@x.example", {"sub": UUID, "preferred_username": "bob@x.example"}, True),
        ("entra", "@x.example", {"sub": UUID, "email": "bob@x.example", "email_verified": True}, False),
        ("entra", UUID, {"sub": UUID}, True),
        ("entra", UUID, {"sub": "other", "preferred_username": UUID}, False),
    ],
    ids=range(17),
)
def test_each_kind_of_name_is_compared_with_its_own_claims(
    vendor: str, allow: str, claims: dict[str, Any], is_in: bool
) -> None:
    assert allows_of([allow], VENDORS[vendor])(claims) is is_in


def test_an_async_function_lets_nobody_in() -> None:
    async def allow(claims: Mapping[str, Any]) -> bool:
        return False

    with pytest.raises(UsageError, match="async function"):
        allows_of(allow, VENDORS["github"])  # type: ignore[arg-type]


@for_each_row(
    "how, said", [("awaits", "something to await"), ("fails", "failed for 7"), ("refuses", ""), ("allows", "")]
)
def test_a_function_lets_in_whom_it_allows(caplog: pytest.LogCaptureFixture, how: str, said: str) -> None:
    def allow(claims: Mapping[str, Any]) -> Any:
        match how:
            case "awaits":
                return asyncio.Future[bool](loop=loop)
            case "fails":
                return claims["groups"]
            case _:
                return how == "allows"

    loop = asyncio.new_event_loop()
    caplog.clear()
    with caplog.at_level(logging.ERROR, "defserve.auth"):
        assert allows_of(allow, VENDORS["github"])({"sub": "7"}) is (how == "allows")
    assert said in caplog.text and bool(said) is bool(caplog.text)
    loop.close()
