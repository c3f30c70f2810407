"""defserve: write a `def`, serve it. A framework for tool servers (MCP, and what extends it)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defserve.version import VERSION as __version__

if TYPE_CHECKING:
    from defserve.auth import JWT, ApiKeys, Auth, Principal, StaticTokens, TokenVerifier
    from defserve.binding.content import Audio, Embedded, File, Image, Link, Text
    from defserve.binding.inject import Depends
    from defserve.context import Context
    from defserve.core.extension import Extension
    from defserve.errors import Declined, Dismissed, NoBackChannel, PeerError, Refused, Rejected, ToolError, UsageError
    from defserve.guard.arguments import Code, PublicUrl, Shell, ShellCommand, Url, Within
    from defserve.guard.verdict import Verdict
    from defserve.limits import Limits
    from defserve.marks import completion, prompt, resource, tool
    from defserve.net.egress import Egress
    from defserve.protocols.mcp.identity import Icon
    from defserve.protocols.mcp.numbered import NumberedErrors
    from defserve.protocols.mcp.prompts import Prompt, PromptOptions
    from defserve.protocols.mcp.resources import Resource, ResourceOptions
    from defserve.protocols.mcp.sampling import Assistant, Message, SampleOptions, User
    from defserve.protocols.mcp.tools import Tool, ToolOptions
    from defserve.protocols.mcpl.channel_values import Channel
    from defserve.protocols.mcpl.errors import AmbiguousPeer, CannotUndo, CheckpointNotFound, FeatureDisabled
    from defserve.protocols.mcpl.inference import Inference
    from defserve.protocols.mcpl.peers import everyone
    from defserve.protocols.mcpl.push import Event, Receipt
    from defserve.protocols.mcpl.scopes import Scope
    from defserve.protocols.mcpl.state import States
    from defserve.protocols.mcpl.state_binding import State
    from defserve.protocols.mcpl.turns import FinishedTurn, Injection, ModelInfo, Rewrite, Turn, Usage
    from defserve.protocols.mcpx.approval import ApprovalRules
    from defserve.protocols.mcpx.participant import Participant
    from defserve.protocols.mcpx.proposals import Proposal
    from defserve.protocols.mcpx.topic import Chat
    from defserve.protocols.mgp.access_policy import AccessPolicy, Entry
    from defserve.protocols.mgp.audit import AuditLogger
    from defserve.protocols.mgp.event_channel import EventChannel
    from defserve.protocols.mgp.security import Security, dangerous, moderate, safe
    from defserve.protocols.mgp.validators import validator
    from defserve.server import Server
    from defserve.stores.audit_log import AuditLog
    from defserve.stores.checkpoints import Checkpoint


# Name to module: a server imports only what it uses.
_EXPORTS = {
    "AccessPolicy": "protocols.mgp.access_policy",
    "AmbiguousPeer": "protocols.mcpl.errors",
    "ApiKeys": "auth",
    "ApprovalRules": "protocols.mcpx.approval",
    "Assistant": "protocols.mcp.sampling",
    "Audio": "binding.content",
    "AuditLog": "stores.audit_log",
    "AuditLogger": "protocols.mgp.audit",
    "Auth": "auth",
    "CannotUndo": "protocols.mcpl.errors",
    "Channel": "protocols.mcpl.channel_values",
    "Chat": "protocols.mcpx.topic",
    "Checkpoint": "stores.checkpoints",
    "CheckpointNotFound": "protocols.mcpl.errors",
    "Code": "guard.arguments",
    "Context": "context",
    "Declined": "errors",
    "Depends": "binding.inject",
    "Dismissed": "errors",
    "Egress": "net.egress",
    "Embedded": "binding.content",
    "Entry": "protocols.mgp.access_policy",
    "Event": "protocols.mcpl.push",
    "EventChannel": "protocols.mgp.event_channel",
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
    "Message": "protocols.mcp.sampling",
    "ModelInfo": "protocols.mcpl.turns",
    "NoBackChannel": "errors",
    "NumberedErrors": "protocols.mcp.numbered",
    "Participant": "protocols.mcpx.participant",
    "PeerError": "errors",
    "Principal": "auth",
    "Prompt": "protocols.mcp.prompts",
    "PromptOptions": "protocols.mcp.prompts",
    "Proposal": "protocols.mcpx.proposals",
    "PublicUrl": "guard.arguments",
    "Receipt": "protocols.mcpl.push",
    "Refused": "errors",
    "Rejected": "errors",
    "Resource": "protocols.mcp.resources",
    "ResourceOptions": "protocols.mcp.resources",
    "Rewrite": "protocols.mcpl.turns",
    "SampleOptions": "protocols.mcp.sampling",
    "Scope": "protocols.mcpl.scopes",
    "Security": "protocols.mgp.security",
    "Server": "server",
    "Shell": "guard.arguments",
    "ShellCommand": "guard.arguments",
    "State": "protocols.mcpl.state_binding",
    "States": "protocols.mcpl.state",
    "StaticTokens": "auth",
    "Text": "binding.content",
    "TokenVerifier": "auth",
    "Tool": "protocols.mcp.tools",
    "ToolError": "errors",
    "ToolOptions": "protocols.mcp.tools",
    "Turn": "protocols.mcpl.turns",
    "Url": "guard.arguments",
    "Usage": "protocols.mcpl.turns",
    "UsageError": "errors",
    "User": "protocols.mcp.sampling",
    "Verdict": "guard.verdict",
    "Within": "guard.arguments",
    "completion": "marks",
    "dangerous": "protocols.mgp.security",
    "everyone": "protocols.mcpl.peers",
    "moderate": "protocols.mgp.security",
    "prompt": "marks",
    "resource": "marks",
    "safe": "protocols.mgp.security",
    "tool": "marks",
    "validator": "protocols.mgp.validators",
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
