"""MGP §14.6: trying again as the server's recovery fields say, within bounds it cannot move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MOST_RETRIES: Final = 10
LONGEST_WAIT: Final = 60.0
"""Seconds. A server that wants more is not waited for: the caller knows better what to do meanwhile."""
USUAL_DELAY: Final = 1.0
USUAL_RETRIES: Final = 3


def delay(block: Mapping[str, Any], retried: int) -> float | None:
    """Seconds to wait before the next attempt, after `retried` of them; None when there is to be none."""
    if block.get("retryable") is not True or retried >= min(_number(block, "max_retries", USUAL_RETRIES), MOST_RETRIES):
        return None
    strategy, least = block.get("retry_strategy"), _number(block, "retry_after_ms", 0) / 1000
    if strategy == "immediate":
        wait = least
    elif strategy == "fixed_delay":
        wait = least or USUAL_DELAY
    else:
        # Not to be outgrown by its own doubling: only a server's own minimum is too long.
        wait = max(least, min((least or USUAL_DELAY) * 2**retried, LONGEST_WAIT))
    return wait if wait <= LONGEST_WAIT else None


def fallback(block: Mapping[str, Any]) -> str | None:
    """The tool to try once there are no retries left. What must not be retried is reported, not replaced."""
    found = block.get("fallback_tool")
    return found if block.get("retryable") is True and isinstance(found, str) else None


def _number(block: Mapping[str, Any], name: str, usual: float) -> float:
    found = block.get(name)
    return max(float(found), 0.0) if isinstance(found, int | float) and not isinstance(found, bool) else usual
