"""`examples/compliance.py` speaks as §15.2 of the MCPL document does, message by message, over every transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .live import HOST, body

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = [pytest.mark.anyio, pytest.mark.req("MCPL-15", "MCPL-10.5b")]

CAPABILITIES = {
    "version": "0.4",
    "contextHooks": {"afterInference": {"blocking": True}},
    "featureSets": {
        "compliance.redaction": {
            "description": "Redact secrets and PII from responses",
            "uses": ["contextHooks.afterInference"],
        }
    },
}

TURN: dict[str, Any] = {
    "inferenceId": "inf_abc",
    "conversationId": "conv_456",
    "turnIndex": 3,
    "userMessage": "What's the API key?",
    "assistantMessage": "The API key is sk-1234567890abcdef...",
    "model": {"id": "claude-opus-4-5-20251101", "vendor": "anthropic", "contextWindow": 200000, "capabilities": []},
    "usage": {"inputTokens": 50, "outputTokens": 20},
}

REDACTED = {
    "featureSet": "compliance.redaction",
    "modifiedResponse": "The API key is [REDACTED]...",
    "metadata": {"redactions": [{"type": "api_key"}]},
}


async def test_the_capabilities(connect_to: ConnectTo):
    async with connect_to("compliance", capabilities=HOST) as client:
        assert client.capabilities["experimental"]["mcpl"] == CAPABILITIES


@pytest.mark.req("MCPL-6.5b")
async def test_redaction(connect_to: ConnectTo):
    async with connect_to("compliance", capabilities=HOST) as client:
        assert body(await client.request("context/afterInference", TURN)) == REDACTED
        harmless = {**TURN, "assistantMessage": "There is none."}
        assert body(await client.request("context/afterInference", harmless)) == {"featureSet": "compliance.redaction"}


@pytest.mark.req("MCPL-4.1")
async def test_a_turn_that_is_only_told_is_not_answered(connect_to: ConnectTo):
    heard: list[str] = []
    async with connect_to(
        "compliance", capabilities=HOST, on_notification=lambda method, _: heard.append(method)
    ) as client:
        if not client.stateless:
            await client.notify("context/afterInference", TURN)
        assert body(await client.request("context/afterInference", TURN)) == REDACTED
    assert heard == []
