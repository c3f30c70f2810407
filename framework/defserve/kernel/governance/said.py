"""What a server that speaks MGP says of itself, beside what the file says of it (§2.3, §15.3).

It can make the kernel more careful, never less: permissions are added, and a server that calls itself sandboxed is so,
unless the file gives it a level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from defserve.host.mgp.said import SaidMgp
from defserve.kernel.config.entries import MgpEntry, ServerEntry
from defserve.kernel.governance.trust import SANDBOXED
from defserve.protocols.mgp.agreed import SECTIONS
from defserve.protocols.mgp.security.vocabulary import is_permission

USED = frozenset({"permissions", "tool_security", "lifecycle"})
"""The sections that the kernel asks servers for. Of others it knows only what the file says."""


def governed(entry: ServerEntry, said: SaidMgp | None) -> ServerEntry:
    """The entry by which the tools of a server are governed."""
    if said is None or said.version is None:
        return entry
    mgp = entry.mgp or MgpEntry()
    level = mgp.trust_level or (said.trust_level if said.trust_level in SANDBOXED else None)
    # A server whose tools say what each needs is believed that the others need nothing.
    needed = () if "tool_security" in said.sections else said_permissions(said)
    permissions = tuple(dict.fromkeys((*mgp.permissions_required, *needed)))
    if level == mgp.trust_level and permissions == mgp.permissions_required:
        return entry
    return replace(entry, mgp=replace(mgp, trust_level=level, permissions_required=permissions))


def claims_of(said: SaidMgp | None) -> dict[str, Any]:
    """What a server says that the kernel acts on for each of its tools; see `governed`."""
    if said is None or said.version is None:
        return {}
    claims = {
        "trust_level": said.trust_level,
        "permissions": sorted(said_permissions(said)),
        "tool_security": "tool_security" in said.sections,
    }
    return {name: value for name, value in claims.items() if value}


def said_permissions(said: SaidMgp) -> tuple[str, ...]:
    return tuple(name for name in said.permissions if is_permission(name))


def true_extensions(entry: ServerEntry, said: SaidMgp) -> tuple[str, ...]:
    """The extensions of a server that runs: those of the file that it has, and those that the file does not know."""
    of_file = entry.mgp.extensions if entry.mgp is not None else ()
    kept = [name for name in of_file if not _is_refuted(name, said)]
    known = frozenset[str]().union(*(SECTIONS.get(name, frozenset()) for name in kept))
    return (*kept, *(name for name in said.extensions if not SECTIONS[name] <= known and name not in kept))


def contradictions(entry: ServerEntry, said: SaidMgp | None) -> Iterator[str]:
    """Where the file and the server differ, for people."""
    if entry.mgp is None or said is None:
        return
    for name in entry.mgp.extensions:
        if _is_refuted(name, said):
            yield f"the file says that it has the extension {name!r}, and it does not"
    if entry.mgp.permissions_required:
        for name in said_permissions(said):
            if name not in entry.mgp.permissions_required:
                yield f"it needs {name}, which the file does not say"


def _is_refuted(name: str, said: SaidMgp) -> bool:
    if said.version is None:
        return True
    sections = SECTIONS.get(name, frozenset())
    return bool(sections) and sections <= USED and not sections & said.sections
