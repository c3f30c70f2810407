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


def log_to_stderr(level: str | None, as_json: bool) -> bool:
    """Log to stderr from `level` (or `info`) on. Returns whether that includes the requests."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=(level or DEFAULT_LEVEL).upper(), force=True)
    return logging.getLogger().isEnabledFor(logging.INFO)
