from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from defserve.stores.audit.log_file import AUDIT_KEY_VARIABLE, AuditLog
from defserve.stores.audit.stored_log import StoredAuditLog
from defserve.stores.identity import open_store
from defserve.stores.store import AUDIT_LOG_SPACES, StoreChange
from tests.cli.running import Run

KEY = "0123456789abcdef0123456789abcdef"


def event(type: str = "TOOL_EXECUTED", trace: str = "t-1", **more: Any) -> dict[str, Any]:
    return {
        "timestamp": "2026-02-27T12:00:00.000Z",
        "trace_id": trace,
        "event_type": type,
        "actor": {"type": "agent", "id": "bob"},
        "target": {"server_id": "shop", "tool_name": "buy"},
        "result": "SUCCESS",
        **more,
    }


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(AUDIT_KEY_VARIABLE, KEY)
    path = tmp_path / "audit.log"
    with AuditLog(path, key=KEY) as log:
        log.append(event())
        log.append(event("TOOL_BLOCKED", "t-2", result="BLOCKED"))
        log.append(event(trace="t-2"))
    return str(path)


def test_an_intact_log_is_reported_as_intact(defserve: Run, log: str):
    assert defserve("audit", "verify", log) == (0, "intact: 3 events\n", "")


def test_a_broken_log_names_the_first_broken_line_and_why(defserve: Run, log: str):
    path = Path(log)
    path.write_bytes(path.read_bytes().replace(b"BLOCKED", b"IGNORED"))
    code, out, _ = defserve("audit", "verify", log)
    assert code == 1
    assert out.splitlines() == [
        "broken: line 2: it was altered, or written with another key",
        "  intact before that: 1 event",
        "  fix: keep the file as evidence; put back a copy that is intact, or begin a log with another name",
    ]


def test_a_log_that_was_cut_off_is_broken(defserve: Run, log: str):
    path = Path(log)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    code, out, _ = defserve("audit", "verify", log)
    assert (code, out.splitlines()[0]) == (1, "broken: 2 records are missing at its end")


def test_the_findings_as_json(defserve: Run, log: str):
    code, out, _ = defserve("audit", "verify", log, "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["events"], found["first_bad_line"]) == (0, True, 3, None)
    Path(log).write_bytes(b"x\n")
    code, out, _ = defserve("audit", "verify", "--json", log)
    found = json.loads(out)
    assert (code, found["ok"], found["first_bad_line"], found["truncated"]) == (1, False, 1, False)


def test_a_key_file_goes_before_the_environment(defserve: Run, log: str, tmp_path: Path):
    key = tmp_path / "audit.key"
    key.touch(0o600)
    key.write_text(KEY[::-1])
    assert defserve("audit", "verify", log, "--key-file", str(key)).code == 1
    key.write_text(KEY)
    assert defserve("audit", "verify", log, "--key-file", str(key)).code == 0


def test_a_head_that_was_kept_elsewhere_is_held_against_the_log(defserve: Run, log: str, tmp_path: Path):
    witness = tmp_path / "witness"
    witness.write_bytes(Path(f"{log}.head").read_bytes())
    Path(log).unlink()
    Path(f"{log}.head").unlink()
    with AuditLog(log, key=KEY) as anew:
        anew.append(event())
    assert defserve("audit", "verify", log).code == 0
    assert defserve("audit", "verify", log, "--head", str(witness)).code == 1


def test_a_log_that_could_not_be_checked_is_neither_intact_nor_broken(
    defserve: Run, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, _, err = defserve("audit", "verify", str(tmp_path / "none.log"))
    assert code == 2 and "No such file" in err
    code, _, err = defserve("audit", "verify", log, "--bogus")
    assert code == 2 and "--bogus" in err
    code, _, err = defserve("audit", "verify", log, "--key-file", str(tmp_path / "none.key"))
    assert code == 2 and "the audit key" in err and "does not exist" in err
    code, _, err = defserve("audit", "verify", "none.log", "--key-file", str(tmp_path / "none.key"))
    assert code == 2 and "cannot read none.log" in err
    monkeypatch.setenv(AUDIT_KEY_VARIABLE, "short")
    code, _, err = defserve("audit", "verify", log)
    assert code == 2 and "at least 16" in err
    assert defserve("audit", "verify", "--help").code == 0


def test_lost_and_unsigned_events_are_mentioned(defserve: Run, log: str):
    with AuditLog(log, key=KEY, linger=30) as more:
        more.append(event(), durable=True)
        more._pending.append('"log":{"events":5,"type":"lost"}')  # pyright: ignore[reportPrivateUsage]
        more.append(event(), durable=True)
        code, out, _ = defserve("audit", "verify", log)
    assert code == 0
    assert "2 events after the last signed head" in out
    assert "5 events could not be written" in out


def test_events_are_shown_as_a_table(defserve: Run, log: str):
    code, out, err = defserve("audit", "show", log)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "seq  time                      type           result   actor      target    trace",
        "1    2026-02-27T12:00:00.000Z  TOOL_EXECUTED  SUCCESS  agent bob  shop buy  t-1",
        "2    2026-02-27T12:00:00.000Z  TOOL_BLOCKED   BLOCKED  agent bob  shop buy  t-2",
        "3    2026-02-27T12:00:00.000Z  TOOL_EXECUTED  SUCCESS  agent bob  shop buy  t-2",
    ]


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        ([], [1, 2, 3]),
        (["--type", "TOOL_BLOCKED"], [2]),
        (["--type", "TOOL_BLOCKED", "--type", "TOOL_EXECUTED"], [1, 2, 3]),
        (["--trace", "t-2"], [2, 3]),
        (["--trace", "t-2", "--type", "TOOL_EXECUTED"], [3]),
        (["--last", "2"], [2, 3]),
        (["--type", "TOOL_EXECUTED", "--last", "1"], [3]),
        (["--trace", "t"], []),
    ],
)
def test_events_are_chosen(defserve: Run, log: str, options: list[str], seqs: list[int]):
    code, out, _ = defserve("audit", "show", log, "--json", *options)
    shown = [json.loads(line) for line in out.splitlines()]
    assert (code, [record["seq"] for record in shown]) == (0, seqs)
    assert all(record["event"]["actor"]["id"] == "bob" for record in shown)


def test_the_remarks_of_the_log_are_shown(defserve: Run, log: str):
    with Path(log).open("ab") as file:
        file.write(b"torn")
    AuditLog(log, key=KEY).close()
    last = defserve("audit", "show", log, "--last", "1").out.splitlines()[1]
    assert "recovered" in last and '{"bytes": 4}' in last


def test_an_event_cannot_write_on_the_terminal(defserve: Run, log: str):
    with AuditLog(log, key=KEY) as more:
        more.append(event("X\x1b[2J\r\nY", actor="a\u202eb", target=["t\n"]))
    out = defserve("audit", "show", log, "--last", "1").out
    assert len(out.splitlines()) == 2
    assert "X\\x1b[2J\\r\\nY" in out and "a\\u202eb" in out


def test_what_is_no_record_is_passed_over_and_mentioned(defserve: Run, log: str):
    path = Path(log)
    path.write_bytes(b"[]\n\xff\n" + path.read_bytes() + b'{"event": 1}\n{"eve')
    code, out, err = defserve("audit", "show", log)
    assert code == 0 and len(out.splitlines()) == 4
    assert "line 1 is not a record" in err and "defserve audit verify" in err


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "needs ACTION"),
        (["check", "x"], "defserve audit has no action 'check'"),
        (["show"], "needs LOG"),
        (["show", "none.log"], "cannot read none.log"),
        (["show", "none.log", "--last", "0"], "'0' is not a number above 0"),
    ],
)
def test_wrong_usage_is_explained(defserve: Run, folder: Path, argv: list[str], complaint: str):
    code, _, err = defserve("audit", *argv)
    assert code == 1
    assert complaint in err


def test_a_log_that_is_gone_together_with_its_head_is_known_by_its_anchor(defserve: Run, log: str, tmp_path: Path):
    anchor = tmp_path / "elsewhere.head"
    AuditLog(log, key=KEY, anchors=anchor).close()
    assert defserve("audit", "verify", log, "--anchor", str(anchor)).code == 0
    for name in (log, f"{log}.head"):
        Path(name).unlink()
    code, out, err = defserve("audit", "verify", log, "--anchor", str(anchor))
    assert (code, err) == (1, "")
    assert out.startswith(
        f"broken: the file cannot be read: No such file or directory; the anchor {anchor} names record 3"
    )
    assert "fix: " in out
    assert defserve("audit", "verify", log).code == 2


def test_an_anchor_that_cannot_be_reached_is_no_verdict(defserve: Run, log: str, tmp_path: Path):
    code, out, err = defserve("audit", "verify", log, "--anchor", str(tmp_path / "nowhere" / "head"))
    assert (code, out) == (2, "") and "cannot be reached" in err


# -- logs in stores


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(AUDIT_KEY_VARIABLE, KEY)
    address = f"sqlite:///{tmp_path / 'shop.db'}"
    write_stored_log(address, "name=shop", event(), event("TOOL_BLOCKED", "t-2"), event(trace="t-2"))
    return address


def write_stored_log(address: str, name: str, *events: dict[str, Any]) -> None:
    log = StoredAuditLog(f"{address}#{name}", key=KEY)
    for each in events:
        log.append(each, durable=True)
    log.close()


def change_store(address: str, **values: bytes | None) -> None:
    """Somebody changes records behind the log's back, each named by `r` and its number, or `head`."""

    async def change() -> None:
        store, space = open_store(address), AUDIT_LOG_SPACES.make_space("name=shop")
        named = {name if name == "head" else f"{int(name[1:]):018d}": value for name, value in values.items()}
        put = {name: value for name, value in named.items() if value is not None}
        await store.change(StoreChange(space, put=put, drop=[name for name in named if named[name] is None]))
        await store.close()

    asyncio.run(change())


def test_a_log_in_a_store_is_verified_and_shown_by_its_address(defserve: Run, stored: str):
    for address in (stored, f"{stored}#name=shop"):
        assert defserve("audit", "verify", address) == (0, "intact: 3 events\n", "")
        code, out, _ = defserve("audit", "show", address, "--trace", "t-2", "--last", "1", "--json")
        assert (code, [json.loads(line)["seq"] for line in out.splitlines()]) == (0, [3])
    assert json.loads(defserve("audit", "verify", stored, "--json").out)["events"] == 3


def test_a_log_in_a_store_that_was_changed_is_broken_and_can_still_be_shown(defserve: Run, stored: str):
    change_store(stored, r2=None)
    code, out, _ = defserve("audit", "verify", stored)
    assert code == 1 and "record 2 is missing" in out
    code, out, err = defserve("audit", "show", stored, "--json")
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [1, 3] and "line 2 is not a record" in err
    change_store(stored, r3=None)
    assert "line 2 is not a record" in defserve("audit", "show", stored, "--json").err
    change_store(stored, head=None)
    code, out, _ = defserve("audit", "verify", stored)
    assert code == 1 and "its head is missing" in out


def test_a_store_with_several_logs_needs_the_name_of_one(defserve: Run, stored: str):
    write_stored_log(stored, "name=other", event())
    for verb, code in (("verify", 2), ("show", 1)):
        refused = defserve("audit", verb, stored)
        assert refused.code == code
        assert "this store has 2 audit logs" in refused.err and "#name=other, #name=shop" in refused.err
        refused = defserve("audit", verb, f"{stored}#shop")
        assert refused.code == code and "no audit log 'shop'" in refused.err


def test_a_store_that_cannot_be_checked_is_neither_intact_nor_broken(defserve: Run, stored: str, tmp_path: Path):
    missing = f"sqlite:///{tmp_path / 'none.db'}"
    assert defserve("audit", "verify", missing).code == 2 and not (tmp_path / "none.db").exists()
    assert defserve("audit", "verify", "redis://127.0.0.1:1").code == 2
    assert defserve("audit", "verify", "memory:").code == 2
    refused = defserve("audit", "verify", stored, "--anchor", "x")
    assert refused.code == 2 and "--anchor are for logs in files" in refused.err
