"""defserve: write a `def`, serve it. A framework for tool servers (MCP, and what extends it)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import lazy
from defserve.version import VERSION as __version__

if TYPE_CHECKING:
    from defserve.auth import JWT, ApiKeys, Auth, Principal, StaticTokens, TokenVerifier
    from defserve.binding.content import Audio, Embedded, File, Image, Link, Text
    from defserve.binding.injection import Depends
    from defserve.code_mode.options import CodeMode
    from defserve.context import Context
    from defserve.core.extension import Extension
    from defserve.errors import Declined, Dismissed, NoBackChannel, PeerError, Refused, Rejected, ToolError, UsageError
    from defserve.guard.argument_types import Code, PublicUrl, Shell, ShellCommand, Url, Within
    from defserve.guard.verdict import Verdict
    from defserve.limits import Limits
    from defserve.net.egress import Egress
    from defserve.observing.metrics import Metrics
    from defserve.observing.telemetry import Telemetry
    from defserve.protocols.mcp.asking.sampling import Assistant, Message, SampleOptions, User
    from defserve.protocols.mcp.identity import Icon
    from defserve.protocols.mcp.numbered_errors.extension import NumberedErrors
    from defserve.protocols.mcp.prompts import Prompt, PromptOptions
    from defserve.protocols.mcp.resources.resources import Resource, ResourceOptions
    from defserve.protocols.mcp.tools.tools import Tool, ToolOptions
    from defserve.protocols.mcp.transforms.arguments import Argument
    from defserve.protocols.mcp.transforms.transform import Transform
    from defserve.protocols.mcpl.channels.values import Channel
    from defserve.protocols.mcpl.errors import AmbiguousPeer, CannotUndo, CheckpointNotFound, FeatureDisabled
    from defserve.protocols.mcpl.inference.values import Inference
    from defserve.protocols.mcpl.peers import everyone
    from defserve.protocols.mcpl.push.event import Event, Receipt
    from defserve.protocols.mcpl.scopes.values import Scope
    from defserve.protocols.mcpl.state.binding import State
    from defserve.protocols.mcpl.state.states import States
    from defserve.protocols.mcpl.turns import FinishedTurn, InferenceEnd, Injection, ModelInfo, Rewrite, Turn, Usage
    from defserve.protocols.mcpx.approval import ApprovalRules
    from defserve.protocols.mcpx.errors import NotCapable, NotPresent, NotWelcome, ProposalNotPending
    from defserve.protocols.mcpx.participant import Participant
    from defserve.protocols.mcpx.proposals import Proposal
    from defserve.protocols.mcpx.topic import Chat, Presence, ProposalRejected, ProposalWithdrawn, Welcome
    from defserve.protocols.mgp.access.policy import AccessPolicy, Entry
    from defserve.protocols.mgp.audit.sinks import AuditLogger
    from defserve.protocols.mgp.events.channel import EventChannel
    from defserve.protocols.mgp.security.security import Security, dangerous, moderate, safe
    from defserve.protocols.mgp.security.validators import validator
    from defserve.proxying.targets import Command, Remote
    from defserve.search.budget import ToolBudget
    from defserve.search.options import Search
    from defserve.server.marks import app, completion, prompt, resource, tool
    from defserve.server.server import Server
    from defserve.stores.audit.log import AuditLog
    from defserve.stores.checkpoints.tree import Checkpoint
else:
    __getattr__ = lazy(
        __name__,
        {
            "defserve.auth": "ApiKeys Auth JWT Principal StaticTokens TokenVerifier",
            "defserve.binding.content": "Audio Embedded File Image Link Text",
            "defserve.binding.injection": "Depends",
            "defserve.code_mode.options": "CodeMode",
            "defserve.context": "Context",
            "defserve.core.extension": "Extension",
            "defserve.errors": "Declined Dismissed NoBackChannel PeerError Refused Rejected ToolError UsageError",
            "defserve.guard.argument_types": "Code PublicUrl Shell ShellCommand Url Within",
            "defserve.guard.verdict": "Verdict",
            "defserve.limits": "Limits",
            "defserve.net.egress": "Egress",
            "defserve.observing.metrics": "Metrics",
            "defserve.observing.telemetry": "Telemetry",
            "defserve.protocols.mcp.asking.sampling": "Assistant Message SampleOptions User",
            "defserve.protocols.mcp.identity": "Icon",
            "defserve.protocols.mcp.numbered_errors.extension": "NumberedErrors",
            "defserve.protocols.mcp.prompts": "Prompt PromptOptions",
            "defserve.protocols.mcp.resources.resources": "Resource ResourceOptions",
            "defserve.protocols.mcp.tools.tools": "Tool ToolOptions",
            "defserve.protocols.mcp.transforms.arguments": "Argument",
            "defserve.protocols.mcp.transforms.transform": "Transform",
            "defserve.protocols.mcpl.channels.values": "Channel",
            "defserve.protocols.mcpl.errors": "AmbiguousPeer CannotUndo CheckpointNotFound FeatureDisabled",
            "defserve.protocols.mcpl.inference.values": "Inference",
            "defserve.protocols.mcpl.peers": "everyone",
            "defserve.protocols.mcpl.push.event": "Event Receipt",
            "defserve.protocols.mcpl.scopes.values": "Scope",
            "defserve.protocols.mcpl.state.binding": "State",
            "defserve.protocols.mcpl.state.states": "States",
            "defserve.protocols.mcpl.turns": "FinishedTurn InferenceEnd Injection ModelInfo Rewrite Turn Usage",
            "defserve.protocols.mcpx.approval": "ApprovalRules",
            "defserve.protocols.mcpx.errors": "NotCapable NotPresent NotWelcome ProposalNotPending",
            "defserve.protocols.mcpx.participant": "Participant",
            "defserve.protocols.mcpx.proposals": "Proposal",
            "defserve.protocols.mcpx.topic": "Chat Presence ProposalRejected ProposalWithdrawn Welcome",
            "defserve.protocols.mgp.access.policy": "AccessPolicy Entry",
            "defserve.protocols.mgp.audit.sinks": "AuditLogger",
            "defserve.protocols.mgp.events.channel": "EventChannel",
            "defserve.protocols.mgp.security.security": "Security dangerous moderate safe",
            "defserve.protocols.mgp.security.validators": "validator",
            "defserve.proxying.targets": "Command Remote",
            "defserve.search.budget": "ToolBudget",
            "defserve.search.options": "Search",
            "defserve.server.marks": "app completion prompt resource tool",
            "defserve.server.server": "Server",
            "defserve.stores.audit.log": "AuditLog",
            "defserve.stores.checkpoints.tree": "Checkpoint",
        },
        {"FastMCP": "Server", "MCPServer": "Server", "McpServer": "Server"},
    )

__all__ = [
    "AccessPolicy",
    "AmbiguousPeer",
    "ApiKeys",
    "ApprovalRules",
    "Argument",
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
    "CodeMode",
    "Command",
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
    "InferenceEnd",
    "Injection",
    "JWT",
    "Limits",
    "Link",
    "Message",
    "Metrics",
    "ModelInfo",
    "NoBackChannel",
    "NotCapable",
    "NotPresent",
    "NotWelcome",
    "NumberedErrors",
    "Participant",
    "PeerError",
    "Presence",
    "Principal",
    "Prompt",
    "PromptOptions",
    "Proposal",
    "ProposalNotPending",
    "ProposalRejected",
    "ProposalWithdrawn",
    "PublicUrl",
    "Receipt",
    "Refused",
    "Rejected",
    "Remote",
    "Resource",
    "ResourceOptions",
    "Rewrite",
    "SampleOptions",
    "Scope",
    "Search",
    "Security",
    "Server",
    "Shell",
    "ShellCommand",
    "State",
    "States",
    "StaticTokens",
    "Telemetry",
    "Text",
    "TokenVerifier",
    "Tool",
    "ToolBudget",
    "ToolError",
    "ToolOptions",
    "Transform",
    "Turn",
    "Url",
    "Usage",
    "UsageError",
    "User",
    "Verdict",
    "Welcome",
    "Within",
    "__version__",
    "app",
    "completion",
    "dangerous",
    "everyone",
    "moderate",
    "prompt",
    "resource",
    "safe",
    "tool",
    "validator",
]
