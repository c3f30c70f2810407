"""How large a decoded JSON value is, found without walking more of it than the question needs."""

from __future__ import annotations

from typing import Any

from defserve.wire.jsonvalue import is_array, is_object


def holds_more_than(value: Any, most: int) -> bool:
    """Whether there are more values in a value, itself and containers included, than `most`."""
    count = 1
    ahead = [value]
    while ahead:
        container = ahead.pop()
        below: list[Any] = []
        if is_object(container) or is_array(container):
            count += len(container)
            if count > most:
                return True
            below = list(container.values() if is_object(container) else container)
        ahead += below
    return False
