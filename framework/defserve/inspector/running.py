"""Runs an inspector: listens, says where, opens the browser."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from defserve.inspector.inspection import Inspection
from defserve.inspector.serving.access import Access
from defserve.inspector.serving.app import InspectorApp
from defserve.inspector.target import Target
from defserve.limits import Limits
from defserve.runner.loopback import loopback

LONGEST_FRAME: Final = 16 * 1024 * 1024
LIMITS: Final = Limits(message=LONGEST_FRAME)


@dataclass(frozen=True, slots=True)
class WebOptions:
    """port     where to listen; 0 lets the system choose
    browser  whether to open a browser
    """

    port: int = 0
    browser: bool = True


@dataclass(frozen=True, slots=True)
class RunningInspector:
    """An inspector that listens. `url` has the token."""

    url: str
    inspection: Inspection
    access: Access

    def ticket_url(self) -> str:
        """An address that leads to `url` once, for the arguments of a browser: other users may read those."""
        return f"{self.url.partition('?')[0]}?ticket={self.access.new_ticket()}"


@asynccontextmanager
async def inspecting(target: Target, port: int = 0) -> AsyncGenerator[RunningInspector]:
    """An inspector of `target` while the block runs. Raises UsageError if it cannot listen."""
    access = Access()
    async with Inspection(target) as inspection, loopback(views := inspection.views, LIMITS) as frames:
        views.origin = frames.rstrip("/")
        async with loopback(InspectorApp(inspection, access, views.origin), LIMITS, port=port) as address:
            access.port = views.page_port = urlsplit(address).port or 0
            yield RunningInspector(f"{address}?token={access.token}", inspection, access)


async def run(target: Target, options: WebOptions, ending: asyncio.Future[int]) -> int:
    """Inspect until `ending` has an exit code, and return it. The address is printed on a line of its own."""
    async with inspecting(target, options.port) as running:
        print("The inspector runs until Ctrl C. Its address, with the token that lets you in:", file=sys.stderr)
        print(running.url, flush=True)
        if options.browser:
            await asyncio.to_thread(webbrowser.open, running.ticket_url())
        return await ending
