"""What the server of a command says about itself and what it lists. A server in this process is not started."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from defserve.cli.target.connection import connect
from defserve.cli.target.shapes import checked
from defserve.cli.target.target import ServerTarget
from defserve.core.composition import Composition
from defserve.errors import PeerError
from defserve.host.client import Client
from defserve.host.eras import ERAS
from defserve.host.older.lacking import ListedItems, list_if_known
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.tooling.listing import LISTING_OFFER, OFFER, ServerListing, server_listing

# heading -> (the capability that it needs, its method, how a client asks for it)
KINDS: Final[dict[str, tuple[str, str, Callable[[Client], Any]]]] = {
    "tools": ("tools", "tools/list", Client.tools),
    "resources": ("resources", "resources/list", Client.resources),
    "templates": ("resources", "resources/templates/list", Client.templates),
    "prompts": ("prompts", "prompts/list", Client.prompts),
}


def target_listing(target: ServerTarget, options: Namespace) -> ServerListing:
    """What a client that offers MGP sees. For the capabilities, it offers MCPL too."""
    composition = getattr(target.server, "composition", None)
    if isinstance(composition, Composition) and options.era is None and (found := server_listing(composition)):
        return found
    return asyncio.run(_listing_over_connections(target, options))


async def _listing_over_connections(target: ServerTarget, options: Namespace) -> ServerListing:
    """The same over two connections, because a host that speaks MCPL sees only the tools it has enabled."""
    async with connect(target, options, offer=LISTING_OFFER) as client:
        notes: list[str] = []
        lists, opening = await lists_of(client, notes), initialize_result(client)
    era = options.era or "handshake"
    try:
        async with connect(target, Namespace(**{**vars(options), "era": era}), offer=OFFER) as client:
            opening = initialize_result(client)
    except PeerError:
        pass  # it only speaks the other era
    return ServerListing(opening, **lists, notes=tuple(notes))


async def lists_of(client: Client, notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    """All lists of a server, by their heading; empty where it has no such capability. Raises PeerError.

    Where it has the capability and not the method, that is added to the `notes`.
    """
    lists: dict[str, list[dict[str, Any]]] = {}
    for kind, (needed, method, verb) in KINDS.items():
        items, note = await list_if_known(method, verb(client)) if needed in client.capabilities else ListedItems([])
        lists[kind] = checked(kind, items)
        if note:
            notes.append(note)
    return lists


def initialize_result(client: Client) -> dict[str, Any]:
    """What the server said about itself, in the form of an `initialize` result."""
    result: dict[str, Any] = {
        "protocolVersion": client.version,
        "capabilities": client.capabilities,
        "serverInfo": client.server_info,
    }
    return result | ({"instructions": client.instructions} if client.instructions is not None else {})


async def eras(target: ServerTarget, options: Namespace) -> list[str]:
    """The protocol versions that a server speaks: all of them in this process, else the newest of each era."""
    if isinstance(getattr(target.server, "composition", None), Composition) and options.era is None:
        return [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS]
    spoken: list[str] = []
    for era in ERAS if options.era is None else (options.era,):
        try:
            async with connect(target, Namespace(**{**vars(options), "era": era})) as client:
                spoken.append(client.version)
        except PeerError:
            continue
    return spoken
