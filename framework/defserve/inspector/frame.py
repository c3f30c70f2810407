"""What the frame of the page needs: the first facts, the eras, the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb, era_of
from defserve.inspector.protocol import Request


async def hello(inspection: Inspection, request: Request) -> Any:
    return inspection.hello()


async def open_era(inspection: Inspection, request: Request) -> Any:
    """Open the conversation of an era, if it is not open. What is told about it."""
    connection = inspection.connection(era_of(request))
    await connection.client()
    return inspection.told(connection)


async def retry(inspection: Inspection, request: Request) -> Any:
    inspection.connection(era_of(request)).retry()


VERBS: Final[Mapping[str, Verb]] = {
    "hello": hello,
    "era.open": open_era,
    "connection.retry": retry,
}
