"""The apps extension, plugged in like any other protocol. A server has it if it declares a view or links a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defserve.core.call import Call
from defserve.core.extension import Extension, Offer
from defserve.core.registry import Registry
from defserve.errors import UsageError
from defserve.protocols.mcp.apps.facet import APPS, AppFacet, is_for_views
from defserve.protocols.mcp.apps.linked_tool import LinkedTool
from defserve.protocols.mcp.apps.offer import offers_apps
from defserve.protocols.mcp.apps.view import AppView
from defserve.protocols.mcp.resources.resources import Resource
from defserve.wire.messages import Params


class Apps(Extension):
    """Shows views, and what belongs to them, to clients that can show views."""

    name = APPS

    def __init__(self, views: Registry[Resource]) -> None:
        self._views = views

    def negotiate(self, offer: Offer) -> object | None:
        return True if offers_apps(offer.capabilities) else None

    def declared(self, item: Any) -> None:
        facet: AppFacet | None = item.facets.get(APPS)
        if facet is None or facet.uri is None or isinstance(self._views.get(facet.uri), AppView):
            return
        raise UsageError(
            f"{item.kind} {item.name!r} names the view {facet.uri!r}, which does not exist",
            where=item.where,
            fix=f'declare it: @server.app("{facet.uri}")',
        )

    def visible(self, call: Call, item: Any) -> bool:
        return APPS in call.terms.states or not is_for_views(item)

    def view(self, call: Call) -> object:
        # A view that is removed takes its links along.
        return self._views.version if APPS in call.terms.states else None

    def describe(self, item: Any, view: object) -> Mapping[str, Any]:
        if view is None or not isinstance(item, LinkedTool):
            return {}
        facet: AppFacet = item.facets[APPS]
        ui: Params = {}
        if facet.uri is not None and facet.uri in self._views:
            ui["resourceUri"] = facet.uri
        if facet.visible_to is not None:
            ui["visibility"] = [facet.visible_to]
        return {"_meta": {"ui": ui}} if ui else {}
