"""The views of a server (MCP apps), as a host may show them: what to put into a frame, and how to answer the view.

A view comes from a server that is not trusted. Its policy names only origins, its MIME type is exact, and it can call
only tools of its own server that are visible to views.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pydantic_core import to_json

from defserve.base.peer_bounds import RecentItems
from defserve.base.version import VERSION
from defserve.client.extension import ClientExtension
from defserve.client.replies import Json, join_text_blocks, object_or_empty, string_or_none
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND
from defserve.errors import PeerError, Refused, ToolError, UsageError
from defserve.protocols.mcp.app_policy import (
    APP_MIME_TYPE,
    APPS_CAPABILITY,
    UI_URI_SCHEME,
    build_content_security_policy,
    list_allowed_browser_features,
)
from defserve.protocols.mcp.errors import SERVER_ID_META_KEY


class AppViewsExtension(ClientExtension):
    """Tells a server that its views are shown."""

    name = "apps"
    can_reopen = True

    def offer(self, era: str) -> Mapping[str, Any]:
        return APPS_CAPABILITY


async def render_app(client: AppHost, tool: str, arguments: Mapping[str, Any]) -> RenderedApp:
    """Call a tool as the model would, and fetch its view.

    Raises UsageError for a tool that has no view, or is not for models; PeerError for a view that no host may show, and
    for a result without a text, which hosts without views need.
    """
    listed = await client.find_tool(tool, again=True)
    uri = get_view_uri(listed)
    if uri is None:
        raise UsageError(
            f"tool {tool!r} has no view" if listed else f"the server lists no tool {tool!r}",
            fix="give it one with @server.tool(app=…); the client must offer apps",
        )
    if not is_tool_visible_to("model", listed):
        raise UsageError(
            f"tool {tool!r} is for views alone", fix="render the tool that shows the view, then app.call(…)"
        )
    html, ui = await _fetch_view(client, uri, listed)
    app = RenderedApp(client, listed, uri, html, ui, dict(arguments), await client.call_raw(tool, arguments))
    if not app.text.strip():
        raise PeerError(f"the result of {tool!r} has no text: hosts without views, and the model, would get nothing")
    return app


def get_view_uri(listed: Json) -> str | None:
    """The URI of the view that shows the results of a listed tool; None if it has none."""
    meta = object_or_empty(listed.get("_meta"))
    return string_or_none(object_or_empty(meta.get("ui")).get("resourceUri")) or string_or_none(
        meta.get("ui/resourceUri")
    )


async def _fetch_view(client: AppHost, uri: str, listed: Json) -> tuple[str, Json]:
    """The HTML of the view of a listed tool, and its `_meta.ui`."""
    contents = await client.read(uri)
    if any(get_backend_server_id(object_or_empty(content)) != get_backend_server_id(listed) for content in contents):
        raise PeerError(f"the view {uri!r} of tool {listed.get('name')!r} comes from another server than the tool")
    return _parse_view(uri, contents)


def _parse_view(uri: str, read: Any) -> tuple[str, Json]:
    contents = [object_or_empty(content) for content in read] if is_array(read) else []
    if not uri.startswith(UI_URI_SCHEME):
        raise PeerError(f"the view {uri!r} does not begin with {UI_URI_SCHEME}")
    if len(contents) != 1 or contents[0].get("mimeType") != APP_MIME_TYPE:
        kinds = ", ".join(str(content.get("mimeType")) for content in contents) or "nothing"
        raise PeerError(f"the view {uri!r} is {kinds}; it has to be one {APP_MIME_TYPE}")
    content, html = contents[0], contents[0].get("text")
    if isinstance(blob := content.get("blob"), str):
        try:
            html = base64.b64decode(blob, validate=True).decode()
        except ValueError:
            raise PeerError(f"the view {uri!r} is not UTF-8 in base64") from None
    if not isinstance(html, str):
        raise PeerError(f"the view {uri!r} has no HTML")
    return html, object_or_empty(object_or_empty(content.get("_meta")).get("ui"))


# -- A view that is shown: what a frame needs, and the answers to its messages (JSON-RPC over `postMessage`).


PROTOCOL: Final = "2026-01-26"
MAX_VIEW_MESSAGES: Final = 1000
MAX_STATE_BYTES: Final = 256 * 1024
VIEW_STATE: Final = "dev.defserve/view-state"
"""The host keeps a value for the view. Frames without an origin have no storage of their own."""

# Requests that a host only takes note of. Their answer is empty.
NOTED: Final = frozenset(("ping", "ui/open-link", "ui/download-file", "ui/message", "ui/update-model-context"))
OFFERED: Final[Json] = {
    "serverTools": {},
    "serverResources": {},
    "openLinks": {},
    "downloadFile": {},
    "logging": {},
    "message": {"text": {}},
    "updateModelContext": {"text": {}, "structuredContent": {}},
    "experimental": {VIEW_STATE: {}},
}


class AppHost(Protocol):
    """What a view needs of the client of its server."""

    async def find_tool(self, tool: str, *, again: bool = False) -> Json: ...
    async def call_raw(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Json: ...
    async def value(self, tool: str, result: Json) -> Any: ...
    async def read(self, uri: str) -> list[Json]: ...
    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Json: ...


class RenderedApp:
    """A view with the call that it belongs to. Made by `client.render`.

    Show `html` in a sandboxed frame of another origin, served with `policy` as its `Content-Security-Policy`, and give
    each message of the frame to `answer`.
    """

    def __init__(
        self, client: AppHost, tool: Json, uri: str, html: str, ui: Json, arguments: Json, result: Json
    ) -> None:
        self._client, self._ui = client, ui
        self.tool, self.uri, self.html = tool, uri, html
        self.arguments, self.result = arguments, result
        self.state: Any = None
        """What the view has saved (`host.state`). It is given back to the view after a reload."""
        self.context: Json = {
            "theme": "light",
            "displayMode": "inline",
            "platform": "desktop",
            "toolInfo": {"tool": tool},
        }
        """What the view is told about the host. Change it before the view begins."""
        self.modes: tuple[str, ...] = ("inline",)
        """The display modes that the host offers. `context["displayMode"]` is the one in use."""
        self.permit: Callable[[str, Json], Awaitable[bool]] | None = None
        """Asked with the method and params of each request of the view that would have an effect (a call of a tool that
        views may call, a link, a message to the model), or reaches another server than the view's own. On False the
        view gets an error. None permits all that is of the view's own server, and nothing else."""
        self.view_messages: deque[tuple[str, Json]] = RecentItems(MAX_VIEW_MESSAGES)
        """Method and params of what the view sent last, up to 16 MiB."""

    @property
    def policy(self) -> str:
        """The `Content-Security-Policy`. It allows the origins that the view names, and nothing else."""
        return build_content_security_policy(self._ui.get("csp"))

    @property
    def permissions(self) -> list[str]:
        """Features that the view wishes for, as an `allow` attribute names them."""
        return list_allowed_browser_features(self._ui.get("permissions"))

    @property
    def border(self) -> bool | None:
        """Whether the view wants a border; None leaves it to the host."""
        wish = self._ui.get("prefersBorder")
        return wish if isinstance(wish, bool) else None

    @property
    def domain(self) -> str | None:
        """The origin that the view wants for itself."""
        return string_or_none(self._ui.get("domain"))

    async def reload(self, client: AppHost | None = None) -> bool:
        """Fetch the view again: its server may serve another version of it by now. True if it is another.

        Then put `html` into a new frame. The tool isn't called again: the view begins with the same result, and with
        the state that it has saved. `client` is the one to use from now on.
        """
        self._client = client or self._client
        before = self.html, self._ui
        self.html, self._ui = await _fetch_view(self._client, self.uri, self.tool)
        return before != (self.html, self._ui)

    @property
    def text(self) -> str:
        """What the model, and a host without views, read of the result."""
        return join_text_blocks(self.result)

    async def value(self) -> Any:
        """The value that the tool returned. Raises ToolError if it failed."""
        return await self._client.value(self.tool["name"], self.result)

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool as the view does. Raises UsageError for one that is not visible to views."""
        listed = await self._client.find_tool(tool, again=True)
        if not is_tool_visible_to("app", listed):
            raise UsageError(f"views may not call tool {tool!r}", fix='drop visible_to="model", or check its name')
        if not await self._may_reach([listed], "tools/call", {"name": tool, "arguments": arguments}):
            raise UsageError(f"tool {tool!r} belongs to another server than the view", fix="permit it: app.permit = …")
        return await self._client.value(tool, await self._client.call_raw(tool, arguments))

    async def answer(self, message: Any) -> list[Json]:
        """The messages to post to the view after one that it has sent. What is not JSON-RPC is ignored."""
        method = object_or_empty(message).get("method")
        if not isinstance(method, str) or message.get("jsonrpc") != "2.0":
            return []
        params = object_or_empty(message.get("params"))
        self.view_messages.append((method, params))
        if "id" in message:
            return [{"jsonrpc": "2.0", "id": message["id"], **await self._reply(method, params)}]
        if method == "ui/notifications/initialized":
            arguments = {"arguments": self.arguments}
            return [
                {"jsonrpc": "2.0", "method": "ui/notifications/tool-input", "params": arguments},
                {"jsonrpc": "2.0", "method": "ui/notifications/tool-result", "params": self.result},
            ]
        return []

    async def _reply(self, method: str, params: Json) -> Json:
        if method in NOTED:
            return {"result": {}} if method == "ping" or await self._may(method, params) else _refusal()
        handlers: dict[str, Callable[[Json], Awaitable[Json]]] = {
            "ui/initialize": self._initialize,
            "ui/request-display-mode": self._display,
            "tools/call": self._call,
            "resources/read": self._read_resource,
            "resources/list": self._list_resources,
            f"{VIEW_STATE}/load": self._load_state,
            f"{VIEW_STATE}/save": self._save_state,
        }
        if (handler := handlers.get(method)) is None:
            return _error(METHOD_NOT_FOUND, f"Method not found: {method[:64]}")
        try:
            return await handler(params)
        except PeerError as error:
            return _error(error.code, error.message)
        except (Refused, ToolError) as error:  # of the host itself: its guards, or a person who was asked
            return _error(INTERNAL_ERROR, error.message)

    async def _initialize(self, params: Json) -> Json:
        return {
            "result": {
                "protocolVersion": PROTOCOL,
                "hostInfo": {"name": "defserve", "version": VERSION},
                "hostCapabilities": OFFERED,
                "hostContext": {**self.context, "availableDisplayModes": list(self.modes)},
            }
        }

    async def _display(self, params: Json) -> Json:
        """A mode that the host does not offer changes nothing."""
        if (mode := params.get("mode")) in self.modes:
            self.context["displayMode"] = mode
        return {"result": {"mode": self.context["displayMode"]}}

    async def _call(self, params: Json) -> Json:
        name = params.get("name")
        listed: Json = await self._client.find_tool(name, again=True) if isinstance(name, str) else {}
        if not isinstance(name, str) or not is_tool_visible_to("app", listed):
            return _error(INVALID_PARAMS, "Views may not call this tool")
        if (self.permit is None and not self._is_own(listed)) or not await self._may("tools/call", params):
            return _refusal()
        return {"result": await self._client.call_raw(name, object_or_empty(params.get("arguments")))}

    async def _may(self, method: str, params: Json) -> bool:
        return self.permit is None or await self.permit(method, params)

    async def _read_resource(self, params: Json) -> Json:
        if not isinstance(uri := params.get("uri"), str):
            return _error(INVALID_PARAMS, "Invalid params: uri is required")
        result = await self._client.request("resources/read", {"uri": uri})
        # It is known whose it is when it is there. A view gets nothing of it before it may.
        contents: Any = result.get("contents")
        items = [object_or_empty(content) for content in contents] if is_array(contents) else []
        return {"result": result} if await self._may_reach(items, "resources/read", {"uri": uri}) else _refusal()

    async def _list_resources(self, params: Json) -> Json:
        """One page of the resources of the view's own server."""
        cursor = string_or_none(params.get("cursor"))
        result = await self._client.request("resources/list", {"cursor": cursor} if cursor else {})
        listed: Any = result.get("resources")
        items = [item for item in listed if is_object(item) and self._is_own(item)] if is_array(listed) else []
        return {"result": {**result, "resources": items}}

    async def _load_state(self, params: Json) -> Json:
        return {"result": {"state": self.state}}

    async def _save_state(self, params: Json) -> Json:
        state = params.get("state")
        if (size := len(to_json(state, inf_nan_mode="null"))) > MAX_STATE_BYTES:
            return _error(INVALID_PARAMS, f"The state has {size:,} bytes; a view may save {MAX_STATE_BYTES:,}")
        self.state = state
        return {"result": {}}

    async def _may_reach(self, items: Sequence[Json], method: str, params: Json) -> bool:
        """Whether all of the items are of the view's own server, or somebody permits it."""
        return all(map(self._is_own, items)) or (self.permit is not None and await self.permit(method, params))

    def _is_own(self, item: Json) -> bool:
        """Whether an item is of the server whose tool shows this view, as far as the server in front tells."""
        return get_backend_server_id(item) == get_backend_server_id(self.tool)


def get_backend_server_id(item: Json) -> str | None:
    """The id of the server behind the one that we talk to, of which an item or a content is. None: that one's own."""
    return string_or_none(object_or_empty(item.get("_meta")).get(SERVER_ID_META_KEY))


def is_tool_visible_to(audience: str, listed: Json) -> bool:
    """Whether a listed tool is for models ("model") or for views ("app"). One that is not listed is for nobody."""
    visibility = object_or_empty(object_or_empty(listed.get("_meta")).get("ui")).get("visibility")
    return bool(listed) and (not is_array(visibility) or audience in visibility)


def _refusal() -> Json:
    return _error(INTERNAL_ERROR, "The user did not allow this")


def _error(code: int, message: str) -> Json:
    return {"error": {"code": code, "message": message}}
