"""Everything that authors of live servers (MCPL) import."""

from defserve.protocols.mcpl.channels.messages import Author, Channel, ChannelHistory, MessageReceipt, ReceivedMessage
from defserve.protocols.mcpl.content import (
    Content,
    Event,
    FinishedTurn,
    InferenceEnd,
    Injection,
    ModelInfo,
    Receipt,
    Rewrite,
    Turn,
    Usage,
)
from defserve.protocols.mcpl.inference import Inference
from defserve.protocols.mcpl.peers import To, everyone
from defserve.protocols.mcpl.scopes import Scope
from defserve.protocols.mcpl.vocabulary import (
    AmbiguousPeer,
    CapabilityDenied,
    ChannelNotPermitted,
    ChannelOpenFailed,
    FeatureDisabled,
    UnknownChannel,
)

__all__ = [
    "AmbiguousPeer",
    "Author",
    "CapabilityDenied",
    "Channel",
    "ChannelHistory",
    "ChannelNotPermitted",
    "ChannelOpenFailed",
    "Content",
    "Event",
    "FeatureDisabled",
    "FinishedTurn",
    "Inference",
    "InferenceEnd",
    "Injection",
    "ReceivedMessage",
    "MessageReceipt",
    "ModelInfo",
    "Receipt",
    "Rewrite",
    "Scope",
    "To",
    "Turn",
    "UnknownChannel",
    "Usage",
    "everyone",
]
