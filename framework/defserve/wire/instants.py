"""Instants in messages: ISO 8601 in UTC, with `Z` (RFC 3339)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal


def instant(when: datetime, timespec: Literal["seconds", "milliseconds"] | None = None) -> str:
    """An instant as it is sent. Without a `timespec`, it has milliseconds if it has a fraction of a second."""
    timespec = timespec or ("milliseconds" if when.microsecond else "seconds")
    return when.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def instant_at(seconds: float, timespec: Literal["seconds", "milliseconds"] | None = None) -> str:
    """The same for seconds since 1970."""
    return instant(datetime.fromtimestamp(seconds, UTC), timespec)
