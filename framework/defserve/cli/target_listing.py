"""What the server of a command says about itself and what it lists; the marks of tools; mounted servers.

A server in this process is listed without being started.
"""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from defserve.cli.screen_blocks import StyledText, style_state
from defserve.cli.target import ServerTarget
from defserve.cli.target_connection import connect_target, filter_log
from defserve.client.client import Client
from defserve.client.eras import NEWEST_VERSION_BY_ERA
from defserve.client.mgp.server_claims import parse_tool_security
from defserve.client.replies import object_or_empty
from defserve.core.composition import Composition
from defserve.errors import PeerError
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.tooling.lint.definitions import get_security_block
from defserve.tooling.listing import (
    FULL_OFFER,
    LISTING_OFFER,
    ServerListing,
    fetch_listing,
    make_initialize_result,
    server_listing,
)


def list_target(target: ServerTarget, options: Namespace) -> ServerListing:
    """What a client that offers MGP sees. For the capabilities, it offers MCPL too."""
    composition = getattr(target.server, "composition", None)
    if isinstance(composition, Composition) and options.era is None and (found := server_listing(composition)):
        return found
    return asyncio.run(_listing_over_connections(target, options))


async def _listing_over_connections(target: ServerTarget, options: Namespace) -> ServerListing:
    """The same over two connections, because a host that speaks MCPL sees only the tools it has enabled."""
    async with connect_target(target, options, offer=LISTING_OFFER) as client:
        listed = await fetch_listing(client)
    era = options.era or "handshake"
    try:
        async with connect_target(target, Namespace(**{**vars(options), "era": era}), offer=FULL_OFFER) as client:
            return listed._replace(initialize=make_initialize_result(client))
    except PeerError:
        return listed  # it only speaks the other era


async def find_spoken_versions(target: ServerTarget, options: Namespace) -> list[str]:
    """The protocol versions that a server speaks: all of them in this process, else the newest of each era."""
    if isinstance(getattr(target.server, "composition", None), Composition) and options.era is None:
        return [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS]
    spoken: list[str] = []
    for era in NEWEST_VERSION_BY_ERA if options.era is None else (options.era,):
        try:
            async with connect_target(target, Namespace(**{**vars(options), "era": era})) as client:
                spoken.append(client.version)
        except PeerError:
            continue
    return spoken


# -- What a tool may do, in the words that stand behind it in a list.


# A hint of MCP → the word for it, if the tool has no mark.
HINTS: Final = {"readOnlyHint": "read-only", "destructiveHint": "destructive", "openWorldHint": "open world"}
HARMLESS: Final = frozenset(("safe", "unmarked", "read-only"))
"""Words that a short list leaves out."""


def format_tags(words: list[str]) -> list[StyledText]:
    """`  [dangerous, asks first]`, with the style of what each word says."""
    parts: list[StyledText] = []
    for number, word in enumerate(words):
        parts += [", " if number else "  [", style_state(word)]
    return [*parts, "]"] if parts else []


def list_tool_tags(tool: Mapping[str, Any]) -> list[str]:
    """What a tool may do, in a few words: from its mark, or from its hints."""
    security = get_security_block(tool)
    if not security or not parse_tool_security("", dict(tool)).is_marked:
        hints: Mapping[str, Any] = tool.get("annotations") or {}
        return ["unmarked", *(word for hint, word in HINTS.items() if hints.get(hint) is True)]
    validator = security.get("validator", "none")
    said = [
        security.get("risk_level"),
        *(security.get("permissions_required") or ()),
        "asks first" if security.get("confirmation_required") else None,
        f"checked: {validator}" if validator != "none" else None,
    ]
    return [str(word) for word in said if word]


def list_tool_dangers(tool: Mapping[str, Any]) -> list[str]:
    """The words of a tool that a person should know before a call; empty for one that is harmless, or unmarked."""
    return [word for word in list_tool_tags(tool) if word not in HARMLESS]


# -- Servers mounted on the one that a command is about: which of them are not connected, and why, told once.


STATES: Final = "dev.defserve/servers"
"""In `_meta` of a list: the mounted servers whose items may be missing."""


async def list_disconnected_servers(client: Client) -> dict[str, str]:
    """The mounted servers that are not connected, each with what its server says of it."""
    if "tools" not in client.capabilities:
        return {}
    answer = await client.request("tools/list", {})
    states: dict[str, Any] = object_or_empty(object_or_empty(answer.get("_meta")).get(STATES))
    return {id: str(object_or_empty(state).get("note") or "it is not connected") for id, state in states.items()}


def suppress_repeated_logs() -> AbstractContextManager[None]:
    """While the block runs, the log says the same about a mounted server only once. Each attempt to start it tells."""
    told: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_known = text in told
        told.add(text)
        return not is_known

    return filter_log(logging.getLogger("defserve.proxying"), is_new)
