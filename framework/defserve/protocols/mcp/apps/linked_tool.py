"""Tools with a view (apps: resource discovery, visibility)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.errors import UsageError
from defserve.protocols.mcp.apps.facet import APPS, AppFacet, is_for_views
from defserve.protocols.mcp.apps.offer import SCHEME
from defserve.protocols.mcp.apps.view import uri_of
from defserve.protocols.mcp.prefixes import Prefix
from defserve.protocols.mcp.resources.resources import Resource
from defserve.protocols.mcp.tools.tools import Tool
from defserve.wire.messages import Params

AUDIENCES = ("model", "app")


class LinkedTool(Tool):
    """A tool that names a view, or who may use it. If a view shows its results, they always have a text, too."""

    __slots__ = ()

    def renamed(self, name: str) -> LinkedTool:
        return _copy(self, replace(self.options, name=name), self.facets[APPS])

    def mounted(self, name: str, prefix: Prefix) -> LinkedTool:
        """The same tool on a server under a prefix, with the view of the same mount."""
        facet: AppFacet = self.facets[APPS]
        moved = facet._replace(uri=prefix.uri(facet.uri)) if facet.uri is not None else facet
        return _copy(self, replace(self.options, name=name), moved)

    def result(self, call: Call, value: Any) -> Params:
        found = super().result(call, value)
        content: list[Params] = found["content"]
        facet: AppFacet = self.facets[APPS]
        is_shown = facet.uri is not None and not is_for_views(self)
        if is_shown and not any(block.get("text", "").strip() for block in content):
            title = self.options.title or self.name
            found["content"] = [*content, {"type": "text", "text": f"{title} has run. Its result has no text."}]
        return found


def linked(tool: Tool, views: Registry[Resource]) -> Tool:
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
        if not app.startswith(SCHEME):
            raise UsageError(
                f"tool {tool.name!r}: app={app!r} does not begin with {SCHEME}",
                where=tool.where,
                fix="name the function of the view, or its URI",
            )
        return app
    if (uri := uri_of(app, views)) is None:
        raise UsageError(
            f"tool {tool.name!r}: {getattr(app, '__name__', app)!r} is not a view of this server",
            where=tool.where,
            fix='declare the view first: @server.app("ui://…") above its function',
        )
    return uri


def _copy(tool: Tool, options: Any, facet: AppFacet) -> LinkedTool:
    made = LinkedTool(options.name or tool.name, options, tool.function, tool.returns, tool.owner)
    made.facets, made.is_dangerous = {**tool.facets, APPS: facet}, tool.is_dangerous
    return made
