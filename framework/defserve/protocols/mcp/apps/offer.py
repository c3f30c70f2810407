"""What a client that can show views offers (apps: capability negotiation)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.wire.jsonvalue import is_array, is_mapping

EXTENSION: Final = "io.modelcontextprotocol/ui"
SCHEME: Final = "ui://"
MIME_TYPE: Final = "text/html;profile=mcp-app"
OFFER: Final[Mapping[str, Any]] = {"extensions": {EXTENSION: {"mimeTypes": [MIME_TYPE]}}}


def offers_apps(capabilities: Mapping[str, Any]) -> bool:
    """Whether a client can show views. Servers have nothing to offer in return."""
    extensions: Any = capabilities.get("extensions")
    offered: Any = extensions.get(EXTENSION) if is_mapping(extensions) else None
    kinds: Any = offered.get("mimeTypes") if is_mapping(offered) else None
    return is_array(kinds) and MIME_TYPE in kinds
