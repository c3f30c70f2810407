"""The permissions of an API key: six words. Each is a scope, so that tools and policies can require it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from defserve.auth.buckets import Rate
from defserve.auth.principals import Principal
from defserve.errors import UsageError, did_you_mean

# A permission as people write it → its scope. `{}` is the name of a tool, `*` any tool.
SCOPES: Final = {
    "ToolInvoke({})": "tool:invoke:{}",
    "ToolRead({})": "tool:read:{}",
    "ToolsListAll": "tools:list",
    "MetricsRead": "metrics:read",
    "AdminRead": "admin:read",
    "AdminWrite": "admin:write",
}
ANY: Final = "*"
SEES_ALL: Final = frozenset({SCOPES["ToolsListAll"], SCOPES["AdminRead"]})

READS_METRICS: Final = frozenset({SCOPES["MetricsRead"], SCOPES["AdminRead"]})
"""One of these is needed for metrics: they name every tool, also those that a caller may not see."""

_WRITTEN: Final = re.compile(r"(\w+)(?:\(([A-Za-z0-9_.*-]{1,128})\))?")


def scope_of(permission: str) -> str:
    """The scope of `ToolInvoke(add)`, `ToolsListAll`, …. Raises UsageError for an unknown permission."""
    if found := _WRITTEN.fullmatch(permission.strip()):
        word, name = found.groups()
        if (scope := SCOPES.get(f"{word}({{}})" if name else word)) is not None:
            return scope.format(name)
    known = [name.replace("{}", "TOOL") for name in SCOPES]
    near = permission.partition("(")[0].strip() + ("(TOOL)" if "(" in permission else "")
    raise UsageError(
        f"{permission!r} is not a permission",
        fix=did_you_mean(near, known, f"use one of {', '.join(known)}; ToolInvoke(*) is every tool"),
    )


def scopes_of(permissions: Iterable[str]) -> frozenset[str]:
    return frozenset(map(scope_of, permissions))


@dataclass(frozen=True, slots=True)
class KeyHolder(Principal):
    """A caller with an API key. It may use only the tools that its scopes allow.

    Permissions are about tools: it may use resources and prompts unless they require scopes.
    """

    key: str = ""
    per_minute: int | None = None
    per_hour: int | None = None

    def may_invoke(self, tool: str) -> bool:
        return self._may("ToolInvoke({})", tool)

    def may_read(self, tool: str) -> bool:
        """Whether it may see a tool. A caller that may invoke a tool may see it."""
        return not self.scopes.isdisjoint(SEES_ALL) or self._may("ToolRead({})", tool) or self.may_invoke(tool)

    @property
    def rates(self) -> Mapping[tuple[str, str], Rate]:
        counts = (("per_minute", self.per_minute, 60), ("per_hour", self.per_hour, 3600))
        return {(self.key, limit): Rate(count / seconds, count) for limit, count, seconds in counts if count}

    @property
    def rights_class(self) -> Hashable:
        return type(self), self.scopes

    def _has_rights_of(self, other: Principal) -> bool:
        if not isinstance(other, KeyHolder):
            return False
        return all(map(self._has_right, other.scopes - self.scopes))

    def _has_right(self, scope: str) -> bool:
        """Whether what a scope allows is allowed by another scope: `tool:invoke:*` includes `tool:invoke:add`."""
        kind, _, tool = scope.rpartition(":")
        if kind == "tool:invoke":
            return self.may_invoke(tool)
        return kind == "tool:read" and self.may_read(tool)

    def _may(self, permission: str, tool: str) -> bool:
        scope = SCOPES[permission]
        return not self.scopes.isdisjoint((scope.format(tool), scope.format(ANY)))
