"""MCPL §9.2, §14.3: instants on the wire, ISO 8601 in UTC with `Z`."""

from __future__ import annotations

from datetime import UTC, datetime

from defserve.errors import UsageError


def instant(when: datetime | str | None = None) -> str:
    """An instant in the form of the wire, with milliseconds if it has a fraction. Without an argument: now."""
    if when is None:
        when = datetime.now(UTC)
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            raise UsageError(f"timestamp {when!r} is not ISO 8601", fix='write "2026-01-23T10:30:00Z"') from None
    timespec = "milliseconds" if when.microsecond else "seconds"
    return when.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
