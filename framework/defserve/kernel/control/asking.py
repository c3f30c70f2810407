"""The operator's end of the control socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, Final

from defserve.errors import PeerGone, UsageError
from defserve.kernel.control.places import places_of

CONNECT_SECONDS: Final = 5.0
LONGEST_ANSWER: Final = 16 * 1024 * 1024


def ask(config: Path, request: dict[str, Any], process: int | None = None) -> Iterator[Any]:
    """The answers of the kernel that serves a file; of the one with this process, if there are several.

    Raises PeerGone if none runs, and UsageError for what it refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(CONNECT_SECONDS)
        try:
            peer.connect(str(_place(config, process)))
            # A drain may take long, and `logs -f` waits for ever.
            peer.settimeout(None)
            peer.sendall(json.dumps(request).encode() + b"\n")
            with peer.makefile("rb") as lines:
                for line in lines:
                    message = _message(line)
                    if "done" in message:
                        return
                    yield message["answer"]
        except OSError as error:
            raise PeerGone(f"the kernel of {config} cannot be reached: {error}") from None
    raise PeerGone(f"the kernel of {config} ended before it answered")


async def asking(config: Path, request: dict[str, Any], process: int | None = None) -> AsyncGenerator[Any]:
    """Like `ask`, on an event loop. Who stops reading ends what was asked for."""
    place = await asyncio.to_thread(_place, config, process)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(place), limit=LONGEST_ANSWER)
    except OSError as error:
        raise PeerGone(f"the kernel of {config} cannot be reached: {error}") from None
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        while line := await reader.readline():
            message = _message(line)
            if "done" in message:
                return
            yield message["answer"]
    except (OSError, ValueError) as error:
        raise PeerGone(f"the kernel of {config} cannot be reached: {error}") from None
    finally:
        writer.close()
    raise PeerGone(f"the kernel of {config} ended before it answered")


def _message(line: bytes) -> dict[str, Any]:
    """One line of a kernel. Raises UsageError for what it refuses."""
    message: dict[str, Any] = json.loads(line)
    if "error" in message:
        raise UsageError(message["error"]["problem"], fix=message["error"]["fix"])
    return message


def _place(config: Path, process: int | None) -> Path:
    found = places_of(config)
    if process is not None and process in found:
        return found[process]
    if not found or process is not None:
        whose = f" with process {process}" if process is not None else ""
        raise PeerGone(f"no kernel{whose} serves {config}\n  fix: start one: defserve kernel --config {config}")
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} kernels serve {config}", fix=f"add --pid with one of {', '.join(map(str, found))}"
        )
    return next(iter(found.values()))
