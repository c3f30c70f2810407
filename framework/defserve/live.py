"""Everything that authors of live servers (MCPL) import. `Message` here is a message of a channel, not of sampling."""

from defserve.protocols.mcpl.channels.values import Author, Channel, ChannelHistory, Message, MessageReceipt
from defserve.protocols.mcpl.content import Content
from defserve.protocols.mcpl.errors import (
    AmbiguousPeer,
    CapabilityDenied,
    ChannelNotPermitted,
    ChannelOpenFailed,
    FeatureDisabled,
    UnknownChannel,
)
from defserve.protocols.mcpl.inference.values import Inference
from defserve.protocols.mcpl.peers import To, everyone
from defserve.protocols.mcpl.push.event import Event, Receipt
from defserve.protocols.mcpl.scopes.values import Scope
from defserve.protocols.mcpl.turns import FinishedTurn, InferenceEnd, Injection, ModelInfo, Rewrite, Turn, Usage

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
    "Message",
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
