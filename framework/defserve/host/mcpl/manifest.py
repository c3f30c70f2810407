"""MCPL 0.5 §8: a server says that its manifest has changed, and this host fetches it, at most once in two seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from defserve.errors import PeerError
from defserve.host.caller import SendRequest
from defserve.host.fields import Json
from defserve.host.mcpl.audit import McplAuditTrail
from defserve.protocols.mcpl.manifest.digest import NoDigest, revision

CHANGED: Final = "mcpl/manifestChanged"
MANIFEST: Final = "mcpl/manifest"
PAUSE_SECONDS: Final = 2.0

log = logging.getLogger("defserve.host")


class ManifestFollower:
    """Fetches changed manifests, and hands each to `take`. One that cannot be read changes nothing."""

    pause = PAUSE_SECONDS

    def __init__(self, request: SendRequest, take: Callable[[Json], Awaitable[None]], audit: McplAuditTrail) -> None:
        self._request, self._take, self._audit = request, take, audit
        self._is_fetching = self._is_stale = False

    async def changed(self) -> None:
        """Fetch the manifest. Notices that come meanwhile lead to one more fetch, after a pause."""
        self._is_stale = True
        if self._is_fetching:
            return
        self._is_fetching = True
        try:
            while self._is_stale:
                self._is_stale = False
                await self._fetch()
                await asyncio.sleep(self.pause)
        finally:
            self._is_fetching = False

    async def _fetch(self) -> None:
        try:
            with self._audit.watching(MANIFEST):
                manifest = await self._request(MANIFEST, {})
                self._check(manifest)
                await self._take(manifest)
        except PeerError as error:
            log.warning("%s: the manifest stays as it was: %s", self._audit.server_id, error)

    def _check(self, manifest: Json) -> None:
        """A digest that does not fit is a defect of the server. What counts is the content."""
        try:
            fits = "revision" not in manifest or revision(manifest) == manifest["revision"]
        except NoDigest:
            fits = False
        if not fits:
            log.warning("%s: the revision of its manifest does not fit its content", self._audit.server_id)
