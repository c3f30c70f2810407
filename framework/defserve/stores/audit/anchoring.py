"""Compares an audit log with its anchors when it is opened, and keeps their heads up to date while it is written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from defserve.stores.audit.anchors import AnchorUnavailable, AuditAnchor
from defserve.stores.audit.chain import AuditHead, AuditKeys, AuditLogBroken

CHUNK: Final = 1024 * 1024
LONGEST_END: Final = 256
"""The end of a line, from `seq` on, is shorter."""

log = logging.getLogger("defserve")


class Anchoring:
    """The anchors of one log. An anchor that cannot be reached is logged; it stops neither the log nor a call."""

    def __init__(self, path: Path, keys: AuditKeys, anchors: Sequence[AuditAnchor]) -> None:
        self._path, self._keys, self._anchors = path, keys, anchors
        self._last: dict[int, bytes | None] = {}

    def check(self) -> None:
        """Raises AuditLogBroken if an anchor names a record that the log does not have."""
        for index, anchor in enumerate(self._anchors):
            try:
                self._last[index] = self._checked(anchor)
            except AuditLogBroken:
                raise
            except Exception as error:
                log.error("the anchor %s of the audit log %s cannot be reached: %s", anchor.name, self._path, error)

    def keep(self, head: AuditHead) -> bool:
        """Give a head to every anchor, and return whether all have it. One that contradicts the log keeps its own."""
        signed, done = self._keys.signed(head), True
        for index, anchor in enumerate(self._anchors):
            try:
                if index not in self._last or not anchor.keep(signed, self._last[index]):
                    found = self._checked(anchor)
                    if found is None and self._last.get(index) is not None:
                        log.error("the anchor %s of the audit log %s was emptied", anchor.name, self._path)
                    if not anchor.keep(signed, found):
                        raise AnchorUnavailable("somebody else writes to it")
                self._last[index] = signed
            except Exception as error:
                done = False
                log.error("the audit log %s is not anchored at %s: %s", self._path, anchor.name, error)
        return done

    def _checked(self, anchor: AuditAnchor) -> bytes | None:
        """The last head at an anchor, if the log has its record."""
        raw = anchor.last()
        if raw is not None:
            head = self._keys.head_in(raw, f"the head at {anchor.name}")
            if not _has_record(self._path, head):
                named = f"the anchor {anchor.name} names record {head.seq}, signed {head.time}"
                raise AuditLogBroken(f"{named}, and the log does not have it")
        return raw


def _has_record(path: Path, head: AuditHead) -> bool:
    """Whether the record that a head names is in the file. Whether the chain is intact, `verify` says."""
    if head.seq == 0:
        return True
    wanted, kept = f',"seq":{head.seq},"mac":"{head.mac}"}}\n'.encode(), b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            if wanted in kept + chunk:
                return True
            kept = chunk[-LONGEST_END:]
    return False
