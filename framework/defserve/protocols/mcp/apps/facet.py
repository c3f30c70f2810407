"""What an item has to do with views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from defserve.wire.jsonvalue import is_array, is_mapping

APPS: Final = "apps"
"""The facet of a view, and of a tool that names a view or who may use it."""


class AppFacet(NamedTuple):
    """`uri` is the view that shows a tool's results. `visible_to` is who may use it: models, views, or both (None)."""

    uri: str | None = None
    visible_to: str | None = None


def is_listed_for_views(listed: Mapping[str, Any]) -> bool:
    """The same of a tool as another server lists it."""
    meta = listed.get("_meta")
    ui = meta.get("ui") if is_mapping(meta) else None
    audience = ui.get("visibility") if is_mapping(ui) else None
    return is_array(audience) and "model" not in audience


def is_for_views(item: Any) -> bool:
    """Whether an item is for views and the hosts that show them, and for no model."""
    facet: AppFacet | None = item.facets.get(APPS)
    return facet is not None and facet.visible_to == "app"
