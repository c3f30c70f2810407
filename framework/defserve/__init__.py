"""defserve: write a `def`, serve it. A framework for tool servers (MCP, and what extends it).

Here is what plain authoring needs. The rest is in modules named by their subject: `defserve.auth`, `defserve.client`,
`defserve.live`, `defserve.state`, `defserve.topics`, `defserve.testing`, `defserve.extending`.
"""

from __future__ import annotations

from defserve.base.exports import make_lazy_getattr
from defserve.base.version import VERSION as __version__

# Not that of `typing`, which takes long to import: while a command imports this, Ctrl-C shows a traceback.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from defserve.auth import JWT, ApiKeys, Auth
    from defserve.binding.content import Audio, Embedded, File, Image, Link, Text, ToolResult
    from defserve.binding.injection import Depends
    from defserve.client import Client
    from defserve.context import Context
    from defserve.errors import Declined, Dismissed, Refused, ToolError, UsageError
    from defserve.guard.argument_types import Code, PublicUrl, Shell, ShellCommand, Url, Within
    from defserve.limits import Limits
    from defserve.protocols.mcp.asking.client_features import Assistant, Message, SampleOptions, User
    from defserve.protocols.mcp.lifecycle import Icon
    from defserve.protocols.mcpl.state.binding import State
    from defserve.protocols.mgp.security import Security, dangerous, moderate, safe, validator
    from defserve.proxying.targets import Command, Remote
    from defserve.server.rare_declarations import app, completion, prompt, resource, tool
    from defserve.server.server import Server
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.auth": "ApiKeys Auth JWT",
            "defserve.binding.content": "Audio Embedded File Image Link Text ToolResult",
            "defserve.binding.injection": "Depends",
            "defserve.client": "Client",
            "defserve.context": "Context",
            "defserve.errors": "Declined Dismissed Refused ToolError UsageError",
            "defserve.guard.argument_types": "Code PublicUrl Shell ShellCommand Url Within",
            "defserve.limits": "Limits",
            "defserve.protocols.mcp.asking.client_features": "Assistant Message SampleOptions User",
            "defserve.protocols.mcp.lifecycle": "Icon",
            "defserve.protocols.mcpl.state.binding": "State",
            "defserve.protocols.mgp.security": "Security dangerous moderate safe validator",
            "defserve.proxying.targets": "Command Remote",
            "defserve.server.rare_declarations": "app completion prompt resource tool",
            "defserve.server.server": "Server",
        },
        # Names from elsewhere: what other frameworks call a server, and what a module named by its subject holds.
        {
            "defserve.auth": "OAuthProxy OIDC Principal StaticTokens TokenVerifier",
            "defserve.code_mode": "CodeMode",
            "defserve.errors": "NoBackChannel PeerError Rejected",
            "defserve.extending": (
                "Argument Extension NumberedErrors Prompt PromptOptions Resource ResourceOptions Tool ToolOptions "
                "Transform"
            ),
            "defserve.guard": "Egress FileTypes Upload Verdict",
            "defserve.kernel": "Kernel",
            "defserve.live": "Channel Event FeatureDisabled Inference Injection Rewrite Scope Turn everyone",
            "defserve.search": "Search ToolBudget",
            "defserve.server": "AccessPolicy AuditLog AuditLogger Entry EventChannel EventSettings Metrics Telemetry",
            "defserve.state": "CannotUndo Checkpoint CheckpointNotFound States",
            "defserve.testing": "SyncClient",
            "defserve.topics": "ApprovalRules Chat Participant Proposal",
        },
        {"FastMCP": "Server", "MCPServer": "Server", "McpServer": "Server"},
    )

__all__ = [
    "ApiKeys",
    "Assistant",
    "Audio",
    "Auth",
    "Client",
    "Code",
    "Command",
    "Context",
    "Declined",
    "Depends",
    "Dismissed",
    "Embedded",
    "File",
    "Icon",
    "Image",
    "JWT",
    "Limits",
    "Link",
    "Message",
    "PublicUrl",
    "Refused",
    "Remote",
    "SampleOptions",
    "Security",
    "Server",
    "Shell",
    "ShellCommand",
    "State",
    "Text",
    "ToolError",
    "ToolResult",
    "Url",
    "UsageError",
    "User",
    "Within",
    "__version__",
    "app",
    "completion",
    "dangerous",
    "moderate",
    "prompt",
    "resource",
    "safe",
    "tool",
    "validator",
]
