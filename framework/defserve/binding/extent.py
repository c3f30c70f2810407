"""How large a decoded JSON value is, found without walking more of it than the question needs."""

from __future__ import annotations

from math import isfinite
from typing import Any

from defserve.jsonvalue import is_array, is_object


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


def excess(value: Any, depth: int, keys: int) -> str | None:
    """Why a decoded array or object is none that a message may hold: too deep, too wide, or with an infinity."""
    level: list[Any] = [value]
    for _ in range(depth):
        below: list[Any] = []
        for container in level:
            if is_object(container) and len(container) > keys:
                return f"an object has more than {keys} members"
            for item in container.values() if is_object(container) else container:
                if isinstance(item, dict | list):
                    below.append(item)
                elif type(item) is float and not isfinite(item):
                    return "a number is too large"
        if not below:
            return None
        level = below
    return f"nested deeper than {depth} levels"
