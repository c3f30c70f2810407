"""What an item has to do with views."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

APPS: Final = "apps"
"""The facet of a view, and of a tool that names a view or who may use it."""


class AppFacet(NamedTuple):
    """`uri` is the view that shows a tool's results. `visible_to` is who may use it: models, views, or both (None)."""

    uri: str | None = None
    visible_to: str | None = None


FOR_VIEWS: Final = AppFacet(visible_to="app")


def is_for_views(item: Any) -> bool:
    """Whether an item is for views and the hosts that show them, and for no model."""
    facet: AppFacet | None = item.facets.get(APPS)
    return facet is not None and facet.visible_to == "app"
