"""JSON Schemas for the messages of the 0.5 draft, as servers write them: what they send, and what they answer."""

from __future__ import annotations

from typing import Any

from tests.protocols.mcpl.appendix_b import BEFORE_INFERENCE_RESULT, CONTENT_BLOCK, validate

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
TEXTS: Json = {"type": "array", "items": TEXT}
FLAG: Json = {"type": "boolean"}
OBJECT: Json = {"type": "object"}
INSTANT: Json = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z$"}
REVISION: Json = {"type": "string", "pattern": r"^sha256:[A-Za-z0-9_-]{43}$"}
CONTENT: Json = {"type": "array", "items": CONTENT_BLOCK}
TAGS: Json = {"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "^[^:]+:.+$"}}

# The closed vocabulary of capability paths.
PATHS = (
    "tools",
    "pushEvents",
    "modelInfo",
    "inferenceRequest",
    "inferenceRequest.streaming",
    "inferenceLifecycle",
    "contextHooks.beforeInference.observe",
    "contextHooks.beforeInference.inject.system",
    "contextHooks.beforeInference.inject.beforeUser",
    "contextHooks.beforeInference.inject.afterUser",
    "channels.register",
    "channels.lifecycle",
    "channels.publish",
    "channels.incoming",
    "channels.streaming",
    "channels.acknowledge",
    "channels.typing",
)


def exactly(required: Json, optional: Json | None = None) -> Json:
    """An object with these members and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


FEATURE_SET = exactly(
    {
        "description": TEXT,
        "uses": {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": list(PATHS)}},
    },
    {"rollback": {"const": True}, "tagOntology": OBJECT},
)
INJECT = dict.fromkeys(("system", "beforeUser", "afterUser"), FLAG)
MANIFEST = exactly(
    {"version": {"const": "0.5"}, "featureSets": {"type": "object", "additionalProperties": FEATURE_SET}},
    {
        "revision": REVISION,
        "pushEvents": FLAG,
        "modelInfo": FLAG,
        "inferenceLifecycle": FLAG,
        "inferenceRequest": exactly({}, {"streaming": FLAG}),
        "contextHooks": exactly({"beforeInference": exactly({}, {"observe": FLAG, "inject": exactly({}, INJECT)})}),
        "channels": exactly(
            {},
            dict.fromkeys(("register", "lifecycle", "publish", "incoming", "streaming", "acknowledge", "typing"), FLAG),
        ),
    },
)
UNAVAILABLE = exactly({"featureSet": TEXT, "missingCapabilities": TEXTS, "effect": {"enum": ["disabled", "degraded"]}})
RECEIPT: Json = {
    "oneOf": [
        exactly(
            {"accepted": {"const": True}},
            {
                "mode": {"const": "degraded"},
                "unavailableFeatures": {"type": "array", "minItems": 1, "items": UNAVAILABLE},
                "notes": TEXTS,
            },
        ),
        exactly(
            {"accepted": {"const": False}, "fallback": {"enum": ["mcp-only", "close"]}},
            {
                "missingCapabilities": TEXTS,
                "reason": TEXT,
                "unavailableFeatures": {"type": "array", "items": UNAVAILABLE},
                "notes": TEXTS,
            },
        ),
    ]
}
DESCRIPTOR = exactly(
    {"id": TEXT, "type": TEXT, "label": TEXT, "direction": {"enum": ["outbound", "inbound", "bidirectional"]}},
    {"address": OBJECT, "metadata": OBJECT, "capabilities": OBJECT},
)
MESSAGE = exactly(
    {
        "channelId": TEXT,
        "messageId": TEXT,
        "author": exactly({"id": TEXT, "name": TEXT}),
        "timestamp": INSTANT,
        "content": CONTENT,
    },
    {"threadId": TEXT, "metadata": OBJECT, "tags": TAGS},
)

CHECKPOINT: Json = {"featureSet": TEXT, "checkpoint": TEXT, "parent": {"type": ["string", "null"]}}

# What a server may send to a host: method → its params.
FROM_SERVER: Json = {
    "push/event": exactly(
        {"featureSet": TEXT, "eventId": TEXT, "timestamp": INSTANT, "payload": exactly({"content": CONTENT})},
        {"origin": OBJECT, "tags": TAGS},
    ),
    "inference/request": exactly(
        {"featureSet": TEXT, "messages": {"type": "array", "minItems": 1}},
        {"conversationId": TEXT, "stream": FLAG, "preferences": OBJECT},
    ),
    "model/info": exactly({}),
    "channels/register": exactly({"channels": {"type": "array", "items": DESCRIPTOR}}),
    "channels/changed": exactly(
        {},
        {
            "added": {"type": "array", "items": DESCRIPTOR},
            "updated": {"type": "array", "items": DESCRIPTOR},
            "removed": TEXTS,
        },
    ),
    "channels/list": exactly({}),
    "channels/incoming": exactly({"messages": {"type": "array", "minItems": 1, "items": MESSAGE}}),
    "mcpl/manifestChanged": exactly(
        {
            "revision": REVISION,
            "domains": {"type": "array", "items": {"enum": ["capabilities", "featureSets", "tagOntology"]}},
        }
    ),
    "state/update": {
        "oneOf": [exactly(CHECKPOINT | more) for more in ({}, {"data": {}}, {"patch": {"type": "array"}})]
    },
    "state/get": exactly({"featureSet": TEXT}),
}

# What a server answers: method → its result.
ANSWERS: Json = {
    "featureSets/update": RECEIPT,
    "mcpl/manifest": MANIFEST,
    "context/beforeInference": BEFORE_INFERENCE_RESULT,
    "state/rollback": exactly({"checkpoint": TEXT, "success": FLAG}, {"reason": TEXT}),
    "channels/list": exactly({"channels": {"type": "array", "items": DESCRIPTOR}}),
    "channels/open": exactly(
        {"channel": DESCRIPTOR}, {"history": {"type": "array", "items": MESSAGE}, "historyTruncated": FLAG}
    ),
    "channels/close": exactly({"closed": FLAG}),
    "channels/publish": exactly({"delivered": FLAG}, {"messageId": TEXT}),
    "channels/acknowledge": exactly({"acknowledged": FLAG}, {"representation": TEXT, "reason": TEXT}),
}

# What a host may send to a server: method → its params.
NUMBER: Json = {"type": "integer", "minimum": 0}
USAGE = exactly({"inputTokens": NUMBER, "outputTokens": NUMBER})
MODEL = exactly({"id": TEXT, "vendor": TEXT, "capabilities": TEXTS}, {"contextWindow": NUMBER})
TURN: Json = {"inferenceId": TEXT, "conversationId": TEXT, "turnIndex": NUMBER}
OUTGOING: Json = {"inferenceId": TEXT, "conversationId": TEXT, "channelId": TEXT}
TURN_CHANNELS = exactly({}, {"incoming": OBJECT, "defaultOutgoing": OBJECT, "candidates": TEXTS})
FROM_HOST: Json = {
    "featureSets/update": exactly(
        {"effectiveCapabilities": {"type": "array", "uniqueItems": True, "items": {"enum": list(PATHS)}}},
        {"deniedCapabilities": TEXTS, "enabled": TEXTS, "disabled": TEXTS},
    ),
    "mcpl/manifest": exactly({}),
    "context/beforeInference": exactly(
        {**TURN, "userMessage": {"type": ["string", "null"]}}, {"model": MODEL, "channels": TURN_CHANNELS}
    ),
    "inference/lifecycle": exactly(
        {**TURN, "phase": {"enum": ["started", "completed", "aborted", "failed"]}}, {"model": MODEL, "usage": USAGE}
    ),
    "inference/chunk": exactly({"requestId": {"type": ["string", "integer"]}, "index": NUMBER, "delta": TEXT}),
    "state/rollback": exactly({"featureSet": TEXT, "checkpoint": TEXT}),
    "channels/list": exactly({}),
    "channels/open": exactly(
        {}, {"type": TEXT, "address": {}, "metadata": OBJECT, "channelId": TEXT, "history": OBJECT}
    ),
    "channels/close": exactly({"channelId": TEXT}),
    "channels/publish": exactly({"channelId": TEXT, "content": CONTENT}, {"conversationId": TEXT, "stream": FLAG}),
    "channels/acknowledge": exactly({"channelId": TEXT, "messageId": TEXT, "intent": TEXT}, {"value": {}}),
    "channels/typing": exactly({"channelId": TEXT}, {"op": {"enum": ["start", "stop"]}, "metadata": OBJECT}),
    "channels/outgoing/chunk": exactly({**OUTGOING, "index": NUMBER, "delta": TEXT}),
    "channels/outgoing/complete": exactly({**OUTGOING, "content": CONTENT}),
}

# What a host answers: method → its result.
VERDICT = exactly({"id": TEXT, "accepted": FLAG}, {"reason": TEXT})
HOST_ANSWERS: Json = {
    "push/event": exactly({"accepted": FLAG}, {"inferenceId": TEXT, "reason": TEXT}),
    "inference/request": exactly({"content": TEXT, "model": TEXT, "finishReason": TEXT}, {"usage": USAGE}),
    "model/info": MODEL,
    "channels/register": exactly({"results": {"type": "array", "items": VERDICT}}, {"registered": TEXTS}),
    "channels/changed": exactly({"results": {"type": "array", "items": VERDICT}}),
    "channels/list": exactly({"channels": {"type": "array", "items": DESCRIPTOR}}),
    "channels/incoming": exactly(
        {
            "results": {
                "type": "array",
                "items": exactly({"messageId": TEXT, "accepted": FLAG}, {"conversationId": TEXT, "reason": TEXT}),
            }
        }
    ),
    "state/update": exactly({"accepted": FLAG}, {"reason": TEXT}),
    "state/get": exactly({"checkpoint": {"type": ["string", "null"]}, "data": {}}),
}

# Methods of MCP itself that a server may send.
PLAIN = ("notifications/", "ping", "roots/", "sampling/", "elicitation/")


def check_sent(method: str, params: Json) -> None:
    """Whether a server may send this to a host of 0.5."""
    if not method.startswith(PLAIN):
        assert method in FROM_SERVER, f"{method} is not part of 0.5"
        validate(params, FROM_SERVER[method])


def check_answered(method: str, reply: Json) -> None:
    """Whether a server may answer like this. The codes are those of appendix A."""
    if "result" in reply:
        if method in ANSWERS:
            validate(reply["result"], ANSWERS[method])
        return
    data = reply["error"].get("data") or {}
    assert "canEnable" not in data
    needed = {-32001: "featureSet", -32002: "capability", -32003: "featureSet", -32005: "checkpoint"}
    if not method.startswith("tools/") and reply["error"]["code"] in needed:
        assert needed[reply["error"]["code"]] in data


MCP_OF_HOSTS = ("notifications/", "initialize", "ping", "tools/", "resources/", "prompts/", "server/", "logging/")


def check_sent_by_host(method: str, params: Json) -> None:
    """Whether a host may send this to a server of 0.5."""
    if not method.startswith(MCP_OF_HOSTS):
        assert method in FROM_HOST, f"{method} is not part of 0.5"
        validate({name: value for name, value in params.items() if name != "_meta"}, FROM_HOST[method])


def check_answered_by_host(method: str, reply: Json) -> None:
    """Whether a host may answer a server like this."""
    if "error" in reply:
        assert "canEnable" not in (reply["error"].get("data") or {})
    elif method in HOST_ANSWERS:
        validate(reply["result"], HOST_ANSWERS[method])
