"""A server that speaks up by itself: whoever is connected hears of each file that arrives in a folder."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from defserve import Server, moderate
from defserve.live import Event

FOLDER = Path(os.environ.get("INBOX_FOLDER", "."))
SECONDS = 1.0

server = Server("arrivals", "1.0.0")
arrivals = server.feature_set("arrivals.files", "Tells you when a file arrives", inbox=True)


def files() -> set[str]:
    return {file.name for file in FOLDER.iterdir() if file.is_file() and not file.name.endswith(".part")}


@arrivals.events(per="server")
async def watch() -> AsyncIterator[Event]:
    known = await asyncio.to_thread(files)
    while True:
        await asyncio.sleep(SECONDS)
        now = await asyncio.to_thread(files)
        for name in sorted(now - known):
            yield Event(f"A file has arrived: {name}", id=f"arrived:{name}", origin={"file": name})
        known = now


@server.tool
@moderate("filesystem.read")
def list_arrivals() -> list[str]:
    """The files that have arrived so far."""
    return sorted(files())


if __name__ == "__main__":
    server.main()
