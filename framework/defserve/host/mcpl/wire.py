"""MCPL §10.1, §10.5, §12.2: turns and models as JSON."""

from __future__ import annotations

from defserve.host.fields import Json
from defserve.protocols.mcpl.turns import FinishedTurn, ModelInfo, Turn, TurnChannels, Usage


def turn_wire(turn: Turn) -> Json:
    """The params of a context hook. Unknown fields are left out, but `userMessage` is sent even if it is null."""
    wire: Json = {
        "inferenceId": turn.inference_id,
        "conversationId": turn.conversation_id,
        "turnIndex": turn.turn_index,
        "userMessage": turn.user_message,
    }
    if isinstance(turn, FinishedTurn):
        wire["assistantMessage"] = turn.assistant_message
    if turn.model is not None:
        wire["model"] = model_wire(turn.model)
    if isinstance(turn, FinishedTurn) and turn.usage is not None:
        wire["usage"] = usage_wire(turn.usage)
    if turn.channels is not None:
        wire["channels"] = channels_wire(turn.channels)
    return wire


def lifecycle_wire(turn: Turn, phase: str, usage: Usage | None) -> Json:
    """The params of `inference/lifecycle`, without the model. Only what was completed has a usage."""
    wire: Json = {
        "inferenceId": turn.inference_id,
        "conversationId": turn.conversation_id,
        "turnIndex": turn.turn_index,
        "phase": phase,
    }
    return {**wire, "usage": usage_wire(usage)} if usage is not None and phase == "completed" else wire


def model_wire(info: ModelInfo) -> Json:
    wire: Json = {"id": info.id, "vendor": info.vendor}
    if info.context_window is not None:
        wire["contextWindow"] = info.context_window
    return {**wire, "capabilities": list(info.capabilities)}


def usage_wire(usage: Usage) -> Json:
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}


def channels_wire(channels: TurnChannels) -> Json:
    """§14.4."""
    wire: Json = {}
    if (message := channels.incoming) is not None:
        named = {"channelId": message.channel_id, "messageId": message.message_id, "threadId": message.thread_id}
        wire["incoming"] = {name: value for name, value in named.items() if value is not None}
    if channels.default_outgoing is not None:
        wire["defaultOutgoing"] = {"channelId": channels.default_outgoing}
    if channels.candidates:
        wire["candidates"] = list(channels.candidates)
    return wire
