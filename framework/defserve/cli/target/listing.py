"""What the server that a command is pointed at says and lists. One in this process is not started for it."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

from defserve.cli.target.connection import connect
from defserve.cli.target.target import ServerTarget
from defserve.core.composition import Composition
from defserve.errors import PeerError
from defserve.host.client import Client
from defserve.host.eras import ERAS
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.tooling.listing import LISTING_OFFER, OFFER, ServerListing, listed


def listed_by(target: ServerTarget, options: Namespace) -> ServerListing:
    """Everything that is listed for a client that offers MGP and, where it is asked what it can do, MCPL."""
    composition = getattr(target.server, "composition", None)
    if isinstance(composition, Composition) and options.era is None:
        found = listed(composition)
        if found is not None:
            return found
    return asyncio.run(_heard(target, options))


async def _heard(target: ServerTarget, options: Namespace) -> ServerListing:
    """The same over connections: two, for a host that speaks MCPL sees only the tools it has enabled."""
    async with connect(target, options, offer=LISTING_OFFER) as client:
        has = client.capabilities
        lists: dict[str, list[Any]] = {
            "tools": await client.tools() if "tools" in has else [],
            "resources": await client.resources() if "resources" in has else [],
            "templates": await client.templates() if "resources" in has else [],
            "prompts": await client.prompts() if "prompts" in has else [],
        }
        opening = opened(client)
    era = options.era or "handshake"
    try:
        async with connect(target, Namespace(**{**vars(options), "era": era}), offer=OFFER) as client:
            opening = opened(client)
    except PeerError:
        pass  # it speaks the other era only
    return ServerListing(opening, **lists)


def opened(client: Client) -> dict[str, Any]:
    """What the server said of itself, as `initialize` does."""
    told: dict[str, Any] = {
        "protocolVersion": client.version,
        "capabilities": client.capabilities,
        "serverInfo": client.server_info,
    }
    return told | ({"instructions": client.instructions} if client.instructions is not None else {})


async def eras(target: ServerTarget, options: Namespace) -> list[str]:
    """The versions that a server of this process speaks; of another one the newest of each era."""
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
