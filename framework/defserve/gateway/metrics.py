"""The metrics of a gateway, for Prometheus. They name no topic and no participant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "defserve_gateway_"

# name -> (type, help, label or nothing)
_FAMILIES: Final = {
    "topics": ("gauge", "Topics that have a participant.", ""),
    "participants": ("gauge", "Connected participants, counted once per topic.", ""),
    "joined_total": ("counter", "Participants that joined.", ""),
    "turned_away_total": ("counter", "Connections that were refused.", "reason"),
    "left_total": ("counter", "Participants that left or were removed.", "reason"),
    "received_total": ("counter", "Frames received.", ""),
    "received_bytes_total": ("counter", "Bytes of the frames received.", ""),
    "delivered_total": ("counter", "Messages of participants, counted once per receiver.", ""),
    "refused_total": ("counter", "Frames that were not passed on.", "error"),
    "promotions_total": ("counter", "Changes of capabilities.", ""),
}


class GatewayMetrics:
    """Counts per family and value of its label."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.received = self.received_bytes = self.delivered = 0

    def count(self, family: str, label: str = "") -> None:
        self.counts[family, label] += 1

    def text(self, topics: int, participants: int) -> str:
        """The exposition format 0.0.4."""
        plain = {
            "topics": topics,
            "participants": participants,
            "received_total": self.received,
            "received_bytes_total": self.received_bytes,
            "delivered_total": self.delivered,
        }
        return "".join(f"{line}\n" for line in self._lines(plain))

    def _lines(self, plain: dict[str, int]) -> Iterator[str]:
        for family, (kind, about, label) in _FAMILIES.items():
            name = _PREFIX + family
            yield f"# HELP {name} {about}"
            yield f"# TYPE {name} {kind}"
            if not label:
                yield f"{name} {plain.get(family, self.counts[family, ''])}"
                continue
            for (counted, value), count in sorted(self.counts.items()):
                if counted == family:
                    yield f'{name}{{{label}="{value}"}} {count}'
