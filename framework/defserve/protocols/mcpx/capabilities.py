"""Which kinds a participant may send: patterns in which `*` stands for any run of characters, `/` and `:` included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from defserve.errors import UsageError
from defserve.protocols.mcpx.kinds import is_reserved

PROFILES: Final[Mapping[str, tuple[str, ...]]] = {
    "full": ("mcp/*", "chat"),
    "proposal-only": ("mcp/proposal:*", "mcp/withdraw", "mcp/response:*", "chat"),
    "response-only": ("mcp/response:*", "mcp/reject", "chat"),
    "read-only": ("mcp/request:resources/read", "mcp/request:*/list", "mcp/response:*", "chat"),
    "tool-only": ("mcp/request:tools/*", "mcp/response:tools/*", "chat"),
}

REMEMBERED: Final = 512
LONGEST_KIND: Final = 256


def matches(kind: str, capability: str) -> bool:
    """Whether the capability covers the kind.

    A capability without CONTEXT is compared with `base:METHOD`. So it covers every CONTEXT of a method it covers, and
    no CONTEXT can be mistaken for a method.
    """
    if capability.count(":") < 2:
        kind = ":".join(kind.split(":", 2)[:2])
    return _glob(kind, capability)


def matches_strictly(kind: str, capability: str) -> bool:
    """The reference gateway's rule: a final `*` means "begins with", anything else is compared whole."""
    return kind.startswith(capability[:-1]) if capability.endswith("*") else kind == capability


def _glob(text: str, pattern: str) -> bool:
    # Every piece at its first place: a later one never allows more, so the text is walked once.
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    last = rest.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in rest:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


class Capabilities:
    """What a participant may send. `strict` compares as the reference gateway does. `system/` is never allowed."""

    __slots__ = ("patterns", "_matches", "_known")

    def __init__(self, patterns: Iterable[str], *, strict: bool = False) -> None:
        if isinstance(patterns, str):
            raise UsageError("capabilities are a list of patterns", fix=f"write [{patterns!r}]")
        self.patterns = tuple(dict.fromkeys(patterns))
        if not all(isinstance(pattern, str) and pattern for pattern in self.patterns):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("a capability is a text such as 'mcp/request:tools/*'", fix="remove the empty ones")
        self._matches: Callable[[str, str], bool] = matches_strictly if strict else matches
        self._known: dict[str, bool] = {}

    @classmethod
    def of(cls, profile: str, *, strict: bool = False) -> Capabilities:
        """One of the `PROFILES` by its name."""
        if profile not in PROFILES:
            raise UsageError(f"there is no capability profile {profile!r}", fix=f"use one of {', '.join(PROFILES)}")
        return cls(PROFILES[profile], strict=strict)

    def allow(self, kind: str) -> bool:
        """Whether one of them covers the kind."""
        if (known := self._known.get(kind)) is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = not is_reserved(kind) and any(self._matches(kind, pattern) for pattern in self.patterns)
            if len(kind) <= LONGEST_KIND:
                self._known[kind] = known
        return known

    def changed(self, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Capabilities:
        """A copy with some added and some removed. A pattern that is both added and removed stays."""
        gone = set(remove)
        kept = Capabilities((*(pattern for pattern in self.patterns if pattern not in gone), *add))
        kept._matches = self._matches
        return kept
