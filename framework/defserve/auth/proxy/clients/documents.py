"""Clients whose id is the URL of a document about them (CIMD). A stranger chooses the URL, so it is fetched guarded."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from sys import getsizeof
from typing import Any, Final, NamedTuple

from defserve.auth.buckets import Buckets, Rate
from defserve.auth.proxy.clients.client import OAuthClient, described
from defserve.auth.proxy.clients.redirects import RedirectRule
from defserve.auth.proxy.errors import OAuthError
from defserve.auth.urls import checked_url
from defserve.base.caches import ByteCache
from defserve.errors import DefserveError, UsageError
from defserve.wire.jsonvalue import is_object

log = logging.getLogger("defserve.auth")

LARGEST: Final = 16 * 1024
SECONDS: Final = 5.0
LONGEST_URL: Final = 512
KEPT_BYTES: Final = 1024 * 1024
# Of their own, so that strangers who name bad documents drive no good one out.
BAD_BYTES: Final = 256 * 1024
GOOD_SECONDS, BAD_SECONDS = 600.0, 30.0
# Strangers cause these fetches: from one address, and in all. One address alone cannot use up what is for all.
FETCHES: Final = Rate(per_second=1, burst=10)
ALL_FETCHES: Final = Rate(per_second=20, burst=100)
# Of the fetch and of httpx2: whoever has the document did not answer in time, or not yet.
_LATE: Final = ("TimeoutError", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout")
_AWAY: Final = OAuthError("temporarily_unavailable", "the client's document cannot be read at the moment; try again")

FetchDocument = Callable[[str], Awaitable[bytes]]


class _Kept(NamedTuple):
    client: OAuthClient | None
    until: float


class ClientDocuments:
    """Finds clients by URL. `fetch` gives the bytes of a document, or raises."""

    def __init__(self, fetch: FetchDocument | None = None, redirects: RedirectRule | None = None) -> None:
        self._fetch, self._redirects = fetch or fetch_guarded, redirects or RedirectRule()
        self._kept: ByteCache[_Kept] = ByteCache(KEPT_BYTES)
        self._bad: ByteCache[_Kept] = ByteCache(BAD_BYTES)
        self._fetches, self._all_fetches = Buckets(FETCHES), Buckets(ALL_FETCHES, capacity=1)

    async def find(self, url: str, address: str = "") -> OAuthClient | None:
        """The client with this id; None if there is no such client. Raises OAuthError if that cannot be found out.

        `address` is where the request comes from that names it.
        """
        if not is_document_url(url):
            return None
        for kept in (self._kept.get(url), self._bad.get(url)):
            if kept is not None and time.monotonic() < kept.until:
                return kept.client
        if self._fetches.take(address) or self._all_fetches.take("all"):
            raise OAuthError("temporarily_unavailable", "too many clients are being looked up; try again")
        client = await self._read(url)
        if client is not None:
            self._kept.put(url, _Kept(client, time.monotonic() + GOOD_SECONDS), _size(client))
        else:
            self._bad.put(url, _Kept(None, time.monotonic() + BAD_SECONDS), 1024)
        return client

    async def _read(self, url: str) -> OAuthClient | None:
        """The client; None if the document is not good. Raises OAuthError if it did not come in time."""
        try:
            async with asyncio.timeout(SECONDS):
                body = await self._fetch(url)
            found: Any = json.loads(body) if len(body) <= LARGEST else None
            if not is_object(found) or found.get("client_id") != url or "client_secret" in found:
                raise ValueError("it is not the document of a client with this id")
            return described(found, self._redirects, url, url)
        except Exception as error:
            # httpx2 has errors of its own, and is not imported here.
            if error is _AWAY or type(error).__name__ in _LATE:
                log.warning("the client %s cannot be read at the moment: %s", url, type(error).__name__)
                raise _AWAY from None
            if isinstance(error, (OAuthError, DefserveError, OSError, ValueError, RecursionError)):
                log.warning("the client %s is refused: %s", url, error or type(error).__name__)
                return None
            log.warning("the client %s cannot be read: %s", url, type(error).__name__)
        return None


def _size(client: OAuthClient) -> int:
    """The bytes that a kept client takes, its URL as the key included. Most of its document is not kept."""
    return 512 + sum(map(getsizeof, (client.id, client.name, *client.redirects)))


def is_document_url(text: str) -> bool:
    """Whether a client id is the URL of a document: https, with a path, and nothing else."""
    if not text.startswith("https://") or len(text) > LONGEST_URL:
        return False
    try:
        parts = checked_url(text, "the client id")
    except UsageError:
        return False
    segments = parts.path.split("/")
    return parts.path not in ("", "/") and "." not in segments and ".." not in segments


async def fetch_guarded(url: str) -> bytes:
    """The document at a public address. No redirects. Raises what the guarded client raises."""
    from defserve.net.client import GuardedClient
    from defserve.net.egress import Egress, refusal

    egress = Egress(schemes=("https",), redirects=0, max_bytes=LARGEST, timeout=2 * SECONDS)
    if not (verdict := egress.judge(url)):
        raise refusal(verdict)  # before a client is made, which loads all certificates
    async with GuardedClient(egress) as http:
        answer = await http.get(url, headers={"accept": "application/json"})
    if answer.status_code >= 500 or answer.status_code == 429:
        raise _AWAY
    if answer.status_code != 200:
        raise OSError(f"it answered with status {answer.status_code}")
    return answer.content
