"""The schemas of MGP's messages know every message there is, take the text's own examples, and find what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from defserve import Server
from tests.protocols.mgp.messages import check_notification, problems, sections_of_the_text, validator
from tests.rows import for_each_row

INSTANT = "2026-02-27T12:00:00.000Z"

# Message, part, and the example in the text.
EXAMPLES: list[tuple[str, str, Any]] = [
    (
        "mgp/permission/request",
        "params",
        {
            "request_id": "perm-001",
            "permissions": ["shell.execute", "filesystem.read"],
            "policy": "interactive",
            "message": "Waiting for operator approval",
        },
    ),
    (
        "mgp/permission/request",
        "result",
        {
            "request_id": "perm-001",
            "grants": {"shell.execute": "approved", "filesystem.read": "approved"},
            "approved_by": "admin",
            "expires_at": "2026-03-01T00:00:00Z",
        },
    ),
    (
        "mgp/access/query",
        "result",
        {
            "permission": "allow",
            "source": "server_grant",
            "granted_by": "admin",
            "granted_at": "2026-02-27T12:00:00Z",
            "expires_at": None,
        },
    ),
    (
        "mgp/access/grant",
        "params",
        {
            "entry_type": "server_grant",
            "agent_id": "agent.cloto_default",
            "server_id": "mind.cerebras",
            "tool_name": None,
            "permission": "allow",
            "granted_by": "admin",
            "justification": "Required for agent reasoning",
            "expires_at": None,
        },
    ),
    (
        "notifications/mgp.audit",
        "params",
        {
            "timestamp": INSTANT,
            "trace_id": "550e8400-e29b-41d4-a716-446655440000",
            "event_type": "TOOL_EXECUTED",
            "actor": {"type": "agent", "id": "agent.cloto_default"},
            "target": {"server_id": "tool.terminal", "tool_name": "execute_command"},
            "result": "SUCCESS",
            "details": {"risk_level": "dangerous", "validator_applied": "sandbox", "duration_ms": 1200},
        },
    ),
    (
        "mgp/health/ping",
        "result",
        {"status": "healthy", "timestamp": INSTANT, "uptime_secs": 3600, "server_id": "mind.cerebras"},
    ),
    (
        "mgp/lifecycle/shutdown",
        "result",
        {"accepted": True, "pending_requests": 2, "estimated_drain_ms": 5000},
    ),
    (
        "notifications/mgp.lifecycle",
        "params",
        {
            "server_id": "mind.cerebras",
            "previous_state": "connected",
            "new_state": "draining",
            "reason": "operator_request",
            "timestamp": INSTANT,
        },
    ),
    (
        "notifications/mgp.stream.chunk",
        "params",
        {"request_id": 20, "index": 0, "content": {"type": "text", "text": "Quantum computing is"}, "done": False},
    ),
    (
        "mgp/events/subscribe",
        "result",
        {"subscribed": ["model.token_usage", "system.error"], "unsupported": [], "subscription_id": "sub-001"},
    ),
    (
        "notifications/mgp.callback.request",
        "params",
        {
            "callback_id": "cb-001",
            "request_id": 20,
            "type": "confirmation",
            "message": "This operation will delete 15 files. Continue?",
            "options": ["confirm", "cancel"],
            "timeout_ms": 60000,
        },
    ),
    (
        "",
        "security",
        {
            "risk_level": "dangerous",
            "permissions_required": ["code_execution"],
            "validator": "code_safety",
            "code_safety": {
                "level": "standard",
                "language": "python",
                "max_code_size_bytes": 10000,
                "blocked_imports": ["subprocess"],
                "blocked_patterns": ["eval("],
                "allowed_imports": ["asyncio"],
            },
        },
    ),
    (
        "",
        "coded_error",
        {
            "code": 3000,
            "message": "Rate limited: 10 requests per minute exceeded",
            "data": {
                "_mgp": {
                    "category": "resource",
                    "retryable": True,
                    "retry_after_ms": 5000,
                    "retry_strategy": "exponential_backoff",
                    "max_retries": 3,
                    "details": {"limit": 10, "window_secs": 60, "current": 12},
                }
            },
        },
    ),
    (
        "mgp/tools/discover",
        "params",
        {
            "query": "read file contents from disk",
            "strategy": "semantic",
            "max_results": 5,
            "filter": {"categories": ["filesystem"], "risk_level_max": "moderate", "status": "connected"},
        },
    ),
    (
        "mgp/tools/discover",
        "result",
        {
            "tools": [
                {
                    "name": "read_file",
                    "server_id": "tool.terminal",
                    "description": "Read the contents of a file at the given path",
                    "relevance_score": 0.95,
                    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
                    "security": {
                        "risk_level": "moderate",
                        "permissions_required": ["filesystem.read"],
                        "validator": "sandbox",
                    },
                }
            ],
            "total_available": 47,
            "search_strategy": "semantic",
            "query_time_ms": 12,
        },
    ),
    (
        "mgp/tools/request",
        "params",
        {
            "reason": "capability_gap",
            "context": "Processing CSV data but need statistical analysis functions",
            "requirements": {
                "capabilities": ["data_analysis", "statistics"],
                "input_types": ["csv", "tabular_data"],
                "output_types": ["numeric", "chart"],
                "preferred_risk_level": "safe",
            },
            "task_trace_id": "550e8400-e29b-41d4-a716-446655440000",
        },
    ),
    (
        "mgp/tools/request",
        "result",
        {
            "status": "fulfilled",
            "tools_loaded": [
                {
                    "name": "analyze_csv",
                    "server_id": "tool.data_processing",
                    "description": "Compute statistics on CSV data",
                    "inputSchema": {},
                    "security": {"risk_level": "safe", "permissions_required": ["memory.read"]},
                }
            ],
            "tools_unavailable": [],
            "session_tools_count": 4,
            "context_tokens_added": 380,
        },
    ),
    (
        "mgp/tools/session",
        "result",
        {
            "pinned": ["think", "store", "recall"],
            "cached": ["read_file", "analyze_csv"],
            "total_tokens": 2100,
            "max_tokens": 8000,
        },
    ),
    (
        "mgp/discovery/list",
        "params",
        {"filter": {"extensions": ["streaming"], "permissions": ["network.outbound"], "status": "connected"}},
    ),
    (
        "mgp/discovery/list",
        "result",
        {
            "servers": [
                {
                    "id": "mind.cerebras",
                    "status": "connected",
                    "mgp_version": "0.1.0",
                    "extensions": ["security", "lifecycle", "streaming"],
                    "tools": ["think", "analyze"],
                    "trust_level": "standard",
                }
            ]
        },
    ),
    (
        "mgp/discovery/register",
        "params",
        {
            "id": "dynamic.custom_tool",
            "command": "python",
            "args": ["scripts/mcp_custom.py"],
            "transport": "stdio",
            "mgp": {
                "extensions": ["security"],
                "permissions_required": ["network.outbound"],
                "trust_level": "sandboxed",
            },
            "created_by": "agent.cloto_default",
            "justification": "Agent needs custom data processing tool",
        },
    ),
    ("mgp/discovery/deregister", "params", {"id": "dynamic.custom_tool", "reason": "no_longer_needed"}),
    ("mgp/tools/session/evict", "params", {"tools": ["analyze_csv"], "reason": "no_longer_needed"}),
]


def test_every_method_has_a_schema_of_its_params_and_its_result():
    for method in Server("files", "1").mgp.methods():
        assert validator(method, "params") is not None, method
        assert validator(method, "result") is not None, method


@pytest.mark.slow
def test_the_schemas_are_schemas():
    defs, messages = sections_of_the_text()
    for schema in (*defs.values(), *(part for message in messages.values() for part in message.values())):
        if isinstance(schema, dict):
            Draft202012Validator.check_schema(schema)


@for_each_row(("method", "part", "example"), EXAMPLES)
def test_the_examples_of_the_text_pass_and_without_a_field_they_do_not(method: str, part: str, example: Any):
    assert problems(method, part, example) == []
    found = validator(method, part)
    assert found is not None
    needed = [name for name in example if problems(method, part, {**example, name: object()})]
    assert needed, "a schema that refuses nothing checks nothing"


def test_a_notification_that_nobody_has_described_is_found():
    assert check_notification(b'{"jsonrpc":"2.0","method":"notifications/mgp.new","params":{}}')


@pytest.mark.parametrize(
    "error",
    [
        {"code": 1000, "message": "no"},
        {"code": 1000, "message": "no", "data": {}},
        {"code": 1000, "message": "no", "data": {"_mgp": {"category": "other", "retryable": False}}},
        {"code": 1999, "message": "no", "data": {"_mgp": {"category": "security", "retryable": False}}},
    ],
)
def test_an_error_without_what_a_client_may_do_about_it_is_found(error: Any):
    assert problems("", "coded_error", error)
