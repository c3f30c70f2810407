"""Channels of one type as the other files here see them: their set, their functions, and who may use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.protocols.mcpl.scopes.values import listed, normal

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.handlers import ChannelFunction
    from defserve.protocols.mcpl.feature import Feature
    from defserve.protocols.mcpl.policies import FeaturePolicy

# §14.5: the channel of the model's thoughts, which can only be observed; and the type that observes every channel.
THINKING, ANY = "thinking", "*"
OBSERVED_ONLY = (THINKING, ANY)
OBSERVING_VERBS = ("observe", "observe_chunks")


class ChannelKind:
    """The part of a channel type that needs no other file of the room; `ChannelType` adds the author's verbs."""

    def __init__(self, type: str, feature_set: Feature) -> None:
        self.type, self.feature_set, self.owner = type, feature_set, feature_set.owner
        self.name = f"{type} channels"
        self.functions: dict[str, ChannelFunction] = {}

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def covers(self, id: str) -> bool:
        """Whether a channel that this server does not keep is of this type, going by its id."""
        return self.type in (ANY, id) or id.startswith(f"{self.type}:")

    def permits(self, found: FeaturePolicy, label: str) -> bool:
        """Whether a host's scopes allow a channel (§14.5). The blacklist counts first."""
        lists = found.scoping(self.feature_set.name)
        allowed = listed(lists, normal(label))
        return not lists.whitelist if allowed is None else allowed
