"""defserve: write a `def`, serve it. A framework for tool servers (MCP, and what extends it)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import lazy
from defserve.version import VERSION as __version__

if TYPE_CHECKING:
    from defserve.auth import JWT, ApiKeys, Auth, Principal, StaticTokens, TokenVerifier
    from defserve.binding.content import Audio, Embedded, File, Image, Link, Text
    from defserve.binding.injection import Depends
    from defserve.code_mode.run import CodeMode
    from defserve.context import Context
    from defserve.core.extension import Extension
    from defserve.errors import Declined, Dismissed, NoBackChannel, PeerError, Refused, Rejected, ToolError, UsageError
    from defserve.guard.argument_types import Code, PublicUrl, Shell, ShellCommand, Url, Within
    from defserve.guard.egress import Egress
    from defserve.guard.verdict import Verdict
    from defserve.limits import Limits
    from defserve.protocols.mcp.asking.client_features import Assistant, Message, SampleOptions, User
    from defserve.protocols.mcp.lifecycle import Icon
    from defserve.protocols.mcp.numbered_errors import NumberedErrors
    from defserve.protocols.mcp.prompts import Prompt, PromptOptions
    from defserve.protocols.mcp.resources import Resource, ResourceOptions
    from defserve.protocols.mcp.tools import Tool, ToolOptions
    from defserve.protocols.mcp.transforms import Argument, Transform
    from defserve.protocols.mcpl.channels.messages import Channel
    from defserve.protocols.mcpl.content import (
        Event,
        FinishedTurn,
        InferenceEnd,
        Injection,
        ModelInfo,
        Receipt,
        Rewrite,
        Turn,
        Usage,
    )
    from defserve.protocols.mcpl.inference import Inference
    from defserve.protocols.mcpl.peers import everyone
    from defserve.protocols.mcpl.scopes import Scope
    from defserve.protocols.mcpl.state.binding import State
    from defserve.protocols.mcpl.state.states import States
    from defserve.protocols.mcpl.vocabulary import AmbiguousPeer, CannotUndo, CheckpointNotFound, FeatureDisabled
    from defserve.protocols.mcpx.participant import NotCapable, NotPresent, NotWelcome, Participant, ProposalNotPending
    from defserve.protocols.mcpx.proposals import ApprovalRules, Proposal
    from defserve.protocols.mcpx.topic import Chat, Presence, ProposalRejected, ProposalWithdrawn, Welcome
    from defserve.protocols.mgp.access import AccessPolicy, Entry
    from defserve.protocols.mgp.audit import AuditLogger
    from defserve.protocols.mgp.events import EventChannel
    from defserve.protocols.mgp.security import Security, dangerous, moderate, safe, validator
    from defserve.proxying.targets import Command, Remote
    from defserve.search.entries import ToolBudget
    from defserve.search.ranking import Search
    from defserve.server.metrics import Metrics
    from defserve.server.rare_declarations import app, completion, prompt, resource, tool
    from defserve.server.server import Server
    from defserve.server.telemetry import Telemetry
    from defserve.stores.audit.log_file import AuditLog
    from defserve.stores.checkpoints.checkpoint_tree import Checkpoint
else:
    __getattr__ = lazy(
        __name__,
        {
            "defserve.auth": "ApiKeys Auth JWT Principal StaticTokens TokenVerifier",
            "defserve.binding.content": "Audio Embedded File Image Link Text",
            "defserve.binding.injection": "Depends",
            "defserve.code_mode.run": "CodeMode",
            "defserve.context": "Context",
            "defserve.core.extension": "Extension",
            "defserve.errors": "Declined Dismissed NoBackChannel PeerError Refused Rejected ToolError UsageError",
            "defserve.guard.argument_types": "Code PublicUrl Shell ShellCommand Url Within",
            "defserve.guard.verdict": "Verdict",
            "defserve.limits": "Limits",
            "defserve.guard.egress": "Egress",
            "defserve.server.metrics": "Metrics",
            "defserve.server.telemetry": "Telemetry",
            "defserve.protocols.mcp.asking.client_features": "Assistant Message SampleOptions User",
            "defserve.protocols.mcp.lifecycle": "Icon",
            "defserve.protocols.mcp.numbered_errors": "NumberedErrors",
            "defserve.protocols.mcp.prompts": "Prompt PromptOptions",
            "defserve.protocols.mcp.resources": "Resource ResourceOptions",
            "defserve.protocols.mcp.tools": "Tool ToolOptions",
            "defserve.protocols.mcp.transforms": "Argument Transform",
            "defserve.protocols.mcpl.channels.messages": "Channel",
            "defserve.protocols.mcpl.vocabulary": "AmbiguousPeer CannotUndo CheckpointNotFound FeatureDisabled",
            "defserve.protocols.mcpl.inference": "Inference",
            "defserve.protocols.mcpl.peers": "everyone",
            "defserve.protocols.mcpl.content": (
                "Event Receipt FinishedTurn InferenceEnd Injection ModelInfo Rewrite Turn Usage"
            ),
            "defserve.protocols.mcpl.scopes": "Scope",
            "defserve.protocols.mcpl.state.binding": "State",
            "defserve.protocols.mcpl.state.states": "States",
            "defserve.protocols.mcpx.proposals": "ApprovalRules Proposal",
            "defserve.protocols.mcpx.participant": "NotCapable NotPresent NotWelcome ProposalNotPending Participant",
            "defserve.protocols.mcpx.topic": "Chat Presence ProposalRejected ProposalWithdrawn Welcome",
            "defserve.protocols.mgp.access": "AccessPolicy Entry",
            "defserve.protocols.mgp.audit": "AuditLogger",
            "defserve.protocols.mgp.events": "EventChannel",
            "defserve.protocols.mgp.security": "Security dangerous moderate safe validator",
            "defserve.proxying.targets": "Command Remote",
            "defserve.search.entries": "ToolBudget",
            "defserve.search.ranking": "Search",
            "defserve.server.rare_declarations": "app completion prompt resource tool",
            "defserve.server.server": "Server",
            "defserve.stores.audit.log_file": "AuditLog",
            "defserve.stores.checkpoints.checkpoint_tree": "Checkpoint",
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
