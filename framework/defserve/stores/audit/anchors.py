"""Places elsewhere where the head of an audit log is kept, so that a log that is gone, cut or put back is noticed.

An anchor is only worth something if whoever can change the log cannot change it: another disk, another machine, another
account.

    a path                          the head alone, in the form of `<log>.head`
    an address of a store           `redis://…` or `sqlite:///…`: the head under the log's name
    `syslog:`, `syslog://host:514`  each head as a line. It is not read back: copy a line into a file for `--head`

The name of a log is its absolute path, or what follows `#` in the address. Logs that share a store need different
names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from defserve.errors import DefserveError, UsageError
from defserve.stores.files import replace
from defserve.stores.spaces import AUDIT_HEADS
from defserve.stores.store import Store, StoreChange

MAX_HEAD: Final = 4096
STORES: Final = ("sqlite:", "redis:", "rediss:", "redis+unix:")
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

    def keep(self, head: bytes, before: bytes | None) -> bool:
        """Keep this head if `before` is still the last one. Returns whether it was."""
        ...


AuditAnchors: TypeAlias = "AuditAnchor | str | os.PathLike[str] | Sequence[AuditAnchor | str | os.PathLike[str]]"


def anchors_of(given: AuditAnchors, log: Path) -> tuple[AuditAnchor, ...]:
    """One anchor or several of a log. Raises UsageError for what cannot be one."""
    several = [given] if isinstance(given, str | os.PathLike) or hasattr(given, "keep") else given
    return tuple(_anchor(one, log) for one in several)  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]


def _anchor(given: Any, log: Path) -> AuditAnchor:
    if isinstance(given, str):
        address, _, name = given.partition("#")
        if given.startswith(STORES):
            return StoreAnchor(address, name or os.path.abspath(log))
        if given.startswith(SYSLOG):
            return SyslogAnchor(address, name or os.path.abspath(log))
        if "://" in given or given.startswith("memory:"):
            raise UsageError(
                f"{given} cannot be an anchor of an audit log", fix="name a file, a sqlite: or redis: store, or syslog:"
            )
    if isinstance(given, str | os.PathLike):
        return FileAnchor(Path(os.fspath(given)), log)  # pyright: ignore[reportUnknownArgumentType]
    if not callable(getattr(given, "keep", None)) or not callable(getattr(given, "last", None)):
        raise UsageError(
            f"{given!r} is not an anchor", fix="give a file name, an address, or an object with last() and keep()"
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

    def keep(self, head: bytes, before: bytes | None) -> bool:
        if self.last() != before:
            return False
        try:
            replace(self._path, head)
        except OSError as error:
            raise AnchorUnavailable(error.strerror or str(error)) from None
        return True


class StoreAnchor:
    """A store. It is opened for each head, because a log has no event loop of its own."""

    def __init__(self, address: str, log: str) -> None:
        from defserve.stores.open import open_store

        open_store(address)  # raises UsageError for a bad address, or without its package
        self._address, self._log = address, log
        parts = urlsplit(address)
        self.name = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"  # without a password

    def last(self) -> bytes | None:
        async def get(store: Store) -> bytes | None:
            return (await store.get(AUDIT_HEADS, [self._log])).get(self._log)

        return self._with_store(get)

    def keep(self, head: bytes, before: bytes | None) -> bool:
        change = StoreChange(AUDIT_HEADS, put={self._log: head}, expect={self._log: before})
        return self._with_store(lambda store: store.change(change))

    def _with_store(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        from defserve.stores.open import open_store

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

    def keep(self, head: bytes, before: bytes | None) -> bool:
        import logging
        from logging.handlers import SysLogHandler

        told = (self._log, head.decode().strip())
        record = logging.LogRecord("audit", logging.INFO, "", 0, "%s %s", told, None)
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
