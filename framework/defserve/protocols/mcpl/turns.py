"""MCPL §10: a turn of a conversation as context hooks see it, and what hooks may return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcp.params import optional_fields, text
from defserve.protocols.mcpl.content import Sendable, blocks
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

Position = Literal["system", "beforeUser", "afterUser", "before_user", "after_user"]

# As authors may write it → as the wire has it.
POSITIONS: Mapping[str, str] = {
    "system": "system",
    "beforeUser": "beforeUser",
    "before_user": "beforeUser",
    "afterUser": "afterUser",
    "after_user": "afterUser",
}


# -- what a host says ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model at work (§12.2)."""

    id: str
    vendor: str = ""
    context_window: int | None = None
    capabilities: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    @classmethod
    def read(cls, found: Params) -> ModelInfo:
        """What a host says about a model. A member that is missing or has the wrong type stays empty."""
        window, capabilities = found.get("contextWindow"), found.get("capabilities")
        name, vendor = (value if isinstance(value := found.get(member), str) else "" for member in ("id", "vendor"))
        return cls(
            id=name,
            vendor=vendor,
            context_window=window if isinstance(window, int) else None,
            capabilities=tuple(filter(_is_text, capabilities)) if is_array(capabilities) else (),
            raw=found,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens spent."""

    input_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def read(cls, found: Params) -> Usage:
        """What a host reports; zero for what it leaves out."""
        spent, written = found.get("inputTokens"), found.get("outputTokens")
        return cls(spent if isinstance(spent, int) else 0, written if isinstance(written, int) else 0)


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """The message of a channel that this turn answers."""

    channel_id: str
    message_id: str | None = None
    thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class TurnChannels:
    """Where a turn comes from and where its answer may go (§14.4)."""

    incoming: IncomingMessage | None = None
    default_outgoing: str | None = None
    candidates: tuple[str, ...] = ()

    @classmethod
    def read(cls, found: Params) -> TurnChannels:
        incoming, outgoing = optional_fields(found, "incoming"), optional_fields(found, "defaultOutgoing")
        candidates = found.get("candidates")
        message = None
        if incoming is not None:
            named = (_optional_text(incoming, member) for member in ("messageId", "threadId"))
            message = IncomingMessage(text(incoming, "channelId"), *named)
        return cls(
            incoming=message,
            default_outgoing=text(outgoing, "channelId") if outgoing is not None else None,
            candidates=tuple(filter(_is_text, candidates)) if is_array(candidates) else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn whose inference is about to begin. `user_message` is None if the model continues by itself."""

    inference_id: str
    conversation_id: str = ""
    turn_index: int = 0
    user_message: str | None = None
    model: ModelInfo | None = None
    channels: TurnChannels | None = None
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    @classmethod
    def read(cls, params: Params) -> Turn:
        """The params of `context/beforeInference`. Raises InvalidParams if they are broken."""
        return cls(**_turn(params))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTurn(Turn):
    """A turn that the model has answered."""

    assistant_message: str
    usage: Usage | None = None

    @classmethod
    def read(cls, params: Params) -> FinishedTurn:
        """The params of `context/afterInference`. Raises InvalidParams if they are broken."""
        usage = optional_fields(params, "usage")
        return cls(
            **_turn(params),
            assistant_message=text(params, "assistantMessage"),
            usage=Usage.read(usage) if usage is not None else None,
        )


PHASES = ("completed", "aborted", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceEnd:
    """An inference that has ended: which one, how, and what it cost. It has no text.

    `phase` is `completed`, `aborted` or `failed`. Hosts below 0.5 only tell of completed ones.
    """

    inference_id: str
    conversation_id: str = ""
    turn_index: int = 0
    phase: Literal["completed", "aborted", "failed"] = "completed"
    model: ModelInfo | None = None
    usage: Usage | None = None
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    @classmethod
    def read(cls, params: Params) -> InferenceEnd:
        """The params of `inference/lifecycle`, or of `context/afterInference`, which has no phase.

        Only `inferenceId` must be there. Raises InvalidParams if something is broken.
        """
        turn, phase, usage = _turn(params), params.get("phase", "completed"), optional_fields(params, "usage")
        if phase not in PHASES:
            raise InvalidParams(f"Invalid params: phase must be one of {', '.join(('started', *PHASES))}")
        return cls(
            **{name: turn[name] for name in ("inference_id", "conversation_id", "turn_index", "model", "raw")},
            phase=phase,
            usage=Usage.read(usage) if usage is not None and phase == "completed" else None,
        )


# -- what a hook returns ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Injection:
    """Text for the model to read (§10.4).

    Without a `position` it goes to the first that its hook declares. If the hook declares none, that is `system` with
    hosts of 0.4 and `before_user` with hosts of 0.5, which usually deny `system`. `namespace` is by default the first
    segment of the feature set's name.
    """

    content: Sendable
    position: Position | None = None
    namespace: str | None = None
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.position is not None and self.position not in POSITIONS:
            raise UsageError(
                f"Injection(position={self.position!r}) is not possible", fix="use system, before_user or after_user"
            )

    def wire(self, namespace: str, position: str = "system") -> Params:
        """The injection for the wire (§10.4). `namespace` and `position`, as on the wire, are for one that has none."""
        described: Params = {
            "namespace": self.namespace or namespace,
            "position": POSITIONS[self.position] if self.position is not None else position,
            "content": blocks(self.content),
        }
        if self.metadata:
            described["metadata"] = dict(self.metadata)
        return described


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Another text for the model's answer, and metadata about the change."""

    text: str
    metadata: Mapping[str, Any] | None = None


# -- reading ---------------------------------------------------------------------------------------------


def _turn(params: Params) -> dict[str, Any]:
    index, said = params.get("turnIndex", 0), params.get("userMessage")
    if not isinstance(index, int):
        raise InvalidParams("Invalid params: turnIndex must be an integer")
    if said is not None and not isinstance(said, str):
        raise InvalidParams("Invalid params: userMessage must be a string or null")
    model, channels = optional_fields(params, "model"), params.get("channels")
    return {
        "inference_id": text(params, "inferenceId"),
        "conversation_id": _optional_text(params, "conversationId") or "",
        "turn_index": index,
        "user_message": said,
        "model": ModelInfo.read(model) if model is not None else None,
        "channels": TurnChannels.read(channels) if is_object(channels) else None,
        "raw": params,
    }


def _optional_text(params: Params, name: str) -> str | None:
    return text(params, name) if params.get(name) is not None else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
