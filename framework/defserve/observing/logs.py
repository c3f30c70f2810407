"""Log lines on standard error, as text or as JSON. Standard output belongs to the protocol."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
DEFAULT_LEVEL = "info"


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the record's `fields`, if it has any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return to_json(line, fallback=str, inf_nan_mode="strings").decode()


def number_lines(worker: int) -> None:
    """Name the worker in every line. Warnings are logged if nothing else was chosen."""
    if not logging.root.handlers:
        log_to_stderr("warning", False)
    for handler in logging.root.handlers:
        handler.addFilter(WorkerNumber(worker, is_field=isinstance(handler.formatter, JsonLines)))


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


def log_to_stderr(level: str | None, as_json: bool) -> bool:
    """Log to stderr from `level` (or `info`) on. Returns whether that includes the requests."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=(level or DEFAULT_LEVEL).upper(), force=True)
    return logging.getLogger().isEnabledFor(logging.INFO)
