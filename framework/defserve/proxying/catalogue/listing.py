"""Reads the lists of a backend: all pages, within bounds, as raw JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from defserve.errors import PeerError
from defserve.host.fields import Json, object_of
from defserve.host.older.lacking import lacks_method
from defserve.protocols.mcp.skills.skills import EXTENSION as SKILLS
from defserve.protocols.mgp.agreed import SECURITY_KEY, undeclared
from defserve.proxying.conversations.channel import Channel
from defserve.wire.codec import encode
from defserve.wire.jsonvalue import is_array, is_object

log = logging.getLogger("defserve.proxying")

LIST_SECONDS: Final = 10.0
MOST_ITEMS: Final = 10_000
MOST_PAGES: Final = 1_000
MOST_BYTES: Final = 32 * 1024 * 1024


class ListKind(NamedTuple):
    """One list: the capability that it needs, its method, its member of the result, and what names its items.

    With `is_extension`, the capability is one of the server's extensions.
    """

    capability: str
    method: str
    member: str
    key: str
    is_extension: bool = False

    def offered(self, capabilities: Json) -> bool:
        """Whether a server with these capabilities has the list."""
        return self.capability in (object_of(capabilities.get("extensions")) if self.is_extension else capabilities)


KINDS: Final[Mapping[str, ListKind]] = {
    "tools": ListKind("tools", "tools/list", "tools", "name"),
    "prompts": ListKind("prompts", "prompts/list", "prompts", "name"),
    "resources": ListKind("resources", "resources/list", "resources", "uri"),
    "templates": ListKind("resources", "resources/templates/list", "resourceTemplates", "uriTemplate"),
    "skills": ListKind(SKILLS, "skills/list", "skills", "uri", is_extension=True),
}


async def read_list(channel: Channel, kind: ListKind) -> list[Json]:
    """Every item of a list, as it came. Raises PeerError if the list cannot be read, or is too long.

    A server that has the capability and not the method has no such items.
    """
    if not kind.offered(channel.terms.capabilities):
        return []
    items: list[Json] = []
    seen: set[str] = set()
    size, params = 0, Json()
    async with asyncio.timeout(LIST_SECONDS):
        while True:
            try:
                page = await channel.request(kind.method, params, LIST_SECONDS)
            except PeerError as error:
                if items or not lacks_method(error):
                    raise
                log.info("a backend does not know %s, which belongs to what it offers: %s", kind.method, error.message)
                return []
            found = page.get(kind.member)
            items += [item for item in found if is_object(item)] if is_array(found) else []
            size += len(encode(found))
            cursor = page.get("nextCursor")
            if len(items) > MOST_ITEMS or size > MOST_BYTES or len(seen) > MOST_PAGES:
                raise PeerError(f"its {kind.method} is longer than {MOST_ITEMS} items or {MOST_BYTES} bytes")
            if not isinstance(cursor, str):
                return list(map(_plain, items)) if channel.offers_mgp else items
            if cursor in seen:
                raise PeerError(f"the pages of its {kind.method} never end: a cursor came twice")
            seen.add(cursor)
            params = {"cursor": cursor}


def _plain(item: Json) -> Json:
    """An item as a client without MGP would see it: what a tool says of its security is in `_meta`.

    So a list is the same whether a backend was asked with MGP or without. A block that only repeats the tool's hints,
    as every tool has one, is left out.
    """
    if "security" not in item:
        return item
    item = dict(item)
    security, meta = object_of(item.pop("security")), object_of(item.get("_meta"))
    if SECURITY_KEY in meta or security == undeclared(object_of(item.get("annotations")), is_own=True):
        return item
    return {**item, "_meta": {**meta, SECURITY_KEY: security}}
