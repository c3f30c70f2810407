from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from defserve.errors import UsageError
from defserve.stores import files
from defserve.stores.audit import log_file as audit_log
from defserve.stores.audit.chain import AuditReport, make_head_path
from defserve.stores.audit.log_file import AuditLog, AuditUnavailable, verify_audit_log
from tests.effort import examples

KEY = "0123456789abcdef0123456789abcdef"
FRAMEWORK = Path(__file__).parents[3] / "framework"
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX files and signals")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def write_log(path: Path, count: int = 3) -> None:
    with AuditLog(path, key=KEY) as log:
        for n in range(count):
            log.append({"n": n})


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def events(path: Path) -> list[dict[str, Any]]:
    return [record["event"] for record in records(path) if "event" in record]


class Disk:
    """The write of the system, which can be made to fail as on a full disk, after some bytes got through."""

    def __init__(self) -> None:
        self.full = False
        self.partly = 0

    def write(self, file: int, content: bytes) -> None:
        if self.full:
            os.write(file, content[: self.partly])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        files.write_fully(file, content)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(audit_log, "write_fully", disk.write)
    monkeypatch.setattr(audit_log, "WRITE_RETRY_SECONDS", 0.01)
    return disk


def quiet_log(path: Path, **options: Any) -> AuditLog:
    """A log whose writer waits long enough that only the test writes."""
    return AuditLog(path, key=KEY, linger=30, **options)


# -- writing ---------------------------------------------------------------------------------------------------


def test_events_are_written_in_order_and_verify(path: Path):
    write_log(path, 5)
    assert events(path) == [{"n": n} for n in range(5)]
    assert [record["seq"] for record in records(path)] == [1, 2, 3, 4, 5]
    assert verify_audit_log(path, KEY) == AuditReport(True, 5)


def test_a_durable_event_is_in_the_file_when_append_returns_with_all_before_it(path: Path):
    with quiet_log(path) as log:
        log.append({"n": 1})
        assert path.read_bytes() == b""
        log.append({"n": 2}, durable=True)
        assert events(path) == [{"n": 1}, {"n": 2}]


def test_other_events_are_in_the_file_soon(path: Path):
    with AuditLog(path, key=KEY) as log:
        log.append({"n": 1})
        assert eventually(lambda: events(path) == [{"n": 1}])
        log.append({"n": 2})
        assert eventually(lambda: len(events(path)) == 2)


def test_flush_waits_for_the_disk(path: Path):
    with quiet_log(path) as log:
        log.append({"n": 1})
        log.flush()
        assert len(events(path)) == 1


def test_a_log_is_continued(path: Path):
    write_log(path)
    write_log(path, 2)
    assert [record["seq"] for record in records(path)] == [1, 2, 3, 4, 5]
    assert verify_audit_log(path, KEY) == AuditReport(True, 5)


def test_an_empty_log_is_whole(path: Path):
    AuditLog(path, key=KEY).close()
    assert verify_audit_log(path, KEY) == AuditReport(True)


def test_threads_do_not_disturb_each_other(path: Path):
    def work(log: AuditLog, name: int) -> None:
        for n in range(100):
            log.append({"thread": name, "n": n}, durable=n % 25 == 0)

    with AuditLog(path, key=KEY, linger=0.001) as log:
        threads = [threading.Thread(target=work, args=(log, name)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert verify_audit_log(path, KEY) == AuditReport(True, 800)
    for name in range(8):
        assert [event["n"] for event in events(path) if event["thread"] == name] == list(range(100))


def test_nothing_in_an_event_can_start_a_line_of_its_own(path: Path):
    forged = '\n{"event":{},"prev":"' + "0" * 64 + '","seq":1,"mac":"' + "0" * 64 + '"}\n'
    event = {forged: "a\r\nb\x1b[31m\u2028\x85\ud800"}
    with AuditLog(path, key=KEY) as log:
        log.append(event)
    raw = path.read_bytes()
    assert raw.count(b"\n") == 1 and raw.isascii() and b"\x1b" not in raw
    assert events(path) == [event]
    assert verify_audit_log(path, KEY).ok


def test_the_mac_is_over_the_canonical_json_of_the_record(path: Path):
    with AuditLog(path, key=KEY) as log:
        log.append({"b": "ü", "a": [1, {"d": 1, "c": None}]})
    line = path.read_text().rstrip("\n")
    record = json.loads(line)
    mac = record.pop("mac")
    assert line == json.dumps(record, sort_keys=True, separators=(",", ":"))[:-1] + f',"mac":"{mac}"}}'


def test_what_json_has_no_form_for_is_shown_redacted(path: Path):
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    odd: list[Any] = [SecretStr("canary"), float("nan"), deep, b"canary", {1: 2, "a": 3}, "x" * 1_000_000]
    with AuditLog(path, key=KEY) as log:
        for value in odd:
            log.append({"value": value})
    assert b"canary" not in path.read_bytes()
    assert verify_audit_log(path, KEY) == AuditReport(True, len(odd))
    assert events(path)[0] == {"value": "[redacted]"}
    assert path.stat().st_size < 10_000


def test_an_event_is_written_as_it_was_when_it_was_appended(path: Path):
    event = {"n": 1}
    with quiet_log(path) as log:
        log.append(event)
        event["n"] = 2
    assert events(path) == [{"n": 1}]


def test_the_key_is_in_no_file(path: Path):
    write_log(path)
    assert all(KEY.encode() not in file.read_bytes() for file in path.parent.iterdir())


@posix
def test_the_files_are_private_even_if_the_log_was_not(path: Path):
    path.touch(0o644)
    write_log(path)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert sorted(file.name for file in path.parent.iterdir()) == ["audit.log", "audit.log.head"]


def test_a_short_key_is_refused(path: Path):
    with pytest.raises(UsageError, match="at least 16"):
        AuditLog(path, key="short")
    assert not path.exists()


def test_a_closed_log_takes_no_events(path: Path):
    log = AuditLog(path, key=KEY)
    log.close()
    log.close()
    for durable in (True, False):
        with pytest.raises(UsageError, match="closed"):
            log.append({}, durable=durable)


def test_a_second_writer_is_refused_and_the_first_goes_on(path: Path):
    with AuditLog(path, key=KEY) as log:
        with pytest.raises(UsageError, match="open in another process or server"):
            AuditLog(path, key=KEY)
        log.append({"n": 1}, durable=True)
    assert verify_audit_log(path, KEY) == AuditReport(True, 1)


@posix
def test_a_second_process_is_refused(path: Path):
    script = "import sys; from defserve.stores.audit.log_file import AuditLog; AuditLog(sys.argv[1], key=sys.argv[2])"
    with AuditLog(path, key=KEY):
        done = run_python(script, path)
    assert done.returncode == 1
    assert "open in another process or server" in done.stderr


@posix
def test_a_forked_child_is_told_to_open_its_own(path: Path):
    script = """
import os, sys, warnings
from defserve.errors import UsageError
from defserve.stores.audit.log_file import AuditLog
warnings.simplefilter("ignore")  # Python 3.12 advises against what is tried here
log = AuditLog(sys.argv[1], key=sys.argv[2], linger=30)
log.append({"who": "parent"})
if os.fork() == 0:
    try:
        log.append({"who": "child"})
    except UsageError as error:
        print(error, flush=True)
    sys.exit()
os.wait()
"""
    done = run_python(script, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "before the process forked" in done.stdout
    assert events(path) == [{"who": "parent"}], "the end of a child writes nothing"


def test_what_is_pending_when_the_process_ends_is_written(path: Path):
    script = """
import sys
from defserve.stores.audit.log_file import AuditLog
AuditLog(sys.argv[1], key=sys.argv[2], linger=30).append({"n": 1})
"""
    assert run_python(script, path).returncode == 0
    assert verify_audit_log(path, KEY) == AuditReport(True, 1)


@pytest.mark.parametrize("kind", ["folder", "missing folder", "link"])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, kind: str):
    path = {"folder": tmp_path, "missing folder": tmp_path / "no" / "log", "link": tmp_path / "link"}[kind]
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot be opened"):
        AuditLog(path, key=KEY)


# -- the head --------------------------------------------------------------------------------------------------


def head_seq(path: Path) -> int:
    return json.loads(make_head_path(path).read_bytes())["seq"]


def test_the_head_is_signed_after_so_many_events(path: Path):
    with quiet_log(path, head_events=3) as log:
        seen: list[int] = []
        for n in range(7):
            log.append({"n": n}, durable=True)
            seen.append(head_seq(path))
    assert seen == [0, 0, 3, 3, 3, 6, 6]
    assert head_seq(path) == 7


def test_the_head_is_signed_after_so_much_time(path: Path):
    now = 1000.0
    with quiet_log(path, clock=lambda: now) as log:
        now += 59
        log.append({}, durable=True)
        assert head_seq(path) == 0
        now += 1
        log.append({}, durable=True)
        assert head_seq(path) == 2


def test_the_head_is_signed_though_nothing_more_happens(path: Path):
    with AuditLog(path, key=KEY, head_seconds=0.05, linger=0.001) as log:
        for _ in range(2):
            log.append({}, durable=True)
        assert eventually(lambda: head_seq(path) == 2)


def test_events_after_the_head_are_counted_as_unsigned(path: Path):
    with quiet_log(path, head_events=2) as log:
        for _ in range(3):
            log.append({}, durable=True)
        assert verify_audit_log(path, KEY) == AuditReport(True, 3, unsigned=1)


def test_a_head_that_cannot_be_signed_stops_no_event(path: Path, caplog: pytest.LogCaptureFixture):
    with quiet_log(path, head_events=1) as log:
        draft = path.with_name("audit.log.head.new")
        draft.mkdir()
        log.append({}, durable=True)
        log.append({}, durable=True)
        assert verify_audit_log(path, KEY) == AuditReport(True, 2, unsigned=2)
        assert caplog.text.count("cannot be signed") == 1
        draft.rmdir()
    assert verify_audit_log(path, KEY) == AuditReport(True, 2)


# -- verifying -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of some events, to be damaged in copies."""
    path = tmp_path_factory.mktemp("sample") / "audit.log"
    with AuditLog(path, key=KEY) as log:
        for n in range(6):
            log.append({"event_type": "TOOL_EXECUTED", "n": n, "text": "äöü\n"})
    return path


@pytest.fixture(scope="module")
def damaged(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], AuditReport]:
    """What `verify` says of a log with other bytes under the sample's head."""
    copy = tmp_path_factory.mktemp("damaged") / "audit.log"
    shutil.copy(make_head_path(sample), make_head_path(copy))

    def check(raw: bytes) -> AuditReport:
        copy.write_bytes(raw)
        return verify_audit_log(copy, KEY)

    return check


def test_the_sample_is_whole(sample: Path, damaged: Callable[[bytes], AuditReport]):
    assert damaged(sample.read_bytes()) == AuditReport(True, 6)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_is_found(sample: Path, damaged: Callable[[bytes], AuditReport], data: st.DataObject):
    raw = bytearray(sample.read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    report = damaged(bytes(raw))
    assert not report.ok
    line = sample.read_bytes()[:place].count(b"\n") + 1
    assert report.first_bad_line == line or (report.truncated and line == 6)


@given(st.data())
def test_any_flipped_byte_of_the_head_is_found(sample: Path, data: st.DataObject):
    raw = bytearray(make_head_path(sample).read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    copy = sample.with_name("copied.head")
    copy.write_bytes(raw)
    report = verify_audit_log(sample, KEY, head=copy)
    assert not report.ok and "head" in report.reason


@given(st.data())
def test_missing_repeated_and_moved_lines_are_found(
    sample: Path, damaged: Callable[[bytes], AuditReport], data: st.DataObject
):
    lines = sample.read_bytes().splitlines(keepends=True)
    order = data.draw(st.lists(st.integers(0, 5), max_size=8).filter(lambda order: order != list(range(6))))
    report = damaged(b"".join(lines[n] for n in order))
    assert not report.ok


@given(st.data())
def test_any_truncation_is_found(sample: Path, damaged: Callable[[bytes], AuditReport], data: st.DataObject):
    raw = sample.read_bytes()
    report = damaged(raw[: data.draw(st.integers(0, len(raw) - 1))])
    assert not report.ok and report.truncated
    assert "missing at its end" in report.reason


@given(st.binary(max_size=300))
def test_whatever_the_file_holds_verify_reports(damaged: Callable[[bytes], AuditReport], raw: bytes):
    assert not damaged(raw).ok


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (lambda lines: [lines[0], lines[2]], 2, "1 records before it are missing"),
        (lambda lines: [lines[0], lines[0]], 2, "repeated"),
        (lambda lines: [lines[0], lines[1].replace(b'"n":1', b'"n":7'), *lines[2:]], 2, "altered"),
        (lambda lines: [lines[0], b"hello\n"], 2, "not a record"),
        (lambda lines: [lines[0], b"x" * 3_000_000 + b"\n"], 2, "not a record"),
        (lambda lines: [lines[0], b"\n", *lines[1:]], 2, "not a record"),
    ],
)
def test_the_first_bad_line_and_why(
    sample: Path,
    damaged: Callable[[bytes], AuditReport],
    change: Callable[[list[bytes]], list[bytes]],
    line: int,
    reason: str,
):
    report = damaged(b"".join(change(sample.read_bytes().splitlines(keepends=True))))
    assert (report.ok, report.first_bad_line, report.events) == (False, line, 1)
    assert reason in report.reason


def test_a_genuine_line_of_another_log_does_not_fit(sample: Path, damaged: Callable[[bytes], AuditReport], path: Path):
    write_log(path)
    lines, others = (file.read_bytes().splitlines(keepends=True) for file in (sample, path))
    report = damaged(b"".join([lines[0], others[1], *lines[2:]]))
    assert (report.ok, report.first_bad_line, report.reason) == (False, 2, "it does not follow the record before it")


def test_another_key_verifies_nothing(sample: Path):
    assert not verify_audit_log(sample, KEY[::-1]).ok


def test_a_log_without_its_head_may_be_cut(sample: Path, tmp_path: Path):
    copy = shutil.copy(sample, tmp_path / "copy.log")
    report = verify_audit_log(copy, KEY)
    assert (report.ok, report.truncated, report.events) == (False, True, 6)
    assert verify_audit_log(copy, KEY, head=make_head_path(sample)).ok


def test_the_head_of_another_log_does_not_fit(sample: Path, tmp_path: Path):
    other = tmp_path / "other.log"
    write_log(other)
    assert "names another record" in verify_audit_log(sample, KEY, head=make_head_path(other)).reason


@pytest.mark.parametrize("name", ["missing", "", "\0"])
def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path, name: str):
    report = verify_audit_log(f"{tmp_path}/{name}", KEY)
    assert not report.ok and report.events == 0 and report.reason


def test_a_log_can_be_verified_while_it_is_written(path: Path):
    with AuditLog(path, key=KEY, linger=0.001, head_events=7) as log:
        for n in range(200):
            log.append({"n": n}, durable=n % 5 == 0)
            if n % 20 == 0:
                assert verify_audit_log(path, KEY).ok


# -- crashes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [b"{", b'{"event":{"n":9},"prev":"', b"\0" * 500])
def test_a_torn_last_line_is_cut_off_and_told_of(path: Path, torn: bytes):
    write_log(path)
    with path.open("ab") as file:
        file.write(torn)
    assert verify_audit_log(path, KEY) == AuditReport(True, 3), "what a killed process leaves is no break"
    write_log(path, 1)
    assert verify_audit_log(path, KEY) == AuditReport(True, 4)
    remark = records(path)[3]["log"]
    assert (remark["type"], remark["bytes"]) == ("recovered", len(torn))


def test_a_torn_first_line_is_cut_off(path: Path):
    AuditLog(path, key=KEY).close()
    path.write_bytes(b'{"eve')
    write_log(path, 1)
    assert verify_audit_log(path, KEY) == AuditReport(True, 1)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:-1])), "missing at its end"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "missing at its end"),
        (lambda path: path.unlink(), "missing at its end"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b'"n":2', b'"n":3')), "altered"),
        (lambda path: path.write_bytes(b"x" * 3_000_000), "too long"),
        (lambda path: make_head_path(path).unlink(), "head is missing"),
        (lambda path: make_head_path(path).write_bytes(b"{}"), "head cannot be read"),
    ],
)
def test_a_log_that_is_not_whole_is_not_written_over(path: Path, damage: Callable[[Path], Any], complaint: str):
    write_log(path)
    damage(path)
    before = path.read_bytes() if path.exists() else b""
    with pytest.raises(UsageError, match=complaint):
        AuditLog(path, key=KEY)
    assert path.read_bytes() == before


def test_a_log_in_the_place_of_another_is_not_continued(path: Path):
    write_log(path)
    other = path.with_name("other.log")
    with AuditLog(other, key=KEY) as log:
        for n in range(3):
            log.append({"other": n})
    shutil.copy(other, path)
    with pytest.raises(UsageError, match="its head names another last record"):
        AuditLog(path, key=KEY)


def test_a_log_of_another_key_is_not_continued(path: Path):
    write_log(path)
    with pytest.raises(UsageError, match="another key"):
        AuditLog(path, key=KEY[::-1])


APPENDING = """
import sys
from defserve.stores.audit.log_file import AuditLog
log = AuditLog(sys.argv[1], key=sys.argv[2], linger=0.001, head_events=20)
n = int(sys.argv[3])
while True:
    n += 1
    log.append({"noise": "x" * (n % 700)})
    log.append({"n": n}, durable=True)
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
"""


@pytest.mark.slow
@posix
def test_no_acknowledged_event_is_lost_when_the_process_is_killed(path: Path):
    chance = random.Random(4)
    acknowledged = 0
    for _ in range(6):
        child = start_python(APPENDING, path, str(acknowledged))
        assert child.stdout is not None
        for _ in range(chance.randrange(1, 60)):
            acknowledged = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, child.stdout.read().split())])
        child.wait()
        child.stdout.close()
        report = verify_audit_log(path, KEY)
        assert report.ok, report
        *whole, _ = path.read_bytes().split(b"\n")
        kept = [event["n"] for line in whole if "n" in (event := json.loads(line).get("event", {}))]
        assert set(range(1, acknowledged + 1)) <= set(kept)
    AuditLog(path, key=KEY).close()
    assert verify_audit_log(path, KEY).ok


# -- full disks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partly", [0, 10, 500])
def test_a_durable_event_that_cannot_be_written_fails_and_is_not_in_the_log(path: Path, disk: Disk, partly: int):
    with quiet_log(path) as log:
        log.append({"n": 1}, durable=True)
        disk.full, disk.partly = True, partly
        with pytest.raises(AuditUnavailable) as failure:
            log.append({"n": 2}, durable=True)
        assert isinstance(failure.value.__cause__, OSError)
        assert str(path) not in failure.value.message, "a peer may read it"
        assert verify_audit_log(path, KEY).ok
        disk.full = False
        log.append({"n": 3}, durable=True)
    assert events(path) == [{"n": 1}, {"n": 3}]
    assert verify_audit_log(path, KEY) == AuditReport(True, 2)


@posix
@pytest.mark.parametrize("then", ["removed", "replaced", "moved"])
def test_a_durable_event_is_refused_once_the_file_is_gone(path: Path, caplog: pytest.LogCaptureFixture, then: str):
    copy, moved = path.with_name("copy"), path.with_name("moved")
    log = quiet_log(path)
    log.append({"n": 1}, durable=True)
    shutil.copy(path, copy)
    if then == "removed":
        path.unlink()
    elif then == "replaced":
        copy.rename(path)
    else:  # nothing is lost: it is written on under its new name
        path.rename(moved)
        log.append({"n": 2}, durable=True)
        log.close()
        assert events(moved) == [{"n": 1}, {"n": 2}]
        return
    with pytest.raises(AuditUnavailable):
        log.append({"n": 2}, durable=True)
    assert f"the audit log {path} cannot be written: it was removed" in caplog.text
    log.append({"n": 3})
    with pytest.raises(AuditUnavailable):
        log.close()


def test_what_got_through_of_a_failed_write_is_taken_back_later_if_not_at_once(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
):
    def fail(file: int, size: int) -> None:
        raise OSError(errno.EIO, "broken")

    with quiet_log(path) as log:
        disk.full, disk.partly = True, 30
        with monkeypatch.context() as patch:
            patch.setattr(audit_log.os, "ftruncate", fail)
            with pytest.raises(AuditUnavailable):
                log.append({"n": 1}, durable=True)
        assert path.stat().st_size == 30
        disk.full = False
        log.append({"n": 2}, durable=True)
    assert events(path) == [{"n": 2}]
    assert verify_audit_log(path, KEY) == AuditReport(True, 1)


def test_a_failed_sync_is_a_failed_write(path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(file: int) -> None:
        raise OSError(errno.EIO, "broken")

    with quiet_log(path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(audit_log.os, "fsync", fail)
            with pytest.raises(AuditUnavailable):
                log.append({"n": 1}, durable=True)
        assert path.read_bytes() == b""
    assert verify_audit_log(path, KEY) == AuditReport(True, 0)


def test_other_events_wait_for_room_and_the_next_durable_one_meets_the_failure(
    path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "defserve"), AuditLog(path, key=KEY, linger=0.001) as log:
        disk.full, disk.partly = True, 7
        log.append({"n": 1})
        assert eventually(lambda: "cannot be written" in caplog.text)
        log.append({"n": 2})
        with pytest.raises(AuditUnavailable):
            log.append({"n": 3}, durable=True)
        with pytest.raises(AuditUnavailable):
            log.flush()
        assert caplog.text.count("cannot be written") == 1, "said once, not at every try"
        disk.full = False
        assert eventually(lambda: events(path) == [{"n": 1}, {"n": 2}])
        log.append({"n": 4}, durable=True)
        assert caplog.text.count("is written again") == 1
    assert events(path) == [{"n": 1}, {"n": 2}, {"n": 4}]
    assert verify_audit_log(path, KEY).ok


def test_events_there_is_no_room_to_keep_are_counted_in_the_log(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_log, "MAX_PENDING_BYTES", 200)
    with quiet_log(path) as log:
        disk.full = True
        for n in range(50):
            log.append({"n": n})
        with pytest.raises(AuditUnavailable):
            log.append({"n": "refused"}, durable=True)
        disk.full = False
        log.append({"n": "last"}, durable=True)
    kept = len(events(path)) - 1
    assert 0 < kept < 50
    assert [event["n"] for event in events(path)] == [*range(kept), "last"]
    assert [record["log"]["events"] for record in records(path) if "log" in record] == [50 - kept]
    assert verify_audit_log(path, KEY) == AuditReport(True, kept + 1, lost=50 - kept)


def test_events_that_come_too_fast_wait_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit_log, "MAX_PENDING_BYTES", 200)
    with quiet_log(path) as log:
        for n in range(50):
            log.append({"n": n})
        assert len(events(path)) > 30
    assert verify_audit_log(path, KEY) == AuditReport(True, 50)


def test_closing_on_a_full_disk_says_so_and_lets_go(path: Path, disk: Disk):
    log = quiet_log(path)
    log.append({"n": 1})
    disk.full = True
    with pytest.raises(AuditUnavailable):
        log.close()
    disk.full = False
    write_log(path, 1)
    assert verify_audit_log(path, KEY) == AuditReport(True, 1)


@posix
def test_a_limit_of_the_system_on_file_size_is_met_in_the_same_way(path: Path):
    script = """
import resource, sys
from defserve.stores.audit.log_file import AuditLog, AuditUnavailable
log = AuditLog(sys.argv[1], key=sys.argv[2], linger=30)
log.append({"n": 0}, durable=True)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
written = 1
try:
    while True:
        log.append({"n": written}, durable=True)
        written += 1
except AuditUnavailable:
    print(written)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.append({"n": "after"}, durable=True)
log.close()
"""
    done = run_python(script, path)
    assert done.returncode == 0, done.stderr
    written = int(done.stdout)
    assert written > 5
    assert [event["n"] for event in events(path)] == [*range(written), "after"]
    assert verify_audit_log(path, KEY) == AuditReport(True, written + 1)


# -- help ------------------------------------------------------------------------------------------------------


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not (held := _quietly(holds)) and time.monotonic() < until:
        time.sleep(0.002)
    return held


def _quietly(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except ValueError:  # half a line, seen while it was written
        return False


def start_python(script: str, path: Path, *more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", script, str(path), KEY, *more]
    environment = {**os.environ, "PYTHONPATH": str(FRAMEWORK)}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def run_python(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", script, str(path), KEY]
    environment = {**os.environ, "PYTHONPATH": str(FRAMEWORK)}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=20)


def test_two_threads_may_read_a_long_log_at_once(path: Path):
    with AuditLog(path, key=KEY) as log:
        log.append({"n": 1}, durable=True)
        places: dict[int, int] = vars(vars(log)["_reader"])["_places"]
        places.update((step, 0) for step in range(10_000, 20_000))
        ended = threading.Event()

        def note_places() -> None:
            for step in range(500_000, 5_000_000):
                if ended.is_set():
                    return
                places.setdefault(step, 0)

        noting, interval = threading.Thread(target=note_places), sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        noting.start()
        try:
            assert all(len(log.replay().events) == 1 for _ in range(12))
        finally:
            sys.setswitchinterval(interval)
            ended.set()
            noting.join()
