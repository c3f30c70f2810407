"""A log that is gone, cut, put back or replaced together with its head is noticed by heads that are kept elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.errors import UsageError
from defserve.stores.audit.chain import AnchorUnavailable, make_head_path
from defserve.stores.audit.log_file import AuditLog, verify_audit_log
from tests.stores.redis_server import RedisServer
from tests.waiting import wait_until

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "log" / "audit.jsonl"


@pytest.fixture(params=["file", "sqlite", "redis", "postgres", "object"])
def anchor(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where a head can be kept, of each kind that can be read back."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        return f"{server.address}?prefix={tmp_path.name}:"
    if request.param == "postgres":
        return request.getfixturevalue("postgres").make_address()
    elsewhere = tmp_path / "elsewhere"
    return {"file": elsewhere / "a.head", "sqlite": f"sqlite:///{elsewhere / 'a.db'}", "object": Kept()}[request.param]


class Kept:
    """An anchor of an author's own."""

    name = "kept"

    def __init__(self) -> None:
        self.head: bytes | None = None
        self.fails: Exception | None = None

    def last(self) -> bytes | None:
        if self.fails is not None:
            raise self.fails
        return self.head

    def store_head(self, head: bytes, before: bytes | None) -> bool:
        if self.last() != before:
            return False
        self.head = head
        return True


def write_log(path: Path, anchors: Any, events: int = 3, **more: Any) -> None:
    with AuditLog(path, key=KEY, anchors=anchors) as log:
        for n in range(events):
            log.append({"n": n, **more})


def test_a_log_that_is_intact_agrees_with_its_anchors_and_is_continued(path: Path, anchor: Any):
    for events in (3, 6):
        write_log(path, anchor)
        assert verify_audit_log(path, KEY, anchors=anchor)[:2] == (True, events)
    with AuditLog(path, key=KEY, anchors=[anchor]) as log:
        log.append({}, durable=True)
        assert verify_audit_log(path, KEY, anchors=[anchor]).ok


def remove(path: Path) -> None:
    path.unlink()
    make_head_path(path).unlink()


def put_back(path: Path) -> None:
    """The log and its head as they were after three events."""
    for name in (path.name, make_head_path(path).name):
        shutil.copy(path.parent / "older" / name, path.parent)


def replace_by_another(path: Path) -> None:
    remove(path)
    write_log(path, (), 20, other=True)


def cut(path: Path) -> None:
    make_head_path(path).unlink()
    path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:2]))


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "removed": (remove, "names record 7"),
    "put back": (put_back, "names record 7"),
    "replaced": (replace_by_another, "names"),
    "cut": (cut, "names record 7|head is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_that_changed_together_with_its_head_is_noticed(path: Path, anchor: Any, damage: str):
    write_log(path, anchor)
    shutil.copytree(path.parent, path.parent / "older")
    write_log(path, anchor, 4)
    change, complaint = DAMAGES[damage]
    change(path)
    report = verify_audit_log(path, KEY, anchors=anchor)
    assert not report.ok and "the anchor" in report.reason and "signed 20" in report.reason
    before = path.read_bytes() if path.exists() else b""
    with pytest.raises(UsageError, match=complaint) as refusal:
        AuditLog(path, key=KEY, anchors=anchor)
    assert "audit verify" in str(refusal.value) and path.read_bytes() == before
    assert not verify_audit_log(path, KEY, anchors=anchor).ok, "the anchor still knows"


def test_a_log_whose_anchor_was_emptied_says_so(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    kept = Kept()
    with AuditLog(path, key=KEY, anchors=[kept]) as log:
        log.append({}, durable=True)
        log.settle()
        kept.head = None
        assert verify_audit_log(path, KEY, anchors=kept).reason == "the anchor kept holds no head of this log"
        log.append({}, durable=True)
    assert "was emptied" in caplog.text and verify_audit_log(path, KEY, anchors=kept).ok


@pytest.mark.parametrize("head", [b"", b"{}\n", b"\xff" * 100, None], ids=["empty", "no head", "garbage", "forged"])
def test_a_head_at_an_anchor_that_is_not_genuine_is_noticed(path: Path, head: bytes | None):
    kept = Kept()
    write_log(path, [kept])
    assert kept.head is not None
    kept.head = kept.head.replace(b'"seq":3', b'"seq":2') if head is None else head
    assert "the head at kept" in verify_audit_log(path, KEY, anchors=[kept]).reason
    with pytest.raises(UsageError, match="the head at kept"):
        AuditLog(path, key=KEY, anchors=[kept])


def test_two_logs_under_one_name_do_not_overwrite_each_others_head(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    address = f"sqlite:///{tmp_path / 'elsewhere' / 'a.db'}"
    write_log(path, f"{address}#shop")
    other = path.with_name("other.jsonl")
    with pytest.raises(UsageError, match="#NAME"):
        AuditLog(other, key=KEY, anchors=f"{address}#shop")
    write_log(other.with_name("third.jsonl"), [f"{address}#third", address])
    assert verify_audit_log(path, KEY, anchors=f"{address}#shop").ok


@pytest.mark.parametrize("error", [AnchorUnavailable("no route"), OSError("no disk"), ValueError("a bug")])
def test_an_anchor_that_fails_stops_nothing_and_is_told_later(
    path: Path, error: Exception, caplog: pytest.LogCaptureFixture
):
    kept = Kept()
    kept.fails = error
    with AuditLog(path, key=KEY, anchors=[kept], head_seconds=0.05) as log:
        log.append({"n": 1}, durable=True)
        log.settle()
        assert kept.head is None and str(error) in caplog.text
        kept.fails = None
        wait_until(lambda: kept.head is not None)
    assert verify_audit_log(path, KEY, anchors=kept).ok


def test_an_anchor_that_was_away_at_the_start_is_not_overwritten_if_it_contradicts(
    path: Path, caplog: pytest.LogCaptureFixture
):
    kept = Kept()
    write_log(path, [kept], 5)
    before = kept.head
    remove(path)
    kept.fails = OSError("away")
    with AuditLog(path, key=KEY, anchors=[kept]) as log:
        log.append({"n": 1}, durable=True)
        kept.fails = None
        log.settle()
    assert kept.head == before and "the log does not have it" in caplog.text
    assert not verify_audit_log(path, KEY, anchors=kept).ok


def test_an_anchor_that_cannot_be_reached_leaves_a_log_unverified(path: Path, tmp_path: Path):
    write_log(path, ())
    for anchor in (tmp_path / "nowhere" / "a.head", "redis://127.0.0.1:1"):
        with pytest.raises(UsageError, match="cannot be reached"):
            verify_audit_log(path, KEY, anchors=anchor)


@pytest.mark.parametrize(
    "given",
    ["memory:", "https://example.com", "redis:x", "sqlite:a", 7, [None], "syslog://host:port", ["log/audit.jsonl"]],
)
def test_what_cannot_be_an_anchor_is_refused(path: Path, given: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(path.parent.parent)
    with pytest.raises((UsageError, TypeError)):
        AuditLog(path, key=KEY, anchors=given)
    AuditLog(path, key=KEY).close()


def test_heads_go_to_a_syslog_and_serve_as_heads_again(path: Path, tmp_path: Path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(20)
        write_log(path, f"syslog://127.0.0.1:{syslog.getsockname()[1]}#shop")
        lines = [syslog.recv(9000)]
        while b'"seq":3' not in lines[-1]:
            lines.append(syslog.recv(9000))
    assert b"defserve-audit: shop {" in lines[-1]
    head = tmp_path / "copied.head"
    head.write_bytes(b"{" + lines[-1].partition(b" {")[2].rstrip(b"\0") + b"\n")
    assert verify_audit_log(path, KEY, head=head).ok
    remove(path)
    write_log(path, (), other=True)
    assert not verify_audit_log(path, KEY, head=head).ok


def test_a_password_of_an_anchor_is_not_in_a_message(path: Path, caplog: pytest.LogCaptureFixture):
    AuditLog(path, key=KEY, anchors="redis://:hunter2@127.0.0.1:1").close()
    assert "127.0.0.1" in caplog.text and "hunter2" not in caplog.text


def test_a_log_may_be_opened_and_finished_inside_an_event_loop(path: Path, anchor: Any):
    async def story() -> None:
        write_log(path, anchor)

    asyncio.run(story())
    assert verify_audit_log(path, KEY, anchors=anchor).ok


# -- servers ---------------------------------------------------------------------------------------------

SERVER = """
import sys
from defserve import Server
from defserve.server import AuditLog

server = Server("shop", "1", audit=AuditLog(sys.argv[1], key={key!r}, anchors=sys.argv[2:]))

@server.tool
def add(a: int, b: int) -> int:
    return a + b

server.run()
"""
CALL = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":1,"b":2},'
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{}}}}\n'
)


def serve(path: Path, *anchors: str) -> subprocess.CompletedProcess[bytes]:
    script = path.with_name("server.py")
    script.write_text(SERVER.format(key=KEY))
    return subprocess.run([sys.executable, script, path, *anchors], input=CALL, capture_output=True, timeout=60)


@pytest.mark.slow
def test_a_server_anchors_its_last_head_and_does_not_start_without_its_log(path: Path, tmp_path: Path):
    anchors = [str(tmp_path / "elsewhere" / "a.head"), f"sqlite:///{tmp_path / 'elsewhere' / 'a.db'}"]
    first = serve(path, *anchors)
    assert first.returncode == 0 and b'"id":1' in first.stdout and first.stderr == b"", first.stdout
    assert verify_audit_log(path, KEY, anchors=anchors)[:2] == (True, 1)
    remove(path)
    again = serve(path, *anchors)
    assert again.returncode != 0 and again.stdout == b"" and b"cannot be continued: the anchor" in again.stderr


def test_a_log_that_is_not_intact_stops_the_start_and_not_the_first_call(path: Path, monkeypatch: pytest.MonkeyPatch):
    async def start() -> None:
        async with Server("shop", "1", audit=path).connect():
            pass

    monkeypatch.setenv("DEFSERVE_AUDIT_KEY", KEY)
    path.write_bytes(b"nonsense\n")
    with pytest.raises(UsageError, match="cannot be continued"):
        asyncio.run(start())
