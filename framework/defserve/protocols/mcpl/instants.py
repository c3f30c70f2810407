"""MCPL §9.2, §14.3: instants on the wire, ISO 8601 in UTC with `Z`."""

from __future__ import annotations

from datetime import UTC, datetime

from defserve.errors import UsageError
from defserve.wire.instants import instant


def instant_of(when: datetime | str | None = None) -> str:
    """An instant that an author gives, in the form of the wire. None is now. Raises UsageError."""
    if when is None:
        when = datetime.now(UTC)
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            raise UsageError(f"timestamp {when!r} is not ISO 8601", fix='write "2026-01-23T10:30:00Z"') from None
    return instant(when)
