"""Rendering: the call of a tool, and all that a host needs to show the view that belongs to it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from defserve.errors import PeerError, UsageError
from defserve.host.apps.view import AppHost, RenderedApp, is_visible_to, server_of
from defserve.host.fields import Json, object_of, text_of
from defserve.protocols.mcp.apps.offer import MIME_TYPE, SCHEME
from defserve.wire.jsonvalue import is_array


async def render(client: AppHost, tool: str, arguments: Mapping[str, Any]) -> RenderedApp:
    """Call a tool as the model would, and fetch its view.

    Raises UsageError for a tool that has no view, or is not for models; PeerError for a view that no host may show, and
    for a result without a text, which hosts without views need.
    """
    listed = await client.listed(tool, again=True)
    uri = view_uri(listed)
    if uri is None:
        raise UsageError(
            f"tool {tool!r} has no view" if listed else f"the server lists no tool {tool!r}",
            fix="give it one with @server.tool(app=…); the client must offer apps",
        )
    if not is_visible_to("model", listed):
        raise UsageError(
            f"tool {tool!r} is for views alone", fix="render the tool that shows the view, then app.call(…)"
        )
    read = await client.read(uri)
    if any(server_of(object_of(content)) != server_of(listed) for content in read):
        raise PeerError(f"the view {uri!r} of tool {tool!r} comes from another server than the tool")
    html, ui = _view(uri, read)
    app = RenderedApp(client, listed, uri, html, ui, dict(arguments), await client.call_raw(tool, arguments))
    if not app.text.strip():
        raise PeerError(f"the result of {tool!r} has no text: hosts without views, and the model, would get nothing")
    return app


def view_uri(listed: Json) -> str | None:
    """The URI of the view that shows the results of a listed tool; None if it has none."""
    meta = object_of(listed.get("_meta"))
    return text_of(object_of(meta.get("ui")).get("resourceUri")) or text_of(meta.get("ui/resourceUri"))


def _view(uri: str, read: Any) -> tuple[str, Json]:
    """The HTML of a view and its `_meta.ui`."""
    contents = [object_of(content) for content in read] if is_array(read) else []
    if not uri.startswith(SCHEME):
        raise PeerError(f"the view {uri!r} does not begin with {SCHEME}")
    if len(contents) != 1 or contents[0].get("mimeType") != MIME_TYPE:
        kinds = ", ".join(str(content.get("mimeType")) for content in contents) or "nothing"
        raise PeerError(f"the view {uri!r} is {kinds}; it has to be one {MIME_TYPE}")
    content, html = contents[0], contents[0].get("text")
    if isinstance(blob := content.get("blob"), str):
        try:
            html = base64.b64decode(blob, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise PeerError(f"the view {uri!r} is not UTF-8 in base64") from None
    if not isinstance(html, str):
        raise PeerError(f"the view {uri!r} has no HTML")
    return html, object_of(object_of(content.get("_meta")).get("ui"))
