"""defserve: write a `def`, serve it. A framework for tool servers (MCP, and what extends it)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defserve.version import VERSION as __version__

if TYPE_CHECKING:
    from defserve.auth import JWT, ApiKeys, Auth, Principal, StaticTokens, TokenVerifier
    from defserve.binding.content import Audio, Embedded, File, Image, Link, Text
    from defserve.binding.injection import Depends
    from defserve.context import Context
    from defserve.core.extension import Extension
    from defserve.errors import Declined, Dismissed, NoBackChannel, PeerError, Refused, Rejected, ToolError, UsageError
    from defserve.guard.arguments import Code, PublicUrl, Shell, ShellCommand, Url, Within
    from defserve.guard.verdict import Verdict
    from defserve.limits import Limits
    from defserve.net.egress import Egress
    from defserve.protocols.mcp.asking.sampling import Assistant, Message, SampleOptions, User
    from defserve.protocols.mcp.identity import Icon
    from defserve.protocols.mcp.numbered.errors import NumberedErrors
    from defserve.protocols.mcp.prompts import Prompt, PromptOptions
    from defserve.protocols.mcp.resources.resources import Resource, ResourceOptions
    from defserve.protocols.mcp.tools.tools import Tool, ToolOptions
    from defserve.protocols.mcpl.channels.values import Channel
    from defserve.protocols.mcpl.errors import AmbiguousPeer, CannotUndo, CheckpointNotFound, FeatureDisabled
    from defserve.protocols.mcpl.inference import Inference
    from defserve.protocols.mcpl.peers import everyone
    from defserve.protocols.mcpl.push.push import Event, Receipt
    from defserve.protocols.mcpl.scopes.scopes import Scope
    from defserve.protocols.mcpl.state.binding import State
    from defserve.protocols.mcpl.state.states import States
    from defserve.protocols.mcpl.turns import FinishedTurn, Injection, ModelInfo, Rewrite, Turn, Usage
    from defserve.protocols.mcpx.approval import ApprovalRules
    from defserve.protocols.mcpx.participant import Participant
    from defserve.protocols.mcpx.proposals import Proposal
    from defserve.protocols.mcpx.topic import Chat
    from defserve.protocols.mgp.access.policy import AccessPolicy, Entry
    from defserve.protocols.mgp.audit.sinks import AuditLogger
    from defserve.protocols.mgp.events.channel import EventChannel
    from defserve.protocols.mgp.security.security import Security, dangerous, moderate, safe
    from defserve.protocols.mgp.security.validators import validator
    from defserve.server.marks import completion, prompt, resource, tool
    from defserve.server.server import Server
    from defserve.stores.audit.log import AuditLog
    from defserve.stores.checkpoints.tree import Checkpoint


# Name to module: a server imports only what it uses.
_EXPORTS = {
    "AccessPolicy": "protocols.mgp.access.policy",
    "AmbiguousPeer": "protocols.mcpl.errors",
    "ApiKeys": "auth",
    "ApprovalRules": "protocols.mcpx.approval",
    "Assistant": "protocols.mcp.asking.sampling",
    "Audio": "binding.content",
    "AuditLog": "stores.audit.log",
    "AuditLogger": "protocols.mgp.audit.sinks",
    "Auth": "auth",
    "CannotUndo": "protocols.mcpl.errors",
    "Channel": "protocols.mcpl.channels.values",
    "Chat": "protocols.mcpx.topic",
    "Checkpoint": "stores.checkpoints.tree",
    "CheckpointNotFound": "protocols.mcpl.errors",
    "Code": "guard.arguments",
    "Context": "context",
    "Declined": "errors",
    "Depends": "binding.injection",
    "Dismissed": "errors",
    "Egress": "net.egress",
    "Embedded": "binding.content",
    "Entry": "protocols.mgp.access.policy",
    "Event": "protocols.mcpl.push.push",
    "EventChannel": "protocols.mgp.events.channel",
    "Extension": "core.extension",
    "FeatureDisabled": "protocols.mcpl.errors",
    "File": "binding.content",
    "FinishedTurn": "protocols.mcpl.turns",
    "Icon": "protocols.mcp.identity",
    "Image": "binding.content",
    "Inference": "protocols.mcpl.inference",
    "Injection": "protocols.mcpl.turns",
    "JWT": "auth",
    "Limits": "limits",
    "Link": "binding.content",
    "Message": "protocols.mcp.asking.sampling",
    "ModelInfo": "protocols.mcpl.turns",
    "NoBackChannel": "errors",
    "NumberedErrors": "protocols.mcp.numbered.errors",
    "Participant": "protocols.mcpx.participant",
    "PeerError": "errors",
    "Principal": "auth",
    "Prompt": "protocols.mcp.prompts",
    "PromptOptions": "protocols.mcp.prompts",
    "Proposal": "protocols.mcpx.proposals",
    "PublicUrl": "guard.arguments",
    "Receipt": "protocols.mcpl.push.push",
    "Refused": "errors",
    "Rejected": "errors",
    "Resource": "protocols.mcp.resources.resources",
    "ResourceOptions": "protocols.mcp.resources.resources",
    "Rewrite": "protocols.mcpl.turns",
    "SampleOptions": "protocols.mcp.asking.sampling",
    "Scope": "protocols.mcpl.scopes.scopes",
    "Security": "protocols.mgp.security.security",
    "Server": "server.server",
    "Shell": "guard.arguments",
    "ShellCommand": "guard.arguments",
    "State": "protocols.mcpl.state.binding",
    "States": "protocols.mcpl.state.states",
    "StaticTokens": "auth",
    "Text": "binding.content",
    "TokenVerifier": "auth",
    "Tool": "protocols.mcp.tools.tools",
    "ToolError": "errors",
    "ToolOptions": "protocols.mcp.tools.tools",
    "Turn": "protocols.mcpl.turns",
    "Url": "guard.arguments",
    "Usage": "protocols.mcpl.turns",
    "UsageError": "errors",
    "User": "protocols.mcp.asking.sampling",
    "Verdict": "guard.verdict",
    "Within": "guard.arguments",
    "completion": "server.marks",
    "dangerous": "protocols.mgp.security.security",
    "everyone": "protocols.mcpl.peers",
    "moderate": "protocols.mgp.security.security",
    "prompt": "server.marks",
    "resource": "server.marks",
    "safe": "protocols.mgp.security.security",
    "tool": "server.marks",
    "validator": "protocols.mgp.security.validators",
}

__all__ = [
    "AccessPolicy",
    "AmbiguousPeer",
    "ApiKeys",
    "ApprovalRules",
    "Assistant",
    "Audio",
    "AuditLog",
    "AuditLogger",
    "Auth",
    "CannotUndo",
    "Channel",
    "Chat",
    "Checkpoint",
    "CheckpointNotFound",
    "Code",
    "Context",
    "Declined",
    "Depends",
    "Dismissed",
    "Egress",
    "Embedded",
    "Entry",
    "Event",
    "EventChannel",
    "Extension",
    "FeatureDisabled",
    "File",
    "FinishedTurn",
    "Icon",
    "Image",
    "Inference",
    "Injection",
    "JWT",
    "Limits",
    "Link",
    "Message",
    "ModelInfo",
    "NoBackChannel",
    "NumberedErrors",
    "Participant",
    "PeerError",
    "Principal",
    "Prompt",
    "PromptOptions",
    "Proposal",
    "PublicUrl",
    "Receipt",
    "Refused",
    "Rejected",
    "Resource",
    "ResourceOptions",
    "Rewrite",
    "SampleOptions",
    "Scope",
    "Security",
    "Server",
    "Shell",
    "ShellCommand",
    "State",
    "States",
    "StaticTokens",
    "Text",
    "TokenVerifier",
    "Tool",
    "ToolError",
    "ToolOptions",
    "Turn",
    "Url",
    "Usage",
    "UsageError",
    "User",
    "Verdict",
    "Within",
    "__version__",
    "completion",
    "dangerous",
    "everyone",
    "moderate",
    "prompt",
    "resource",
    "safe",
    "tool",
    "validator",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'defserve' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"defserve.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value
