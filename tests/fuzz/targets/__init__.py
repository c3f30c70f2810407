"""The targets: functions of bytes that raise if something is wrong."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

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


def hash_code(name: str) -> str:
    """Of the modules that a target runs: itself and what it has imported of ours. In a process of its own."""
    target(name)(b"")  # imports what it imports late
    ours = [module for at, module in sorted(sys.modules.items()) if at.startswith(("defserve", __name__))]
    code = [Path(module.__file__).read_bytes() for module in ours if module.__file__]
    return hashlib.sha256(b"".join(code)).hexdigest()[:12]
