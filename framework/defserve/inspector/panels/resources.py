"""The Resources panel: the list, templates that are filled in, contents, and watching for changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.errors import PeerError, PeerGone
from defserve.host.client import Client
from defserve.host.fields import object_of, texts_of
from defserve.host.older.lacking import list_if_known
from defserve.inspector.inspection import Inspection
from defserve.inspector.items import contents_of, named
from defserve.inspector.panels.verb import Verb, asking
from defserve.inspector.protocol import BadMessage, Json, Request
from defserve.protocols.mcp.resources.uri_expansion import expand, parse
from defserve.protocols.mcp.versions import features

MOST_VALUES: Final = 100


async def list_resources(inspection: Inspection, request: Request) -> Any:
    """`resources` and `templates`, templates with their `variables`; what is `watched`, if that can be."""
    async with asking(inspection, request) as client:
        if "resources" not in client.capabilities:
            return {"offered": False, "resources": [], "templates": [], "watches": False, "watched": []}
        offer = object_of(client.capabilities.get("resources"))
        resources, _ = await list_if_known("resources/list", client.resources())
        found = {"resources": named(resources, "uri"), "templates": await _templates(client)}
        watches = offer.get("subscribe") is True
        watched = await inspection.watches.renew(client) if watches else []
    return {"offered": True, **found, "watches": watches, "watched": watched, "completes": completes(client)}


async def _templates(client: Client) -> list[Json]:
    try:
        found = await client.templates()
    except PeerGone:
        raise
    except PeerError:
        return []  # servers without templates may not know the method
    return [{"definition": each, "variables": variables(each["uriTemplate"])} for each in named(found, "uriTemplate")]


def completes(client: Client) -> bool:
    """Whether a server suggests values. Those of the first versions do so without saying it."""
    return "completions" in client.capabilities or "completions" not in features(client.version)


def variables(template: str) -> list[Json] | None:
    """The variables of a template, `{"name", "many"}` each; None if it is one that is not understood."""
    try:
        parts = parse(template)
    except ValueError:
        return None
    found = [each for part in parts if not isinstance(part, str) for each in part.variables]
    return [{"name": each.name, "many": each.explode} for each in found]


async def expanded(inspection: Inspection, request: Request) -> Any:
    """The URI of a template with `values`. What is left out, or empty, is left out of the URI."""
    values = {name: value for name, value in request.object("values").items() if value not in ("", [], None)}
    try:
        parts = parse(request.text("template"))
        return {"uri": expand(parts, values)}
    except (TypeError, ValueError) as error:
        raise BadMessage(f"the template cannot be filled in: {error}", fix="type the whole URI") from None


async def read(inspection: Inspection, request: Request) -> Any:
    """The `contents` of a resource."""
    uri = request.text("uri")
    async with asking(inspection, request) as client:
        return {"uri": uri, "contents": contents_of(await client.read(uri))}


async def watch(inspection: Inspection, request: Request) -> Any:
    """Watch a resource, or (`on` is false) no longer. What is watched then."""
    uri = request.text("uri")
    async with asking(inspection, request) as client:
        if request.arguments.get("on") is False:
            await inspection.watches.leave(client, uri)
        else:
            await inspection.watches.watch(client, uri)
        return {"watched": await inspection.watches.renew(client)}


async def complete(inspection: Inspection, request: Request) -> Any:
    """Values that the server suggests for an argument of a prompt or template. `ref` is the reference as MCP has it."""
    context = {name: value for name, value in request.object("context").items() if isinstance(value, str)}
    async with asking(inspection, request) as client:
        found = await client.complete(
            request.object("ref"), argument=request.text("argument"), value=request.text("value", ""), context=context
        )
    return {"values": texts_of(found.get("values"))[:MOST_VALUES], "more": found.get("hasMore") is True}


VERBS: Final[Mapping[str, Verb]] = {
    "resources.list": list_resources,
    "resources.expand": expanded,
    "resources.read": read,
    "resources.watch": watch,
    "complete": complete,
}
