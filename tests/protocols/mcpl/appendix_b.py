"""The JSON Schemas of appendix B, word for word, and those that follow from the tables of §10."""

from __future__ import annotations

from typing import Any

import jsonschema

_MEDIA = {"data": {"type": "string"}, "mimeType": {"type": "string"}, "uri": {"type": "string"}}
_EITHER = [{"required": ["type", "data", "mimeType"]}, {"required": ["type", "uri"]}]

CONTENT_BLOCK: dict[str, Any] = {
    "oneOf": [
        {
            "type": "object",
            "required": ["type", "text"],
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        },
        {"type": "object", "properties": {"type": {"const": "image"}, **_MEDIA}, "oneOf": _EITHER},
        {"type": "object", "properties": {"type": {"const": "audio"}, **_MEDIA}, "oneOf": _EITHER},
        {
            "type": "object",
            "required": ["type", "uri"],
            "properties": {"type": {"const": "resource"}, "uri": {"type": "string"}},
        },
    ]
}

FEATURE_SET: dict[str, Any] = {
    "type": "object",
    "required": ["description", "uses"],
    "properties": {
        "description": {"type": "string"},
        "uses": {
            "type": "array",
            "items": {
                "type": "string",
                "enum": [
                    "pushEvents",
                    "contextHooks.beforeInference",
                    "contextHooks.afterInference",
                    "inferenceRequest",
                    "tools",
                    "channels.publish",
                    "channels.observe",
                ],
            },
        },
    },
}

POSITION: dict[str, Any] = {"enum": ["system", "beforeUser", "afterUser"]}
FINISH_REASON: dict[str, Any] = {"enum": ["end_turn", "max_tokens", "stop_sequence"]}

INJECTION: dict[str, Any] = {
    "type": "object",
    "required": ["namespace", "position", "content"],
    "properties": {
        "namespace": {"type": "string"},
        "position": POSITION,
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": CONTENT_BLOCK}]},
        "metadata": {"type": "object"},
    },
}

BEFORE_INFERENCE_RESULT: dict[str, Any] = {
    "type": "object",
    "required": ["contextInjections"],
    "properties": {"featureSet": {"type": "string"}, "contextInjections": {"type": "array", "items": INJECTION}},
}

AFTER_INFERENCE_RESULT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "featureSet": {"type": "string"},
        "modifiedResponse": {"type": "string"},
        "metadata": {"type": "object"},
    },
}


def validate(value: Any, schema: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError."""
    jsonschema.Draft202012Validator(schema).validate(value)
