"""Apps (extension `io.modelcontextprotocol/ui`, 2026-01-26): HTML views that hosts show beside the result of a tool.

One declaration makes the resource, its MIME type and the tool's link agree. A server with a tool that names a missing
view does not start. A client that did not offer apps sees plain MCP: no views, no links, no tools for views alone. What
a tool with a view answers always has a text. `visible_to="app"` is a wish that hosts follow, never a protection.

Imported when a server declares a view or links a tool.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from defserve.binding.signature import find_source_location as place_of
from defserve.core.call import Call
from defserve.core.extension import Extension, Offer
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.errors import UsageError
from defserve.protocols.mcp.app_policy import (
    APP_FACET_NAME,
    APP_MIME_TYPE,
    UI_URI_SCHEME,
    VIEW_ONLY_FACET,
    AppFacet,
    can_show_apps,
    check_display_modes,
    encode_app_permissions,
    encode_csp,
    is_view_only,
)
from defserve.protocols.mcp.function import FindProvider, Function, find_no_provider
from defserve.protocols.mcp.lifecycle import Dialect
from defserve.protocols.mcp.resources import Resource, ResourceOptions
from defserve.protocols.mcp.tools import Tool
from defserve.protocols.mcp.transforms import MountPrefix


class Apps(Extension):
    """Shows views, and what belongs to them, to clients that can show views."""

    name = APP_FACET_NAME

    def __init__(self, views: Registry[Resource]) -> None:
        self._views = views

    def negotiate(self, offer: Offer) -> object | None:
        return True if can_show_apps(offer.capabilities) else None

    def on_item_declared(self, item: Any) -> None:
        facet: AppFacet | None = item.facets.get(APP_FACET_NAME)
        if facet is None or facet.uri is None or isinstance(self._views.get(facet.uri), AppView):
            return
        raise UsageError(
            f"{item.kind} {item.name!r} names the view {facet.uri!r}, which does not exist",
            where=item.where,
            fix=f'declare it: @server.app("{facet.uri}")',
        )

    def visible(self, call: Call, item: Any) -> bool:
        return APP_FACET_NAME in call.terms.states or not is_view_only(item)

    def view(self, call: Call) -> object:
        # A view that is removed takes its links along.
        return self._views.version if APP_FACET_NAME in call.terms.states else None

    def describe(self, item: Any, view: object) -> Mapping[str, Any]:
        if view is None or not isinstance(item, LinkedTool):
            return {}
        facet: AppFacet = item.facets[APP_FACET_NAME]
        ui: Params = {}
        flat: Params = {}
        if facet.uri is not None and facet.uri in self._views:
            # Hosts of the drafts read the flat member alone.
            ui["resourceUri"] = flat["ui/resourceUri"] = facet.uri
        if facet.visible_to is not None:
            ui["visibility"] = [facet.visible_to]
        return {"_meta": {"ui": ui, **flat}} if ui else {}


# -- Tools with a view (apps: resource discovery, visibility).


AUDIENCES: Final = ("model", "app")
VIEW_ID_META_KEY: Final = "viewUUID"
"""The name that ext-apps uses. There is no message for it in the text of 2026-01-26."""


class LinkedTool(Tool):
    """A tool that names a view, or who may use it.

    If a view shows its results, they always have a text, too, and the id under which the view keeps its state.
    """

    __slots__ = ()

    def copy_as(self, name: str) -> LinkedTool:
        return _copy(self, replace(self.options, name=name), self.facets[APP_FACET_NAME])

    def copy_for_mount(self, name: str, prefix: MountPrefix) -> LinkedTool:
        """The same tool on a server under a prefix, with the view of the same mount."""
        facet: AppFacet = self.facets[APP_FACET_NAME]
        moved = facet._replace(uri=prefix.prefix_uri(facet.uri)) if facet.uri is not None else facet
        return _copy(self, replace(self.options, name=name), moved)

    def result(self, call: Call, value: Any) -> Params:
        found = super().result(call, value)
        content: list[Params] = found["content"]
        is_shown = self.facets[APP_FACET_NAME].uri is not None and not is_view_only(self)
        if is_shown and APP_FACET_NAME in call.terms.states:
            # A host that shows the result again, after a reload, shows the same view.
            found["_meta"] = {VIEW_ID_META_KEY: str(uuid4()), **found.get("_meta", {})}
        if is_shown and not any(block.get("text", "").strip() for block in content):
            title = self.options.title or self.name
            found["content"] = [*content, {"type": "text", "text": f"{title} has run. Its result has no text."}]
        return found


def link_tool_to_view(tool: Tool, views: Registry[Resource]) -> Tool:
    """The tool with the link that its options ask for. Raises UsageError for one that cannot be.

    A view that is named by its function must be declared already; one that is named by its URI, before serving begins.
    """
    if isinstance(tool, LinkedTool):
        return tool
    options, subject = tool.options, f"tool {tool.name!r}"
    if "ui" in (options.meta or {}):
        raise UsageError(
            f'{subject} has meta["ui"] and app= or visible_to=', where=tool.where, fix='drop "ui" from its meta'
        )
    if options.visible_to is not None and options.visible_to not in AUDIENCES:
        raise UsageError(
            f"{subject}: visible_to={options.visible_to!r} is not possible",
            where=tool.where,
            fix='say "app" (views alone), "model" (no views), or leave it out for both',
        )
    return _copy(tool, options, AppFacet(_uri(tool, views), options.visible_to))


def _uri(tool: Tool, views: Registry[Resource]) -> str | None:
    app: Any = tool.options.app
    if app is None:
        return None
    if isinstance(app, str):
        if not app.startswith(UI_URI_SCHEME):
            raise UsageError(
                f"tool {tool.name!r}: app={app!r} does not begin with {UI_URI_SCHEME}",
                where=tool.where,
                fix="name the function of the view, or its URI",
            )
        return app
    declared = (view for view in views if isinstance(view, AppView) and view.function.signature.function is app)
    if (view := next(declared, None)) is None:
        raise UsageError(
            f"tool {tool.name!r}: {getattr(app, '__name__', app)!r} is not a view of this server",
            where=tool.where,
            fix='declare the view first: @server.app("ui://…") above its function',
        )
    return view.uri


def _copy(tool: Tool, options: Any, facet: AppFacet) -> LinkedTool:
    made = LinkedTool(options.name or tool.name, options, tool.function, tool.returns, tool.owner)
    made.facets, made.is_dangerous = {**tool.facets, APP_FACET_NAME: facet}, tool.is_dangerous
    return made


# -- Views (apps: UI resources): functions that give the HTML of a `ui://` resource.


class AppOptions(ResourceOptions):
    """What a view says about itself. `csp` names the origins it may reach: "connect", "resource", "frame", "base_uri".

    `permissions` are wishes: "camera", "microphone", "geolocation", "clipboard_write". `border`: the host should draw a
    border and a background. `domain` is the view's own origin, in the form that the host wants. `display_modes` are
    those that the view is made for: "inline", "fullscreen", "pip"; left out, all of them. `bridge=False` leaves the
    bridge script out, for HTML that brings its own.
    """

    mime_type: str | None = APP_MIME_TYPE
    csp: Mapping[str, Sequence[str]] | None = None
    permissions: Sequence[str] = ()
    border: bool = False
    domain: str | None = None
    display_modes: Sequence[str] = ()
    bridge: bool = True


class AppView(Resource):
    """A view: a `ui://` resource of one HTML document."""

    __slots__ = ("ui", "names", "_folder", "_file")

    def __init__(
        self, uri: str, options: AppOptions, function: Function, owner: Any, ui: Params, names: ViewNames | None
    ) -> None:
        super().__init__(uri, options, function, None, owner)
        self.ui, self.names = ui, names
        self._folder = Path(self.where.rpartition(":")[0]).absolute().parent
        self.facets[APP_FACET_NAME] = VIEW_ONLY_FACET
        self._file: tuple[tuple[str, int, int], str] | None = None

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        uri: str,
        options: AppOptions,
        *,
        find_provider: FindProvider = find_no_provider,
        owner: Any = None,
    ) -> AppView:
        """Read a function into a view. Raises UsageError for one that no host could show."""
        subject, where = f"app {uri!r}", place_of(function)
        if not uri.startswith(UI_URI_SCHEME) or "{" in uri:
            problem = "is a template" if "{" in uri else f"does not begin with {UI_URI_SCHEME}"
            raise UsageError(f"{subject} {problem}", where=where, fix='give it one URI: @server.app("ui://name/view")')
        resource = Resource.of(function, uri, options, find_provider=find_provider, owner=owner)
        if options.mime_type != APP_MIME_TYPE:
            raise UsageError(f"{subject}: its MIME type is always {APP_MIME_TYPE}", where=where, fix="drop mime_type=")
        check_display_modes(options.display_modes, subject, where)
        ui: Params = {"prefersBorder": bool(options.border)}
        if options.csp and (csp := encode_csp(options.csp, subject, where)):
            ui["csp"] = csp
        if options.permissions:
            ui["permissions"] = encode_app_permissions(options.permissions, subject, where)
        if options.domain:
            ui["domain"] = options.domain
        return cls(uri, options, resource.function, owner, ui, ViewNames() if options.bridge else None)

    def copy_for_mount(self, uri: str, prefix: MountPrefix) -> AppView:
        """The same view on a server under a prefix. Its names of tools and URIs get the prefix too."""
        names, options = self.names and self.names.add_prefix(prefix), self.options
        assert isinstance(options, AppOptions)
        return AppView(uri, replace(options, name=self.name), self.function, self.owner, self.ui, names)

    def contents(self, uri: str, value: Any, dialect: Dialect) -> list[Params]:
        html = self._read_file(value) if isinstance(value, os.PathLike) else value  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(html, bytes):
            html = html.decode()
        if not isinstance(html, str) or not html.lstrip("\ufeff \t\r\n").startswith("<"):
            raise UsageError(
                f"app {self.uri!r} returned {html!r:.80}, which is not HTML",
                where=self.where,
                fix='return a Path("view.html"), or the HTML itself',
            )
        assert isinstance(self.options, AppOptions)
        text = document(html, self.names, self.options.display_modes)
        return [{"uri": uri, "mimeType": APP_MIME_TYPE, "text": text, "_meta": {"ui": self.ui}}]

    def _read_file(self, path: os.PathLike[str]) -> str:
        """The text of a file, read again when it has changed. A relative path starts beside the author's file."""
        file = self._folder / path
        status = file.stat()
        state = (str(file), status.st_mtime_ns, status.st_size)
        if self._file is None or self._file[0] != state:
            self._file = (state, file.read_text(encoding="utf-8"))
        return self._file[1]


# -- The HTML of a view as it is sent: one document, with the bridge script in its head.


BRIDGE: Final = Path(__file__).with_name("bridge.js")

# Possessive: a comment ends at its first end, whatever follows. Trying other ends would take for ever.
_GAP: Final = r"(?:\s|<!--(?>.*?-->))*+"
_ATTRIBUTES: Final = r"""(?:\s(?:[^>"']|"[^"]*"|'[^']*')*)?"""

# Whatever stands before the first element of the head. Each tag may be left out of an HTML document.
_START: Final = re.compile(
    rf"\ufeff?{_GAP}(?P<doctype><!doctype{_ATTRIBUTES}>)?(?:{_GAP}<html{_ATTRIBUTES}>)?(?:{_GAP}<head{_ATTRIBUTES}>)?",
    re.IGNORECASE | re.DOTALL,
)

# Where the bridge says how names are changed.
_NAMES: Final = re.compile(r'(?<=\n\(\(\) => \{\n  const )TOOLS = "([\w.-]*)", URIS = "([\w./-]*)"', re.ASCII)


class ViewNames(NamedTuple):
    """How a view's names of tools and URIs become those of the server it is mounted on."""

    tool_prefix: str = ""
    uri_prefix: str = ""

    def add_prefix(self, prefix: MountPrefix) -> ViewNames:
        """The names on a server that mounts this one under a prefix."""
        if not prefix.text:
            return self
        return ViewNames(prefix.prefix_name(self.tool_prefix), f"{prefix.text}/{self.uri_prefix}")

    def format_constants(self) -> str:
        return f'TOOLS = "{self.tool_prefix}", URIS = "{self.uri_prefix}"'


def document(html: str, names: ViewNames | None, display_modes: Sequence[str] = ()) -> str:
    """A whole document. With `names` it begins with the bridge, ahead of every script of the author.

    The charset is said first, because browsers look for it in the first 1024 bytes only.
    """
    start = _START.match(html)
    assert start is not None  # every part of it is optional
    doctype = "" if start["doctype"] else "<!doctype html>\n"
    if names is None:
        return doctype + html
    bridge = f'<meta charset="utf-8">\n<script>{_bridge(names, display_modes)}</script>'
    return f"{doctype}{html[: start.end()]}{bridge}{html[start.end() :]}"


def prefix_names_in_view_html(html: str, prefix: MountPrefix) -> str:
    """The document of a server that is mounted under a prefix. Without our bridge it is not changed."""
    return _NAMES.sub(lambda found: ViewNames(found[1], found[2]).add_prefix(prefix).format_constants(), html, count=1)


def _bridge(names: ViewNames, display_modes: Sequence[str]) -> str:
    source = _source().replace('TOOLS = "", URIS = ""', names.format_constants(), 1)
    return source.replace('MODES = ""', f'MODES = "{" ".join(display_modes)}"', 1)


@cache
def _source() -> str:
    return BRIDGE.read_text(encoding="utf-8")
