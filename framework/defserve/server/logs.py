"""Log lines on standard error, as text or as JSON, and the request log. Standard output belongs to the protocol."""

from __future__ import annotations

import logging
import os
import select
import socket
import stat
import sys
from datetime import UTC, datetime
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.json_values import replace_surrogates
from defserve.protocols.mcp.errors import get_trace_id
from defserve.server.metrics import RequestOutcome, RequestWatcher

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s%(span)s"
DEFAULT_LEVEL = "info"


class JsonLogFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the record's `fields`, if it has any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if traceback := record.exc_text or (record.exc_info and self.formatException(record.exc_info)):
            line["traceback"] = traceback
        try:
            return to_json(line, fallback=str, inf_nan_mode="strings").decode()
        except PydanticSerializationError:  # a lone surrogate: a file's name may have one
            return to_json(replace_surrogates(line), fallback=str, inf_nan_mode="strings").decode()


class NonBlockingLogHandler(logging.StreamHandler[Any]):
    """Writes to standard error without ever waiting for its reader. Lines that a full pipe cannot take are lost.

    A client that starts a server and does not read its log would stop the server otherwise. When there is room again,
    a line says how many are missing.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._piece = _writer_of(sys.stderr)
        self._lost = 0
        self._is_line_cut = False
        """Whether only a part of the last line was taken, so that its end is missing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it as lost."""
        if self._piece is None:
            super().emit(record)
            return
        try:
            said = [_missing(self._lost), record] if self._lost else [record]
            text = "".join(f"{self.format(one)}\n" for one in said)
            self._write(self._piece, (f"\n{text}" if self._is_line_cut else text).encode(errors="backslashreplace"))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Let go of standard error."""
        piece, self._piece = self._piece, None
        if piece is not None:
            piece.close()
        super().close()

    def _write(self, piece: _PipeWriter | _SocketWriter, data: bytes) -> None:
        # A pipe takes a piece of this size as a whole, or not at all.
        try:
            for start in range(0, len(data), select.PIPE_BUF):
                part = data[start : start + select.PIPE_BUF]
                taken = piece(part)
                self._is_line_cut = True
                if taken < len(part):  # a socket takes what it has room for
                    raise BlockingIOError
        except BlockingIOError:
            self._lost += 1
        else:
            self._lost, self._is_line_cut = 0, False


def _missing(lines: int) -> logging.LogRecord:
    text = f"{lines} lines of the log are missing: nobody read standard error"
    return logging.LogRecord("defserve", logging.WARNING, "", 0, text, None, None)


def _writer_of(stream: Any) -> _PipeWriter | _SocketWriter | None:
    """Writes to a stream that a reader can make wait, or raises BlockingIOError. None for files and terminals.

    Other processes write to it too, so a look whether there is room is not enough. And its own mode is theirs as well:
    a pipe is opened once more.
    """
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
        if stat.S_ISSOCK(mode):
            return _SocketWriter(number)
        if not stat.S_ISFIFO(mode) or not hasattr(select, "poll"):
            return None
    except (OSError, ValueError, AttributeError):
        return None
    try:
        return _PipeWriter(os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:  # no /proc, or a pipe of another user
        return _LookingWriter(number)


class _PipeWriter:
    """Writes a piece at once, or raises BlockingIOError."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, data: bytes) -> int:
        return os.write(self._number, data)

    def close(self) -> None:
        os.close(self._number)


class _SocketWriter:
    """Writes a piece at once, or raises BlockingIOError."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=os.dup(number))

    def __call__(self, data: bytes) -> int:
        return self._socket.send(data, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._socket.close()


class _LookingWriter(_PipeWriter):
    """For a pipe that waits for room by itself."""

    def __call__(self, data: bytes) -> int:
        if not _has_room(self._number):
            raise BlockingIOError
        return super().__call__(data)

    def close(self) -> None:
        """The descriptor is that of the stream."""


def _has_room(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return bool(poll.poll(0))


def add_worker_number_to_logs(worker: int) -> None:
    """Name the worker in every line. Warnings are logged if nothing else was chosen."""
    if not logging.root.handlers:
        log_to_stderr("warning", False)
    for handler in logging.root.handlers:
        handler.addFilter(WorkerNumber(worker, is_field=isinstance(handler.formatter, JsonLogFormatter)))


class WorkerNumber(logging.Filter):
    """Adds the number of a worker to a record: as a field, or before the name of its logger."""

    def __init__(self, number: int, *, is_field: bool) -> None:
        super().__init__()
        self._number, self._is_field = number, is_field

    def filter(self, record: logging.LogRecord) -> bool:
        if self._is_field:
            record.fields = {"worker": self._number, **getattr(record, "fields", {})}
        elif not hasattr(record, "worker"):
            record.worker = self._number
            record.name = f"worker {self._number} {record.name}"
        return True


class SpanIds(logging.Filter):
    """Adds the ids of the current span to a record, if one is active: as fields, or at the end of its text.

    A request that has a trace id of its own keeps it. The field for the span's is `otel_trace_id` then.
    """

    def __init__(self, *, is_field: bool) -> None:
        super().__init__()
        self._is_field = is_field

    def filter(self, record: logging.LogRecord) -> bool:
        # Not imported here: who traces has imported it.
        if (trace := sys.modules.get("opentelemetry.trace")) is None:
            return True
        span = trace.get_current_span().get_span_context()
        if not span.is_valid:
            return True
        trace_id, span_id = trace.format_trace_id(span.trace_id), trace.format_span_id(span.span_id)
        if self._is_field:
            fields = {"trace_id": trace_id, **getattr(record, "fields", {}), "span_id": span_id}
            record.fields = fields if fields["trace_id"] == trace_id else fields | {"otel_trace_id": trace_id}
        else:
            record.span = f" trace_id={trace_id} span_id={span_id}"
        return True


def log_to_stderr(level: str | None, as_json: bool) -> bool:
    """Log to stderr from `level` (or `info`) on. Returns whether that includes the requests."""
    handler = NonBlockingLogHandler()
    handler.setFormatter(JsonLogFormatter() if as_json else logging.Formatter(LOG_FORMAT, defaults={"span": ""}))
    handler.addFilter(SpanIds(is_field=as_json))
    logging.basicConfig(handlers=[handler], level=(level or DEFAULT_LEVEL).upper(), force=True)
    return logging.getLogger().isEnabledFor(logging.INFO)


# -- The request log: one line per request, to the logger `defserve.requests`.


class RequestLog(RequestWatcher[None]):
    """Logs method, name, outcome, duration and trace id. Arguments and results may hold secrets, and are left out."""

    name = "request log"

    def __init__(self) -> None:
        self._log = get_logger("requests")

    def begin(self, call: Call) -> None:
        pass

    def end(self, call: Call, begun: None, seconds: float, outcome: RequestOutcome) -> None:
        fields = {
            "method": call.method,
            # The registered name: text of a caller does not go into the log.
            "name": call.subject_name,
            "outcome": outcome.kind,
            "error_type": outcome.error_type or None,
            "duration_ms": round(seconds * 1000, 1),
            "trace_id": get_trace_id(call),
            "principal": call.principal,
        }
        known = {key: value for key, value in fields.items() if value is not None}
        subject = f"{known['method']} {known['name']}" if "name" in known else known["method"]
        ending = f"{known['outcome']} ({known['error_type']})" if "error_type" in known else known["outcome"]
        text = f"{subject} {ending} {known['duration_ms']} ms trace={known['trace_id']}"
        self._log.info("%s", text, extra={"fields": known})
