"""MGP's methods for operators as tools, for clients that know only MCP. Each checks itself who calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.protocols.mgp.discovery.operator_tools import (
    Answer,
    OperatorToolSpec,
    object_schema,
    operator_tool,
)
from defserve.server.server import Server
from defserve.wire.messages import Params

TEXT: Final[Params] = {"type": "string"}
ENTRY: Final[Params] = {
    "entry_type": {"enum": ["server_grant", "tool_grant"]},
    "agent_id": TEXT,
    "server_id": TEXT,
    "tool_name": {"type": "string", "description": "The server's own name of the tool, for a tool_grant"},
}
NEW_ENTRY: Final[Params] = {
    **ENTRY,
    "permission": {"enum": ["allow", "deny"]},
    "justification": TEXT,
    "expires_at": {"type": "string", "format": "date-time"},
}

ACCESS_QUERY, ACCESS_GRANT, ACCESS_REVOKE = "mgp_access_query", "mgp_access_grant", "mgp_access_revoke"
HEALTH, RESTART, AUDIT = "mgp_health", "mgp_server_restart", "mgp_audit"

TOOLS: Final[Mapping[str, OperatorToolSpec]] = {
    ACCESS_QUERY: OperatorToolSpec(
        "Tell whether an agent may use a server or one of its tools, and which entry says so.",
        object_schema({"agent_id": TEXT, "server_id": TEXT, "tool_name": TEXT}, "agent_id", "server_id"),
        False,
    ),
    ACCESS_GRANT: OperatorToolSpec(
        "Allow an agent a server or one of its tools, or deny it.",
        object_schema(NEW_ENTRY, "entry_type", "agent_id", "server_id", "permission"),
        True,
    ),
    ACCESS_REVOKE: OperatorToolSpec(
        "Take back what was granted or denied.", object_schema(ENTRY, "entry_type", "agent_id", "server_id"), True
    ),
    HEALTH: OperatorToolSpec(
        "Ask one server behind this one, or all of them, whether they answer.",
        object_schema({"server_id": TEXT}),
        False,
    ),
    RESTART: OperatorToolSpec(
        "Start a server again; calls under way finish.", object_schema({"server_id": TEXT}, "server_id"), True
    ),
    AUDIT: OperatorToolSpec(
        "Read the audit log: events from a sequence number or a time on.",
        object_schema(
            {
                "since_seq": {"type": "integer", "minimum": 0},
                "since_timestamp": {"type": "string", "format": "date-time"},
                "limit": {"type": "integer", "minimum": 1},
            }
        ),
        False,
    ),
}


def add_operator_tools(server: Server, answers: Mapping[str, Answer]) -> None:
    """Add those tools for which there is an answer."""
    for name, answer in answers.items():
        server.add_tool(operator_tool(name, TOOLS[name], answer, server, _told))


def _told(value: Params) -> str:
    """The answer as lines: a list's items one by one, else the members."""
    items: Any = next((value[name] for name in ("servers", "events") if name in value), None)
    rows: list[Params] = items if items is not None else [value]
    return "\n".join(map(_line, rows)) or "Nothing."


def _line(row: Params) -> str:
    return ", ".join(f"{name}: {value}" for name, value in row.items() if value not in (None, "", [], {}))
