"""An audit log in a store: the chain, several writers, what breaks it, and reading it page by page."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.protocols.mgp.audit import open_audit_sinks
from defserve.stores.audit.log_file import AuditLog, AuditUnavailable
from defserve.stores.audit.stored_log import StoredAuditLog
from defserve.stores.identity import open_store
from defserve.stores.store import AUDIT_LOG_SPACES, StoreChange, StoreUnavailable
from tests.rows import for_each_row
from tests.waiting import wait_until

KEY = b"a key of sixteen bytes and more"
SPACE = AUDIT_LOG_SPACES.make_space("audit")


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'audit.db'}"
    if request.param == "postgres":
        return request.getfixturevalue("postgres").make_address()
    return f"{request.getfixturevalue('redis').address}?prefix={tmp_path.name}:"


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-03-01T12:{number // 60:02}:{number % 60:02}.000Z", "number": number, **more}


def changed(address: str, **values: bytes | None) -> None:
    """Somebody changes the store behind the log's back."""

    async def change() -> None:
        store = open_store(address)
        put = {name: value for name, value in values.items() if value is not None}
        await store.change(StoreChange(SPACE, put=put, drop=[name for name in values if values[name] is None]))
        await store.close()

    asyncio.run(change())


def numbers(log: StoredAuditLog | AuditLog) -> list[int]:
    return [each["number"] for each in log.replay(limit=1000).events]


def test_events_are_kept_in_their_order_and_the_chain_is_intact(address: str) -> None:
    log = StoredAuditLog(address, key=KEY)
    for number in range(5):
        log.append(event(number), durable=number == 2)
    assert numbers(log) == [0, 1, 2, 3, 4]
    log.close()
    again = StoredAuditLog(address, key=KEY)
    again.append(event(5), durable=True)
    assert again.last_seq == 6
    report = again.verify()
    assert (report.ok, report.events, report.lost) == (True, 6, 0)
    again.close()
    again.close()


def test_an_event_that_is_not_durable_is_written_soon(address: str) -> None:
    log, other = StoredAuditLog(address, key=KEY), StoredAuditLog(address, key=KEY)
    log.append(event(1))
    wait_until(lambda: other.last_seq == 1)
    log.close(), other.close()


def test_an_event_waits_whatever_the_store_raises(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, failures = StoredAuditLog(address, key=KEY, linger=0.0), list[str]()
    change = log._store.change  # pyright: ignore[reportPrivateUsage]

    async def fail_once(one: StoreChange) -> bool:
        if not failures:
            failures.append("no thread can be started")
            raise RuntimeError(failures[0])
        return await change(one)

    monkeypatch.setattr("defserve.stores.audit.stored_log.WRITE_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(log._store, "change", fail_once)  # pyright: ignore[reportPrivateUsage]
    log.append(event(1))
    other = StoredAuditLog(address, key=KEY)
    wait_until(lambda: other.last_seq == 1)
    log.append(event(2))
    wait_until(lambda: other.last_seq == 2)
    assert failures and numbers(log) == [1, 2]
    log.close(), other.close()


WRITER = """
import sys
from defserve.stores.audit.stored_log import StoredAuditLog
log = StoredAuditLog(sys.argv[1], key=b"a key of sixteen bytes and more")
for number in range(40):
    log.append({"number": number, "by": sys.argv[2]}, durable=number % 3 == 0)
log.close()
"""


@pytest.mark.slow
def test_several_processes_share_one_log_and_lose_nothing(address: str) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, address, name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    log = StoredAuditLog(address, key=KEY)
    events = log.replay(limit=1000).events
    for name in "abc":
        assert [each["number"] for each in events if each["by"] == name] == list(range(40))
    assert log.verify().ok
    log.close()


def test_logs_of_one_store_have_names(address: str) -> None:
    one, two = StoredAuditLog(address, key=KEY), StoredAuditLog(f"{address}#other", key=KEY)
    one.append(event(1), durable=True)
    assert (numbers(one), numbers(two)) == ([1], [])
    one.close(), two.close()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"000000000000000002": None}, "record 2 is missing"),
        ({"000000000000000002": b"{}\n"}, "not a record"),
        ({"head": b"{}"}, "head cannot be read"),
        ({"000000000000000003": None}, "record 3 is missing"),
    ],
)
def test_a_change_behind_its_back_shows(tmp_path: Path, values: dict[str, bytes | None], reason: str) -> None:
    address = f"sqlite:///{tmp_path / 'audit.db'}"
    log = StoredAuditLog(address, key=KEY)
    for number in range(3):
        log.append(event(number), durable=True)
    changed(address, **values)
    report = log.verify()
    assert not report.ok
    assert reason in report.reason
    if "head" not in values:
        with pytest.raises(AuditUnavailable, match="not intact"):
            log.replay()
    log.close()


@pytest.mark.parametrize("values", [{"head": None}, {"head": b"{}"}, {"000000000000000001": None}])
def test_a_log_that_is_not_intact_is_not_continued(tmp_path: Path, values: dict[str, bytes | None]) -> None:
    address = f"sqlite:///{tmp_path / 'audit.db'}"
    with_one = StoredAuditLog(address, key=KEY)
    with_one.append(event(1), durable=True)
    with_one.close()
    changed(address, **values)
    with pytest.raises(UsageError, match="cannot be continued"):
        StoredAuditLog(address, key=KEY)


def test_another_key_does_not_fit(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'audit.db'}"
    log = StoredAuditLog(address, key=KEY)
    log.append(event(1), durable=True)
    log.close()
    with pytest.raises(UsageError, match="another key"):
        StoredAuditLog(address, key=b"another key of sixteen bytes")


def test_while_the_store_fails_durable_events_are_refused_and_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StoredAuditLog(f"sqlite:///{tmp_path / 'audit.db'}", key=KEY, most_pending=300)

    async def fails(change: StoreChange) -> bool:
        raise StoreUnavailable("it is gone")

    monkeypatch.setattr(log._store, "change", fails)
    with pytest.raises(AuditUnavailable):
        log.append(event(1), durable=True)
    for number in range(2, 10):
        log.append(event(number))
    monkeypatch.undo()
    log.append(event(10), durable=True)
    report = log.verify()
    kept = numbers(log)
    # What was refused is never written, and the log itself says how many it had no room for.
    assert report.ok and 1 not in kept and kept[-1] == 10
    assert len(kept) - 1 + report.lost == 8 and report.lost > 0
    log.close()


class LosesReplies:
    """A store that makes the next change and then says something else."""

    def __init__(self, log: StoredAuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcome: bool | Exception | None = None
        self.is_away = False
        self._change, self._get = log._store.change, log._store.get
        monkeypatch.setattr(log._store, "change", self.change)
        monkeypatch.setattr(log._store, "get", self.get)

    async def change(self, change: StoreChange) -> bool:
        made, outcome = await self._change(change), self.outcome
        self.outcome = None
        if isinstance(outcome, Exception):
            raise outcome
        return made if outcome is None else outcome

    async def get(self, space: str, names: Sequence[str]) -> Mapping[str, bytes]:
        if self.is_away:
            raise StoreUnavailable("it is gone")
        return await self._get(space, names)


@pytest.mark.parametrize("outcome", [False, StoreUnavailable("the reply is lost")], ids=["repeated", "lost"])
@pytest.mark.parametrize("durable", [True, False])
def test_a_change_whose_reply_was_lost_is_written_once_and_counts(
    address: str, monkeypatch: pytest.MonkeyPatch, outcome: bool | Exception, durable: bool
) -> None:
    log = StoredAuditLog(address, key=KEY, linger=60)
    store = LosesReplies(log, monkeypatch)
    store.outcome = outcome
    log.append(event(1), durable=durable)
    log.flush()
    log.append(event(2), durable=True)
    assert numbers(log) == [1, 2]
    assert log.verify().ok
    log.close()


def test_events_of_a_lost_reply_are_not_written_again_when_the_store_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StoredAuditLog(f"sqlite:///{tmp_path / 'audit.db'}", key=KEY, linger=60)
    store = LosesReplies(log, monkeypatch)
    store.outcome, store.is_away = StoreUnavailable("the reply is lost"), True
    log.append(event(1))
    for number in (2, 3):
        with pytest.raises(AuditUnavailable):
            log.flush()
        log.append(event(number))
    store.is_away = False
    log.flush()
    assert numbers(log) == [1, 2, 3]
    assert log.verify().ok
    log.close()


@for_each_row("where", ["memory:", "http://127.0.0.1/x", "mysql://x"])
def test_a_place_that_keeps_nothing_is_refused(where: str) -> None:
    with pytest.raises(UsageError, match="cannot keep an audit log"):
        open_audit_sinks(where)


def test_a_store_that_cannot_be_reached_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        StoredAuditLog(f"sqlite:///{tmp_path / 'no' / 'folder' / 'x.db'}", key=KEY)


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    log = StoredAuditLog(f"sqlite:///{tmp_path / 'audit.db'}", key=KEY)
    log.close()
    log.settle()
    with pytest.raises(UsageError, match="closed"):
        log.append(event(1))


# -- pages, of both kinds of logs --------------------------------------------------------------------------


@pytest.fixture(params=["file", "store"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], StoredAuditLog | AuditLog]:
    def make(count: int, size: int = 0) -> StoredAuditLog | AuditLog:
        made: StoredAuditLog | AuditLog = (
            AuditLog(tmp_path / "audit.log", key=KEY)
            if request.param == "file"
            else StoredAuditLog(f"sqlite:///{tmp_path / 'audit.db'}", key=KEY)
        )
        for number in range(count):
            made.append(event(number, text="x" * size))
        request.addfinalizer(made.close)
        return made

    return make


def test_pages_follow_each_other_without_a_gap(filled: Callable[..., Any]) -> None:
    log, seq, seen = filled(2_500), 0, list[int]()
    while True:
        page = log.replay(seq, None, 700)
        seen += [each["number"] for each in page.events]
        seq = page.next_seq
        if not page.has_more:
            break
    assert seen == list(range(2_500))
    # A page is also found from the middle, at once.
    assert [each["seq"] for each in log.replay(2_001, None, 3).events] == [2_001, 2_002, 2_003]
    assert log.replay(9_999).events == []
    log.append(event(2_500), durable=True)
    assert [each["number"] for each in log.replay(seq).events] == [2_500]


def test_a_time_leaves_out_what_is_older(filled: Callable[..., Any]) -> None:
    page = filled(200).replay(0, datetime(2026, 3, 1, 12, 2, tzinfo=UTC), 5)
    assert [each["number"] for each in page.events] == [120, 121, 122, 123, 124]
    assert page.has_more


def test_a_page_is_bounded_in_bytes(filled: Callable[..., Any]) -> None:
    page = filled(30, 100_000).replay(0, None, 1000)
    assert 1 <= len(page.events) < 8
    assert page.has_more


def test_a_file_that_was_changed_is_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(path, key=KEY) as log:
        log.append(event(1), durable=True)
        path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":2'))
        with pytest.raises(AuditUnavailable, match="altered"):
            log.replay()
        assert not log.verify().ok
