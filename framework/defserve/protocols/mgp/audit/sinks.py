"""MGP §6: where audit events go: files, stores, loggers, or the author's own objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pydantic_core import to_json

from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_array


class AuditSink(Protocol):
    """Where events go. `append` raises when an event cannot be kept. A `durable` event is on disk when it returns."""

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None: ...


AuditSinks: TypeAlias = "AuditSink | str | Path | Sequence[AuditSink | str | Path]"


class AuditLogger:
    """A sink that writes every event as one line to the logger `defserve.audit`."""

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        """Write one event. `durable` changes nothing: the logger's handlers decide what becomes of a line."""
        import logging

        logging.getLogger("defserve").getChild("audit").info("%s", to_json(event).decode())


def sinks_of(given: AuditSinks, log_name: str | None = None) -> tuple[AuditSink, ...]:
    """One sink or several; a text or path names a file, or a text a store. Raises UsageError for anything else.

    `log_name` is the name of a log in a store whose address says none.
    """
    return tuple(_sink(one, log_name) for one in (given if is_array(given) else [given]))


def _sink(given: Any, log_name: str | None) -> AuditSink:
    if isinstance(given, str) and ":" in given:
        from defserve.stores.audit.stored import StoredAuditLog, is_store

        if is_store(given):
            return StoredAuditLog(given, server_log=log_name)
    if isinstance(given, str | Path):
        from defserve.stores.audit.log import AuditLog

        return AuditLog(given)
    if not callable(getattr(given, "append", None)):
        raise UsageError(
            f"audit={given!r} is not an audit sink",
            fix="give a file name, the address of a store, an AuditLog, AuditLogger() or an object with append()",
        )
    return given
