"""Fetches events and messages from a server that cannot push them (2026-07-28): they wait in `inbox://<set>`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from pydantic_core import from_json

from defserve.errors import InvalidParams, PeerError
from defserve.host.caller import Caller
from defserve.host.fields import Json, object_of
from defserve.host.mcpl.feature_sets import FeatureSets
from defserve.protocols.mcpl.errors import LiveRefusal
from defserve.wire.jsonvalue import is_array, is_object

Take: TypeAlias = Callable[[Json], Awaitable[object]]

SCHEME: Final = "inbox://"

log = logging.getLogger("defserve.host")


class InboxPoller:
    """Fetches new items, and hands each to `event` or `message`, as if the server had sent it."""

    def __init__(self, client: Caller, sets: FeatureSets, event: Take, message: Take) -> None:
        self._client, self._sets, self._event, self._message = client, sets, event, message
        self._cursors: dict[str, int] = {}

    async def collect(self) -> int:
        """How many items there were. If a handler fails, they are fetched again the next time."""
        count = 0
        for resource in await self._client.resources():
            uri = resource.get("uri")
            if isinstance(uri, str) and uri.startswith(SCHEME) and self._sets.enabled(uri.removeprefix(SCHEME)):
                count += await self._fetch(uri)
        return count

    async def _fetch(self, uri: str) -> int:
        cursor = self._cursors.get(uri)
        text = await self._client.read_text(uri if cursor is None else f"{uri}?after={cursor}")
        try:
            found = object_of(from_json(text))
        except ValueError:
            raise PeerError(f"{uri} is not the inbox of a feature set") from None
        if found.get("missed") is True and cursor is not None:
            log.warning("some events in %s were gone before they were fetched", uri)
        entries = found.get("events")
        waiting = [entry for entry in entries if is_object(entry)] if is_array(entries) else []
        for entry in waiting:
            try:
                await (self._event(entry) if "eventId" in entry else self._message(entry))
            except (InvalidParams, LiveRefusal) as error:
                log.warning("left out an item of %s: %s", uri, error)
        if isinstance(latest := found.get("cursor"), int):
            self._cursors[uri] = latest
        return len(waiting)
