"""The keyword options of `Server` and its decorators: for type checkers, and for a word about a misspelt one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.protocols.mcp.identity import Icon


class ToolFields(TypedDict, total=False):
    """See `protocols.mcp.tools.ToolOptions`."""

    name: str
    title: str
    description: str
    annotations: Mapping[str, Any]
    icons: Sequence[Icon | str | Mapping[str, Any]]
    meta: Mapping[str, Any]
    timeout: float
    inline: bool
    structured: bool
    schema: Mapping[str, Any]
    tags: Sequence[str]


class ResourceFields(TypedDict, total=False):
    """See `protocols.mcp.resources.ResourceOptions`."""

    name: str
    title: str
    description: str
    mime_type: str
    size: int
    annotations: Mapping[str, Any]
    icons: Sequence[Icon | str | Mapping[str, Any]]
    meta: Mapping[str, Any]
    timeout: float
    inline: bool
    ttl: float


class PromptFields(TypedDict, total=False):
    """See `protocols.mcp.prompts.PromptOptions`."""

    name: str
    title: str
    description: str
    icons: Sequence[Icon | str | Mapping[str, Any]]
    meta: Mapping[str, Any]
    timeout: float
    inline: bool


class ServerFields(TypedDict, total=False):
    """What a server says about itself; see `protocols.mcp.identity.Identity`."""

    title: str
    instructions: str
    description: str
    website_url: str
    icons: Sequence[Icon | str | Mapping[str, Any]]


def refuse_unknown(given: Collection[str], known: Collection[str], subject: str, where: str) -> None:
    """Raises UsageError for the first option that does not exist."""
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, known, 1)
            raise UsageError(
                f"{subject} has no option {name!r}",
                where=where,
                fix=f"did you mean {close[0]!r}?" if close else f"use some of {', '.join(sorted(known))}",
            )
