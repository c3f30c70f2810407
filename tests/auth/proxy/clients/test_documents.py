from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from defserve.auth.issuers import FetchUrl
from defserve.auth.proxy import clients
from defserve.auth.proxy.assertions import ClientKeys
from defserve.auth.proxy.clients import (
    ALL_FETCHES,
    FETCHES,
    MAX_DOCUMENT_BYTES,
    ClientDocuments,
    fetch_guarded,
    is_document_url,
)
from defserve.auth.proxy.site_messages import OAuthError
from defserve.auth.signing_keys import FixedKey, VerificationKey
from defserve.errors import DefserveError
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

URL = "https://app.example/client.json"
GOOD: dict[str, Any] = {"client_id": URL, "client_name": "App", "redirect_uris": ["https://app.example/cb"]}


class Web:
    def __init__(self, said: Any) -> None:
        self.said, self.asked = said, list[str]()

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said if isinstance(self.said, bytes) else json.dumps(self.said).encode()


async def test_a_client_is_read_once_and_kept() -> None:
    web = Web(GOOD)
    known = ClientDocuments(web.fetch)
    found = [await known.find_client(URL) for _ in range(3)]
    assert found[0] is not None and found[0].name == "App" and found[0].document == URL and web.asked == [URL]


@for_each_row(
    "said",
    [
        {**GOOD, "client_id": "https://other.example/client.json"},
        {**GOOD, "client_secret": "x"},
        {**GOOD, "redirect_uris": ["javascript:x"]},
        {**GOOD, "redirect_uris": []},
        {**GOOD, "token_endpoint_auth_method": "client_secret_basic"},
        {**GOOD, "grant_types": ["client_credentials"]},
        {**GOOD, "response_types": ["token"]},
        {**GOOD, "redirect_uris": ["https://app.example/cb"] * 11},
        {},
        b"[]",
        b"{",
        b"[" * 100_000,
        b" " * (MAX_DOCUMENT_BYTES + 1),
        OSError("away"),
        RuntimeError("of a library"),
    ],
    ids=range(15),
)
async def test_a_document_that_is_not_good_is_no_client_and_not_fetched_again_at_once(said: Any) -> None:
    web = Web(said)
    known = ClientDocuments(web.fetch)
    assert [await known.find_client(URL) for _ in range(3)] == [None] * 3 and len(web.asked) == 1


@for_each_row(
    "url",
    [
        "http://app.example/client.json",
        "https://app.example",
        "https://app.example/",
        "https://app.example/a/../client.json",
        "https://app.example/client.json?x",
        "https://app.example/client.json#x",
        "https://user@app.example/client.json",
        "https://app.example/" + "x" * 600,
        "HTTPS://app.example/client.json",
    ],
)
async def test_not_every_url_is_the_id_of_a_client(url: str) -> None:
    web = Web(GOOD)
    assert not is_document_url(url) and await ClientDocuments(web.fetch).find_client(url) is None and not web.asked


async def test_a_document_that_does_not_come_in_time_is_asked_for_again() -> None:
    class ReadTimeout(Exception):
        """As httpx2 calls it."""

    web = Web(TimeoutError())
    known = ClientDocuments(web.fetch)
    for late in (TimeoutError(), ReadTimeout()):
        web.said = late
        with pytest.raises(OAuthError) as caught:
            await known.find_client(URL)
        assert caught.value.error == "temporarily_unavailable"
    web.said = GOOD
    assert await known.find_client(URL) is not None


async def test_a_refusal_keeps_nothing_of_an_earlier_one() -> None:
    known = ClientDocuments(Web(TimeoutError()).fetch)
    refusals = list[OAuthError]()
    for _ in range(2):
        with pytest.raises(OAuthError) as caught:
            await known.find_client(URL)
        refusals.append(caught.value)
    assert refusals[0] is not refusals[1], "an exception that is raised again holds every frame that it went through"


async def test_strangers_cannot_cause_many_fetches_nor_stop_those_of_others() -> None:
    web = Web(OSError("away"))
    known = ClientDocuments(web.fetch)
    with pytest.raises(OAuthError, match="too many clients"):
        for number in range(FETCHES.burst * 3):
            await known.find_client(f"https://app.example/{number}", "192.0.2.1")
    assert len(web.asked) <= FETCHES.burst * 2
    web.said = GOOD
    assert await known.find_client(URL, "192.0.2.2") is not None
    web.said = OSError("away")
    with pytest.raises(OAuthError, match="too many clients"):
        for number in range(ALL_FETCHES.burst * 30):
            await known.find_client(f"https://app.example/all/{number}", f"address {number}")
    web.asked.clear()
    assert await known.find_client(URL, "192.0.2.1") is not None and not web.asked, (
        "bad documents drive out no good one"
    )


async def test_keys_that_are_fetched_again_and_again_stop_no_new_document() -> None:
    def keep_fetch(fields: Mapping[str, Any], fetch: FetchUrl) -> ClientKeys:
        fetches.append(fetch)
        return ClientKeys(FixedKey(VerificationKey(None, frozenset())))

    fetches = list[FetchUrl]()
    web = Web({**GOOD, "token_endpoint_auth_method": "private_key_jwt"})
    known = ClientDocuments(web.fetch, make_keys=keep_fetch)
    assert await known.find_client(URL, "192.0.2.1") is not None
    with pytest.raises(OSError, match="too many"):
        for _ in range(ALL_FETCHES.burst * 2):
            await fetches[0]("https://app.example/keys")
    other = "https://other.example/client.json"
    web.said = {**GOOD, "client_id": other}
    assert await known.find_client(other, "192.0.2.2") is not None


@for_each_row(
    "url",
    [
        "https://127.0.0.1/client.json",
        "https://localhost/client.json",
        "https://[::1]/client.json",
        "https://10.0.0.1/client.json",
        "https://192.168.1.1/client.json",
        "https://169.254.169.254/latest/meta-data",
        "https://2130706433/client.json",
        "https://0x7f.1/client.json",
        "https://metadata.google.internal/client.json",
        "https://app.example:22/client.json",
        "https://[::ffff:127.0.0.1]/client.json",
    ],
)
async def test_addresses_that_are_not_public_are_never_fetched(url: str) -> None:
    with pytest.raises(DefserveError):
        await fetch_guarded(url)
    assert await ClientDocuments().find_client(url) is None


async def test_a_kept_document_takes_only_the_room_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "KEPT_BYTES", 100_000)
    web = Web(None)
    known = ClientDocuments(web.fetch)

    async def fetched(count: int, path: str) -> int:
        """How many of so many documents have to be fetched."""
        web.asked.clear()
        for number in range(count):
            url = f"https://app.example/{path[:9]}{number}"
            web.said = {"client_id": url, "redirect_uris": [f"https://app.example/{path}{n}" for n in range(10)]}
            assert await known.find_client(url, f"address {len(web.asked)}") is not None
        return len(web.asked)

    assert [await fetched(40, "cb"), await fetched(40, "cb")] == [40, 0]
    assert [await fetched(12, "x" * 1000), await fetched(12, "x" * 1000)] == [12, 12]


def test_what_is_kept_is_bounded() -> None:
    assert clients.KEPT_BYTES <= 1024 * 1024
