from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from defserve.auth.issuers import (
    IssuerUnavailable,
    fetch_issuer_metadata,
    list_metadata_urls_openid_first,
    require_endpoint_url,
)
from defserve.errors import UsageError
from tests.rows import for_each_row

PLAIN = "https://login.example"


def documents(given: dict[str, Any]) -> Any:
    async def fetch(url: str) -> bytes:
        if url not in given:
            raise OSError("it answered with status 404")
        return given[url] if isinstance(given[url], bytes) else json.dumps(given[url]).encode()

    return fetch


@for_each_row(
    "issuer, urls",
    [
        (PLAIN, [f"{PLAIN}/.well-known/openid-configuration", f"{PLAIN}/.well-known/oauth-authorization-server"]),
        (
            f"{PLAIN}/realms/x",
            [
                f"{PLAIN}/realms/x/.well-known/openid-configuration",
                f"{PLAIN}/.well-known/oauth-authorization-server/realms/x",
                f"{PLAIN}/.well-known/openid-configuration/realms/x",
            ],
        ),
    ],
)
def test_metadata_is_looked_for_where_the_standards_say(issuer: str, urls: list[str]) -> None:
    assert list(list_metadata_urls_openid_first(issuer)) == urls
    for url in urls:
        found = asyncio.run(fetch_issuer_metadata(issuer, documents({url: {"issuer": issuer, "x": 1}})))
        assert found["x"] == 1


def test_an_issuer_with_a_slash_at_its_end_is_another_issuer() -> None:
    url = f"{PLAIN}/.well-known/openid-configuration"
    assert asyncio.run(fetch_issuer_metadata(f"{PLAIN}/", documents({url: {"issuer": f"{PLAIN}/"}})))
    with pytest.raises(IssuerUnavailable, match="the metadata of 'https://login.example/'"):
        asyncio.run(fetch_issuer_metadata(PLAIN, documents({url: {"issuer": f"{PLAIN}/"}})))


@for_each_row("document", [b"", b"[]", b"{", b"null", {"issuer": "https://evil.example"}, {}, b"[" * 100_000, b"\xff"])
def test_another_s_document_or_none_is_not_believed(document: Any) -> None:
    with pytest.raises(IssuerUnavailable, match="has no usable metadata"):
        asyncio.run(
            fetch_issuer_metadata(PLAIN, documents(dict.fromkeys(list_metadata_urls_openid_first(PLAIN), document)))
        )


@for_each_row("url", ["http://login.example/keys", "ftp://login.example", "keys", 7, None, "https://u:p@login.example"])
def test_an_endpoint_that_is_not_safe_is_not_used(url: Any) -> None:
    with pytest.raises(IssuerUnavailable):
        require_endpoint_url({"issuer": PLAIN, "jwks_uri": url}, "jwks_uri")


def test_an_issuer_must_be_a_safe_url() -> None:
    with pytest.raises(UsageError, match="only https is safe"):
        list_metadata_urls_openid_first("http://login.example")
