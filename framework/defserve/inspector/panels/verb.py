"""What a verb is, and how it asks the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from defserve.errors import PeerError
from defserve.host.client import Client
from defserve.inspector.inspection import Inspection
from defserve.inspector.protocol import Request

Verb: TypeAlias = Callable[[Inspection, Request], Awaitable[Any]]


def era_of(request: Request) -> str | None:
    """The era that a request is about; None stands for the first conversation."""
    return request.text("era", "") or None


@asynccontextmanager
async def asking(inspection: Inspection, request: Request) -> AsyncGenerator[Client]:
    """The client of the era that a request is about. If the server turns out to be gone, it is connected to anew."""
    era = era_of(request)
    client = await inspection.client(era)
    try:
        yield client
    except PeerError as error:
        inspection.failed(era, error)
        raise
