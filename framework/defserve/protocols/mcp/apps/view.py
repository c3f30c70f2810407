"""Views (apps: UI resources): functions that give the HTML of a `ui://` resource."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from defserve.binding.functions import where as place_of
from defserve.core.registry import Registry
from defserve.errors import UsageError
from defserve.protocols.mcp.apps.facet import APPS, FOR_VIEWS
from defserve.protocols.mcp.apps.offer import MIME_TYPE, SCHEME
from defserve.protocols.mcp.apps.page import ViewNames, document
from defserve.protocols.mcp.apps.policy import csp_wire, permissions_wire
from defserve.protocols.mcp.function import FindProvider, Function, nothing_injectable
from defserve.protocols.mcp.lifecycle import Dialect
from defserve.protocols.mcp.prefixes import Prefix
from defserve.protocols.mcp.resources.resources import Resource, ResourceOptions
from defserve.wire.messages import Params


class AppOptions(ResourceOptions):
    """What a view says about itself. `csp` names the origins it may reach: "connect", "resource", "frame", "base_uri".

    `permissions` are wishes: "camera", "microphone", "geolocation", "clipboard_write". `border`: the host should draw a
    border and a background. `domain` is the view's own origin, in the form that the host wants. `bridge=False` leaves
    the bridge script out, for HTML that brings its own.
    """

    mime_type: str | None = MIME_TYPE
    csp: Mapping[str, Sequence[str]] | None = None
    permissions: Sequence[str] = ()
    border: bool = False
    domain: str | None = None
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
        self.facets[APPS] = FOR_VIEWS
        self._file: tuple[tuple[str, int, int], str] | None = None

    @classmethod
    def declared(
        cls,
        function: Callable[..., Any],
        uri: str,
        options: AppOptions,
        *,
        find_provider: FindProvider = nothing_injectable,
        owner: Any = None,
    ) -> AppView:
        """Read a function into a view. Raises UsageError for one that no host could show."""
        subject, where = f"app {uri!r}", place_of(function)
        if not uri.startswith(SCHEME) or "{" in uri:
            problem = "is a template" if "{" in uri else f"does not begin with {SCHEME}"
            raise UsageError(f"{subject} {problem}", where=where, fix='give it one URI: @server.app("ui://name/view")')
        resource = Resource.of(function, uri, options, find_provider=find_provider, owner=owner)
        if options.mime_type != MIME_TYPE:
            raise UsageError(f"{subject}: its MIME type is always {MIME_TYPE}", where=where, fix="drop mime_type=")
        ui: Params = {"prefersBorder": bool(options.border)}
        if options.csp and (csp := csp_wire(options.csp, subject, where)):
            ui["csp"] = csp
        if options.permissions:
            ui["permissions"] = permissions_wire(options.permissions, subject, where)
        if options.domain:
            ui["domain"] = options.domain
        return cls(uri, options, resource.function, owner, ui, ViewNames() if options.bridge else None)

    def mounted(self, uri: str, prefix: Prefix) -> AppView:
        """The same view on a server under a prefix. Its names of tools and URIs get the prefix too."""
        names, options = self.names and self.names.under(prefix), self.options
        assert isinstance(options, AppOptions)
        return AppView(uri, replace(options, name=self.name), self.function, self.owner, self.ui, names)

    def contents(self, uri: str, value: Any, dialect: Dialect) -> list[Params]:
        html = self._read(value) if isinstance(value, os.PathLike) else value  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(html, bytes):
            html = html.decode()
        if not isinstance(html, str) or not html.lstrip("\ufeff \t\r\n").startswith("<"):
            raise UsageError(
                f"app {self.uri!r} returned {html!r:.80}, which is not HTML",
                where=self.where,
                fix='return a Path("view.html"), or the HTML itself',
            )
        return [{"uri": uri, "mimeType": MIME_TYPE, "text": document(html, self.names), "_meta": {"ui": self.ui}}]

    def _read(self, path: os.PathLike[str]) -> str:
        """The text of a file, read again when it has changed. A relative path starts beside the author's file."""
        file = self._folder / path
        status = file.stat()
        state = (str(file), status.st_mtime_ns, status.st_size)
        if self._file is None or self._file[0] != state:
            self._file = (state, file.read_text(encoding="utf-8"))
        return self._file[1]


def uri_of(view: Any, views: Registry[Resource]) -> str | None:
    """The URI of a view that was declared with this function; None if none was."""
    return next(
        (
            resource.uri
            for resource in views
            if isinstance(resource, AppView) and resource.function.signature.function is view
        ),
        None,
    )
