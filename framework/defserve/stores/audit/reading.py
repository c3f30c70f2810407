"""Reads an audit log page by page, from a record or a time on, while it is written."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.stores.audit.chain import AuditKeys, AuditLogBroken, AuditRecord, numbered_lines

MOST_EVENTS: Final = 1_000
MOST_BYTES: Final = 512 * 1024
MOST_READ: Final = 200_000
"""Records that one page may pass over."""
STEP: Final = 1_000


class AuditPage(NamedTuple):
    """Events, each with its `seq`. The next page begins at `next_seq`."""

    events: list[dict[str, Any]]
    next_seq: int
    has_more: bool


class PageBuilder:
    """Takes records in their order until the page is full. `since` leaves out what is older."""

    def __init__(self, since_seq: int, since: datetime | None, limit: int) -> None:
        self._since, self._limit = since, min(limit, MOST_EVENTS)
        self.next_seq = max(since_seq, 1)
        self._events: list[dict[str, Any]] = []
        self._bytes = self._read = 0
        self._is_full = False

    def take(self, record: AuditRecord, size: int) -> bool:
        """Whether there is room for more. A record that is not taken begins the next page."""
        if record.seq < self.next_seq:
            return True
        is_wanted = record.is_event and not _is_older(record.body, self._since)
        full = len(self._events) >= self._limit or (self._events and self._bytes + size > MOST_BYTES)
        if self._read >= MOST_READ or (is_wanted and full):
            self._is_full = True
            return False
        self._read += 1
        self.next_seq = record.seq + 1
        if is_wanted:
            self._events.append({"seq": record.seq, **record.body})
            self._bytes += size
        return True

    def page(self) -> AuditPage:
        return AuditPage(self._events, self.next_seq, self._is_full)


class LogReader:
    """Reads the file of a log. It remembers where some records are, so that later pages are found at once."""

    def __init__(self, path: Path, keys: AuditKeys) -> None:
        self._path, self._keys = path, keys
        self._places: dict[int, int] = {0: 0}

    def page(self, since_seq: int, since: datetime | None, limit: int) -> AuditPage:
        """Raises AuditLogBroken for a record that is not genuine, and OSError."""
        building, begin = PageBuilder(since_seq, since, limit), max(since_seq, 1) // STEP
        place = max(step for step in self._places if step <= begin)
        with self._path.open("rb") as file:
            file.seek(self._places[place])
            at = self._places[place]
            for _, line in numbered_lines(file):
                if not line.endswith(b"\n"):
                    break  # it is being written
                record = self._keys.record(line)
                if record.seq % STEP == 0:
                    self._places.setdefault(record.seq // STEP, at)
                at += len(line)
                if not building.take(record, len(line)):
                    break
        return building.page()


def page_of(lines: Iterable[tuple[int, bytes | None]], keys: AuditKeys, building: PageBuilder) -> bool:
    """Add records that were kept by their numbers. Returns whether there is room for more. Raises AuditLogBroken."""
    for seq, line in lines:
        if line is None:
            raise AuditLogBroken(f"record {seq} is missing")
        record = keys.record(line)
        if record.seq != seq:
            raise AuditLogBroken(f"record {record.seq} is in the place of {seq}")
        if not building.take(record, len(line)):
            return False
    return True


def _is_older(event: dict[str, Any], since: datetime | None) -> bool:
    if since is None:
        return False
    try:
        return datetime.fromisoformat(str(event.get("timestamp"))) < since
    except (ValueError, TypeError):
        return False
