"""What is known of a tool for finding it (MGP §16.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from defserve.wire.jsonvalue import is_array, is_object

Risk: TypeAlias = Literal["safe", "moderate", "dangerous"]
RISKS: tuple[Risk, ...] = ("safe", "moderate", "dangerous")

# Of one tool: what is read of it, whatever its server says. Long descriptions drown what matters.
MOST_PARAMETERS, MOST_LABELS, LONGEST_LABEL = 64, 32, 64
LONGEST_DESCRIPTION, LONGEST_ABOUT = 2_000, 300


@dataclass(frozen=True, slots=True, eq=False)
class ToolEntry:
    """One tool in an index. Entries are compared by identity: a tool that changes gets a new one.

    `name` is what callers use, `tool_id` names its server as well. `tokens` is what its listing costs a model.
    """

    tool_id: str
    server_id: str
    name: str
    title: str = ""
    description: str = ""
    categories: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    risk: Risk = "moderate"
    permissions: tuple[str, ...] = ()
    tokens: int = 0
    status: str = "connected"

    def within(self, category: str) -> bool:
        """Whether it is in a category or in one below it: `files.read` is within `files`."""
        wanted = category.lower()
        return any(c == wanted or c.startswith(wanted + ".") for c in self.categories)


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """What results must be. Empty fields ask for nothing."""

    categories: tuple[str, ...] = ()
    risk_level_max: Risk | None = None
    status: str | None = None
    names: frozenset[str] = field(default_factory=frozenset[str])

    def admits(self, entry: ToolEntry) -> bool:
        if self.categories and not any(map(entry.within, self.categories)):
            return False
        if self.risk_level_max is not None and RISKS.index(entry.risk) > RISKS.index(self.risk_level_max):
            return False
        return self.status is None or entry.status == self.status


def labels(given: Sequence[str]) -> tuple[str, ...]:
    """Categories or keywords as they are kept: lower case, each once, cut to a bound."""
    short = (text.strip().lower()[:LONGEST_LABEL] for text in given)
    return tuple(dict.fromkeys(text for text in short if text))[:MOST_LABELS]


def parameters_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Of each of a tool's arguments, as far as it is read: its name, its description, the texts it may be."""
    found: list[str] = []
    properties = schema.get("properties")
    for name, about in list(properties.items())[:MOST_PARAMETERS] if is_object(properties) else ():
        said = about.get("description") if is_object(about) else None
        short = said[:LONGEST_ABOUT] if isinstance(said, str) else ""
        found += [str(name)[:LONGEST_LABEL], short, " ".join(_values(about))[:LONGEST_ABOUT]]
    return tuple(found)


def _values(about: Any) -> list[str]:
    """The texts that an argument, or what is in its list, may be."""
    if not is_object(about):
        return []
    values = about.get("enum")
    given = values[:MOST_LABELS] if is_array(values) else []
    return [value[:LONGEST_LABEL] for value in given if isinstance(value, str)] or _values(about.get("items"))


def derived_categories(server_id: str, tags: Any) -> tuple[str, ...]:
    """What a tool belongs to: the tags that its author gave, then its server."""
    given = [tag for tag in tags if isinstance(tag, str)] if is_array(tags) else []
    return labels([*given, server_id])
