"""MGP §3.6, §5.4: instants on the wire, ISO 8601 with `Z` or an offset; kept in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from defserve.errors import InvalidParams
from defserve.wire.instants import instant


def now() -> datetime:
    """The wall clock, against which a peer's `expires_at` is measured."""
    return datetime.now(UTC)


def read(value: object, name: str) -> datetime | None:
    """Read an instant, or null. Raises InvalidParams. A time without an offset is refused: its zone is unknown."""
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
        if found is not None and found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidParams(f"Invalid params: {name} must be ISO 8601 with an offset, like 2026-03-01T00:00:00Z")


def wire(when: datetime | None) -> str | None:
    """An instant as it is sent; None for none."""
    return None if when is None else instant(when)
