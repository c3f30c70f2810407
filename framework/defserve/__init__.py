"""defserve: write a `def`, serve it. A framework for tool servers (MCP, and what extends it)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defserve.version import VERSION as __version__

if TYPE_CHECKING:
    from defserve.auth import JWT, Auth, Principal, StaticTokens, TokenVerifier
    from defserve.binding.content import Audio, Embedded, File, Image, Link, Text
    from defserve.binding.inject import Depends
    from defserve.context import Context
    from defserve.core.extension import Extension
    from defserve.errors import Declined, Dismissed, NoBackChannel, PeerError, Refused, ToolError, UsageError
    from defserve.limits import Limits
    from defserve.marks import completion, prompt, resource, tool
    from defserve.protocols.mcp.identity import Icon
    from defserve.protocols.mcp.prompts import Prompt, PromptOptions
    from defserve.protocols.mcp.resources import Resource, ResourceOptions
    from defserve.protocols.mcp.sampling import Assistant, Message, SampleOptions, User
    from defserve.protocols.mcp.tools import Tool, ToolOptions
    from defserve.server import Server


# Name to module: a server imports only what it uses.
_EXPORTS = {
    "Assistant": "protocols.mcp.sampling",
    "Audio": "binding.content",
    "Auth": "auth",
    "Context": "context",
    "Declined": "errors",
    "Depends": "binding.inject",
    "Dismissed": "errors",
    "Embedded": "binding.content",
    "Extension": "core.extension",
    "File": "binding.content",
    "Icon": "protocols.mcp.identity",
    "Image": "binding.content",
    "JWT": "auth",
    "Limits": "limits",
    "Link": "binding.content",
    "Message": "protocols.mcp.sampling",
    "NoBackChannel": "errors",
    "PeerError": "errors",
    "Principal": "auth",
    "Prompt": "protocols.mcp.prompts",
    "PromptOptions": "protocols.mcp.prompts",
    "Refused": "errors",
    "Resource": "protocols.mcp.resources",
    "ResourceOptions": "protocols.mcp.resources",
    "SampleOptions": "protocols.mcp.sampling",
    "Server": "server",
    "StaticTokens": "auth",
    "Text": "binding.content",
    "TokenVerifier": "auth",
    "Tool": "protocols.mcp.tools",
    "ToolError": "errors",
    "ToolOptions": "protocols.mcp.tools",
    "UsageError": "errors",
    "User": "protocols.mcp.sampling",
    "completion": "marks",
    "prompt": "marks",
    "resource": "marks",
    "tool": "marks",
}

__all__ = [
    "Assistant",
    "Audio",
    "Auth",
    "Context",
    "Declined",
    "Depends",
    "Dismissed",
    "Embedded",
    "Extension",
    "File",
    "Icon",
    "Image",
    "JWT",
    "Limits",
    "Link",
    "Message",
    "NoBackChannel",
    "PeerError",
    "Principal",
    "Prompt",
    "PromptOptions",
    "Refused",
    "Resource",
    "ResourceOptions",
    "SampleOptions",
    "Server",
    "StaticTokens",
    "Text",
    "TokenVerifier",
    "Tool",
    "ToolError",
    "ToolOptions",
    "UsageError",
    "User",
    "__version__",
    "completion",
    "prompt",
    "resource",
    "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'defserve' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"defserve.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value
