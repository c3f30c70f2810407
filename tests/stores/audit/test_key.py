from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from defserve.errors import UsageError
from defserve.stores.audit.chain import AuditReport
from defserve.stores.audit.log_file import AUDIT_KEY_VARIABLE, AuditLog, load_audit_key, verify_audit_log
from defserve.stores.files import get_user_file_path


@pytest.fixture(autouse=True)
def no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUDIT_KEY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_without_a_key_there_is_none(tmp_path: Path):
    with pytest.raises(UsageError, match=AUDIT_KEY_VARIABLE):
        load_audit_key()
    assert list(tmp_path.iterdir()) == [], "looking for a key makes none"


def test_the_first_use_makes_a_private_key_that_stays():
    key = load_audit_key(make=True)
    assert len(key) >= 32
    assert load_audit_key() == load_audit_key(make=True) == key
    if os.name == "posix":
        assert stat.S_IMODE(get_user_file_path("audit.key").stat().st_mode) == 0o600
        assert stat.S_IMODE(get_user_file_path("audit.key").parent.stat().st_mode) == 0o700
    assert [file.name for file in get_user_file_path("audit.key").parent.iterdir()] == ["audit.key"]


def test_the_variable_goes_before_the_users_own_file_and_a_named_file_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    load_audit_key(make=True)
    monkeypatch.setenv(AUDIT_KEY_VARIABLE, "from the environment")
    assert load_audit_key() == b"from the environment"
    named = tmp_path / "named.key"
    assert load_audit_key(named, make=True) == named.read_bytes().strip() != b"from the environment"


def test_of_two_that_make_a_key_at_once_both_use_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "audit.key"
    link = os.link

    def late(source: str, target: str) -> None:
        path.touch(0o600)
        path.write_bytes(b"the other was faster\n")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert load_audit_key(path, make=True) == b"the other was faster"


def test_a_log_finds_its_key_by_itself(tmp_path: Path):
    path = tmp_path / "audit.log"
    with AuditLog(path) as log:
        log.append({"n": 1})
    assert verify_audit_log(path, load_audit_key()) == AuditReport(True, 1)
    assert get_user_file_path("audit.key").parent != path.parent


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
def test_a_key_that_others_can_read_is_refused(tmp_path: Path):
    path = tmp_path / "audit.key"
    path.write_text("0123456789abcdef")
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        load_audit_key(path)


def test_an_empty_or_unreadable_key_is_refused(tmp_path: Path):
    path = tmp_path / "audit.key"
    path.touch(0o600)
    with pytest.raises(UsageError, match="empty"):
        load_audit_key(path)
    with pytest.raises(UsageError, match="cannot be read"):
        load_audit_key(tmp_path)
    with pytest.raises(UsageError, match="cannot be made"):
        load_audit_key(tmp_path / ("x" * 250), make=True)
