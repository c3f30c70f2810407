"""The form of an audit log: records chained by HMAC-SHA-256, and a signed head that says how far the chain goes.

A line is `{"event":{…},"prev":"<mac before>","seq":7,"mac":"<mac>"}`. The mac is over the canonical JSON (sorted names,
no spaces, ASCII) of the record without it, so any change to a line shows. `prev` and `seq` show lines that were
removed, added or moved. The log's own remarks have `log` in place of `event`: `recovered`, `lost`.

The chain cannot show that its end was cut off. The head can: `<path>.head` is one signed line with the `seq` and `mac`
of a record that must exist, and the format of the log. Two attacks remain possible. Records after the head can be
removed until the head is signed again. And an attacker can remove the log together with its head, or put back older
ones. Heads that are kept elsewhere (`anchors`) show the second.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from defserve.errors import UsageError
from defserve.stores.formats import newer_format
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.stores.audit.anchors import AuditAnchors

FORMAT: Final = 1
"""The format of the log and its head. The head names it for all lines."""
MIN_KEY: Final = 16
MAX_LINE: Final = 1024 * 1024
GENESIS: Final = "0" * 64
"""The `prev` of the first record."""

canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode

_LINE: Final = re.compile(rb'(.+,"prev":"([0-9a-f]{64})","seq":([1-9][0-9]{0,17})),"mac":"([0-9a-f]{64})"\}\n')

NO_RECORD: Final = "it is not a record of an audit log"
ALTERED: Final = "it was altered, or written with another key"
UNREADABLE: Final = "the file cannot be read"


class AuditRecord(NamedTuple):
    """The content of a genuine line: an event, or a remark of the log (`is_event` false)."""

    seq: int
    prev: str
    mac: str
    body: dict[str, Any]
    is_event: bool


class AuditHead(NamedTuple):
    """The record that was the last one when the head was signed. `seq` 0 is the empty log.

    `format` is that of the log and its head. 0 is a head of 0.1.0: it names no format, and is otherwise the same as 1.
    """

    seq: int = 0
    mac: str = GENESIS
    time: str = ""
    format: int = FORMAT


class AuditReport(NamedTuple):
    """The result of `verify`. `events` counts those before the first bad line, `lost` those that could not be written.

    `truncated` means that records are missing at the end. `unsigned` events are newer than the head; whether more
    events followed cannot be known. An incomplete last line, as a killed process leaves it, does not break the chain.
    """

    ok: bool
    events: int = 0
    first_bad_line: int | None = None
    reason: str = ""
    truncated: bool = False
    lost: int = 0
    unsigned: int = 0


class AuditLogBroken(Exception):
    """A line or a head is not genuine, or not where it should be. The text says why."""


class AuditKeys:
    """The two keys of a log, derived from the given key. Raises UsageError if that is too short."""

    __slots__ = ("_chain", "_head")

    def __init__(self, key: bytes | str) -> None:
        raw = key.encode() if isinstance(key, str) else key
        if len(raw) < MIN_KEY:
            raise UsageError(
                f"the audit key has {len(raw)} bytes, at least {MIN_KEY} are needed",
                fix="make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            )
        self._chain = hmac.digest(raw, b"defserve audit chain v1", "sha256")
        self._head = hmac.digest(raw, b"defserve audit head v1", "sha256")

    def line(self, content: str, seq: int, prev: str) -> tuple[bytes, str]:
        """The line of a record, and its mac. `content` is `"event":{…}` or `"log":{…}` in canonical JSON."""
        text = f'{{{content},"prev":"{prev}","seq":{seq}'
        mac = hmac.digest(self._chain, f"{text}}}".encode(), "sha256").hex()
        return f'{text},"mac":"{mac}"}}\n'.encode(), mac

    def record(self, line: bytes) -> AuditRecord:
        """The record of a complete line. Raises AuditLogBroken unless it is genuine."""
        found = _LINE.fullmatch(line)
        if found is None:
            raise AuditLogBroken(NO_RECORD)
        mac = found[4].decode()
        if not hmac.compare_digest(hmac.digest(self._chain, found[1] + b"}", "sha256").hex(), mac):
            raise AuditLogBroken(ALTERED)
        whole = parse_line(line) or {}
        is_event = "event" in whole
        body = whole.get("event" if is_event else "log")
        if not is_object(body):
            raise AuditLogBroken(NO_RECORD)
        return AuditRecord(int(found[3]), found[2].decode(), mac, body, is_event)

    def signed(self, head: AuditHead) -> bytes:
        """The content of a head file."""
        said = {name: value for name, value in head._asdict().items() if name != "format" or value}
        signature = hmac.digest(self._head, canonical(said).encode(), "sha256").hex()
        return canonical({**said, "sig": signature}).encode() + b"\n"

    def head(self, path: Path) -> AuditHead | None:
        """The head in a file; None if there is no such file. Raises AuditLogBroken unless it is genuine."""
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_LINE)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise AuditLogBroken(f"its head cannot be read: {reason_of(error)}") from None
        return self.head_in(raw)

    def head_in(self, raw: bytes, name: str = "its head") -> AuditHead:
        """The head in these bytes. Raises AuditLogBroken unless it is genuine. The message calls it `name`."""
        said = parse_line(raw) or {}
        try:
            head = AuditHead(int(said["seq"]), str(said["mac"]), str(said["time"]), int(said.get("format", 0)))
        except (KeyError, ValueError, TypeError, OverflowError):
            raise AuditLogBroken(f"{name} cannot be read") from None
        if head.format > FORMAT:
            raise AuditLogBroken(newer_format("it", head.format, FORMAT))
        if not hmac.compare_digest(self.signed(head), raw):
            raise AuditLogBroken(f"{name} was altered, or signed with another key")
        return head


def head_path(path: str | os.PathLike[str]) -> Path:
    """The path of the head of a log."""
    return Path(f"{os.fspath(path)}.head")


def verify(
    path: str | os.PathLike[str],
    key: bytes | str,
    *,
    head: str | os.PathLike[str] | None = None,
    anchors: AuditAnchors = (),
) -> AuditReport:
    """Check every line of a log, and that it has the records that its head and its anchors name.

    `head` is a copy of the head that was kept elsewhere, `anchors` are as `AuditLog` has them. Every problem of the
    files is in the report. Raises UsageError for a key that is too short, and for an anchor that cannot be reached.
    """
    keys = AuditKeys(key)
    # The heads first: if the log is being written, it can only have grown since.
    anchored, problem = _anchored(anchors, Path(path), keys)
    check = ChainCheck(keys, anchored)
    try:
        check.signed = keys.head(Path(head) if head is not None else head_path(path))
        with open(path, "rb") as file:
            check.read(numbered_lines(file))
    except AuditLogBroken as bad:
        return check.report(reason=str(bad))
    except (OSError, ValueError) as error:
        reason = f"{UNREADABLE}: {reason_of(error)}"
        return check.against_anchors(reason) or check.report(reason=reason)
    report = check.against_anchors() or check.against_head()
    return check.report(reason=problem) if report.ok and problem else report


def _anchored(anchors: AuditAnchors, path: Path, keys: AuditKeys) -> tuple[dict[str, AuditHead], str]:
    """The head at each anchor, by the anchor's name; and why another anchor has none."""
    found, problem = dict[str, AuditHead](), ""
    if anchors != ():
        from defserve.stores.audit.anchors import AnchorUnavailable, anchors_of

        for anchor in anchors_of(anchors, path):
            try:
                raw = anchor.last()
                if raw is None:
                    raise AuditLogBroken(f"the anchor {anchor.name} holds no head of this log")
                found[anchor.name] = keys.head_in(raw, f"the head at {anchor.name}")
            except AuditLogBroken as bad:
                problem = problem or str(bad)
            except AnchorUnavailable as error:
                raise UsageError(
                    f"the anchor {anchor.name} cannot be reached: {error}", fix="try again, or verify without it"
                ) from None
    return found, problem


def numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a log with their numbers. A line that is too long comes in pieces, none of which is a record."""
    return enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line, genuine or not; None if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if is_object(found) else None


def reason_of(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


class ChainCheck:
    """One pass over a log."""

    def __init__(self, keys: AuditKeys, anchored: Mapping[str, AuditHead]) -> None:
        self._keys, self._seq, self._anchored = keys, 0, anchored
        self.signed: AuditHead | None = None
        self._mac: str = GENESIS
        self._events = self._lost = self._unsigned = 0
        self._line: int | None = None

    def read(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Follow the chain, by numbered lines. Raises AuditLogBroken where it breaks, and remembers the line."""
        for self._line, raw in lines:
            if not raw.endswith(b"\n") and len(raw) < MAX_LINE:
                break
            self._follow(self._keys.record(raw))
        self._line = None

    def _follow(self, record: AuditRecord) -> None:
        head = self.signed
        if record.seq > self._seq + 1:
            raise AuditLogBroken(f"{record.seq - self._seq - 1} records before it are missing")
        if record.seq <= self._seq:
            raise AuditLogBroken("it is repeated or out of order")
        if record.prev != self._mac:
            raise AuditLogBroken("it does not follow the record before it")
        if head is not None and record.seq == head.seq and record.mac != head.mac:
            raise AuditLogBroken("the signed head names another record here")
        for name, anchored in self._anchored.items():
            if record.seq == anchored.seq and record.mac != anchored.mac:
                raise AuditLogBroken(f"the anchor {name} names another record here, signed {anchored.time}")
        self._seq, self._mac = record.seq, record.mac
        if record.is_event:
            self._events += 1
            self._unsigned += head is not None and record.seq > head.seq
        elif record.body.get("type") == "lost":
            self._lost += int(record.body.get("events", 0))

    def against_anchors(self, reason: str = "") -> AuditReport | None:
        """What an anchor names and the log does not have. None if nothing is missing and there is no other reason."""
        for name, head in self._anchored.items():
            if self._seq < head.seq:
                missing = f"{head.seq - self._seq} records are missing at its end"
                reason = f"{reason or missing}; the anchor {name} names record {head.seq}, signed {head.time}"
                return self.report(reason=reason, truncated=True)
        return self.report(reason=reason) if reason else None

    def against_head(self) -> AuditReport:
        head = self.signed
        if head is None:
            return self.report(reason="its head is missing, so its end may be cut off", truncated=True)
        if self._seq < head.seq:
            return self.report(reason=f"{head.seq - self._seq} records are missing at its end", truncated=True)
        return self.report(ok=True)

    def report(self, *, ok: bool = False, reason: str = "", truncated: bool = False) -> AuditReport:
        return AuditReport(ok, self._events, self._line, reason, truncated, self._lost, self._unsigned)
