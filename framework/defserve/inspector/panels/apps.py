"""The Apps panel: tools that have a view, the view of a call in a frame, and its messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from defserve.errors import PeerError, PeerGone
from defserve.host.apps.rendering import render, view_uri
from defserve.host.apps.view import is_visible_to
from defserve.host.client import Client
from defserve.host.fields import object_of, text_of
from defserve.host.older.lacking import list_if_known
from defserve.inspector.apps.reach import narrowed, refused_by
from defserve.inspector.apps.shown import PatientClient, ShownApp
from defserve.inspector.apps.views import View
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb, asking
from defserve.inspector.protocol import BadMessage, Json, Request
from defserve.protocols.mcp.apps.offer import SCHEME

LONGEST_VIEW: Final = 8 * 1024 * 1024
LONGEST_TEXT: Final = 2_000
AUDIENCES: Final = ("model", "app")


async def list_apps(inspection: Inspection, request: Request) -> Any:
    """`tools` that have a view or are for views, and the `views` that are listed as resources."""
    async with asking(inspection, request) as client:
        listed = await client.tools() if "tools" in client.capabilities else []
        found = [_tool(each) for each in listed if isinstance(each.get("name"), str)]
        return {"tools": [each for each in found if each is not None], "views": await _views(client)}


def _tool(tool: Json) -> Json | None:
    uri, audience = view_uri(tool), [each for each in AUDIENCES if is_visible_to(each, tool)]
    if uri is None and "model" in audience:
        return None
    about = {name: _text(tool, name) for name in ("name", "title", "description")}
    return {**about, "uri": uri, "audience": audience, "schema": object_of(tool.get("inputSchema"))}


async def _views(client: Client) -> list[Json]:
    try:
        offered = "resources" in client.capabilities
        listed = (await list_if_known("resources/list", client.resources())).items if offered else []
    except PeerGone:
        raise
    except PeerError:
        return []  # the tools tell which views there are
    views = [each for each in listed if (text_of(each.get("uri")) or "").startswith(SCHEME)]
    return [{name: _text(each, name) for name in ("uri", "name", "title", "description", "mimeType")} for each in views]


def _text(item: Json, name: str) -> str:
    return (text_of(item.get(name)) or "")[:LONGEST_TEXT]


async def show(inspection: Inspection, request: Request) -> Any:
    """Call a tool as a model would, and get its view ready for a frame. Parts: the progress of the call."""
    tool, arguments = request.text("tool"), request.object("arguments")
    began = time.perf_counter()

    def progress(progress: float, total: float | None, message: str | None) -> None:
        request.part({"progress": progress, "total": total, "message": message})

    async with asking(inspection, request) as client:
        app = await render(PatientClient(client, progress), tool, arguments)
    era = "stateless" if client.stateless else "handshake"
    size = len(app.html.encode("utf-8", "replace"))
    if size > LONGEST_VIEW:
        raise PeerError(f"the view {app.uri!r} has {size:,} bytes: more than {LONGEST_VIEW:,} are not shown")
    views = inspection.views
    ports = {views.page_port, urlsplit(views.origin).port or 0}
    policy, reaches, refused = narrowed(app.policy, refused_by(ports, inspection.target.address))
    shown = ShownApp(era, app, inspection.questions)
    shown.change(request.object("context"))
    return {
        "app": inspection.apps.add(shown),
        "url": views.add(View(app.html, policy)),
        "era": era,
        "ms": round((time.perf_counter() - began) * 1000, 1),
        "uri": app.uri,
        "size": size,
        "policy": policy,
        "reaches": reaches,
        "refused": refused,
        "permissions": app.permissions,
        "border": app.border,
        "domain": app.domain,
        "result": app.result,
        "text": app.text,
    }


async def message(inspection: Inspection, request: Request) -> Any:
    """What to post to a view after a `message` of its own. Cancelling it takes back what the person was asked."""
    given = request.arguments.get("message")
    if not isinstance(given, dict):
        raise BadMessage("the argument 'message' is missing, or is not an object")
    shown = inspection.apps[request.whole("app")]
    return {"answers": await shown.answer(given)}


async def context(inspection: Inspection, request: Request) -> Any:
    """Something is different at the page: its theme, the room for the view. What to post to the view."""
    return {"answers": inspection.apps[request.whole("app")].change(request.object("context"))}


async def close(inspection: Inspection, request: Request) -> Any:
    inspection.apps.remove(request.whole("app"))
    return {}


VERBS: Final[Mapping[str, Verb]] = {
    "apps.list": list_apps,
    "apps.show": show,
    "apps.message": message,
    "apps.context": context,
    "apps.close": close,
}
