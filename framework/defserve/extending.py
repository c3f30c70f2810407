"""What authors of extensions and stores import. `Extension` says what an extension may contribute."""

from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Listener, Next, Offer, Provider, Stages, Wrapper
from defserve.core.peer import Profile
from defserve.core.session import Session
from defserve.protocols.mcp.numbered_errors import NumberedErrors
from defserve.protocols.mcp.prompts import Prompt, PromptOptions
from defserve.protocols.mcp.resources import Resource, ResourceOptions
from defserve.protocols.mcp.tools import Tool, ToolOptions
from defserve.protocols.mcp.transforms import Argument, Transform
from defserve.stores.store import (
    Store,
    StoreBusy,
    StoreChange,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

__all__ = [
    "Argument",
    "Call",
    "Extension",
    "Handler",
    "Listener",
    "Next",
    "NumberedErrors",
    "Offer",
    "Profile",
    "Prompt",
    "PromptOptions",
    "Provider",
    "Resource",
    "ResourceOptions",
    "Session",
    "Stages",
    "Store",
    "StoreBusy",
    "StoreChange",
    "StoreCorrupt",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "Tool",
    "ToolOptions",
    "Transform",
    "Wrapper",
]
