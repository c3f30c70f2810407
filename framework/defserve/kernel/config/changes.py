"""What differs between two readings of a file, server by server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from defserve.kernel.config.entries import ServerEntry

NAMES: Final = ("prefix", "tools", "enabled", "start")
"""Settings that make another set of tools. A server with other names is another server to its clients."""


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """Ids by what has to be done. Every id of either reading is in exactly one list."""

    added: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    replaced: list[str] = field(default_factory=list[str])
    relaunched: list[str] = field(default_factory=list[str])
    adjusted: list[str] = field(default_factory=list[str])
    unchanged: list[str] = field(default_factory=list[str])


def changes(old: Mapping[str, ServerEntry], new: Mapping[str, ServerEntry]) -> ConfigChanges:
    """What has to be done so that the servers are as `new` says."""
    found = ConfigChanges()
    for id, entry in new.items():
        _list_for(found, old.get(id), entry).append(id)
    found.removed.extend(id for id in old if id not in new)
    return found


def _list_for(found: ConfigChanges, old: ServerEntry | None, new: ServerEntry) -> list[str]:
    if old is None:
        return found.added
    if old == new:
        return found.unchanged
    is_other_kind = bool(old.launch.url) != bool(new.launch.url) or old.launch.timeout != new.launch.timeout
    if is_other_kind or any(getattr(old, name) != getattr(new, name) for name in NAMES):
        return found.replaced
    return found.relaunched if old.launch != new.launch else found.adjusted
