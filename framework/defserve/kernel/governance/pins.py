"""Whether tools are still what they were when they were first seen: the digest of each definition is kept.

A server may change what a tool says or takes after people began to trust it. `on_change` of mgp.toml says what then
happens: "allow" nothing, "warn" it is reported, "hold" nobody may use the tool until an operator approves it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from difflib import unified_diff
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from defserve.host.fields import Json

if TYPE_CHECKING:
    from defserve.kernel.governance.state_file import KernelState, StateFile

Change: TypeAlias = Literal["new", "changed"]
VOLATILE: Final = frozenset({"_meta"})
"""Members of a definition that models are not shown, and that may differ from list to list."""

MOST_LINES: Final = 400
LONGEST_LINE: Final = 2_000
SHORTEST_DIGEST: Final = 16
"""So many characters of a digest are enough to name it."""


def digest_of(raw: Json) -> str:
    """The same for equal definitions, in whatever order their members come."""
    return sha256(json.dumps(told(raw), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def told(raw: Json) -> Json:
    """The part of a definition that counts."""
    return {name: value for name, value in raw.items() if name not in VOLATILE}


class Pin(NamedTuple):
    """A definition by its digest. `raw` is None if only the digest was kept."""

    digest: str
    raw: Json | None = None

    @classmethod
    def of(cls, raw: Json) -> Pin:
        return cls(digest_of(raw), raw)


class HeldTool(NamedTuple):
    """A tool that is kept back: what it was when it was pinned (None: it is new), and what it is now."""

    name: str
    before: Pin | None
    now: Pin

    def difference(self) -> list[str]:
        """What has changed, line by line, as `diff -u` shows it. Bounded."""
        if self.before is not None and self.before.raw is None:
            return ["(only the digest of the earlier definition is known)", *_shown(self.now)[:MOST_LINES]]
        before = _shown(self.before) if self.before is not None else []
        lines = unified_diff(before, _shown(self.now), "pinned", "now", lineterm="", n=2)
        return [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in islice(lines, MOST_LINES)]


class Pins:
    """The digests of the tools of all servers. A server is `settled` once its first list is known."""

    def __init__(self, state: StateFile) -> None:
        self._state = state
        self._held: dict[str, dict[str, Pin]] = {}
        self._seen = _kept_in(state.known)
        self._kept = _kept_in(state.known)
        self._settled = set(self._kept)

    def change(self, id: str, tool: str, pin: Pin) -> Change | None:
        """What has changed since the tool was pinned. None for the first list of a server."""
        known = self._seen.setdefault(id, {}).get(tool)
        if known is not None and known.digest == pin.digest:
            self._held.get(id, {}).pop(tool, None)
            return None
        if known is not None:
            return "changed"
        return "new" if id in self._settled else None

    def pin(self, id: str, tool: str, pin: Pin) -> None:
        self._seen.setdefault(id, {})[tool] = pin

    def hold(self, id: str, tool: str, pin: Pin) -> bool:
        """Keep a tool back. False if it was held as it is now."""
        held = self._held.setdefault(id, {})
        was = held.get(tool)
        held[tool] = pin
        return was is None or was.digest != pin.digest

    def held(self, id: str) -> list[str]:
        return sorted(self._held.get(id, ()))

    def held_tools(self, id: str) -> list[HeldTool]:
        """The held tools of a server, with what they were."""
        known, held = self._seen.get(id, {}), self._held.get(id, {})
        return [HeldTool(name, known.get(name), held[name]) for name in sorted(held)]

    def approve(self, id: str, tools: Collection[str]) -> None:
        """Pin held tools as they are now."""
        for tool in tools:
            self.pin(id, tool, self._held[id].pop(tool))

    def settle(self, id: str, *, keep: bool, approved: Collection[str] = ()) -> None:
        """The list of a server is known. With `keep`, its pins outlive the kernel. Raises OSError.

        Where another kernel has pinned a tool meanwhile, that counts, unless it was `approved` here just now.
        """
        self._settled.add(id)
        seen, kept = self._seen.get(id, {}), self._kept.get(id)
        if not keep or (kept is not None and _digests(kept) == _digests(seen)):
            return

        def change(state: KernelState) -> None:
            pins, definitions = state.pins.setdefault(id, {}), state.definitions.setdefault(id, {})
            for tool, pin in seen.items():
                before = kept.get(tool) if kept is not None else None
                if tool in approved or pins.get(tool) == (before.digest if before is not None else None):
                    pins[tool] = pin.digest
                    if pin.raw is not None:
                        definitions[tool] = told(pin.raw)

        self._state.update(change)
        self._kept = _kept_in(self._state.known)

    def refresh(self) -> list[str]:
        """Take over what other kernels have pinned. Returns the servers whose pins are others than before."""
        found = _kept_in(self._state.known)
        changed = [id for id, pins in found.items() if _digests(pins) != _digests(self._kept.get(id, {}))]
        for id in changed:
            self._settled.add(id)
            self._seen.setdefault(id, {}).update(found[id])
        self._kept = found
        return changed

    def forget(self, id: str) -> None:
        """A server is gone for good. What was kept of it stays: it may come back."""
        self._held.pop(id, None)
        if id not in self._kept:
            self._seen.pop(id, None)
            self._settled.discard(id)


def _kept_in(state: KernelState) -> dict[str, dict[str, Pin]]:
    def raw(id: str, tool: str, digest: str) -> Json | None:
        found = state.definitions.get(id, {}).get(tool)
        return found if found is not None and digest_of(found) == digest else None

    return {
        id: {tool: Pin(digest, raw(id, tool, digest)) for tool, digest in pins.items()}
        for id, pins in state.pins.items()
    }


def _digests(pins: Mapping[str, Pin]) -> dict[str, str]:
    return {tool: pin.digest for tool, pin in pins.items()}


def _shown(pin: Pin) -> list[str]:
    return json.dumps(told(pin.raw or {}), indent=1, sort_keys=True, ensure_ascii=False).splitlines()
