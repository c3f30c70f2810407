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
import logging
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from defserve.base.redaction import get_logger, redact
from defserve.core.json_values import is_object
from defserve.errors import DefserveError, UsageError
from defserve.stores.files import make_newer_format_message, replace_file
from defserve.stores.identity import SHARED_STORE_SCHEMES
from defserve.stores.store import AUDIT_HEADS_SPACE, Store, StoreChange

FORMAT: Final = 1
"""The format of the log and its head. The head names it for all lines."""
MIN_KEY: Final = 16
MAX_LINE_BYTES: Final = 1024 * 1024
GENESIS_MAC: Final = "0" * 64
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
    mac: str = GENESIS_MAC
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

    def sign_line(self, content: str, seq: int, prev: str) -> tuple[bytes, str]:
        """The line of a record, and its mac. `content` is `"event":{…}` or `"log":{…}` in canonical JSON."""
        text = f'{{{content},"prev":"{prev}","seq":{seq}'
        mac = hmac.digest(self._chain, f"{text}}}".encode(), "sha256").hex()
        return f'{text},"mac":"{mac}"}}\n'.encode(), mac

    def verify_line(self, line: bytes) -> AuditRecord:
        """The record of a complete line. Raises AuditLogBroken unless it is genuine."""
        found = _LINE.fullmatch(line)
        if found is None:
            raise AuditLogBroken(NO_RECORD)
        mac = found[4].decode()
        if not hmac.compare_digest(hmac.digest(self._chain, found[1] + b"}", "sha256").hex(), mac):
            raise AuditLogBroken(ALTERED)
        whole = parse_log_line(line) or {}
        is_event = "event" in whole
        body = whole.get("event" if is_event else "log")
        if not is_object(body):
            raise AuditLogBroken(NO_RECORD)
        return AuditRecord(int(found[3]), found[2].decode(), mac, body, is_event)

    def sign_head(self, head: AuditHead) -> bytes:
        """The content of a head file."""
        said = {name: value for name, value in head._asdict().items() if name != "format" or value}
        signature = hmac.digest(self._head, canonical(said).encode(), "sha256").hex()
        return canonical({**said, "sig": signature}).encode() + b"\n"

    def read_head(self, path: Path) -> AuditHead | None:
        """The head in a file; None if there is no such file. Raises AuditLogBroken unless it is genuine."""
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_LINE_BYTES)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise AuditLogBroken(f"its head cannot be read: {describe_chain_error(error)}") from None
        return self.parse_head(raw)

    def parse_head(self, raw: bytes, name: str = "its head") -> AuditHead:
        """The head in these bytes. Raises AuditLogBroken unless it is genuine. The message calls it `name`."""
        said = parse_log_line(raw) or {}
        try:
            head = AuditHead(int(said["seq"]), str(said["mac"]), str(said["time"]), int(said.get("format", 0)))
        except (KeyError, ValueError, TypeError, OverflowError):
            raise AuditLogBroken(f"{name} cannot be read") from None
        if head.format > FORMAT:
            raise AuditLogBroken(make_newer_format_message("it", head.format, FORMAT))
        if not hmac.compare_digest(self.sign_head(head), raw):
            raise AuditLogBroken(f"{name} was altered, or signed with another key")
        return head


def make_head_path(path: str | os.PathLike[str]) -> Path:
    """The path of the head of a log."""
    return Path(f"{os.fspath(path)}.head")


def verify_audit_log(
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
    anchored, problem = _load_anchored_heads(anchors, Path(path), keys)
    check = AuditChainCheck(keys, anchored)
    try:
        check.signed = keys.read_head(Path(head) if head is not None else make_head_path(path))
        with open(path, "rb") as file:
            check.follow_lines(iter_numbered_lines(file))
    except AuditLogBroken as bad:
        return check.report(reason=str(bad))
    except (OSError, ValueError) as error:
        reason = f"{UNREADABLE}: {describe_chain_error(error)}"
        return check.check_anchors(reason) or check.report(reason=reason)
    report = check.check_anchors() or check.check_head()
    return check.report(reason=problem) if report.ok and problem else report


def _load_anchored_heads(anchors: AuditAnchors, path: Path, keys: AuditKeys) -> tuple[dict[str, AuditHead], str]:
    """The head at each anchor, by the anchor's name; and why another anchor has none."""
    found, problem = dict[str, AuditHead](), ""
    if anchors != ():
        for anchor in parse_anchors(anchors, path):
            try:
                raw = anchor.last()
                if raw is None:
                    raise AuditLogBroken(f"the anchor {anchor.name} holds no head of this log")
                found[anchor.name] = keys.parse_head(raw, f"the head at {anchor.name}")
            except AuditLogBroken as bad:
                problem = problem or str(bad)
            except AnchorUnavailable as error:
                raise UsageError(
                    f"the anchor {anchor.name} cannot be reached: {error}", fix="try again, or verify without it"
                ) from None
    return found, problem


def iter_numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a log with their numbers. A line that is too long comes in pieces, none of which is a record."""
    return enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1)


def parse_log_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line, genuine or not; None if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if is_object(found) else None


def describe_chain_error(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


class AuditChainCheck:
    """One pass over a log."""

    def __init__(self, keys: AuditKeys, anchored: Mapping[str, AuditHead]) -> None:
        self._keys, self._seq, self._anchored = keys, 0, anchored
        self.signed: AuditHead | None = None
        self._mac: str = GENESIS_MAC
        self._events = self._lost = self._unsigned = 0
        self._line: int | None = None

    def follow_lines(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Follow the chain, by numbered lines. Raises AuditLogBroken where it breaks, and remembers the line."""
        for self._line, raw in lines:
            if not raw.endswith(b"\n") and len(raw) < MAX_LINE_BYTES:
                break
            self._follow(self._keys.verify_line(raw))
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

    def check_anchors(self, reason: str = "") -> AuditReport | None:
        """What an anchor names and the log does not have. None if nothing is missing and there is no other reason."""
        for name, head in self._anchored.items():
            if self._seq < head.seq:
                missing = f"{head.seq - self._seq} records are missing at its end"
                reason = f"{reason or missing}; the anchor {name} names record {head.seq}, signed {head.time}"
                return self.report(reason=reason, truncated=True)
        return self.report(reason=reason) if reason else None

    def check_head(self) -> AuditReport:
        head = self.signed
        if head is None:
            return self.report(reason="its head is missing, so its end may be cut off", truncated=True)
        if self._seq < head.seq:
            return self.report(reason=f"{head.seq - self._seq} records are missing at its end", truncated=True)
        return self.report(ok=True)

    def report(self, *, ok: bool = False, reason: str = "", truncated: bool = False) -> AuditReport:
        return AuditReport(ok, self._events, self._line, reason, truncated, self._lost, self._unsigned)


# -- What a record holds: an event, or a remark of the log about itself.


MAX_EVENT: Final = 256 * 1024


def encode_event(event: Mapping[str, Any]) -> str:
    """The canonical JSON of an event, whatever it holds."""
    try:
        text = canonical(event if isinstance(event, dict) else dict(event))
        if len(text) <= MAX_EVENT:
            return text
    except (TypeError, ValueError, RecursionError):
        pass
    return canonical(redact(event))


def encode_log_remark(type: str, **members: Any) -> str:
    """The content of a record that the log writes about itself."""
    return f'"log":{canonical({"type": type, "time": format_current_time(), **members})}'


def format_current_time() -> str:
    """The time, as logs write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- Places elsewhere where the head of an audit log is kept, so that a log that is gone, cut or put back is noticed.
#
# An anchor is only worth something if whoever can change the log cannot change it: another disk, another machine,
# another account.
#
#     a path                          the head alone, in the form of `<log>.head`
#     an address of a store           `redis://…`, `postgres://…` or `sqlite:///…`: the head under the log's name
#     `syslog:`, `syslog://host:514`  each head as a line. It is not read back: copy a line into a file for `--head`
#
# The name of a log is its absolute path, or what follows `#` in the address. Logs that share a store need different
# names.


MAX_HEAD: Final = 4096
SYSLOG: Final = "syslog:"
SYSLOG_PORT: Final = 514

T = TypeVar("T")


class AnchorUnavailable(Exception):
    """An anchor cannot be reached. The text says why."""


class AuditAnchor(Protocol):
    """Keeps the newest head of one log. Both methods may raise AnchorUnavailable, and wait for a disk or network."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def last(self) -> bytes | None:
        """The head that was kept last. None if there is none, or if this anchor cannot be read."""
        ...

    def store_head(self, head: bytes, before: bytes | None) -> bool:
        """Keep this head if `before` is still the last one. Returns whether it was."""
        ...


AuditAnchors: TypeAlias = "AuditAnchor | str | os.PathLike[str] | Sequence[AuditAnchor | str | os.PathLike[str]]"


def parse_anchors(given: AuditAnchors, log: Path) -> tuple[AuditAnchor, ...]:
    """One anchor or several of a log. Raises UsageError for what cannot be one."""
    several = [given] if isinstance(given, str | os.PathLike) or hasattr(given, "store_head") else given
    return tuple(_anchor(one, log) for one in several)  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]


def _anchor(given: Any, log: Path) -> AuditAnchor:
    if isinstance(given, str):
        address, _, name = given.partition("#")
        if given.startswith(SHARED_STORE_SCHEMES):
            return StoreAnchor(address, name or os.path.abspath(log))
        if given.startswith(SYSLOG):
            return SyslogAnchor(address, name or os.path.abspath(log))
        if "://" in given or given.startswith("memory:"):
            raise UsageError(
                f"{given.partition(':')[0]}: cannot be an anchor of an audit log",
                fix="name a file, a sqlite:, redis: or postgres: store, or syslog:",
            )
    if isinstance(given, str | os.PathLike):
        return FileAnchor(Path(os.fspath(given)), log)  # pyright: ignore[reportUnknownArgumentType]
    if not callable(getattr(given, "store_head", None)) or not callable(getattr(given, "last", None)):
        raise UsageError(
            f"{given!r} is not an anchor", fix="give a file name, an address, or an object with last() and store_head()"
        )
    return given


class FileAnchor:
    """A second file, on another disk or in a folder that is written by this account alone."""

    def __init__(self, path: Path, log: Path) -> None:
        if os.path.abspath(path) in (os.path.abspath(log), os.path.abspath(f"{log}.head")):
            raise UsageError(f"{path} is the log itself or its head", fix="name a file on another disk or machine")
        self.name, self._path = str(path), path

    def last(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_HEAD)
        except FileNotFoundError:
            if not self._path.parent.is_dir():
                raise AnchorUnavailable(f"there is no folder {self._path.parent}") from None
            return None
        except OSError as error:
            raise AnchorUnavailable(error.strerror or str(error)) from None

    def store_head(self, head: bytes, before: bytes | None) -> bool:
        if self.last() != before:
            return False
        try:
            replace_file(self._path, head)
        except OSError as error:
            raise AnchorUnavailable(error.strerror or str(error)) from None
        return True


class StoreAnchor:
    """A store. It is opened for each head, because a log has no event loop of its own."""

    def __init__(self, address: str, log: str) -> None:
        from defserve.stores.identity import open_store

        open_store(address)  # raises UsageError for a bad address, or without its package
        self._address, self._log = address, log
        parts = urlsplit(address)
        self.name = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"  # without a password

    def last(self) -> bytes | None:
        async def get(store: Store) -> bytes | None:
            return (await store.get(AUDIT_HEADS_SPACE, [self._log])).get(self._log)

        return self._with_store(get)

    def store_head(self, head: bytes, before: bytes | None) -> bool:
        change = StoreChange(AUDIT_HEADS_SPACE, put={self._log: head}, expect={self._log: before})
        return self._with_store(lambda store: store.change(change))

    def _with_store(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        from defserve.stores.identity import open_store

        async def use() -> T:
            store = open_store(self._address)
            try:
                return await work(store)
            finally:
                await store.close()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            is_in_loop = False
        else:
            is_in_loop = True
        try:
            if not is_in_loop:
                return asyncio.run(use())
            with ThreadPoolExecutor(1, "defserve-audit-anchor") as elsewhere:
                return elsewhere.submit(asyncio.run, use()).result()
        except (DefserveError, OSError, RuntimeError) as error:
            # RuntimeError: no thread can be started any more, because the process ends.
            raise AnchorUnavailable(str(error)) from None


class SyslogAnchor:
    """The system's log, or one of another machine."""

    def __init__(self, address: str, log: str) -> None:
        parts = urlsplit(address)
        self.name, self._log = address, log
        try:
            self._where = (parts.hostname, parts.port or SYSLOG_PORT) if parts.hostname else parts.path or "/dev/log"
        except ValueError:
            raise UsageError(
                f"{address} is not the address of a syslog", fix="write syslog:, or syslog://host:514"
            ) from None

    def last(self) -> bytes | None:
        return None

    def store_head(self, head: bytes, before: bytes | None) -> bool:
        from logging.handlers import SysLogHandler

        record = logging.LogRecord("audit", logging.INFO, "", 0, "%s %s", (self._log, head.decode().strip()), None)
        try:
            handler = SysLogHandler(self._where, SysLogHandler.LOG_AUTHPRIV)
            handler.ident = "defserve-audit: "
            handler.handleError = _raise
            try:
                handler.emit(record)
            finally:
                handler.close()
        except OSError as error:
            raise AnchorUnavailable(error.strerror or str(error)) from None
        return True


def _raise(record: object) -> None:
    import sys

    raise sys.exc_info()[1] or OSError("it failed")


# -- Compares an audit log with its anchors when it is opened, and keeps their heads up to date while it is written.


CHUNK: Final = 1024 * 1024
MAX_END_BYTES: Final = 256
"""The end of a line, from `seq` on, is shorter."""

log = get_logger()


class LogAnchors:
    """The anchors of one log. An anchor that cannot be reached is logged; it stops neither the log nor a call."""

    def __init__(self, path: Path, keys: AuditKeys, anchors: Sequence[AuditAnchor]) -> None:
        self._path, self._keys, self._anchors = path, keys, anchors
        self._last: dict[int, bytes | None] = {}

    def check_anchors(self) -> None:
        """Raises AuditLogBroken if an anchor names a record that the log does not have."""
        for index, anchor in enumerate(self._anchors):
            try:
                self._last[index] = self._read_known_head(anchor)
            except AuditLogBroken:
                raise
            except Exception as error:
                log.error("the anchor %s of the audit log %s cannot be reached: %s", anchor.name, self._path, error)

    def anchor_head(self, head: AuditHead) -> bool:
        """Give a head to every anchor, and return whether all have it. One that contradicts the log keeps its own."""
        signed, done = self._keys.sign_head(head), True
        for index, anchor in enumerate(self._anchors):
            try:
                if index not in self._last or not anchor.store_head(signed, self._last[index]):
                    found = self._read_known_head(anchor)
                    if found is None and self._last.get(index) is not None:
                        log.error("the anchor %s of the audit log %s was emptied", anchor.name, self._path)
                    if not anchor.store_head(signed, found):
                        raise AnchorUnavailable("somebody else writes to it")
                self._last[index] = signed
            except Exception as error:
                done = False
                log.error("the audit log %s is not anchored at %s: %s", self._path, anchor.name, error)
        return done

    def _read_known_head(self, anchor: AuditAnchor) -> bytes | None:
        """The last head at an anchor, if the log has its record."""
        raw = anchor.last()
        if raw is not None:
            head = self._keys.parse_head(raw, f"the head at {anchor.name}")
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
            kept = chunk[-MAX_END_BYTES:]
    return False
