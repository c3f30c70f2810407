"""MCPL §7.1–7.2: scopes as authors see them, and how a host's lists are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from defserve.protocols.mcpl.policies import ScopeLists
from defserve.protocols.mcpl.scopes.globs import glob
from defserve.wire.messages import Params

LONGEST_LABEL = 1_024


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a tool acts: a label for people and patterns, and data that travels with it."""

    label: str
    payload: Mapping[str, Any] | None = None

    def wire(self) -> Params:
        """The scope for the wire (§7)."""
        return {"label": self.label} | ({"payload": dict(self.payload)} if self.payload else {})


class GrantedScope:
    """The scope that a call was granted."""

    scope: Scope | None = None


def listed(lists: ScopeLists, label: str) -> bool | None:
    """Whether a label, in its normal form, is allowed (True) or forbidden (False); None if it is on neither list."""
    # What is forbidden inside a directory is forbidden for the directory, which contains it.
    if any(glob(pattern).matches(label) or glob(pattern).matches(f"{label}/") for pattern in lists.blacklist):
        return False
    return True if any(glob(pattern).matches(label) for pattern in lists.whitelist) else None


def normal(label: str) -> str:
    """A label without the `.`, `..` and empty segments of a path, so that patterns cannot be bypassed.

    Links of a file system are not followed: a tool that opens files must guard its paths as well.
    """
    scheme, separator, path = label.partition("://")
    if "/" in scheme or not separator:
        scheme, separator, path = "", "", label
    if "/" not in path and path not in (".", ".."):
        return label
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif segment not in ("", ".") and not (segment == ".." and path.startswith("/")):
            kept.append(segment)
    return scheme + separator + ("/" if path.startswith("/") else "") + "/".join(kept)
