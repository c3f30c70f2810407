"""An audit log in a store: the same chain as in a file, which several processes may add to.

A record is under its number, and the signed head under `head`. Each addition names the head before it, so two processes
never write the same number. A thread of its own has the store's event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from threading import Lock, Thread
from typing import Any, Final, NamedTuple, TypeVar

from defserve.base.redaction import get_logger
from defserve.errors import DefserveError, UsageError
from defserve.stores.audit.chain import (
    AuditChainCheck,
    AuditHead,
    AuditKeys,
    AuditLogBroken,
    AuditReport,
    encode_event,
    encode_log_remark,
    format_current_time,
    parse_log_line,
)
from defserve.stores.audit.log_file import (
    MAX_PENDING_BYTES,
    WRITE_DELAY_SECONDS,
    WRITE_RETRY_SECONDS,
    AuditPage,
    AuditPageBuilder,
    AuditUnavailable,
    add_lines_to_page,
    iter_present_lines,
    load_audit_key,
)
from defserve.stores.identity import SHARED_STORE_SCHEMES, open_store
from defserve.stores.store import AUDIT_LOG_SPACES, Space, Store, StoreChange, StoreUnavailable

HEAD: Final = "head"
NAME: Final = "audit"
PAGE: Final = 256
MAX_TRIES: Final = 100
MAX_NAMES: Final = 10

T = TypeVar("T")
log = get_logger()


def is_audit_store_address(address: str) -> bool:
    """Whether this is the address of a store rather than a file name. Raises UsageError for one that keeps nothing."""
    if address.startswith(SHARED_STORE_SCHEMES):
        return True
    if "://" in address or address == "memory:":
        raise UsageError(
            f"{address.partition(':')[0]}: cannot keep an audit log",
            fix="name a file, or a sqlite:, redis: or postgres: store",
        )
    return False


class UnansweredChange(NamedTuple):
    """A change that may be in the store although it failed: the head it makes, and what of it is pending again."""

    head: bytes
    events: int
    lost: int


class StoredAuditLog:
    """Appends events to the log in the store at `address` that `#NAME` at the end of the address names.

    Without that, it is the log `server_log`, which is named after a server, or `audit` for a program that is none.
    Raises UsageError if the store cannot be reached, or the log is not intact: then it is evidence, and must not be
    continued. See `AuditLog` for the key, and for what `append` promises.
    """

    def __init__(
        self,
        address: str,
        *,
        server_log: str | None = None,
        key: bytes | str | None = None,
        linger: float = WRITE_DELAY_SECONDS,
        most_pending: int = MAX_PENDING_BYTES,
    ) -> None:
        where, _, name = address.partition("#")
        self.name = name or server_log or NAME
        self._may_be_older = not name and server_log is not None
        self._space = AUDIT_LOG_SPACES.make_space(self.name)
        self._keys = AuditKeys(load_audit_key(make=True) if key is None else key)
        self._store, self._linger, self._most_pending = open_store(where), linger, most_pending
        self._lock = Lock()
        self._pending: list[str] = []
        self._pending_size = self._lost = 0
        self._head: bytes | None = None
        self._tried: bytes | None = None
        self._unanswered: UnansweredChange | None = None
        self._closed = self._failing = False
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._adding = asyncio.Lock()
        self._wake = asyncio.Event()
        self._thread = Thread(target=self._run, name="defserve-audit-store", daemon=True)
        self._thread.start()
        try:
            self._in_loop(self._open())
        except AuditLogBroken as bad:
            self._end()
            raise UsageError(
                f"the audit log {self.name!r} cannot be continued: {bad}",
                fix="keep it as evidence; for a new log, put #NAME at the end of the address",
            ) from None
        except UsageError:
            self._end()
            raise
        except DefserveError as error:
            self._end()
            raise UsageError(
                f"the store of the audit log cannot be used: {error}", fix="start it, or correct its address"
            ) from None
        atexit.register(self._close_at_exit)

    # -- as AuditLog -------------------------------------------------------------------------------------------

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        """Add an event. See `AuditLog.append`."""
        content = f'"event":{encode_event(event)}'
        self._check()
        if durable:
            self._in_loop(self._add((content,)))
            return
        with self._lock:
            if self._pending_size + len(content) > self._most_pending:
                self._lost += 1
            else:
                self._pending.append(content)
                self._pending_size += len(content)
        self._loop.call_soon_threadsafe(self._wake.set)

    def settle(self) -> None:
        """Write what is left. Raises AuditUnavailable if that fails."""
        if not self._closed:
            self._check()
            self._in_loop(self._add(()))

    flush = settle

    def close(self) -> None:
        """Write what is left and close the store. Raises AuditUnavailable if that fails."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        try:
            self._in_loop(self._add(()))
        finally:
            self._end()

    @property
    def last_seq(self) -> int:
        """The number of the last record, when all so far are in the store."""
        with suppress(AuditUnavailable):
            self.settle()
        return self._in_loop(self._last())

    def replay(self, since_seq: int = 0, since: datetime | None = None, limit: int = 100) -> AuditPage:
        """Events from a record or a time on. Raises AuditUnavailable if they cannot be read, or are not genuine."""
        with suppress(AuditUnavailable):
            self.settle()
        try:
            return self._in_loop(self._page(since_seq, since, limit))
        except AuditLogBroken as bad:
            raise AuditUnavailable(f"The audit log is not intact: {bad}") from None

    def verify(self) -> AuditReport:
        """Check every record, and that the log has those that its head names."""
        self.settle()
        return self._in_loop(_verify_chain(self._store, self._space, self._keys))

    # -- in the loop -------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        await self._store.open()
        found = await self._store.get(self._space, [HEAD, _name(1)])
        self._head = found.get(HEAD)
        head = self._head_of(self._head)
        if self._may_be_older and not found and await self._store.get(AUDIT_LOG_SPACES.make_space(NAME), [HEAD]):
            raise UsageError(
                f"the store has the log {NAME!r}, which is what 0.1.0 called the log of every server",
                fix=f"to continue that one, put #{NAME} at the end of the address; for a new one, #NAME",
            )
        if head.seq == 0 and _name(1) in found:
            raise AuditLogBroken("its head is missing, so its end may be cut off")
        if head.seq:
            line = (await self._store.get(self._space, [_name(head.seq)])).get(_name(head.seq))
            if line is None or self._keys.verify_line(line).mac != head.mac:
                raise AuditLogBroken("its head names another last record")

    async def _add(self, extra: Sequence[str]) -> None:
        """Add what is pending and then `extra`, all or nothing. On failure only the pending events are kept."""
        async with self._adding:
            await self._drop_written()
            with self._lock:
                batch, lost = self._pending, self._lost
                self._pending, self._pending_size, self._lost = [], 0, 0
            contents = [*batch, *([encode_log_remark("lost", events=lost)] if lost else []), *extra]
            if not contents:
                return
            try:
                await self._append_contents(contents)
            except Exception as error:  # whatever is wrong with the store: the events wait
                with self._lock:
                    self._pending[:0] = batch
                    self._pending_size += sum(map(len, batch))
                    self._lost += lost
                if self._tried is not None:
                    self._unanswered = UnansweredChange(self._tried, len(batch), lost)
                raise self._report_failure(error) from error
            self._failing = False

    async def _drop_written(self) -> None:
        """Drop pending events that the store has after all. Raises AuditUnavailable if that cannot be known yet."""
        if (change := self._unanswered) is None:
            return
        try:
            is_written = await self._is_head(change.head)
        except Exception as error:
            raise self._report_failure(error) from error
        self._unanswered = None
        if is_written:
            with self._lock:
                self._pending_size -= sum(map(len, self._pending[: change.events]))
                del self._pending[: change.events]
                self._lost -= change.lost

    def _report_failure(self, error: Exception) -> AuditUnavailable:
        if not self._failing:
            log.error("the audit log %s cannot be written: %s; its events wait", self.name, error)
        self._failing = True
        return AuditUnavailable("The audit log cannot be written")

    async def _append_contents(self, contents: Sequence[str]) -> None:
        for attempt in range(MAX_TRIES):
            self._tried = None
            try:
                head = self._head_of(self._head)
            except AuditLogBroken as bad:
                raise AuditUnavailable(f"The audit log is not intact: {bad}") from None
            seq, mac, lines = head.seq, head.mac, dict[str, bytes]()
            for content in contents:
                seq += 1
                lines[_name(seq)], mac = self._keys.sign_line(content, seq, mac)
            self._tried = signed = self._keys.sign_head(AuditHead(seq, mac, format_current_time()))
            change = StoreChange(self._space, put={**lines, HEAD: signed}, expect={HEAD: self._head})
            if await self._is_changed(change, signed):
                self._head = signed
                return
            # Another process has added something meanwhile.
            await asyncio.sleep(random.random() * 0.002 * min(attempt, 10))
            if await self._is_head(signed):
                return  # a store that repeats a change finds its own first attempt
        raise AuditUnavailable("Too many processes write to the audit log at once")

    async def _is_changed(self, change: StoreChange, signed: bytes) -> bool:
        try:
            return await self._store.change(change)
        except StoreUnavailable:
            if await self._is_head(signed):
                return True  # only the reply was lost, so a durable event must not be refused
            raise

    async def _is_head(self, signed: bytes) -> bool:
        """Whether the store has this head, and keeps it."""
        self._head = (await self._store.get(self._space, [HEAD])).get(HEAD)
        if self._head != signed:
            return False
        # What is read may be on the primary of a database alone. What is written is kept, and so is all before it.
        await self._store.change(StoreChange(self._space, put={HEAD: signed}, expect={HEAD: signed}))
        return True

    async def _last(self) -> int:
        self._head = (await self._store.get(self._space, [HEAD])).get(HEAD)
        return self._head_of(self._head).seq

    async def _page(self, since_seq: int, since: datetime | None, limit: int) -> AuditPage:
        building, last = AuditPageBuilder(since_seq, since, limit), await self._last()
        while building.next_seq <= last:
            if not add_lines_to_page(await self._lines(building.next_seq, last), self._keys, building):
                break
        return building.build_page()

    async def _lines(self, first: int, last: int) -> list[tuple[int, bytes | None]]:
        return await _read_lines(self._store, self._space, first, last)

    def _head_of(self, raw: bytes | None) -> AuditHead:
        return AuditHead() if raw is None else self._keys.parse_head(raw)

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        writing = self._loop.create_task(self._write_soon())
        try:
            self._loop.run_forever()
        finally:
            writing.cancel()
            with suppress(Exception):
                self._loop.run_until_complete(self._store.close())
            self._loop.close()

    async def _write_soon(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._linger)
            self._wake.clear()
            try:
                await self._add(())
            except AuditUnavailable:
                await asyncio.sleep(WRITE_RETRY_SECONDS)
                self._wake.set()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _close_at_exit(self) -> None:
        with suppress(Exception):
            self.close()

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("this audit log was opened before the process forked", fix="open one log in each process")
        if self._closed:
            raise UsageError("this audit log is closed", fix="append before close()")


def _name(seq: int) -> str:
    return f"{seq:018d}"


async def _read_lines(store: Store, space: Space, first: int, last: int) -> list[tuple[int, bytes | None]]:
    """Some records from the number `first` on, at most up to `last`. None stands for one that is missing."""
    numbers = range(first, min(first + PAGE, last + 1))
    found = await store.get(space, [_name(seq) for seq in numbers])
    return [(seq, found.get(_name(seq))) for seq in numbers]


async def _verify_chain(store: Store, space: Space, keys: AuditKeys) -> AuditReport:
    check = AuditChainCheck(keys, {})
    found = await store.get(space, [HEAD, _name(1)])
    if HEAD not in found and found:
        return check.check_head()
    try:
        check.signed = head = keys.parse_head(found[HEAD]) if found else AuditHead()
        for first in range(1, head.seq + 1, PAGE):
            check.follow_lines(iter_present_lines(await _read_lines(store, space, first, head.seq)))
    except AuditLogBroken as bad:
        return check.report(reason=str(bad))
    return check.check_head()


# -- Reading a log in a store without continuing it: nothing is written, and a log that is broken is read too.


async def verify_stored_log(address: str, key: bytes | str) -> AuditReport:
    """Check every record of a log in a store. Raises UsageError if there is no such log, or no store."""
    keys = AuditKeys(key)
    async with _open_existing_log(address) as (store, space):
        return await _verify_chain(store, space, keys)


async def iter_stored_lines(address: str) -> AsyncGenerator[tuple[int, bytes]]:
    """The records of a log in a store with their numbers, unchecked. One that is missing is empty.

    Raises UsageError if there is no such log, or no store.
    """
    async with _open_existing_log(address) as (store, space):
        head = parse_log_line((await store.get(space, [HEAD])).get(HEAD, b"")) or {}
        first, lines = 1, await _read_lines(store, space, 1, PAGE)
        while present := [seq for seq, line in lines if line is not None]:
            for seq, line in lines[: present[-1] - first + 1]:
                yield seq, line or b""
            first = present[-1] + 1
            lines = await _read_lines(store, space, first, first + PAGE)
        if isinstance(last := head.get("seq"), int) and last >= first:
            yield first, b""


@asynccontextmanager
async def _open_existing_log(address: str) -> AsyncGenerator[tuple[Store, Space]]:
    """The store at an address, and the log that `#NAME` names there; without that, the only one."""
    where, _, name = address.partition("#")
    store = open_store(where)
    try:
        await store.open()
        names = sorted([space.removeprefix(AUDIT_LOG_SPACES) async for space in store.spaces(AUDIT_LOG_SPACES)])
        if not names or (name and name not in names):
            fix = f"put the name of one at the end: {_list_names(names)}" if names else "name the store that audit= has"
            raise UsageError(f"this store has no audit log{f' {name!r}' if name else ''}", fix=fix)
        if not name and len(names) > 1:
            raise UsageError(
                f"this store has {len(names)} audit logs", fix=f"put the name of one at the end: {_list_names(names)}"
            )
        yield store, AUDIT_LOG_SPACES.make_space(name or names[0])
    except UsageError:
        raise
    except DefserveError as error:
        raise UsageError(
            f"the store of the audit log cannot be used: {error}", fix="start it, or correct its address"
        ) from None
    finally:
        await store.close()


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(f"#{name}" for name in names[:MAX_NAMES]) + more
