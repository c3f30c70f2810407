"""The audit log as OTLP logs: complete and in order, whatever becomes of the collector and of the exporter."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.proto")

from defserve.cli import main
from defserve.client import Client, ProcessLink
from defserve.errors import UsageError
from defserve.stores.audit import export as exporting
from defserve.stores.audit.chain import AuditKeys
from defserve.stores.audit.export import (
    AuditExport,
    CollectorAnswer,
    CollectorAway,
    ExportedLog,
    ExportPosition,
    ExportRefused,
    make_collector,
)
from defserve.stores.audit.log_file import MAX_PAGE_BYTES, MAX_PAGE_EVENTS, AuditLog, AuditLogReader, AuditPage
from defserve.stores.identity import ServerIdentity, ServerStore
from defserve.stores.store import MemoryStore
from tests.collector import Collector, Refusal, read_attributes, running_collector
from tests.rows import for_each_row
from tests.soak.sampling import BOUNDS, usage
from tests.soak.slopes import slope
from tests.waiting import until, wait_until

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
SHOP = ServerIdentity("name", "shop")
TRACE = "0af7651916cd43dd8448eb211c80319c"
EVENTS = int(os.environ.get("EXPORT_EVENTS", "3000"))
"""How many events come while the collector is away. A campaign sets more."""
AWAY_SECONDS = float(os.environ.get("EXPORT_AWAY_SECONDS", "600"))
"""How long the collector is away by the clock, while a server is called."""
CALLS_AT_ONCE, CALLS_PAUSE_SECONDS = 5, 0.5
MAX_GROWTH_MB = 24.0


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


def make_event(number: int, **more: Any) -> dict[str, Any]:
    return {
        "timestamp": "2026-11-18T10:00:00.250Z",
        "trace_id": TRACE,
        "event_type": "TOOL_EXECUTED",
        "actor": {"type": "agent", "id": "alice"},
        "target": {"server_id": "shop", "tool_name": "price"},
        "result": "SUCCESS",
        "details": {"number": number, "is_free": False, "share": 0.5, "tags": ["a", None]},
        **more,
    }


class Exporting:
    """An export of one file, in this process. Waits cost no time, and are counted."""

    def __init__(self, path: Path, collector: Collector, store: MemoryStore | None = None, **options: Any) -> None:
        self.waits: list[float] = []
        self.largest = 0
        self._reader = AuditLogReader(path, AuditKeys(KEY))
        self.store = store or MemoryStore()
        position = ExportPosition(ServerStore(self.store, SHOP), path.name, collector.url)
        send = make_collector(collector.url).send
        source = ExportedLog(SHOP.label, "shop", path.name)
        self.export = AuditExport(self.read_page, position, send, source, sleep=self.sleep, **options)

    def read_page(self, first: int, limit: int) -> AuditPage:
        page = self._reader.read_page(first, None, limit)
        self.largest = max(self.largest, len(str(page.events)))
        return page

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


def remove_files(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def numbers(collector: Collector) -> list[int]:
    return [read_attributes(record.attributes)["dev.defserve.audit.seq"] for record in collector.logs]


async def test_a_record_of_the_log_is_a_log_record_of_otlp(tmp_path: Path, collector: Collector):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(1), durable=True)
        log.append(make_event(2, result="BLOCKED", trace_id="order-7"), durable=True)
    assert await Exporting(tmp_path / "audit.log", collector).export.export_available() == 2
    (request,) = collector.taken
    (resource,) = request.resource_logs
    assert read_attributes(resource.resource.attributes) == {"service.name": "shop"}
    first, second = collector.logs
    assert first.time_unix_nano == 1_794_996_000_250_000_000 and first.observed_time_unix_nano > 0
    assert (first.severity_number, first.severity_text) == (9, "INFO")
    assert (second.severity_number, second.severity_text) == (13, "WARN")
    assert first.event_name == "TOOL_EXECUTED"
    assert first.trace_id.hex() == TRACE and second.trace_id == b""
    assert read_attributes(first.attributes) == {
        "log.record.uid": "name=shop/audit.log/1",
        "dev.defserve.audit.seq": 1,
        "dev.defserve.audit.result": "SUCCESS",
        "dev.defserve.server.id": "shop",
        "gen_ai.tool.name": "price",
        "user.id": "alice",
    }
    body = read_attributes(first.body.kvlist_value.values)
    assert body["event_type"] == "TOOL_EXECUTED"
    details = read_attributes(body["details"].values)
    assert (details["number"], details["is_free"], details["share"]) == (1, False, 0.5)


async def test_the_next_export_goes_on_where_the_last_one_ended(tmp_path: Path, collector: Collector):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(1), durable=True)
        first = Exporting(tmp_path / "audit.log", collector)
        assert await first.export.export_available() == 1
        log.append(make_event(2), durable=True)
        assert await first.export.export_available() == 1
        log.append(make_event(3), durable=True)
    again = Exporting(tmp_path / "audit.log", collector, first.store)
    assert await again.export.export_available() == 1
    assert numbers(collector) == [1, 2, 3]


async def test_nothing_is_lost_while_the_collector_is_away_under_load(tmp_path: Path, collector: Collector):
    collector.is_away = True
    path = tmp_path / "audit.log"
    with AuditLog(path, key=KEY) as log:
        log.append(make_event(0), durable=True)
        exporting = Exporting(path, collector)
        work = asyncio.create_task(exporting.export.follow())
        for number in range(1, EVENTS):
            log.append(make_event(number, details={"number": number, "text": "x" * 500}))
        await until(lambda: collector.tries > 5)
        assert collector.taken == []
        collector.is_away = False
        log.flush()
        await until(lambda: len(collector.logs) >= EVENTS)
        work.cancel()
    assert numbers(collector) == list(range(1, EVENTS + 1))
    assert exporting.largest < 3 * MAX_PAGE_BYTES
    # Longer each time, up to a minute, and never more.
    waits = [seconds for seconds in exporting.waits if seconds != 1.0]
    assert waits[0] <= 1 and max(waits) <= 60 and max(waits) > waits[0]


@pytest.mark.slow
def test_an_exporter_that_is_killed_loses_nothing_and_repeats_what_can_be_recognised(
    tmp_path: Path, collector: Collector
):
    path, key = tmp_path / "audit.log", tmp_path / "key"
    key.write_text(KEY.decode())
    key.chmod(0o600)
    command = [sys.executable, "-m", "defserve", "audit", "export", str(path), "--to", collector.url, "--follow"]
    with AuditLog(path, key=KEY) as log:
        number = 0

        def append_events(count: int) -> None:
            nonlocal number
            for _ in range(count):
                number += 1
                log.append(make_event(number))
            log.flush()

        append_events(1)
        for _ in range(3):
            seen = len(collector.logs)
            process = subprocess.Popen(
                [*command, "--key-file", str(key), "--server", "shop"], stderr=subprocess.DEVNULL
            )
            append_events(400)
            wait_until(lambda seen=seen: len(collector.logs) > seen)
            append_events(400)
            collector.refusals.append(Refusal(503))
            process.send_signal(signal.SIGKILL)
            process.wait()
        collector.refusals.clear()
        append_events(1)
    done = subprocess.run(
        [*command[:-1], "--key-file", str(key), "--server", "shop"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    uids: dict[str, bytes] = {}
    for record in collector.logs:
        uid = read_attributes(record.attributes)["log.record.uid"]
        record.observed_time_unix_nano = 0
        assert uids.setdefault(uid, record.SerializeToString()) == record.SerializeToString()
    assert len(uids) == number
    assert sorted(set(numbers(collector))) == list(range(1, number + 1))


SHOP_SERVER = """
import os
from defserve import Server

server = Server("shop", audit="audit.log")

@server.tool
def price(item: str) -> int:
    return len(item)

@server.tool
def process_id() -> int:
    return os.getpid()

server.main()
"""


@pytest.mark.soak
async def test_nothing_is_lost_while_the_collector_is_away_by_the_clock_and_memory_is_bounded(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    """A server on stdio is called all the time, and the command exports its log. What each of them uses is measured."""
    monkeypatch.setenv("DEFSERVE_AUDIT_KEY", KEY.decode())
    (tmp_path / "shop.py").write_text(SHOP_SERVER)
    command = [sys.executable, "-m", "defserve", "audit", "export", "audit.log", "--server", "shop", "--follow"]
    link = await ProcessLink.spawn(sys.executable, ["shop.py"], cwd=tmp_path)
    memory: dict[str, list[float]] = {"server": [], "exporter": []}
    times: list[float] = []
    calls = 0
    async with Client(link) as client:
        pids = {"server": await client.call("process_id")}
        exporter = await asyncio.create_subprocess_exec(*command, "--to", collector.url, cwd=tmp_path)
        pids["exporter"] = exporter.pid
        try:
            await until(lambda: len(collector.logs) > 0)
            collector.is_away, before, began = True, len(collector.logs), time.monotonic()
            while time.monotonic() < began + AWAY_SECONDS:
                for _ in range(CALLS_AT_ONCE):
                    await client.call("price", item="a lamp")
                    calls += 1
                times.append(time.monotonic() - began)
                for name, pid in pids.items():
                    memory[name].append(usage([pid])["memory"])
                await asyncio.sleep(CALLS_PAUSE_SECONDS)
            assert len(collector.logs) == before
            collector.is_away, tries = False, collector.tries
            await client.call("price", item="a lamp")
            last = count_records(tmp_path / "audit.log")
            # The exporter tries again within a minute.
            await until(lambda: numbers(collector)[-1] >= last, 120)
            for name, pid in pids.items():
                memory[name].append(usage([pid])["memory"])
        finally:
            exporter.terminate()
            await exporter.wait()
    for name, values in memory.items():
        print(f"{name}: {min(values):.1f} to {max(values):.1f} MB, at the end {values[-1]:.1f} MB")
    print(f"{calls} calls, {last} records, {times[-1]:.0f} s, {tries} requests until the collector was back")
    for name, values in memory.items():
        grown = slope(times, values[:-1])
        assert grown is None or not grown.exceeds(BOUNDS["memory"]), (name, grown)
        # Whatever has piled up, one page at a time is read and sent when the collector is back.
        assert values[-1] - values[0] < MAX_GROWTH_MB, name
    sent = numbers(collector)
    assert len(sent) >= last > calls > 0
    assert sent == list(range(1, len(sent) + 1))


def count_records(path: Path) -> int:
    """The number of the last record."""
    reader, page = AuditLogReader(path, AuditKeys(KEY)), AuditPage([], 1, True)
    while page.has_more:
        page = reader.read_page(page.next_seq, None, MAX_PAGE_EVENTS)
    return page.next_seq - 1


async def test_a_collector_that_asks_for_time_gets_it(tmp_path: Path, collector: Collector):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(1), durable=True)
    collector.refusals = [Refusal(429, {"retry-after": "30"}), Refusal(503)]
    exporting = Exporting(tmp_path / "audit.log", collector)
    assert await exporting.export.export_available(is_patient=False) == 1
    assert exporting.waits[0] == 30 and exporting.waits[1] < 30


async def test_what_is_too_large_goes_in_halves(tmp_path: Path, collector: Collector):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        for number in range(8):
            log.append(make_event(number), durable=True)
    collector.refusals = [Refusal(413), Refusal(413)]
    assert await Exporting(tmp_path / "audit.log", collector).export.export_available() == 8
    assert numbers(collector) == list(range(1, 9)) and len(collector.taken) == 3
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(9), durable=True)
    collector.refusals = [Refusal(413)] * 10
    with pytest.raises(ExportRefused, match="record 1 is too large"):
        await Exporting(tmp_path / "audit.log", collector).export.export_available()


async def test_a_refusal_ends_an_export_and_a_patient_one_waits(tmp_path: Path, collector: Collector):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(1), durable=True)
    collector.refusals = [Refusal(401)]
    exporting = Exporting(tmp_path / "audit.log", collector)
    with pytest.raises(ExportRefused, match="401"):
        await exporting.export.export_available(is_patient=False)
    collector.refusals = [Refusal(401)]
    assert await exporting.export.export_available() == 1 and len(exporting.waits) == 1


async def test_records_that_the_collector_rejects_are_counted_and_not_sent_again(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(1), durable=True)
        log.append(make_event(2), durable=True)
    collector.rejected = 1
    exporting = Exporting(tmp_path / "audit.log", collector)
    assert await exporting.export.export_available() == 1
    assert exporting.export.rejected == 1 and "too old" in caplog.text
    assert await exporting.export.export_available() == 0


async def test_a_log_that_is_shorter_than_what_was_sent_is_another_log(tmp_path: Path, collector: Collector):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        for number in range(3):
            log.append(make_event(number), durable=True)
    first = Exporting(tmp_path / "audit.log", collector)
    await first.export.export_available()
    remove_files(tmp_path)
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(1), durable=True)
    again = Exporting(tmp_path / "audit.log", collector, first.store)
    with pytest.raises(UsageError, match="another log"):
        await again.export.export_available()
    await again.export.restart_from_record(1)
    assert await again.export.export_available() == 1


async def test_two_exports_of_one_log_notice_each_other(tmp_path: Path, collector: Collector):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(1), durable=True)
        one = Exporting(tmp_path / "audit.log", collector)
        other = Exporting(tmp_path / "audit.log", collector, one.store)
        await one.export.export_available()
        await other.export.export_available()
        log.append(make_event(2), durable=True)
        await one.export.export_available()
        log.append(make_event(3), durable=True)
        with pytest.raises(UsageError, match="another process exports"):
            await other.export.export_available()


async def test_a_position_belongs_to_one_server(tmp_path: Path, collector: Collector):
    with AuditLog(tmp_path / "audit.log", key=KEY) as log:
        log.append(make_event(1), durable=True)
    exporting = Exporting(tmp_path / "audit.log", collector)
    await exporting.export.export_available()
    own, others = (ServerStore(exporting.store, ServerIdentity("name", name)) for name in ("shop", "bank"))
    assert await ExportPosition(own, "audit.log", collector.url).load_position() == 2
    assert await ExportPosition(others, "audit.log", collector.url).load_position() == 1


def test_a_log_in_a_store_is_exported_by_the_command(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from defserve.stores.audit.stored_log import StoredAuditLog

    monkeypatch.setenv("DEFSERVE_AUDIT_KEY", KEY.decode())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    address = f"sqlite:///{tmp_path}/shop.db#audit"
    log = StoredAuditLog(address, key=KEY)
    log.append(make_event(1), durable=True)
    log.close()
    assert main(["audit", "export", address, "--server", "shop"]) == 0
    assert "sent: 1 event" in capsys.readouterr().err
    assert main(["audit", "export", address, "--server", "shop"]) == 0
    assert numbers(collector) == [1]
    assert main(["audit", "export", address, "--server", "shop", "--from", "1"]) == 0
    assert numbers(collector) == [1, 1]


@for_each_row("address", ["", "collector:4318", "ftp://collector"])
def test_an_address_that_is_none_is_refused(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with pytest.raises(UsageError, match="collector"):
        make_collector(address)


async def test_an_address_where_nobody_is_is_a_collector_that_is_away():
    with running_collector() as collector:
        send = make_collector(f"{collector.url}{exporting.LOGS_PATH}").send
        assert await send(b"") == CollectorAnswer(200)
    with pytest.raises(CollectorAway, match="is away"):
        await send(b"")
