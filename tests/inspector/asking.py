"""To ask a panel's host side as the page does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from defserve.inspector.inspection import Inspection
from defserve.inspector.page_server import PAGE_HANDLERS
from defserve.inspector.protocol import PageRequest


async def do(inspection: Inspection, verb: str, /, **arguments: Any) -> Any:
    """The answer of a verb that has no parts."""
    return await PAGE_HANDLERS[verb](inspection, PageRequest(arguments, _refused))


def _refused(part: Any) -> None:
    # A call says that it has begun, and one that fails where its time went.
    assert "call" in part or "waterfall" in part, f"nobody takes {part}"


@asynccontextmanager
async def following(inspection: Inspection, verb: str, /, **arguments: Any) -> AsyncGenerator[list[Any]]:
    """The parts of a verb, as they come. It is cancelled at the end of the block."""
    parts: list[Any] = []

    def take(part: Any) -> None:
        parts.append(part)

    async def follow() -> None:
        await PAGE_HANDLERS[verb](inspection, PageRequest(arguments, take))

    task = asyncio.create_task(follow())
    try:
        yield parts
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
