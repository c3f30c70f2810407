"""Channels of one type as the other files here see them: their set, their functions, and who may use them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from defserve.errors import BadArguments
from defserve.protocols.mcpl.channels.values import Channel
from defserve.protocols.mcpl.scopes.values import listed, normal
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.handlers import ChannelFunction
    from defserve.protocols.mcpl.feature import Feature
    from defserve.protocols.mcpl.policies import FeaturePolicy

# §14.5: the channel of the model's thoughts, which can only be observed; and the type that observes every channel.
THINKING, ANY = "thinking", "*"
OBSERVED_ONLY = (THINKING, ANY)
# How many messages of its history a channel is opened with.
MOST_HISTORY = 200
OBSERVING_VERBS = ("observe", "observe_chunks")

# The author's function for a verb → what its feature set does with it.
VERB_USES: Mapping[str, tuple[str, ...]] = {
    "open": ("channels.lifecycle",),
    "close": ("channels.lifecycle",),
    "publish": ("channels.publish",),
    "observe": ("channels.streaming",),
    "observe_chunks": ("channels.streaming",),
    "acknowledge": ("channels.acknowledge",),
    "typing": ("channels.typing",),
    "history": ("channels.lifecycle",),
}


class ChannelKind:
    """The part of a channel type that needs no other file of the room; `ChannelType` adds the author's verbs."""

    def __init__(self, type: str, feature_set: Feature) -> None:
        self.type, self.feature_set, self.owner = type, feature_set, feature_set.owner
        self.name = f"{type} channels"
        self.functions: dict[str, ChannelFunction] = {}

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def uses(self) -> tuple[str, ...]:
        """What its feature set does with the type alone: every one may register channels and deliver messages."""
        return ("channels.streaming",) if self.type in OBSERVED_ONLY else ("channels.register", "channels.incoming")

    @property
    def capabilities(self) -> Params:
        """What hosts may do with channels of this type, besides what every version has."""
        found: Params = {}
        if (history := self.functions.get("history")) is not None:
            found["history"] = {
                "maxMessages": MOST_HISTORY,
                "supportsBeforeMessage": "before" in history.takes,
                "supportsSinceLastSeen": "since_last_seen" in history.takes,
            }
        if (acknowledge := self.functions.get("acknowledge")) is not None:
            found["acknowledgment"] = {"supportsValue": "value" in acknowledge.takes}
        return found

    def remembered(self, written: Any) -> Channel:
        """A channel that another process has opened. Its address has the form that the author's `open` takes."""
        id, label, direction, address, metadata, type = written
        opens = self.functions.get("open")
        if opens is not None and address is not None:
            with suppress(BadArguments):
                address = opens.validated({"address": address}).get("address", address)
        return Channel(id, label, direction=direction, address=address, metadata=metadata, type=type)

    def covers(self, id: str) -> bool:
        """Whether a channel that this server does not keep is of this type, going by its id."""
        return self.type in (ANY, id) or id.startswith(f"{self.type}:")

    def permits(self, found: FeaturePolicy, label: str) -> bool:
        """Whether a host's scopes allow a channel (§14.5). The blacklist counts first."""
        lists = found.scoping(self.feature_set.name)
        allowed = listed(lists, normal(label))
        return not lists.whitelist if allowed is None else allowed
