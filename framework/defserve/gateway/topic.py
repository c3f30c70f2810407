"""Who is in a topic and who hears what. No event loop: a `Wire` is all that is known of a connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from defserve.gateway.policy import Routing
from defserve.protocols.mcpx.capabilities import Capabilities
from defserve.protocols.mcpx.envelope import now


class Wire(Protocol):
    """The way to one participant. Nothing here waits."""

    def offer(self, frame: bytes, limit: float) -> bool:
        """Send a frame that is ready for the wire, unless more than `limit` bytes wait already: whether it was taken.

        On a connection that is closing nothing happens.
        """
        ...

    def end(self, code: int, reason: str) -> None:
        """Close the connection, after what was written."""
        ...


class TopicMember:
    """One connection of one participant: the state of §10.1."""

    __slots__ = ("topic", "id", "key", "capabilities", "routing", "wire", "connection", "connected_at", "malformed")

    def __init__(
        self, topic: GatewayTopic, id: str, capabilities: Capabilities, routing: Routing, wire: Wire, connection: str
    ) -> None:
        self.topic, self.id, self.capabilities, self.routing, self.wire = topic, id, capabilities, routing, wire
        self.connection, self.connected_at = connection, now()
        self.key = topic.name, id
        self.malformed = 0
        """Frames in a row that were none."""

    @property
    def is_in(self) -> bool:
        """False once it left, was sent away, or was replaced by a newer connection."""
        return self.topic.members.get(self.id) is self


class GatewayTopic:
    """The members of one topic, by their ids."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[str, TopicMember] = {}
        self._all: tuple[TopicMember, ...] = ()
        self._directed = False

    def add(self, member: TopicMember) -> None:
        """Let it in, in the place of a member of the same id."""
        self.members[member.id] = member
        self._changed()

    def remove(self, member: TopicMember) -> None:
        del self.members[member.id]
        self._changed()

    def others(self, member: TopicMember) -> list[TopicMember]:
        return [other for other in self._all if other is not member]

    def hearing(self, to: Iterable[str] = ()) -> Sequence[TopicMember]:
        """Who receives a message to these, the sender too: everyone, but for those who want only what is for them."""
        if not to or not self._directed:
            return self._all
        named = frozenset(to)
        return [member for member in self._all if member.routing == "all" or member.id in named]

    def _changed(self) -> None:
        # Made anew when someone comes or goes, so that a message finds its list ready.
        self._all = tuple(self.members.values())
        self._directed = any(member.routing == "directed" for member in self._all)
