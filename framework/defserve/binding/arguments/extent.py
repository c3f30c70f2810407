"""Whether a decoded JSON value is large. It stops counting as soon as the answer is known."""

from __future__ import annotations

from typing import Any

from defserve.wire.jsonvalue import is_array, is_object


def holds_more_than(value: Any, most: int) -> bool:
    """Whether a value holds more than `most` values, itself and containers included."""
    count = 1
    ahead: list[Any] = [value]
    while ahead:
        container = ahead.pop()
        if is_object(container) or is_array(container):
            count += len(container)
            if count > most:
                return True
            ahead += container.values() if is_object(container) else container
    return False
