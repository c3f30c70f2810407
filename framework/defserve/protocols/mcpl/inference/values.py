"""MCPL §11.2–11.3: what a host is asked to infer, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from defserve.binding.content import Text
from defserve.errors import PeerError
from defserve.protocols.mcp.asking.sampling import Message, Sample
from defserve.protocols.mcpl import content
from defserve.protocols.mcpl.turns import Usage
from defserve.wire.jsonvalue import is_array, is_mapping, is_object
from defserve.wire.messages import Params

METHOD = "inference/request"

Messages: TypeAlias = str | Sequence[Message | str | Mapping[str, Any]]

# Why a sampled model stopped, in the words of §11.3.
STOP_REASONS = {"endTurn": "end_turn", "maxTokens": "max_tokens", "stopSequence": "stop_sequence"}
# The words of hosts that use others.
HOST_REASONS = {**STOP_REASONS, "stop": "end_turn", "length": "max_tokens"}


@dataclass(frozen=True, slots=True)
class Inference:
    """What the host's model wrote. `finish_reason` is `end_turn`, `max_tokens`, `stop_sequence`, or the host's own
    word."""

    content: str
    model: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None

    def __str__(self) -> str:
        return self.content

    @classmethod
    def read(cls, answer: Any) -> Inference:
        """A host's answer to `inference/request`. Raises PeerError for one without content."""
        written = answer.get("content") if is_object(answer) else None
        if is_array(written):  # some hosts answer in blocks
            written = "".join(block.get("text", "") for block in written if is_object(block))
        if not isinstance(written, str):
            raise PeerError(f"the host's answer to {METHOD} has the wrong shape")
        usage, model, reason = (answer.get(member) for member in ("usage", "model", "finishReason"))
        return cls(
            written,
            model if isinstance(model, str) else "",
            HOST_REASONS.get(reason, reason) if isinstance(reason, str) else None,
            Usage.read(usage) if is_object(usage) else None,
        )

    @classmethod
    def of_sample(cls, sample: Sample) -> Inference:
        """What MCP's sampling gave instead."""
        reason = sample.stop_reason
        return cls(sample.text, sample.model, STOP_REASONS.get(reason, reason) if reason is not None else None)


@dataclass(frozen=True, slots=True)
class InferenceParams:
    """What a host is asked for; see `FeatureSet.infer`."""

    messages: Messages
    max_tokens: int | None = None
    temperature: float | None = None
    conversation: str | None = None
    preferences: Mapping[str, Any] | None = None
    timeout: float | None = None

    @property
    def message_list(self) -> Sequence[Message | str | Mapping[str, Any]]:
        return [self.messages] if isinstance(self.messages, str) else self.messages

    def wire(self, name: str, *, stream: bool) -> Params:
        """The params of `inference/request` (§11.2), for a feature set's name."""
        params: Params = {"featureSet": name}
        if self.conversation is not None:
            params["conversationId"] = self.conversation
        params["stream"] = stream
        params["messages"] = [_message(message) for message in self.message_list]
        known = {"maxTokens": self.max_tokens, "temperature": self.temperature}
        preferences = {**(self.preferences or {}), **{k: v for k, v in known.items() if v is not None}}
        if preferences:
            params["preferences"] = preferences
        return params


def _message(message: Message | str | Mapping[str, Any]) -> Params:
    if isinstance(message, str):
        return {"role": "user", "content": message}
    if is_mapping(message):
        return dict(message)
    assert isinstance(message, Message)
    part = message.content
    return {"role": message.role, "content": part.text if isinstance(part, Text) else content.blocks(part)}
