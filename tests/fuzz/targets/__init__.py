"""The targets: functions of bytes that raise if something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

# Name → where it is. Imported when it is asked for: the engine watches what the import brings.
TARGETS = {
    "codec": "parsers:codec",
    "framing": "parsers:framing",
    "sse": "parsers:server_sent_events",
    "http-responses": "parsers:http_responses",
    "uri-templates": "parsers:uri_templates",
    "known-heads": "parsers:known_heads",
    "envelopes": "parsers:envelopes",
    "shell": "judged:commands",
    "paths": "judged:files",
    "network": "judged:addresses",
    "code": "judged:code",
    "checkpoints": "judged:checkpoints",
    "patches": "judged:patches",
    "http-server": "served:http",
    "websocket": "served:websocket",
    "mcp": "sessions:mcp",
    "mgp": "sessions:mgp",
    "mcpl": "sessions:mcpl",
    "mcpx": "sessions:mcpx",
}

Target = Callable[[bytes], None]


def target(name: str) -> Target:
    module, _, function = TARGETS[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)
