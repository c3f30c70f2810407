"""The limits of a gateway, per participant and per topic. Sizes are bytes, times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from defserve.errors import UsageError


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """`[limits]` of a gateway's file; replace single fields."""

    message: int = 1024 * 1024
    waiting: int = 4 * 1024 * 1024
    """Bytes that may wait for one reader. A reader with more is dropped, so that it does not hold up its topic."""
    participants: int = 1_000
    """In one topic."""
    topics: int = 1_000
    rate: float = 100.0
    """Messages per second of one participant, after `burst` at once."""
    burst: int = 200
    malformed_in_a_row: int = 16
    opening: float = 10.0
    farewell: float = 2.0
    ping: float = 20.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            wanted = int if field.type == "int" else int | float
            if isinstance(value, bool) or not isinstance(value, wanted) or not 0 < value < float("inf"):
                raise UsageError(
                    f"the gateway's limit {field.name} cannot be {value!r}",
                    fix="leave it out, or give a number above 0",
                )
