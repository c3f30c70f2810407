"""Parts that a server has only if its author asks for them, each imported then: tokens, code mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defserve.auth import Auth, TokenVerifier
    from defserve.code_mode.extension import CodeModeExtension
    from defserve.code_mode.options import CodeMode
    from defserve.core.extension import Extension
    from defserve.core.registry import Registry
    from defserve.limits import Limits
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.tool_discovery.setup import ToolSearch


def token_checks(auth: Auth | TokenVerifier | Sequence[TokenVerifier], limits: Limits) -> tuple[Auth, Extension]:
    """How tokens are checked, and the extension for their scopes and rates."""
    from defserve.auth.buckets import Rate
    from defserve.auth.options import as_auth
    from defserve.protocols.mcp.authorization.authorization import Authorization

    return as_auth(auth), Authorization(Rate(limits.rate, limits.burst))


def code_mode_of(
    options: bool | CodeMode, registry: Registry[Tool], search: ToolSearch | None
) -> tuple[CodeModeExtension, list[Tool]]:
    """Code mode for the tools of a registry, and the tools that it adds to them. A search finds these always."""
    from defserve.code_mode.extension import CodeModeExtension
    from defserve.code_mode.options import read_code_mode

    mode = CodeModeExtension(read_code_mode(options), registry)
    if search is not None:
        mode.discover = search.section.discover
        search.section.always |= mode.names
    return mode, list(mode.tools())
