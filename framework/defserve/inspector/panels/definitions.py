"""Definitions: what a server lists now beside what it listed before (Compare), and tools as models see them.

Before is the first listing of this inspector, or a file that the person chose. Its text comes from the page, which
reads it: nothing on this machine is opened by name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from defserve.client.replies import object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.errors import PeerError
from defserve.inspector.inspection import (
    FirstListing,
    Inspection,
    PageRequestHandler,
    get_request_era,
    use_request_client,
)
from defserve.inspector.protocol import BadMessage, Json, PageRequest
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.tooling.listing import ServerListing, fetch_listing, parse_snapshot, to_snapshot
from defserve.tooling.server_diff import compare_servers
from defserve.tooling.vendor_shapes import VENDOR_SHAPES, count_json_tokens, shape_tool, shape_tools

MAX_NAME_LENGTH: Final = 80
FEATURE_SET: Final = "featureSet"


async def keep_first_listing(inspection: Inspection, request: PageRequest) -> Any:
    """Remember what the server lists, unless that was done. `since` is when it was."""
    return {"since": (await _first_listing(inspection, request)).at}


async def compare_listings(inspection: Inspection, request: PageRequest) -> Any:
    """What changed since `text`, the content of a file called `name`; without one, since the first listing."""
    if "text" in request.arguments:
        name = request.get_text("name", "the file")[:MAX_NAME_LENGTH]
        before = parse_snapshot(request.get_text("text").encode("utf-8", "replace"), name)
        before, after = map(_drop_feature_sets, (before, await _list_in_era_of(before, inspection, request)))
    else:
        before = (await _first_listing(inspection, request)).listed
        after = await _list_now(inspection, request)
    # Two long lists take a while; other requests of the page go on.
    return (await asyncio.to_thread(compare_servers, before, after)).to_wire()


async def save_listing(inspection: Inspection, request: PageRequest) -> Any:
    """What the server lists now, to be kept as a file."""
    return {"snapshot": to_snapshot(await _list_now(inspection, request))}


async def shape_definitions(inspection: Inspection, request: PageRequest) -> Any:
    """The `tools` of the page's own list as each vendor is sent them: the values, their cost, and what is lost."""
    given = request.arguments.get("tools")
    if not is_array(given) or not all(is_object(tool) and isinstance(tool.get("name"), str) for tool in given):
        raise BadMessage("the argument 'tools' is missing, or is not a list of tools")
    return await asyncio.to_thread(_shape_all, list(given))


def _shape_all(tools: list[Json]) -> list[Json]:
    shaped: list[Json] = []
    for vendor, shape in VENDOR_SHAPES.items():
        each = [shape_tool(vendor, tool) for tool in tools]
        value = shape_tools(vendor, tools)
        shaped.append(
            {
                "vendor": vendor,
                "title": shape.title,
                "value": value,
                "tokens": count_json_tokens(value),
                "lost": list(dict.fromkeys(member for one in each for member in one.lost)),
                "problems": [
                    f"{tool['name']}: {problem}"
                    for tool, one in zip(tools, each, strict=True)
                    for problem in one.problems
                ],
            }
        )
    return shaped


async def _first_listing(inspection: Inspection, request: PageRequest) -> FirstListing:
    async with use_request_client(inspection, request):
        # Which era the first conversation speaks is known when it is open.
        era = inspection.connection(get_request_era(request)).era
    if era not in inspection.first_listings:
        listed = await _list_now(inspection, request)
        inspection.first_listings.setdefault(era, FirstListing(listed, time.time()))
    return inspection.first_listings[era]


async def _list_in_era_of(before: ServerListing, inspection: Inspection, request: PageRequest) -> ServerListing:
    """What the server lists in the era of another listing, because capabilities have other names in each."""
    version = before.initialize.get("protocolVersion")
    era = "stateless" if version in STATELESS_VERSIONS else "handshake" if version in HANDSHAKE_VERSIONS else ""
    try:
        return await _list_now(inspection, PageRequest({**request.arguments, "era": era}, request.part))
    except PeerError:
        return await _list_now(inspection, request)


def _drop_feature_sets(listed: ServerListing) -> ServerListing:
    """A listing without what only a host of MCPL is told, as the inspector is and `defserve inspect` is not."""

    def plain(tool: Json) -> Json:
        meta = {name: value for name, value in object_or_empty(tool.get("_meta")).items() if name != FEATURE_SET}
        return {**{name: value for name, value in tool.items() if name != "_meta"}, **({"_meta": meta} if meta else {})}

    return listed._replace(tools=list(map(plain, listed.tools)))


async def _list_now(inspection: Inspection, request: PageRequest) -> ServerListing:
    async with use_request_client(inspection, request) as client:
        return await fetch_listing(client)


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "compare.keep": keep_first_listing,
    "compare.run": compare_listings,
    "compare.save": save_listing,
    "tools.shapes": shape_definitions,
}
