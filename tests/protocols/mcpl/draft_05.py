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
