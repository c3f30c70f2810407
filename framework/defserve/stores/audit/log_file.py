"""An audit log in a file: one process appends to it, records are chained and signed (see `chain`), nothing is edited.

`append` is cheap and may be called from any thread and from the event loop. A thread of its own writes the events that
have come together. Events that cannot be written wait, in order. After a full disk the log continues without a gap, or
says in a `lost` record how many events it had no room to keep.
"""

from __future__ import annotations

import atexit
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from defserve.base.redaction import get_logger
from defserve.base.secret_references import read_secret_setting
from defserve.errors import Refused, UsageError
from defserve.stores.audit.chain import (
    GENESIS_MAC,
    MAX_LINE_BYTES,
    AuditHead,
    AuditKeys,
    AuditLogBroken,
    AuditRecord,
    AuditReport,
    LogAnchors,
    encode_event,
    encode_log_remark,
    format_current_time,
    iter_numbered_lines,
    make_head_path,
    parse_anchors,
    verify_audit_log,
)
from defserve.stores.files import get_user_file_path, load_secret_file, open_locked_file, replace_file, write_fully

if TYPE_CHECKING:
    from defserve.stores.audit.chain import AuditAnchors


__all__ = ["AuditLog", "AuditUnavailable", "AuditReport", "verify_audit_log"]

WRITE_DELAY_SECONDS: Final = 0.05
"""How long the writer waits for more events, in seconds. With the write itself, events are on disk within 0.1."""
WRITE_RETRY_SECONDS: Final = 1.0
MAX_PENDING_BYTES: Final = 8 * 1024 * 1024

log = get_logger()


class AuditUnavailable(Refused):
    """An event cannot be written. So the action that it would record must not happen."""

    error_type = "audit_unavailable"


class AuditLog:
    """Appends events to the file at `path`. A missing file is created, readable by its owner alone.

    Without a `key`, `load_audit_key` finds one, or makes one on the first use. The head is signed every `head_events`
    records or `head_seconds`, and at the end. An existing log is continued: a last line that was cut short by a crash
    is removed, and a `recovered` record reports it. Raises UsageError if the log is open elsewhere, cannot be opened,
    or is not intact: then it is evidence, and must not be overwritten.

    `anchors` are places elsewhere that keep each signed head: file names, addresses of stores, `syslog:`, or objects
    with `name`, `last()` and `store_head(head, before)`. A log that lacks a record that an anchor names is not
    continued. If an anchor cannot be reached, that is logged, and it gets a later head.

    Events are written as they are, so redact them first. Values that JSON cannot hold are shown as `redact` shows them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: bytes | str | None = None,
        anchors: AuditAnchors = (),
        head_events: int = 1_000,
        head_seconds: float = 60.0,
        linger: float = WRITE_DELAY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self._key, self._anchors = load_audit_key(make=True) if key is None else key, anchors
        self._keys = AuditKeys(self._key)
        self._reader = AuditLogReader(self.path, self._keys)
        self._head_events, self._head_seconds, self._linger, self._clock = head_events, head_seconds, linger, clock
        self._lock, self._file_lock = Lock(), Lock()
        self._pending: list[str] = []
        self._pending_size = self._lost = 0
        self._failing = self._closed = False
        self._wake, self._stop = Event(), Event()
        self._process = os.getpid()
        self._anchoring = (
            LogAnchors(self.path, self._keys, parse_anchors(anchors, self.path)) if anchors != () else None
        )
        self._anchor_lock = Lock()
        self._anchored: AuditHead | None = None
        self._anchor_again = clock()
        self._file = open_locked_file(self.path, "the audit log")
        try:
            self._resume()
        except BaseException:
            os.close(self._file)
            raise
        self._writer = Thread(target=self._run, name="defserve-audit", daemon=True)
        self._writer.start()
        # The writer must not keep the process alive, but events that it has not written yet must not be lost.
        atexit.register(self.close)

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        """Add an event. It is on the disk within 0.1 s; with `durable`, it and all before it are when this returns.

        A durable event waits for the disk, so call this from a thread and not from the event loop. Raises
        AuditUnavailable if it cannot be written: then it never will be. Raises UsageError if the log is closed. An
        event that is not durable does not fail because of the disk: the failure goes to the `defserve` logger, the
        event waits, and the next durable event fails unless both can be written.
        """
        content = f'"event":{encode_event(event)}'
        self._check_process()
        if durable:
            self._write((content,))
            return
        with self._lock:
            if self._closed:
                raise _make_closed_error()
            waiting = bool(self._pending)
            crowded = self._pending_size + len(content) > MAX_PENDING_BYTES
            if crowded and self._failing:
                self._count_lost_event()
                return
            self._add(content)
        if not waiting:
            self._wake.set()
        if crowded:
            # Events come faster than the disk accepts them, so the caller has to wait.
            self._try_write()

    def flush(self) -> None:
        """Return when every event so far is on the disk. Raises AuditUnavailable if that fails."""
        self._check_process()
        self._write(())

    @property
    def last_seq(self) -> int:
        """The number of the last record, when all so far are on the disk."""
        with suppress(AuditUnavailable):
            self.flush()
        return self._seq

    def replay(self, since_seq: int = 0, since: datetime | None = None, limit: int = 100) -> AuditPage:
        """Events from a record or a time on. Raises AuditUnavailable if they cannot be read, or are not genuine."""

        with suppress(AuditUnavailable):
            self.flush()
        try:
            return self._reader.read_page(since_seq, since, limit)
        except (AuditLogBroken, OSError) as error:
            raise AuditUnavailable(f"The audit log cannot be read: {error}") from None

    def verify(self) -> AuditReport:
        """Check every record, and that the log has those that its head and its anchors name."""
        self.settle()
        return verify_audit_log(self.path, self._key, anchors=self._anchors)

    def settle(self) -> None:
        """Write what is left, sign the head and tell the anchors. Raises AuditUnavailable if it cannot be written."""
        self._check_process()
        with self._file_lock:
            if self._file < 0:
                return
            self._write_and_sign()
        self._anchor(self._clock())

    def close(self) -> None:
        """Write what is left, sign the head and close the file. Raises AuditUnavailable if that fails."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self._stop.set()
        self._wake.set()
        self._writer.join()
        with self._file_lock:
            try:
                self._write_and_sign()
            finally:
                os.close(self._file)
                self._file = -1
        self._anchor(self._clock())

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("this audit log was opened before the process forked", fix="open one log in each process")

    # -- waiting to be written (under _lock) -------------------------------------------------------------------

    def _add(self, content: str) -> None:
        self._pending.append(content)
        self._pending_size += len(content)
        self._lost = 0

    def _count_lost_event(self) -> None:
        """Count an event that there is no room for. The record with the count takes its place."""
        lost, self._lost = self._lost, 0
        if lost:
            self._pending.pop()
        self._add(encode_log_remark("lost", events=lost + 1))
        self._lost = lost + 1

    # -- the file (under _file_lock) ---------------------------------------------------------------------------

    def _write(self, extra: Sequence[str]) -> None:
        with self._file_lock:
            if self._file < 0:
                raise _make_closed_error()
            self._write_all(extra)
            if self._due() <= 0:
                self._try_sign()

    def _write_all(self, extra: Sequence[str]) -> None:
        """Write what is pending and then `extra`, all or nothing. On failure only the pending events are kept."""
        with self._lock:
            batch, self._pending, self._pending_size, self._lost = self._pending, [], 0, 0
        if not batch and not extra:
            return
        try:
            self._commit([*batch, *extra])
        except OSError as error:
            with self._lock:
                self._pending[:0] = batch
                self._pending_size = sum(map(len, self._pending))
            self._fail(error)
        if self._failing:
            log.warning("the audit log %s is written again", self.path)
        self._failing = False

    def _commit(self, contents: Sequence[str]) -> None:
        """Write records to the disk, and only then count them."""
        seq, mac = self._seq, self._mac
        lines: list[bytes] = []
        for content in contents:
            seq += 1
            line, mac = self._keys.sign_line(content, seq, mac)
            lines.append(line)
        data = b"".join(lines)
        if os.fstat(self._file).st_nlink == 0:
            # What is written to it is lost when it is closed.
            raise OSError(errno.ENOENT, "it was removed, and is open still: put it back and restart the server")
        if self._torn:
            self._cut_torn_end()
        self._torn = True
        try:
            write_fully(self._file, data)
            os.fsync(self._file)
        except OSError:
            # An event that was refused must not be in the log. If this fails too, it is done before the next write.
            with suppress(OSError):
                self._cut_torn_end()
            raise
        self._torn = False
        self._seq, self._mac, self._size = seq, mac, self._size + len(data)

    def _cut_torn_end(self) -> None:
        os.ftruncate(self._file, self._size)
        self._torn = False

    def _fail(self, error: OSError) -> NoReturn:
        if not self._failing:
            log.error("the audit log %s cannot be written: %s; its events wait", self.path, error.strerror)
        self._failing = True
        raise AuditUnavailable("The audit log cannot be written") from error

    def _due(self) -> float:
        """Seconds until the head has to be signed; infinite while it is current."""
        behind = self._seq - self._head.seq
        if behind <= 0:
            return float("inf")
        due = self._signed_at if behind >= self._head_events else self._signed_at + self._head_seconds
        return max(due, self._sign_again) - self._clock()

    def _write_and_sign(self) -> None:
        try:
            self._write_all(())
            self._sign()
        except OSError as error:
            self._fail(error)

    def _sign(self) -> None:
        head = AuditHead(self._seq, self._mac, format_current_time())
        if (head.seq, head.format) == (self._head.seq, self._head.format):
            return
        replace_file(make_head_path(self.path), self._keys.sign_head(head))
        self._head, self._signed_at = head, self._clock()
        if self._anchoring is not None:
            self._wake.set()

    def _try_sign(self) -> None:
        try:
            self._sign()
        except OSError as error:
            log.error("the head of the audit log %s cannot be signed: %s", self.path, error.strerror)
            # Do not try again at once, or every event would wait for the failure.
            self._sign_again = self._clock() + self._head_seconds

    # -- the anchors (under neither lock: they may take long) --------------------------------------------------

    def _anchor(self, after: float) -> None:
        """Tell the anchors of the last head, unless they failed and are not due until after that time."""
        if self._anchoring is None:
            return
        with self._anchor_lock:
            head = self._head
            if head is self._anchored or self._anchoring.anchor_head(head):
                self._anchored = head
            else:
                self._anchor_again = after + self._head_seconds

    # -- the writer --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            if (now := self._clock()) >= self._anchor_again:
                self._anchor(now)
            self._wake.wait(min(max(self._due(), 0.0), self._head_seconds))
            self._stop.wait(self._linger)
            self._wake.clear()
            if not self._try_write():
                self._stop.wait(WRITE_RETRY_SECONDS)
                self._wake.set()

    def _try_write(self) -> bool:
        try:
            self._write(())
        except AuditUnavailable:
            return False
        return True

    # -- opening -----------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Find the end of the chain, and remove what a crash left behind it."""
        self._signed_at = self._sign_again = self._clock()
        self._torn = False
        try:
            head = self._keys.read_head(make_head_path(self.path))
            self._seq, self._mac, self._size, torn = chain_end(self._file, self._keys)
            check_head(head, self._seq, self._mac)
            if self._anchoring is not None:
                self._anchoring.check_anchors()
        except AuditLogBroken as bad:
            fix = f"see `defserve audit verify {self.path}`; for a new log, move it and its .head away and keep them"
            if self._anchoring is not None:
                fix += ", and use another name: that of the file, or #NAME at the end of an anchor's address"
            raise UsageError(f"the audit log {self.path} cannot be continued: {bad}", fix=fix) from None
        try:
            if torn:
                self._cut_torn_end()
                self._commit([encode_log_remark("recovered", bytes=torn)])
            self._head = head or AuditHead(-1)
            self._sign()
        except OSError as error:
            raise UsageError(
                f"the audit log {self.path} cannot be written: {error.strerror}",
                fix="make its folder writable, or name another file",
            ) from None


def _make_closed_error() -> UsageError:
    return UsageError("this audit log is closed", fix="append before close()")


# -- Where a log ends: its last whole record, what a crash left behind it, and whether that fits the signed head.


def chain_end(file: int, keys: AuditKeys) -> tuple[int, str, int, int]:
    """The seq and mac of the last complete record, where it ends, and how many bytes of a torn line follow.

    Raises AuditLogBroken.
    """
    size = os.fstat(file).st_size
    start = max(0, size - 2 * MAX_LINE_BYTES)
    os.lseek(file, start, os.SEEK_SET)
    tail = b""
    while piece := os.read(file, MAX_LINE_BYTES):
        tail += piece
    lines = tail.rpartition(b"\n")
    torn = len(lines[2])
    if not lines[1]:
        if start:
            raise AuditLogBroken("its last line is too long for a record")
        return 0, GENESIS_MAC, 0, torn
    last = keys.verify_line(lines[0].rpartition(b"\n")[2] + b"\n")
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


# -- Reads an audit log page by page, from a record or a time on, while it is written.


MAX_PAGE_EVENTS: Final = 1_000
MAX_PAGE_BYTES: Final = 512 * 1024
MAX_RECORDS_READ: Final = 200_000
"""Records that one page may pass over."""
STEP: Final = 1_000


class AuditPage(NamedTuple):
    """Events, each with its `seq`. The next page begins at `next_seq`."""

    events: list[dict[str, Any]]
    next_seq: int
    has_more: bool


class AuditPageBuilder:
    """Takes records in their order until the page is full. `since` leaves out what is older."""

    def __init__(self, since_seq: int, since: datetime | None, limit: int) -> None:
        self._since, self._limit = since, min(limit, MAX_PAGE_EVENTS)
        self.next_seq = max(since_seq, 1)
        self._events: list[dict[str, Any]] = []
        self._bytes = self._read = 0
        self._is_full = False

    def add_record(self, record: AuditRecord, size: int) -> bool:
        """Whether there is room for more. A record that is not taken begins the next page."""
        if record.seq < self.next_seq:
            return True
        is_wanted = record.is_event and not _is_older(record.body, self._since)
        full = len(self._events) >= self._limit or (self._events and self._bytes + size > MAX_PAGE_BYTES)
        if self._read >= MAX_RECORDS_READ or (is_wanted and full):
            self._is_full = True
            return False
        self._read += 1
        self.next_seq = record.seq + 1
        if is_wanted:
            self._events.append({"seq": record.seq, **record.body})
            self._bytes += size
        return True

    def build_page(self) -> AuditPage:
        return AuditPage(self._events, self.next_seq, self._is_full)


class AuditLogReader:
    """Reads the file of a log. It remembers where some records are, so that later pages are found at once."""

    def __init__(self, path: Path, keys: AuditKeys) -> None:
        self._path, self._keys = path, keys
        self._places: dict[int, int] = {0: 0}

    def read_page(self, since_seq: int, since: datetime | None, limit: int) -> AuditPage:
        """Raises AuditLogBroken for a record that is not genuine, and OSError."""
        building, begin = AuditPageBuilder(since_seq, since, limit), max(since_seq, 1) // STEP
        place = max(step for step in tuple(self._places) if step <= begin)  # another thread may add one
        with self._path.open("rb") as file:
            file.seek(self._places[place])
            at = self._places[place]
            for _, line in iter_numbered_lines(file):
                if not line.endswith(b"\n"):
                    break  # it is being written
                record = self._keys.verify_line(line)
                if record.seq % STEP == 0:
                    self._places.setdefault(record.seq // STEP, at)
                at += len(line)
                if not building.add_record(record, len(line)):
                    break
        return building.build_page()


def add_lines_to_page(lines: Iterable[tuple[int, bytes | None]], keys: AuditKeys, building: AuditPageBuilder) -> bool:
    """Add records that were kept by their numbers. Returns whether there is room for more. Raises AuditLogBroken."""
    for seq, line in iter_present_lines(lines):
        record = keys.verify_line(line)
        if record.seq != seq:
            raise AuditLogBroken(f"record {record.seq} is in the place of {seq}")
        if not building.add_record(record, len(line)):
            return False
    return True


def iter_present_lines(lines: Iterable[tuple[int, bytes | None]]) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers. Raises AuditLogBroken at the first that is missing."""
    for seq, line in lines:
        if line is None:
            raise AuditLogBroken(f"record {seq} is missing")
        yield seq, line


def _is_older(event: dict[str, Any], since: datetime | None) -> bool:
    if since is None:
        return False
    try:
        return datetime.fromisoformat(str(event.get("timestamp"))) < since
    except (ValueError, TypeError):
        return False


# -- Where the key of an audit log comes from. It is never in the folder of the log, and never in the log.
#
# In this order: a key file that was named, the variable DEFSERVE_AUDIT_KEY, the user's own `defserve/audit.key` below
# `$XDG_CONFIG_HOME` (or `~/.config`). A key file is private (0600) and holds the key as text. Everyone who can read it
# can rewrite the log. So people and programs that read or copy the log must not have access to it.


AUDIT_KEY_VARIABLE: Final = "DEFSERVE_AUDIT_KEY"


def load_audit_key(key_file: str | os.PathLike[str] | None = None, *, make: bool = False) -> bytes:
    """The key. With `make`, a missing key file is created, as a server does on its first use.

    Raises UsageError if there is no key, or if others can read its file.
    """
    if key_file is None and (text := os.environ.get(AUDIT_KEY_VARIABLE)):
        return read_secret_setting(text.strip(), AUDIT_KEY_VARIABLE).encode()
    path = Path(key_file) if key_file is not None else get_user_file_path("audit.key")
    return load_secret_file(
        path,
        "the audit key",
        make=make,
        fix=f"name the file the log was written with (--key-file), or set {AUDIT_KEY_VARIABLE}",
    )
