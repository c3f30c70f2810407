"""What the generator is told: zensical.toml, with what only the build knows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

import tomlkit

from defserve.base.version import VERSION

from .markdown import headings, title
from .pages import Pages
from .places import SETTINGS
from .reference import Part

# Pages that the settings do not list: those whose path begins so, in the group of that name.
GROUPS: Final = {
    "cookbook/": "Cookbook",
    "decisions/": "Decisions",
    "": "Guides",
}
COOKBOOK: Final = "cookbook/index.md"
_RECIPE: Final = re.compile(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", re.MULTILINE)
# Files that pages link to are found from there.
UNLISTED: Final = ("examples/", "tests/", "docs/")

# A page, a page with its short name, or the name of a group with its pages and groups.
Entry: TypeAlias = "str | dict[str, str] | dict[str, list[Entry]]"


def settings(pages: Pages) -> str:
    """The TOML of the build."""
    told = tomllib.loads(SETTINGS.read_text("utf-8"))
    project: dict[str, Any] = told["project"]
    project["site_name"] = f"{project['site_name']} {VERSION}"
    groups: dict[str, list[Entry]] = {name: listed for group in project["nav"] for name, listed in group.items()}
    known = {place for entries in groups.values() for place in places(entries)}
    groups["Cookbook"] += subjects(pages.texts[COOKBOOK])
    groups["Reference"] += reference(pages.reference)
    known |= {place for name in ("Cookbook", "Reference") for place in places(groups[name])}
    for place in pages.texts:
        if place not in known and not place.startswith(UNLISTED):
            group = next(name for prefix, name in GROUPS.items() if place.startswith(prefix))
            groups[group].append(place)
    # The reader of a group meets its own first page first.
    for prefix, name in GROUPS.items():
        groups[name].sort(key=lambda entry, first=f"{prefix}index.md": entry != first)
    project["nav"] = [{name: [_named(entry, pages) for entry in entries]} for name, entries in groups.items()]
    return tomlkit.dumps(cast(Any, told))


def _named(entry: Entry, pages: Pages) -> Entry:
    """An entry whose pages have their short names: a title says after its colon what the page is about."""
    if isinstance(entry, str):
        short, colon, _ = title(pages.texts[entry]).partition(": ")
        return {short: entry} if colon else entry
    return {name: [_named(below, pages) for below in _inside(entries)] for name, entries in entry.items()}


def subjects(cookbook: str) -> list[Entry]:
    """The recipes, grouped as the first page of the cookbook groups them."""
    folder = COOKBOOK.rpartition("/")[0]
    starts = [(heading, at) for level, heading, at in headings(cookbook) if level == 2]
    ends = [at for _, at in starts[1:]] + [len(cookbook)]
    grouped: dict[str, list[Entry]] = {
        heading: [f"{folder}/{name}" for name in _RECIPE.findall(cookbook[at:end])]
        for (heading, at), end in zip(starts, ends, strict=True)
    }
    return [COOKBOOK, *({heading: recipes} for heading, recipes in grouped.items()), "examples/index.md"]


def reference(parts: Sequence[Part]) -> list[Entry]:
    """The parts of the reference, grouped as its first page groups them."""
    grouped: dict[str, list[Entry]] = {}
    for part in parts:
        grouped.setdefault(part.group, []).append(f"reference/{part.name}.md")
    return [{name: entries} for name, entries in grouped.items()]


def places(entries: list[Entry]) -> Iterator[str]:
    """The pages of a group and of the groups in it, in order."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from places(_inside(below))


def _inside(entries: str | list[Entry]) -> list[Entry]:
    return [entries] if isinstance(entries, str) else entries
