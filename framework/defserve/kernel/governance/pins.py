"""Whether tools are still what they were when they were first seen: the digest of each definition is kept.

A server may change what a tool says or takes after people began to trust it. `on_change` of mgp.toml says what then
happens: "allow" nothing, "warn" it is reported, "hold" nobody may use the tool until an operator approves it.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from defserve.host.fields import Json

if TYPE_CHECKING:
    from defserve.kernel.governance.state_file import StateFile

Change: TypeAlias = Literal["new", "changed"]
VOLATILE: Final = frozenset({"_meta"})
"""Members of a definition that models are not shown, and that may differ from list to list."""


def digest_of(raw: Json) -> str:
    """The same for equal definitions, in whatever order their members come."""
    told = {name: value for name, value in raw.items() if name not in VOLATILE}
    return sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Pins:
    """The digests of the tools of all servers. A server is `settled` once its first list is known."""

    def __init__(self, state: StateFile) -> None:
        self._state = state
        self._settled = set(state.pins)
        self._held: dict[str, dict[str, str]] = {}
        self._seen: dict[str, dict[str, str]] = {id: dict(pins) for id, pins in state.pins.items()}

    def change(self, id: str, tool: str, digest: str) -> Change | None:
        """What has changed since the tool was pinned. None for the first list of a server."""
        known = self._seen.setdefault(id, {})
        if known.get(tool) == digest:
            self._held.get(id, {}).pop(tool, None)
            return None
        if tool in known:
            return "changed"
        return "new" if id in self._settled else None

    def pin(self, id: str, tool: str, digest: str) -> None:
        self._seen.setdefault(id, {})[tool] = digest

    def hold(self, id: str, tool: str, digest: str) -> bool:
        """Keep a tool back. False if it was held as it is now."""
        held = self._held.setdefault(id, {})
        was = held.get(tool)
        held[tool] = digest
        return was != digest

    def held(self, id: str) -> list[str]:
        return sorted(self._held.get(id, ()))

    def approve(self, id: str, tool: str | None = None) -> list[str]:
        """Pin held tools as they are now: one of them, or all. Returns their names."""
        held = self._held.get(id, {})
        done = [name for name in sorted(held) if tool is None or name == tool]
        for name in done:
            self.pin(id, name, held.pop(name))
        return done

    def settle(self, id: str, *, keep: bool) -> None:
        """The list of a server is known. With `keep`, its pins outlive the kernel. Raises OSError."""
        self._settled.add(id)
        if keep and self._state.pins.get(id) != self._seen.get(id, {}):
            self._state.pins[id] = dict(self._seen.get(id, {}))
            self._state.write()

    def forget(self, id: str) -> None:
        """A server is gone for good. What was kept of it stays: it may come back."""
        self._held.pop(id, None)
        if id not in self._state.pins:
            self._seen.pop(id, None)
            self._settled.discard(id)
