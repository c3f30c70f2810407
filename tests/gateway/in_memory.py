"""A topic of three members without sockets, for property tests and the fuzzer."""

from __future__ import annotations

from defserve.gateway.gateway import Gateway, TopicMember
from defserve.gateway.policy import Admission, GatewayLimits

CAPABILITIES = {"full": ("mcp/*", "chat"), "agent": ("mcp/proposal:*", "chat"), "mute": ()}
LIMITS = GatewayLimits(rate=1e9, burst=1_000_000, byte_rate=1e12, malformed_in_a_row=1_000_000)


class Ear:
    """A wire that keeps what is written to it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.ended: int | None = None
        self.unsent = 0

    def queue_frame(self, frame: bytes, limit: float) -> bool:
        self.heard.append(frame)
        return True

    def count_waiting_bytes(self) -> int:
        return self.unsent

    def close_in_background(self, code: int, reason: str) -> None:
        self.ended = code


class Nobody:
    async def admit(self, token: str | None, topic: str) -> Admission | None:
        return None


def topic_of_three() -> tuple[Gateway, dict[str, TopicMember], dict[str, Ear]]:
    made = Gateway(Nobody(), LIMITS)
    ears = {name: Ear() for name in CAPABILITIES}
    members: dict[str, TopicMember] = {}
    for name, held in CAPABILITIES.items():
        member = made.join_topic("demo", Admission(name, held), ears[name])
        assert isinstance(member, TopicMember)
        members[name] = member
    for ear in ears.values():
        ear.heard.clear()
    return made, members, ears
