"""The audit log of the server, where the inspector can read it: the newest lines with their MACs, and a verdict."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from defserve.errors import UsageError
from defserve.inspector.protocol import Json
from defserve.protocols.mgp.audit.replay import ReadableAuditLog
from defserve.stores.audit.chain import numbered_lines, parse_line
from defserve.wire.jsonvalue import is_object

MOST_LINES: Final = 500
ELSEWHERE: Final = "the server runs elsewhere, and MGP has no request that checks a chain: that is done beside the log"
LONGEST_LINE: Final = 4_096
"""A longer line is shown without its details."""


class ServerLog:
    """`find` gives the log; None if the server has none, or it is out of reach."""

    def __init__(self, find: Callable[[], ReadableAuditLog | None] | None) -> None:
        self._find = find

    @property
    def is_elsewhere(self) -> bool:
        """Whether the server does not run here, so that its log can never be read."""
        return self._find is None

    async def lines(self) -> Json | None:
        """`{"name", "lines"}`, newest first; None if there is no log to read. Lines are not checked: `verify` does."""
        return await asyncio.to_thread(self._lines)

    async def verify(self) -> Json:
        """Check the whole chain. Raises UsageError if there is no log to read."""
        return await asyncio.to_thread(self._verify)

    def _lines(self) -> Json | None:
        if (log := self._log) is None:
            return None
        last = log.last_seq  # what waits is written first
        if (path := getattr(log, "path", None)) is not None:
            return {"name": Path(path).name, "lines": _newest(Path(path))}
        page = log.replay(max(1, last - MOST_LINES + 1), None, MOST_LINES)
        found = [_line(event.get("seq"), event, None) for event in page.events]
        return {"name": type(log).__name__, "lines": found[::-1]}

    def _verify(self) -> Json:
        if (log := self._log) is None:
            if self.is_elsewhere:
                raise UsageError(ELSEWHERE, fix="there: defserve audit verify FILE, or defserve kernel audit --verify")
            raise UsageError("there is no audit log to verify", fix='give the server one: Server(audit="audit.jsonl")')
        began = time.perf_counter()
        report = log.verify()._asdict()
        return {**report, "ms": (time.perf_counter() - began) * 1000, "at": time.time()}

    @property
    def _log(self) -> ReadableAuditLog | None:
        return self._find() if self._find is not None else None


def _newest(path: Path) -> list[Json]:
    try:
        with path.open("rb") as file:
            kept = deque(numbered_lines(file), MOST_LINES)
    except FileNotFoundError:
        return []
    return [_read(number, line) for number, line in reversed(kept)]


def _read(number: int, raw: bytes) -> Json:
    """A line as the page shows it, genuine or not."""
    whole = parse_line(raw) or {}
    body = whole.get("event") if "event" in whole else whole.get("log")
    if not is_object(body):
        return {"line": number, "type": "not a record", "odd": True}
    if len(raw) > LONGEST_LINE:
        body = {name: value for name, value in body.items() if name != "details"}
    mac: Any = whole.get("mac")
    return _line(number, body, mac if isinstance(mac, str) else None)


def _line(number: Any, body: Json, mac: str | None) -> Json:
    return {"line": number, "type": str(body.get("event_type") or body.get("type", "")), "event": body, "mac": mac}
