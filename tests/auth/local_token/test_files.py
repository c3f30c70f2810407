"""The files of local tokens: who can read them, what is there when a server was killed, what is kept."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from defserve import UsageError
from defserve.auth.local_token import keep_key, publish_local_key, read_key

HERE = ("127.0.0.1", 8000)
THERE = ("::1", 8000)
KEY = "K" * 43


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder / "defserve" / "local-tokens"


def put(folder: Path, content: bytes = KEY.encode(), mode: int = 0o600) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "127.0.0.1_8000"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@contextmanager
def put_locked(folder: Path, content: bytes = KEY.encode(), mode: int = 0o600) -> Generator[Path]:
    """A file that a living server holds."""
    path = put(folder, content, mode)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def test_a_key_is_there_while_the_server_runs_and_only_for_its_owner(runtime: Path):
    assert read_key(HERE) is None
    with publish_local_key([HERE, THERE]) as key:
        assert read_key(HERE) == read_key(THERE) == key
        assert read_key(("127.0.0.1", 8001)) is None
        assert len(key) == 43
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.lstat().st_mode) for path in runtime.iterdir()} == {0o600}
    assert read_key(HERE) is read_key(THERE) is None
    assert list(runtime.iterdir()) == []


def test_a_loose_umask_opens_nothing(runtime: Path):
    before = os.umask(0)
    try:
        with publish_local_key([HERE]):
            assert {stat.S_IMODE(path.lstat().st_mode) for path in (runtime, *runtime.iterdir())} == {0o700, 0o600}
    finally:
        os.umask(before)


def test_every_start_has_another_key():
    keys = set[str]()
    for _ in range(3):
        with publish_local_key([HERE]) as key:
            keys.add(key)
    assert len(keys) == 3


def test_what_a_killed_server_left_is_replaced(runtime: Path):
    put(runtime)
    with publish_local_key([HERE]) as key:
        assert read_key(HERE) == key != KEY
    assert read_key(HERE) is None


def test_a_link_that_lies_there_is_replaced_and_not_followed(runtime: Path, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    runtime.mkdir(mode=0o700, parents=True)
    (runtime / "127.0.0.1_8000").symlink_to(precious)
    assert read_key(HERE) is None
    with publish_local_key([HERE]) as key:
        assert read_key(HERE) == key
    assert precious.read_text() == "precious"


def test_a_key_of_a_server_that_took_the_address_meanwhile_stays(runtime: Path):
    earlier = publish_local_key([HERE])
    earlier.__enter__()
    with publish_local_key([HERE]) as later:
        earlier.__exit__(None, None, None)
        assert read_key(HERE) == later
    assert read_key(HERE) is None and list(runtime.iterdir()) == []


def test_a_key_that_nobody_holds_is_none_and_is_removed(runtime: Path):
    path = put(runtime)
    assert read_key(HERE) is None and not path.exists()
    with put_locked(runtime) as path:
        assert read_key(HERE) == KEY and path.exists()
    assert read_key(HERE) is None and not path.exists()


def test_clients_that_read_at_once_do_not_take_each_other_for_the_server(runtime: Path):
    with put(runtime).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert read_key(HERE) is None


def test_a_stale_file_is_removed_only_if_no_server_has_replaced_it(runtime: Path, monkeypatch: pytest.MonkeyPatch):
    put(runtime)
    later, started, real_open = publish_local_key([HERE]), list[str](), os.open

    def open_late(path: Path, flags: int, mode: int = 0o777) -> int:
        """A server starts after the look at the lock, just before the removal."""
        if flags & os.O_DIRECTORY and not started:
            started.append("")
            started[0] = later.__enter__()
        return real_open(path, flags, mode)

    monkeypatch.setattr("defserve.auth.local_token.os.open", open_late)
    assert read_key(HERE) is None
    assert [read_key(HERE)] == started
    later.__exit__(None, None, None)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_key_that_others_can_read_is_none(runtime: Path, mode: int):
    with put_locked(runtime, mode=mode):
        assert read_key(HERE) is None


@pytest.mark.parametrize("content", [b"", b"short", KEY.encode() + b"\n", b"A" * 300, b"\xff" * 43, b"a b" * 14 + b"c"])
def test_what_is_not_a_key_is_none(runtime: Path, content: bytes):
    with put_locked(runtime, content):
        assert read_key(HERE) is None


def test_a_key_in_a_folder_that_others_can_write_is_none(runtime: Path):
    with put_locked(runtime):
        runtime.chmod(0o777)
        assert read_key(HERE) is None


def test_a_key_of_somebody_else_is_none(runtime: Path, monkeypatch: pytest.MonkeyPatch):
    with put_locked(runtime):
        assert read_key(HERE) == KEY
        # The file belongs to the user who runs the test; the reader is made somebody else.
        uid = os.getuid()
        monkeypatch.setattr("defserve.auth.local_token.os.getuid", lambda: uid + 1)
        assert read_key(HERE) is None


def test_a_pipe_that_lies_there_does_not_block(runtime: Path):
    runtime.mkdir(mode=0o700, parents=True)
    os.mkfifo(runtime / "127.0.0.1_8000", 0o600)
    assert read_key(HERE) is None


def test_without_a_private_folder_no_key_is_written(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in (runtime, tmp_path / "state" / "defserve" / "local-tokens"):
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    uid = os.getuid()
    # No folder of the system for this user.
    monkeypatch.setattr("defserve.auth.local_token.os.getuid", lambda: uid + 4_000_000)
    with pytest.raises(UsageError, match="the local token cannot be written"), publish_local_key([HERE]):
        pass


def test_a_client_without_the_variable_of_its_server_finds_the_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with publish_local_key([HERE]) as key:
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent")
        assert read_key(HERE) == key


def test_a_kept_key_is_the_key_of_every_later_start(tmp_path: Path):
    with publish_local_key([HERE]) as key:
        assert keep_key(HERE) == key
    assert read_key(HERE) is None, "a kept key is not sent while no server runs"
    with publish_local_key([HERE]) as again:
        assert again == key
    with publish_local_key([("127.0.0.1", 8001)]) as other:
        assert other != key
    (path,) = (tmp_path / "config" / "defserve" / "kept-local-tokens").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with publish_local_key([HERE]) as fresh:
        assert fresh != key, "a key that others could read is not used again"


def test_where_no_server_runs_nothing_is_kept(tmp_path: Path):
    assert keep_key(HERE) is None
    assert not (tmp_path / "config").exists()
