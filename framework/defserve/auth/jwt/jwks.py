"""The keys that an issuer publishes (RFC 7517). Fetched when needed; strangers cannot cause many fetches."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from defserve.auth.issuers.fetching import LARGEST, TIMEOUT, Fetch, download
from defserve.auth.jwt.signing_keys import VerificationKey, key_of_jwk
from defserve.auth.urls import checked_url
from defserve.wire.jsonvalue import is_array, is_object

MOST_KEYS = 64
# The time between fetches: once there are keys, unknown key ids cause at most one fetch a minute.
PAUSE = 60.0
RETRY = 5.0
# How long expired keys stay in use while their issuer does not answer.
GRACE = 3600.0

log = logging.getLogger("defserve.auth")


class PublishedKey(NamedTuple):
    """One key of the set, under its id."""

    kid: str | None
    key: VerificationKey


class KeySet:
    """The keys at `url`, which must be https unless it is on this machine.

    `fetch` returns the document's bytes, or raises.
    """

    def __init__(
        self,
        url: str,
        algorithms: frozenset[str],
        *,
        fetch: Fetch | None = None,
        ttl: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        checked_url(url, "jwks_url", query=True)
        self.url, self.ttl = url, ttl
        self._algorithms, self._fetch, self._clock = algorithms, fetch or download, clock
        self._keys: list[PublishedKey] = []
        self._fetched = self._tried = -math.inf
        self._loading: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        """The key of that id, for that algorithm. Without an id: the only key for the algorithm."""
        if self._age() >= self.ttl:
            await self._refresh()
        found = self._pick(kid, algorithm)
        if found is None:
            await self._refresh()
            found = self._pick(kid, algorithm)
        return found

    @property
    def has_keys(self) -> bool:
        """Whether there are keys that count. If not, their issuer has not answered."""
        return bool(self._keys) and self._age() < self.ttl + GRACE

    def _age(self) -> float:
        return self._clock() - self._fetched

    def _pick(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        if not self.has_keys:
            return None
        fitting = [entry for entry in self._keys if algorithm in entry.key.algorithms]
        if kid is None:
            return fitting[0].key if len(fitting) == 1 else None
        return next((entry.key for entry in fitting if entry.kid == kid), None)

    async def _refresh(self) -> None:
        """Fetch the set, unless that was just done. Callers that come meanwhile wait for the same fetch."""
        if self._loading is None:
            if self._clock() - self._tried < (PAUSE if self._keys else RETRY):
                return
            self._loading = asyncio.create_task(self._load())
        # A caller that hangs up must not cancel the fetch for the others, nor use up the fetch of this minute.
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                document = await self._fetch(self.url)
            self._keys = parse_key_set(document, self._algorithms)
            self._fetched = self._clock()
        except Exception as error:
            log.warning("no keys from %s: %s: %s", self.url, type(error).__name__, error)
        finally:
            self._tried, self._loading = self._clock(), None


def parse_key_set(document: bytes, algorithms: frozenset[str]) -> list[PublishedKey]:
    """The usable keys of a key set. Raises ValueError if it has none, or is not a key set."""
    if len(document) > LARGEST:
        raise ValueError(f"the key set is larger than {LARGEST} bytes")
    decoded: Any = json.loads(document)
    members: Any = decoded.get("keys") if is_object(decoded) else None
    if not is_array(members) or len(members) > MOST_KEYS:
        raise ValueError(f"not a key set of at most {MOST_KEYS} keys")
    found = [
        PublishedKey(kid if isinstance(kid := member.get("kid"), str) else None, key)
        for member in members
        if is_object(member) and (key := key_of_jwk(member, algorithms)) is not None
    ]
    if not found:
        raise ValueError(f"no key for {', '.join(sorted(algorithms))}")
    return found
