"""URLs judged together with the addresses their hosts have, and the options they are judged by."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.guard import network as egress
from defserve.guard.network import Egress, judge_url_and_addresses
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def answering(*addresses: str) -> egress.Resolver:
    async def resolver(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolver


async def test_a_public_name_is_allowed() -> None:
    verdict = await judge_url_and_addresses("http://Example.com", resolver=answering("8.8.8.8", "2606:4700::1111"))
    assert verdict.allowed
    assert verdict.url == "http://example.com/"


@for_each_row("address", ["127.0.0.1", "169.254.169.254", "::1", "fe80::1%2", "nonsense"])
async def test_a_name_with_an_address_that_is_not_public_is_refused(address: str) -> None:
    verdict = await judge_url_and_addresses("http://localtest.me/", resolver=answering("8.8.8.8", address))
    assert not verdict
    assert verdict.url is None
    assert verdict.hints["allowed_schemes"] == ["http", "https"]


async def test_a_url_refused_by_its_text_is_not_resolved() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        raise AssertionError(host)

    assert not await judge_url_and_addresses("http://127.0.0.1/", resolver=never)
    assert await judge_url_and_addresses("http://8.8.8.8/", resolver=never)
    assert await judge_url_and_addresses("http://example.com/", Egress(proxy="http://proxy:3128"), resolver=never)


@for_each_row("error", [socket.gaierror("no such name"), OSError(), UnicodeError()])
async def test_a_name_that_cannot_be_resolved_is_refused(error: Exception) -> None:
    async def failing(host: str, port: int) -> Sequence[str]:
        raise error

    verdict = await judge_url_and_addresses("http://example.com/", resolver=failing)
    assert [violation.rule for violation in verdict.violations] == ["resolution"]
    assert not await judge_url_and_addresses("http://example.com/", resolver=answering())


async def test_a_resolver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hanging(host: str, port: int) -> Sequence[str]:
        return await asyncio.Event().wait() and ()

    monkeypatch.setattr(egress, "RESOLVE_TIMEOUT_SECONDS", 0.01)
    verdict = await judge_url_and_addresses("http://example.com/", resolver=hanging)
    assert "within 0.01 s" in verdict.violations[0].message


async def test_a_private_host_is_allowed_as_it_was_named() -> None:
    named = Egress(private=["LOCALHOST:8000"])
    assert await judge_url_and_addresses("http://localhost:8000/", named, resolver=answering("127.0.0.1", "::1"))
    assert not await judge_url_and_addresses("http://localhost:8080/", named, resolver=answering("127.0.0.1"))


async def test_the_machine_itself_is_asked_by_default() -> None:
    assert set(await egress.resolve_with_system("localhost", 80)) & {"127.0.0.1", "::1"}


@for_each_row(
    "options",
    [
        {"private": ["127.0.0.1"]},
        {"private": ["*:80"]},
        {"private": ["http://127.0.0.1:80"]},
        {"private": ["127.0.0.1:0"]},
        {"hosts": ["https://example.com"]},
        {"hosts": ["example.com:443"]},
        {"hosts": ["*"]},
        {"schemes": ["file"]},
        {"ports": [0]},
        {"timeout": 0},
        {"max_bytes": 0},
        {"redirects": -1},
    ],
)
def test_options_that_cannot_work_are_refused_when_they_are_made(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Egress(**options)


def test_one_text_is_one_value() -> None:
    assert Egress(hosts="Example.com", private="localhost:80").hosts == ("example.com",)


def test_the_text_of_the_options_shows_no_password_of_a_proxy() -> None:
    assert "hunter2" not in repr(Egress(proxy="http://me:hunter2@proxy:3128"))
