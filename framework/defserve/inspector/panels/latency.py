"""The Latency panel: how long the calls of each tool took, and how many there are a second."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb, era_of
from defserve.inspector.protocol import Request

PAUSE: Final = 1.0


async def follow(inspection: Inspection, request: Request) -> Any:
    """The figures as parts, a new one each second while there are calls, until it is cancelled."""
    connection = inspection.connection(era_of(request))
    told: Any = None
    while True:
        figures = inspection.latencies.told(connection.era)
        if figures != told:
            told = figures
            request.part(figures)
        await asyncio.sleep(PAUSE)


VERBS: Final[Mapping[str, Verb]] = {"latency.follow": follow}
