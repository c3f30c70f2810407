"""Where a stream of the store is: which entry is its newest, and whether one that was read is still there."""

from __future__ import annotations

from typing import Any, Final

START: Final = "0-0"


async def newest(redis: Any, stream: str) -> tuple[str, dict[str, bytes]]:
    """The id and the fields of the newest entry; the start if there is none."""
    found = await redis.xrevrange(stream, "+", "-", count=1)
    return (found[0][0].decode(), fields_of(found[0][1])) if found else (START, {})


async def is_gone(redis: Any, stream: str, id: str) -> bool:
    """Whether an entry that was there is no longer."""
    return id != START and not await redis.xrange(stream, id, id)


def fields_of(found: Any) -> dict[str, bytes]:
    return {name.decode(): value for name, value in found.items()}
