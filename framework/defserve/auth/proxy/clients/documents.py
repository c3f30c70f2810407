"""Clients whose id is the URL of a document about them (CIMD). A stranger chooses the URL, so it is fetched guarded."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from defserve.auth.buckets import Buckets, Rate
from defserve.auth.proxy.clients.client import OAuthClient, described
from defserve.auth.proxy.errors import OAuthError
from defserve.auth.urls import checked_url
from defserve.caches import ByteCache
from defserve.errors import DefserveError, UsageError
from defserve.wire.jsonvalue import is_object

log = logging.getLogger("defserve.auth")

LARGEST: Final = 16 * 1024
SECONDS: Final = 5.0
LONGEST_URL: Final = 512
KEPT_BYTES: Final = 1024 * 1024
GOOD_SECONDS, BAD_SECONDS = 600.0, 30.0
# Strangers cause these fetches, of all clients together.
FETCHES: Final = Rate(per_second=2, burst=20)

FetchDocument = Callable[[str], Awaitable[bytes]]


class _Kept(NamedTuple):
    client: OAuthClient | None
    until: float


class ClientDocuments:
    """Finds clients by URL. `fetch` gives the bytes of a document, or raises."""

    def __init__(self, fetch: FetchDocument | None = None) -> None:
        self._fetch = fetch or fetch_guarded
        self._kept: ByteCache[_Kept] = ByteCache(KEPT_BYTES)
        self._fetches = Buckets(FETCHES, capacity=1)

    async def find(self, url: str) -> OAuthClient | None:
        """The client with this id; None if there is no such client. Raises OAuthError if that cannot be found out."""
        if not is_document_url(url):
            return None
        kept = self._kept.get(url)
        if kept is not None and time.monotonic() < kept.until:
            return kept.client
        if self._fetches.take("all"):
            raise OAuthError("temporarily_unavailable", "too many clients are being looked up; try again")
        client = await self._read(url)
        seconds = GOOD_SECONDS if client is not None else BAD_SECONDS
        self._kept.put(url, _Kept(client, time.monotonic() + seconds), 2 * LARGEST if client else 1024)
        return client

    async def _read(self, url: str) -> OAuthClient | None:
        try:
            async with asyncio.timeout(SECONDS):
                body = await self._fetch(url)
            found: Any = json.loads(body) if len(body) <= LARGEST else None
            if not is_object(found) or found.get("client_id") != url or "client_secret" in found:
                raise ValueError("it is not the document of a client with this id")
            return described(found, url, url)
        except (OAuthError, DefserveError, OSError, ValueError, RecursionError) as error:
            log.warning("the client %s is refused: %s", url, error or type(error).__name__)
        except Exception as error:
            # httpx2 has errors of its own, and is not imported here.
            log.warning("the client %s cannot be read: %s", url, type(error).__name__)
        return None


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

    egress = Egress(schemes=("https",), redirects=0, max_bytes=LARGEST, timeout=SECONDS)
    if not (verdict := egress.judge(url)):
        raise refusal(verdict)  # before a client is made, which loads all certificates
    async with GuardedClient(egress) as http:
        answer = await http.get(url, headers={"accept": "application/json"})
    if answer.status_code != 200:
        raise OSError(f"it answered with status {answer.status_code}")
    return answer.content
