"""Asking a server on behalf of a panel."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from defserve.errors import PeerError
from defserve.host.client import Client
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import era_of
from defserve.inspector.protocol import Request


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
