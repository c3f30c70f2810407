from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import cache
from string import ascii_lowercase
from typing import Any
from unicodedata import normalize

import pytest

from defserve import UsageError
from defserve.auth.proxy.authorization_requests import make_user_filter
from defserve.auth.proxy.vendors import VENDORS
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
    assert make_user_filter([allow], VENDORS[vendor])(claims) is is_in


@cache
def find_letters() -> list[str]:
    """Letters beyond ASCII: all that lead to one of ASCII in any table of Unicode, and some of the others."""
    found = [chr(code) for code in range(0x80, 0x11000) if chr(code).isalpha()]
    return [letter for place, letter in enumerate(found) if place % 50 == 0 or _is_like_ascii(letter)]


def _is_like_ascii(letter: str) -> bool:
    forms = letter.lower() + letter.upper() + letter.casefold() + normalize("NFKC", letter) + normalize("NFD", letter)
    return any(map(str.isascii, forms))


@for_each_row("vendor, claim", [("oidc", "email"), ("entra", "preferred_username"), ("github", "login")])
def test_no_letter_of_unicode_counts_as_another(vendor: str, claim: str) -> None:
    host = "" if vendor == "github" else "@x.example"
    names = {each for letter in find_letters() for each in (letter, letter.lower()[:1], letter.casefold()[:1])}
    allows = make_user_filter([f"mar{letter}{host}" for letter in ascii_lowercase], VENDORS[vendor])
    for name in names - set(ascii_lowercase):
        assert not allows({"sub": "0", "email_verified": True, claim: f"mar{name}{host}"}), hex(ord(name))
    assert all(allows({"sub": "0", "email_verified": True, claim: f"MAR{c.upper()}{host}"}) for c in ascii_lowercase)
    if host:
        assert not make_user_filter(["@kiosk.example"], VENDORS[vendor])(
            {"sub": "0", "email_verified": True, claim: "a@\u212aiosk.example"}
        )


def test_an_async_function_lets_nobody_in() -> None:
    async def allow(claims: Mapping[str, Any]) -> bool:
        return False

    with pytest.raises(UsageError, match="async function"):
        make_user_filter(allow, VENDORS["github"])  # type: ignore[arg-type]


def test_what_a_function_raises_is_logged_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    def allow(claims: Mapping[str, Any]) -> bool:
        raise ConnectionError("the directory refused password=hunter2-of-the-directory")

    assert not make_user_filter(allow, VENDORS["github"])({"sub": "7"})
    assert "the directory refused password=[redacted]" in caplog.text and "hunter2" not in caplog.text


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
        assert make_user_filter(allow, VENDORS["github"])({"sub": "7"}) is (how == "allows")
    assert said in caplog.text and bool(said) is bool(caplog.text)
    loop.close()
