"""The names of a backend's tools and prompts outside: prefixed, renamed, chosen, and never too long."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Final

from defserve.base.hidden_characters import is_plain
from defserve.errors import UsageError
from defserve.protocols.mcp.prefixes import Prefix

LONGEST: Final = 64
"""Several model APIs take no longer names."""
HASH: Final = 6
ALPHABET: Final = re.compile(r"[A-Za-z0-9_./-]+")
"""What MCP lets the names of tools be made of; `/` by its older versions."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools of a backend are offered, and as what: `allow` and `deny` are patterns, `rename` is new for old."""

    allow: Sequence[str] | None = None
    deny: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, given: ToolChoice | Mapping[str, Any] | Sequence[str] | None) -> ToolChoice:
        """Read `tools=`: a list of names to allow, or a mapping with allow, deny and rename."""
        if given is None:
            return cls()
        if isinstance(given, ToolChoice):
            return given
        if isinstance(given, Mapping):
            if unknown := sorted(set(given) - {"allow", "deny", "rename"}):
                raise UsageError(f"tools={{{unknown[0]!r}: …}} is not known", fix="use allow, deny and rename")
            return cls(**given)
        return cls(allow=(given,) if isinstance(given, str) else tuple(given))

    def takes(self, name: str) -> bool:
        allowed = self.allow is None or any(fnmatchcase(name, pattern) for pattern in self.allow)
        return allowed and not any(fnmatchcase(name, pattern) for pattern in self.deny)

    def name(self, name: str) -> str:
        return self.rename.get(name, name)


def outer_name(prefix: Prefix, name: str) -> str:
    """The name outside. If it were too long, the prefix is shortened to a part of it and a hash, always the same."""
    whole = prefix.name(name)
    if len(whole) <= LONGEST or not prefix.text:
        return whole
    digest = sha256(prefix.text.encode()).hexdigest()[:HASH]
    room = LONGEST - len(name) - HASH - 1
    return f"{prefix.text[: max(room, 0)]}{digest}_{name}"


def problem_of(name: Any) -> str | None:
    """Why a name cannot be offered."""
    if not isinstance(name, str) or not name:
        return "it has no name"
    if len(name) > 4 * LONGEST:
        return f"its name is longer than {4 * LONGEST} characters"
    return None if is_plain(name) else "its name has characters that cannot be seen"


def tool_name_problem(name: str) -> str | None:
    """Why a tool cannot be listed by this name. MCP's alphabet has no letters that look like others."""
    if ALPHABET.fullmatch(name) is not None:
        return None
    return "its name may hold only ASCII letters, digits and _ - . / (rename it with `rename`)"
