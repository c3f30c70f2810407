"""Where a log ends: its last whole record, what a crash left behind it, and whether that fits the signed head."""

from __future__ import annotations

import os

from defserve.stores.audit.chain import GENESIS, MAX_LINE, AuditHead, AuditKeys, AuditLogBroken


def chain_end(file: int, keys: AuditKeys) -> tuple[int, str, int, int]:
    """The seq and mac of the last complete record, where it ends, and how many bytes of a torn line follow.

    Raises AuditLogBroken.
    """
    size = os.fstat(file).st_size
    start = max(0, size - 2 * MAX_LINE)
    os.lseek(file, start, os.SEEK_SET)
    tail = b""
    while piece := os.read(file, MAX_LINE):
        tail += piece
    lines = tail.rpartition(b"\n")
    torn = len(lines[2])
    if not lines[1]:
        if start:
            raise AuditLogBroken("its last line is too long for a record")
        return 0, GENESIS, 0, torn
    last = keys.record(lines[0].rpartition(b"\n")[2] + b"\n")
    return last.seq, last.mac, size - torn, torn


def check_head(head: AuditHead | None, seq: int, mac: str) -> None:
    """Raises AuditLogBroken unless a chain that ends here fits the head."""
    if head is None:
        if seq:
            raise AuditLogBroken("its head is missing, so its end may be cut off")
    elif seq < head.seq:
        raise AuditLogBroken(f"{head.seq - seq} records are missing at its end")
    elif seq == head.seq and mac != head.mac:
        raise AuditLogBroken("its head names another last record")
