"""The members of a topic, and who receives what. No event loop: a connection is only known as a `Wire`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from defserve.gateway.policy import Admission
from defserve.protocols.mcpx.capabilities import Capabilities
from defserve.protocols.mcpx.envelope import now

WINDOW_SECONDS: Final = 60.0
"""How long messages are counted, as the reference gateway counts them."""
HISTORY_BYTES: Final = 256 * 1024
"""What is kept of one topic, beside the number of messages."""


class Wire(Protocol):
    """The connection to one participant. Its methods do not wait."""

    def offer(self, frame: bytes, limit: float) -> bool:
        """Send an encoded frame, unless more than `limit` bytes wait already. Returns whether it was accepted.

        Does nothing on a connection that is closing.
        """
        ...

    def end(self, code: int, reason: str) -> None:
        """Close the connection after everything that was written."""
        ...


class TopicMember:
    """One connection of one participant: the state of §10.1."""

    __slots__ = (
        "topic", "id", "holder", "key", "capabilities", "routing", "wire", "connection", "connected_at", "malformed",
        "messages", "chat_messages", "window_ends",
    )  # fmt: skip

    def __init__(
        self, topic: GatewayTopic, admission: Admission, capabilities: Capabilities, wire: Wire, connection: str
    ) -> None:
        self.topic, self.capabilities, self.wire = topic, capabilities, wire
        self.id, self.routing = admission.participant, admission.routing
        self.holder = admission.holder or self.id
        self.connection, self.connected_at = connection, now()
        self.key = topic.name, self.id
        self.malformed = 0
        """How many malformed frames came in a row."""
        self.messages = self.chat_messages = 0
        """How many frames came in this minute, refused ones too, and how many of them were chat."""
        self.window_ends = 0.0

    def begin_window(self, now: float) -> None:
        """Count from 0 again if a minute is over."""
        if now >= self.window_ends:
            self.messages = self.chat_messages = 0
            self.window_ends = now + WINDOW_SECONDS

    @property
    def is_in(self) -> bool:
        """False after it left, was removed, or was replaced by a newer connection."""
        return self.topic.members.get(self.id) is self


class GatewayTopic:
    """The members of one topic, by their ids, and its last messages: at most `keep` of them."""

    def __init__(self, name: str, keep: int = 0) -> None:
        self.name = name
        self.history: deque[bytes] = deque()
        self._keep, self._history_bytes = keep, 0
        self.members: dict[str, TopicMember] = {}
        self._all: tuple[TopicMember, ...] = ()
        self._directed = False

    def add(self, member: TopicMember) -> None:
        """Add a member. It replaces one with the same id."""
        self.members[member.id] = member
        self._changed()

    def remove(self, member: TopicMember) -> None:
        del self.members[member.id]
        self._changed()

    def remember(self, frame: bytes) -> None:
        """Keep a message for the history, and drop what is too old or too much."""
        if not self._keep:
            return
        self.history.append(frame)
        self._history_bytes += len(frame)
        while len(self.history) > self._keep or self._history_bytes > HISTORY_BYTES:
            self._history_bytes -= len(self.history.popleft())

    def others(self, member: TopicMember) -> list[TopicMember]:
        return [other for other in self._all if other is not member]

    def receivers(self, to: Iterable[str] = ()) -> Sequence[TopicMember]:
        """Who receives a message to these ids, or to everyone if there are none. The sender receives it too.

        Members with `directed` routing do not receive a message that names only others.
        """
        if not to or not self._directed:
            return self._all
        named = frozenset(to)
        return [member for member in self._all if member.routing == "all" or member.id in named]

    def _changed(self) -> None:
        # Rebuilt when a member joins or leaves, so that a message finds its list ready.
        self._all = tuple(self.members.values())
        self._directed = any(member.routing == "directed" for member in self._all)
