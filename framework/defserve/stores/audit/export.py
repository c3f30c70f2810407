"""Sends an audit log to an OpenTelemetry collector, as OTLP logs over HTTP. `defserve audit export` runs it.

How it works: the log itself is the queue. A page of it is read, sent, and acknowledged; then the position behind it is
kept in a store. While the collector is away, the same page is tried again, less and less often. So memory holds one
page whatever happens, and a crash costs at most the page that was under way: it is sent once more.

    audit log  →  page of records  →  POST /v1/logs  →  200  →  position in the store  →  the next page

A record that was sent twice has the same `log.record.uid` both times. Needs `opentelemetry-proto`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from defserve.base.backoff import Backoff, parse_retry_after
from defserve.base.redaction import get_logger
from defserve.base.version import VERSION
from defserve.core.json_values import is_array, is_mapping
from defserve.errors import DefserveError, UsageError
from defserve.stores.audit.log_file import MAX_PAGE_EVENTS, AuditPage
from defserve.stores.store import AUDIT_EXPORT_SPACE, StoreChange

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    from defserve.stores.identity import ServerStore

LOGS_PATH: Final = "/v1/logs"
SEND_SECONDS: Final = 30.0
POLL_SECONDS: Final = 1.0
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 1.0, 60.0
MAX_RETRY_AFTER_SECONDS: Final = 600.0
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 8
SEVERITIES: Final[Mapping[str, tuple[int, str]]] = {
    "BLOCKED": (13, "WARN"),
    "DENIED": (13, "WARN"),
    "FAILURE": (17, "ERROR"),
}
"""By the result of an event; others are INFO. The numbers are those of OTLP."""
INFO: Final = (9, "INFO")
TOO_LARGE: Final = 413
RETRIED_STATUSES: Final = frozenset((429, 502, 503, 504))

ReadPage = Callable[[int, int], AuditPage]
"""`(first, limit)`: the records from a number on. It may wait for a disk or network."""
SendBody = Callable[[bytes], Awaitable["CollectorAnswer"]]

log = get_logger("audit.export")


class CollectorAnswer(NamedTuple):
    """What a collector says to one request. `rejected` records it will never take, for the reason in `text`."""

    status: int
    retry_after: float = 0.0
    rejected: int = 0
    text: str = ""


class CollectorAway(DefserveError):
    """The collector cannot be reached, or asks to be tried later."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class ExportRefused(DefserveError):
    """The collector understood, and does not take it: to try again is of no use until somebody changes something."""


class ExportPosition:
    """The number of the next record to send, kept for one log and one collector in the part of a server of a store."""

    def __init__(self, store: ServerStore, log_name: str, url: str) -> None:
        self._store, self._key = store, f"{log_name} → {url}"
        self._kept: bytes | None = None

    async def load_position(self) -> int:
        """1 if nothing was sent yet. Raises UsageError for what is no position."""
        self._kept = (await self._store.get(AUDIT_EXPORT_SPACE, [self._key])).get(self._key)
        if self._kept is None:
            return 1
        if not self._kept.isdigit() or len(self._kept) > 18:
            raise UsageError(f"the store has no position of {self._key}, but {self._kept[:40]!r}", fix="use --from")
        return int(self._kept)

    async def store_position(self, next_seq: int) -> None:
        """All before this record is acknowledged. Raises UsageError if somebody else exports the same log there."""
        value = b"%d" % next_seq
        change = StoreChange(AUDIT_EXPORT_SPACE, put={self._key: value}, expect={self._key: self._kept})
        # A store that repeats a change may find its own first attempt.
        if not await self._store.change(change):
            found = (await self._store.get(AUDIT_EXPORT_SPACE, [self._key])).get(self._key)
            if found != value:
                raise UsageError(f"another process exports {self._key} from the same store", fix="end one of the two")
        self._kept = value


class AuditExport:
    """Exports one log to one collector. `sleep` waits; tests give their own."""

    def __init__(
        self,
        read_page: ReadPage,
        position: ExportPosition,
        send: SendBody,
        source: ExportedLog,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        page_events: int = MAX_PAGE_EVENTS,
    ) -> None:
        self._read_page, self._position, self._send, self._source = read_page, position, send, source
        self._sleep, self._page_events = sleep, page_events
        self._backoff = Backoff(FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS, jitter=(0.5, 1.0))
        self._next: int | None = None
        self.sent = self.rejected = 0
        """Records that the collector has taken, and those that it has refused for good."""

    async def restart_from_record(self, seq: int) -> None:
        """Send from this record on, whatever was sent before."""
        await self._position.load_position()
        await self._position.store_position(seq)
        self._next = seq

    async def export_available(self, *, is_patient: bool = True) -> int:
        """Send all that the log has now; the number of records. Waits for a collector that is away.

        A collector that refuses for another reason, such as a wrong token, is waited for too if this `is_patient`.
        Raises ExportRefused if not, and for a record that is too large for it; UsageError if the log does not reach as
        far as was sent before; AuditUnavailable if it cannot be read.
        """
        if self._next is None:
            self._next = await self._find_start()
        before = self.sent
        while True:
            page = await asyncio.to_thread(self._read_page, self._next, self._page_events)
            if page.events:
                await self._deliver(page.events, is_patient)
            if page.next_seq != self._next:
                await self._position.store_position(page.next_seq)
                self._next = page.next_seq
            if not page.has_more:
                return self.sent - before

    async def follow(self) -> None:
        """Send all there is and what comes, until it is cancelled."""
        while True:
            await self.export_available()
            await self._sleep(POLL_SECONDS)

    async def _find_start(self) -> int:
        start = await self._position.load_position()
        if start > 1:
            before = await asyncio.to_thread(self._read_page, start - 1, 1)
            if before.next_seq < start:
                raise UsageError(
                    f"record {start - 1} of {self._source.name} was sent, and is not in the log: it is another log",
                    fix="give it another name (--name), or begin again with --from 1",
                )
        return start

    async def _deliver(self, events: list[dict[str, Any]], is_patient: bool) -> None:
        """Send events until the collector has them. What is too large for it goes in halves."""
        answer = await self._send_until_taken(encode_logs(self._source, events), is_patient)
        if answer.status == TOO_LARGE and len(events) > 1:
            middle = len(events) // 2
            await self._deliver(events[:middle], is_patient)
            await self._deliver(events[middle:], is_patient)
            return
        if answer.status == TOO_LARGE:
            raise ExportRefused(f"record {events[0]['seq']} is too large for the collector")
        self.sent += len(events) - answer.rejected
        self.rejected += answer.rejected
        if answer.rejected:
            log.error("the collector rejected %d audit records: %s", answer.rejected, answer.text)

    async def _send_until_taken(self, body: bytes, is_patient: bool) -> CollectorAnswer:
        while True:
            try:
                answer = await self._send(body)
                if answer.status in RETRIED_STATUSES:
                    raise CollectorAway(f"the collector answered {answer.status}", answer.retry_after)
                if answer.status not in (200, TOO_LARGE):
                    raise ExportRefused(f"the collector answered {answer.status} {answer.text}".rstrip())
            except (CollectorAway, ExportRefused) as error:
                if isinstance(error, ExportRefused) and not is_patient:
                    raise
                if self._backoff.is_reset:
                    log.warning("the audit log is not exported: %s; its records wait in the log", error)
                retry_after = error.retry_after if isinstance(error, CollectorAway) else 0.0
                wait = max(self._backoff.next_wait(), min(retry_after, MAX_RETRY_AFTER_SECONDS))
                await self._sleep(wait)
                continue
            if not self._backoff.is_reset:
                log.warning("the audit log is exported again")
            self._backoff.reset()
            return answer


# -- Records as OTLP.


class ExportedLog(NamedTuple):
    """Whose log it is: the label of the server, its name for the collector, and the name of the log."""

    server: str
    service: str
    name: str

    def make_record_uid(self, seq: int) -> str:
        """Names a record for ever: who gets it twice can tell."""
        return f"{self.server}/{self.name}/{seq}"


def encode_logs(source: ExportedLog, events: list[dict[str, Any]]) -> bytes:
    """Events of a log, each with its `seq`, as one OTLP request."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    _add_attribute(resource.resource.attributes, "service.name", source.service)
    scope = resource.scope_logs.add()
    scope.scope.name, scope.scope.version = "defserve.stores.audit", VERSION
    for event in events:
        _add_record(scope.log_records.add(), source, event)
    return request.SerializeToString()


def _add_record(record: Any, source: ExportedLog, event: Mapping[str, Any]) -> None:
    seq = int(event["seq"])
    record.time_unix_nano = _to_nanoseconds(event.get("timestamp"))
    record.observed_time_unix_nano = time_ns()
    record.severity_number, record.severity_text = SEVERITIES.get(str(event.get("result")), INFO)
    record.event_name = str(event.get("event_type", ""))
    trace_id = str(event.get("trace_id", ""))
    if len(trace_id) == 32 and all(digit in "0123456789abcdef" for digit in trace_id):
        record.trace_id = bytes.fromhex(trace_id)
    _set_value(record.body, {name: value for name, value in event.items() if name != "seq"}, 0)
    actor, target = _object(event.get("actor")), _object(event.get("target"))
    attributes = {
        "log.record.uid": source.make_record_uid(seq),
        "dev.defserve.audit.seq": seq,
        "dev.defserve.audit.result": event.get("result"),
        "dev.defserve.server.id": target.get("server_id"),
        "gen_ai.tool.name": target.get("tool_name"),
        "user.id": actor.get("id"),
    }
    for name, value in attributes.items():
        if value is not None:
            _add_attribute(record.attributes, name, value)


def _object(value: Any) -> Mapping[str, Any]:
    return value if is_mapping(value) else {}


def _to_nanoseconds(timestamp: Any) -> int:
    """0 stands for a time that is not known."""
    try:
        when = datetime.fromisoformat(str(timestamp))
    except ValueError:
        return 0
    seconds = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    return max(int(seconds * 1_000_000), 0) * 1_000


def _add_attribute(attributes: Any, name: str, value: Any) -> None:
    pair: KeyValue = attributes.add()
    pair.key = name
    _set_value(pair.value, value, 0)


def _set_value(target: AnyValue, value: Any, depth: int) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif is_mapping(value) and depth < MAX_DEPTH:
        target.kvlist_value.SetInParent()
        for name, member in value.items():
            pair = target.kvlist_value.values.add()
            pair.key = str(name)
            _set_value(pair.value, member, depth + 1)
    elif is_array(value) and depth < MAX_DEPTH:
        target.array_value.SetInParent()
        for member in value:
            _set_value(target.array_value.values.add(), member, depth + 1)
    elif value is not None:
        target.string_value = str(value)


# -- The collector.


class Collector:
    """An OTLP receiver at an address, over HTTP. Redirects are not followed, and answers are bounded."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is not the address of a collector", fix="write it as http://host:4318")
        self.url = url if parts.path.endswith(LOGS_PATH) else url.rstrip("/") + LOGS_PATH
        self._headers = {"content-type": "application/x-protobuf", **(headers or {})}

    async def send(self, body: bytes) -> CollectorAnswer:
        """Post a request. Raises CollectorAway if there is no answer."""
        return await asyncio.to_thread(self._post, body)

    def _post(self, body: bytes) -> CollectorAnswer:
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        parts = urlsplit(self.url)
        make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = make(parts.hostname or "", parts.port, timeout=SEND_SECONDS)
        try:
            connection.request("POST", parts.path, body, self._headers)
            response = connection.getresponse()
            content = response.read(MAX_ANSWER_BYTES)
        except (OSError, HTTPException) as error:
            raise CollectorAway(f"the collector at {parts.netloc.rpartition('@')[2]} is away: {error}") from None
        finally:
            connection.close()
        retry_after = parse_retry_after({"retry-after": response.getheader("retry-after", "")})
        rejected, text = _read_partial_success(content) if response.status == 200 else (0, "")
        return CollectorAnswer(response.status, retry_after, rejected, text)


def _read_partial_success(content: bytes) -> tuple[int, str]:
    """How many records a collector has rejected, and why. An answer that cannot be read rejects none."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

    try:
        partial = ExportLogsServiceResponse.FromString(content).partial_success
    except DecodeError:
        return 0, ""
    return max(partial.rejected_log_records, 0), partial.error_message[:500]


def make_collector(url: str | None) -> Collector:
    """The collector at an address, or else the one that OpenTelemetry's variables name, with their headers.

    Raises UsageError if there is none, or without the package for it.
    """
    if not _has_protobufs():
        raise UsageError("this needs OpenTelemetry's exporter", fix='pip install "defserve[telemetry]"')
    variables = os.environ
    address = (
        url or variables.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT") or variables.get("OTEL_EXPORTER_OTLP_ENDPOINT") or ""
    )
    if not address:
        raise UsageError("no collector is named", fix="write --to http://host:4318, or set OTEL_EXPORTER_OTLP_ENDPOINT")
    given = variables.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or variables.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    return Collector(address, {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs})


def _has_protobufs() -> bool:
    from importlib.util import find_spec

    try:
        return find_spec("opentelemetry.proto.collector") is not None
    except ModuleNotFoundError:
        return False
