"""The exchanges of MCPL §15 from the host's side, message by message."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Text
from defserve.client import Mcpl
from defserve.protocols.mcpl.content import ModelInfo, Turn, Usage
from tests.client.mcpl.scripted import MEMORY, Json, LiveServer, hosting, live_server

pytestmark = pytest.mark.anyio

OPUS = ModelInfo("claude-opus-4-5-20251101", "anthropic", 200_000, ("vision",))
OPUS_WIRE: Json = {
    "id": "claude-opus-4-5-20251101",
    "vendor": "anthropic",
    "contextWindow": 200000,
    "capabilities": ["vision"],
}


def sent(server: LiveServer, method: str) -> Json:
    """The only message of a method, whatever its id."""
    (found,) = [{**message} for message in server.sent if message.get("method") == method]
    if "id" in found:
        found["id"] = "any"
    return found


@pytest.mark.req("MCPL-15")
async def test_memory_retrieval():
    memories = "<memories>\nScaling mannequin installation to 8-10 units. DMX lighting, X32 audio routing.\n</memories>"
    answer: Json = {
        "featureSet": "memory.retrieval",
        "contextInjections": [
            {
                "namespace": "memory",
                "position": "system",
                "content": [{"type": "text", "text": memories}],
                "metadata": {"memoryIds": ["mem_a1", "mem_a2"]},
            }
        ],
    }
    server = live_server(MEMORY, {"context/beforeInference": answer})
    async with hosting(server) as mcpl:
        (found,) = await mcpl.before_inference(
            Turn(
                inference_id="inf_xyz",
                conversation_id="conv_123",
                turn_index=7,
                user_message="How's the mannequin project?",
                model=OPUS,
            )
        )
    assert sent(server, "context/beforeInference") == {
        "jsonrpc": "2.0",
        "method": "context/beforeInference",
        "id": "any",
        "params": {
            "inferenceId": "inf_xyz",
            "conversationId": "conv_123",
            "turnIndex": 7,
            "userMessage": "How's the mannequin project?",
            "model": OPUS_WIRE,
        },
    }
    assert (found.feature_set, found.namespace, found.position) == ("memory.retrieval", "memory", "system")
    assert (found.content, found.metadata) == ([Text(memories)], {"memoryIds": ["mem_a1", "mem_a2"]})


@pytest.mark.req("MCPL-15")
async def test_proactive_reminder():
    server = live_server(MEMORY)
    async with hosting(server, Mcpl(on_event=lambda event: "inf_xyz", audit=[])):
        reminder: Json = {
            "jsonrpc": "2.0",
            "method": "push/event",
            "id": 10,
            "params": {
                "featureSet": "memory.proactive",
                "eventId": "evt_reminder_001",
                "timestamp": "2026-01-23T14:00:00Z",
                "origin": {"server": "memory", "memoryId": "mem_followup"},
                "payload": {"content": [{"type": "text", "text": "You mentioned following up with Alice today"}]},
            },
        }
        server.say(reminder)
        reply = await server.told(lambda message: message.get("id") == 10)
    assert reply == {"jsonrpc": "2.0", "id": 10, "result": {"accepted": True, "inferenceId": "inf_xyz"}}


@pytest.mark.req("MCPL-15")
async def test_redaction():
    block: Json = {
        "version": "0.4",
        "contextHooks": {"afterInference": {"blocking": True}},
        "featureSets": {
            "compliance.redaction": {
                "description": "Redact secrets and PII from responses",
                "uses": ["contextHooks.afterInference"],
            }
        },
    }
    answer: Json = {
        "featureSet": "compliance.redaction",
        "modifiedResponse": "The API key is [REDACTED]...",
        "metadata": {"redactions": [{"type": "api_key"}]},
    }
    server = live_server(block, {"context/afterInference": answer}, name="compliance")
    turn = Turn(
        inference_id="inf_abc",
        conversation_id="conv_456",
        turn_index=3,
        user_message="What's the API key?",
        model=OPUS,
    )
    async with hosting(server) as mcpl:
        said: Any = await mcpl.after_inference(turn, "The API key is sk-1234567890abcdef...", Usage(50, 20))
    assert sent(server, "context/afterInference") == {
        "jsonrpc": "2.0",
        "method": "context/afterInference",
        "id": "any",
        "params": {
            "inferenceId": "inf_abc",
            "conversationId": "conv_456",
            "turnIndex": 3,
            "userMessage": "What's the API key?",
            "assistantMessage": "The API key is sk-1234567890abcdef...",
            "model": OPUS_WIRE,
            "usage": {"inputTokens": 50, "outputTokens": 20},
        },
    }
    assert said.text == "The API key is [REDACTED]..."
    assert said.rewrites[0].metadata == {"redactions": [{"type": "api_key"}]}
    assert sent(server, "featureSets/update")["params"] == {"enabled": ["compliance.redaction"], "disabled": []}
