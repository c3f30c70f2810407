"""What the generator is told: zensical.toml, with what only the build knows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any, Final, cast

import tomlkit

from defserve.base.version import VERSION

from .pages import Pages
from .places import SETTINGS

# Pages that the settings do not list: those whose path begins so, in the group of that name.
GROUPS: Final = {"cookbook/": "Cookbook", "reference/": "Reference", "": "Guides"}
# Files that pages link to are found from there.
UNLISTED: Final = ("examples/", "tests/")


def settings(pages: Pages) -> str:
    """The TOML of the build."""
    told = tomllib.loads(SETTINGS.read_text("utf-8"))
    project: dict[str, Any] = told["project"]
    project["site_name"] = f"{project['site_name']} {VERSION}"
    groups: dict[str, list[str]] = {name: listed for group in project["nav"] for name, listed in group.items()}
    for place in unlisted(groups, pages):
        group = next(name for prefix, name in GROUPS.items() if place.startswith(prefix))
        groups[group].append(place)
    # The reader of a group meets its own first page first.
    for prefix, name in GROUPS.items():
        groups[name].sort(key=lambda place, first=f"{prefix}index.md": place != first)
    return tomlkit.dumps(cast(Any, told))


def unlisted(groups: dict[str, list[str]], pages: Pages) -> Iterator[str]:
    """The pages that no group lists, the parts of the reference in their order."""
    listed = {place for places in groups.values() for place in places}
    yield from (place for place in pages.texts if place not in listed and not place.startswith(UNLISTED))
