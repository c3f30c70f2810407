"""Where the addresses that a peer names may lead, and what may come from there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from defserve.client import SignInError
from defserve.client.signin import fetching
from defserve.client.signin import fetching as reach
from defserve.client.signin.fetching import (
    MAX_DOCUMENT_BYTES,
    Fetcher,
    NetworkReach,
    addresses_within,
    classify_server_reach,
    reach_of,
)
from defserve.errors import Refused
from tests.client.web import Exchange, web
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


@for_each_row(
    ("address", "where"),
    [
        ("8.8.8.8", NetworkReach.INTERNET),
        ("2606:4700::1", NetworkReach.INTERNET),
        ("10.1.2.3", NetworkReach.NETWORK),
        ("172.16.0.1", NetworkReach.NETWORK),
        ("192.168.1.1", NetworkReach.NETWORK),
        ("::ffff:192.168.1.1", NetworkReach.NETWORK),
        ("fd00::1", NetworkReach.NETWORK),
        ("127.0.0.1", NetworkReach.MACHINE),
        ("127.9.9.9", NetworkReach.MACHINE),
        ("::1", NetworkReach.MACHINE),
        ("::ffff:127.0.0.1", NetworkReach.MACHINE),
        ("169.254.169.254", NetworkReach.NOWHERE),
        ("::ffff:169.254.169.254", NetworkReach.NOWHERE),
        ("fe80::1", NetworkReach.NOWHERE),
        ("0.0.0.0", NetworkReach.NOWHERE),
        ("::", NetworkReach.NOWHERE),
        ("224.0.0.1", NetworkReach.NOWHERE),
        ("168.63.129.16", NetworkReach.NOWHERE),
        ("64:ff9b::7f00:1", NetworkReach.NOWHERE),
        ("2002:7f00:1::", NetworkReach.NOWHERE),
        ("not an address", NetworkReach.NOWHERE),
    ],
)
def test_where_an_address_is(address: str, where: NetworkReach) -> None:
    assert reach_of(address) is where


def test_one_public_address_makes_a_server_public() -> None:
    """A name that leads to another place for each connection (DNS rebinding) wins nothing."""
    assert classify_server_reach(["127.0.0.1", "::1"]) is NetworkReach.MACHINE
    assert classify_server_reach(["127.0.0.1", "8.8.8.8"]) is NetworkReach.INTERNET
    assert classify_server_reach(["127.0.0.1", "10.0.0.1"]) is NetworkReach.NETWORK
    assert classify_server_reach([]) is classify_server_reach(["169.254.169.254"]) is NetworkReach.INTERNET


@for_each_row(
    ("found", "within", "is_reached"),
    [
        (["8.8.8.8"], NetworkReach.INTERNET, True),
        (["8.8.8.8", "10.0.0.1"], NetworkReach.INTERNET, False),
        (["127.0.0.1"], NetworkReach.INTERNET, False),
        (["127.0.0.1"], NetworkReach.NETWORK, False),
        (["10.0.0.1"], NetworkReach.NETWORK, True),
        (["127.0.0.1", "10.0.0.1", "8.8.8.8"], NetworkReach.MACHINE, True),
        (["169.254.169.254"], NetworkReach.MACHINE, False),
    ],
)
async def test_every_address_of_a_name_must_be_within_reach(
    found: Sequence[str], within: NetworkReach, is_reached: bool
) -> None:
    async def resolve(host: str, port: int, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in found]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        if is_reached:
            assert await addresses_within(within, "issuer.example", 443) == found
        else:
            with pytest.raises(Refused, match="must not send us to"):
                await addresses_within(within, "issuer.example", 443)


async def test_a_name_that_leads_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: Any, **__: Any) -> Any:
        raise OSError

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with pytest.raises(SignInError, match="cannot be resolved"):
        await Fetcher(NetworkReach.INTERNET).get("https://issuer.example/x", "the page")
    with pytest.raises(SignInError, match="cannot be resolved"):
        await Fetcher(NetworkReach.INTERNET).check_url("https://issuer.example/x", "the page")


@pytest.mark.slow
@for_each_row(
    ("url", "said"),
    [
        ("http://issuer.example/x", "only https"),
        ("ftp://issuer.example/x", "only https"),
        ("file:///etc/passwd", "absolute URL"),
        ("https://user:pass@issuer.example/x", "user name or password"),
        ("https://issuer.example/x#part", "fragment"),
        ("https://issuer.example/" + "x" * 9_000, "characters"),
        ("https://iss uer.example/", "absolute URL"),
        ("//issuer.example/x", "only https"),
        ("http://127.0.0.1/x", "on this machine"),
        ("http://localhost:8080/x", "on this machine"),
        ("https://[::1]/x", "on this machine"),
        ("https://[::ffff:127.0.0.1]/x", "on this machine"),
        ("https://169.254.169.254/latest/meta-data", "must not send us to"),
        ("https://10.0.0.1/x", "must not send us to"),
        ("https://2130706433/x", "must not send us to|cannot be resolved"),
        ("https://0x7f.1/x", "must not send us to|cannot be resolved"),
    ],
)
async def test_a_server_on_the_internet_cannot_send_us_elsewhere(url: str, said: str) -> None:
    with pytest.raises(SignInError, match=said):
        await Fetcher(NetworkReach.INTERNET).get(url, "the page")
    with pytest.raises(SignInError, match=said):
        await Fetcher(NetworkReach.INTERNET).post(url, "the page", {"token": "t0ken"})


@for_each_row(
    ("url", "where"),
    [
        ("https://169.254.169.254/latest", NetworkReach.INTERNET),
        ("https://169.254.169.254/latest", NetworkReach.NETWORK),
        ("https://10.0.0.1/x", NetworkReach.INTERNET),
        ("https://[fd00::1]/x", NetworkReach.INTERNET),
        ("https://2130706433/x", NetworkReach.INTERNET),
        ("https://0x7f.1/x", NetworkReach.INTERNET),
        ("https://metadata/x", NetworkReach.INTERNET),
        ("https://metadata.google.internal/x", NetworkReach.INTERNET),
        ("https://printer.local/x", NetworkReach.INTERNET),
    ],
)
async def test_behind_a_proxy_addresses_are_judged_by_their_text(url: str, where: NetworkReach) -> None:
    with pytest.MonkeyPatch.context() as environment:
        for name in ("no_proxy", "NO_PROXY"):
            environment.delenv(name, raising=False)
        environment.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        for use in (Fetcher.get, Fetcher.check_url):
            with pytest.raises(SignInError, match="must not send us to"):
                await use(Fetcher(where), url, "the page")
        assert await Fetcher(where).check_url("https://issuer.example/x", "the page")


async def test_redirects_are_followed_within_an_origin_and_never_with_secrets() -> None:
    async def handle(exchange: Exchange) -> None:
        places = {"/near": "/page", "/far": "http://localhost:1/page", "/loop": "/loop", "/odd": "http://["}
        if (place := places.get(exchange.path)) is not None:
            await exchange.respond(307, b"", location=place)
        else:
            await exchange.respond(200, b'{"a": 1}')

    async with web(handle) as there:
        origin, fetcher = there.url.removesuffix("/mcp"), Fetcher(NetworkReach.MACHINE)
        assert (await fetcher.get(origin + "/near", "the page")).document == {"a": 1}
        for path in ("/far", "/loop", "/odd"):
            with pytest.raises(SignInError, match="redirects"):
                await fetcher.get(origin + path, "the page")
        before = len(there.seen)
        assert (await fetcher.post(origin + "/near", "the page", {"token": "t0ken"})).status == 307
        assert len(there.seen) == before + 1


async def test_what_comes_back_is_bounded_in_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        if exchange.path == "/slow":
            await waiting.wait()
        body = {"/long": b"x" * (MAX_DOCUMENT_BYTES + 1), "/list": b"[1]", "/deep": b"[" * 10_000}.get(
            exchange.path, b""
        )
        await exchange.respond(200, body)

    async with web(handle) as there:
        origin, fetcher = there.url.removesuffix("/mcp"), Fetcher(NetworkReach.MACHINE)
        with pytest.raises(SignInError, match="more than"):
            await fetcher.get(origin + "/long", "the page")
        for path in ("/list", "/deep", "/nothing"):
            assert not (await fetcher.get(origin + path, "the page")).is_good
        monkeypatch.setattr(fetching, "FETCH_SECONDS", 0.01)
        with pytest.raises(SignInError, match="did not answer within"):
            await fetcher.get(origin + "/slow", "the page")
        waiting.set()
    with pytest.raises(SignInError, match="cannot be reached|did not answer"):
        await fetcher.get(origin + "/gone", "the page")


def test_resolving_has_a_limit() -> None:
    assert reach.RESOLVE_TIMEOUT_SECONDS < fetching.FETCH_SECONDS
