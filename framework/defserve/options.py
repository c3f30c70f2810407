"""The keyword options of the decorators, for type checkers; at run time they become one options object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

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
