"""What a record holds: an event, or a remark of the log about itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from defserve.redaction import redact
from defserve.stores.audit.chain import canonical

MAX_EVENT: Final = 256 * 1024


def encoded(event: Mapping[str, Any]) -> str:
    """The canonical JSON of an event, whatever it holds."""
    try:
        text = canonical(event if isinstance(event, dict) else dict(event))
        if len(text) <= MAX_EVENT:
            return text
    except (TypeError, ValueError, RecursionError):
        pass
    return canonical(redact(event))


def remark(type: str, **members: Any) -> str:
    """The content of a record that the log writes about itself."""
    return f'"log":{canonical({"type": type, "time": now(), **members})}'


def now() -> str:
    """The time, as logs write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
