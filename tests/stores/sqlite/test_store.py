"""The store in a file, in trouble: killed, full, read-only, shared, old, foreign."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.stores import sqlite
from defserve.stores.checkpoints.checkpoint_store import CheckpointStore
from defserve.stores.sqlite import APPLICATION, MIGRATIONS, SqliteStore
from defserve.stores.store import StoreBusy, StoreChange, StoreCorrupt, StoreFull, StoreReadOnly, StoreUnavailable
from tests.rows import for_each_row
from tests.stores.committing import KEY, SECRET, assert_one_line, committing_to
from tests.stores.conftest import Run
from tests.stores.sqlite import telling
from tests.waiting import DEADLINE

TELLING = Path(telling.__file__)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path, run: Run):
    path = tmp_path / "store.db"
    acknowledged: list[str] = []
    for _ in range(int(os.environ.get("DEFSERVE_KILLS", "12"))):
        process = committing_to(f"sqlite:///{path}", 100_000, "killed")
        assert process.stdout is not None
        acknowledged += [process.stdout.readline() for _ in range(random.randint(1, 60))]
        process.kill()
        acknowledged += process.stdout.readlines()
        process.wait()
        process.stdout.close()
    said = [line.split() for line in acknowledged if line.endswith("\n")]

    async def story() -> None:
        store = SqliteStore(path)
        trees = CheckpointStore(store, secret=SECRET)
        for id, mark in said:
            assert (await trees.load_content(KEY, id))["marks"][-1] == mark
        assert await trees.verify(KEY) == await store.check() == []
        await store.close()

    run(story())


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_processes_on_one_file_never_fork_or_lose_a_serialised_tree(tmp_path: Path, run: Run):
    path = tmp_path / "store.db"
    processes = [committing_to(f"sqlite:///{path}", 60, name) for name in ("a", "b")]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]

    async def story() -> None:
        store = SqliteStore(path)
        trees = CheckpointStore(store, secret=SECRET)
        await assert_one_line(trees, outputs)
        await store.close()

    run(story())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_process_reads_what_is_older_than_anybody_was_told(tmp_path: Path, run: Run):
    def start(place: int, numbers: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(TELLING), str(tmp_path), str(place), str(numbers)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    async def begin() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.change(StoreChange(telling.SPACE, put={telling.NAME: b"0"}))
        await store.close()

    (tmp_path / "told").write_bytes(bytes(8 * telling.PLACES))
    run(begin())
    killed = start(3, 1_000_000)
    outputs = [first_line(killed)]
    processes = [start(place, 25) for place in range(3)]
    outputs.append(first_line(processes[0]))
    killed.kill()
    outputs += [process.communicate()[0] for process in (killed, *processes)]
    assert [process.returncode for process in processes] == [0, 0, 0]
    lines = [line for output in outputs for line in output.splitlines()]
    assert [line for line in lines if line.startswith("stale")] == []
    made = [line for line in lines if line.startswith("made ")]
    assert len(made) == len(set(made)) > 20


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="disk"))
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if made.returncode != 0:
        folder.rmdir()
        pytest.skip("a disk that can be filled needs the right to mount one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def test_a_full_disk_is_told_and_survived(small_disk: Path, run: Run):
    async def story() -> None:
        store = SqliteStore(small_disk / "store.db")
        assert await store.change(StoreChange("s", put={"kept": b"1"}))
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(StoreFull):
            await store.change(StoreChange("s", put={"more": b"x" * 100_000}))
        assert await store.get("s", ["kept", "more"]) == {"kept": b"1"}
        ballast.unlink()
        assert await store.change(StoreChange("s", put={"more": b"x" * 100_000}))
        assert await store.check() == []
        await store.close()

    run(story())


def test_a_store_at_its_page_limit_is_full_and_survives(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    prepare = sqlite._prepare
    limit = [20]

    def limited(connection: sqlite3.Connection) -> None:
        prepare(connection)
        connection.execute(f"PRAGMA max_page_count = {limit[0]}")

    monkeypatch.setattr(sqlite, "_prepare", limited)

    async def story() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.change(StoreChange("s", put={"kept": b"1"}))
        with pytest.raises(StoreFull) as caught:
            await store.change(StoreChange("s", put={"more": b"x" * 200_000}))
        assert str(tmp_path) not in caught.value.message
        limit[0] = 1_000
        assert await store.change(StoreChange("s", put={"more": b"x" * 200_000}))
        assert await store.get("s", ["kept"]) == {"kept": b"1"}
        await store.close()

    run(story())


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder of somebody for whom a file's mode counts, even where the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="nobody"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    yield folder
    if is_root:
        os.seteuid(0)
    shutil.rmtree(folder)


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_a_read_only_file_is_told_and_survived(as_nobody: Path, run: Run):
    path = as_nobody / "store.db"

    async def story() -> None:
        store = SqliteStore(path)
        await store.change(StoreChange("s", put={"a": b"1"}))
        await store.close()
        path.chmod(0o400)
        with pytest.raises(StoreReadOnly):
            await store.change(StoreChange("s", put={"a": b"2"}))
        assert await store.get("s", ["a"]) == {"a": b"1"}
        path.chmod(0o600)
        assert await store.change(StoreChange("s", put={"a": b"2"}))
        assert await store.get("s", ["a"]) == {"a": b"2"}
        await store.close()

    run(story())


def test_a_folder_that_is_missing_is_told_and_may_come(tmp_path: Path, run: Run):
    async def story() -> None:
        store = SqliteStore(tmp_path / "later" / "store.db")
        with pytest.raises(StoreUnavailable):
            await store.open()
        with pytest.raises(StoreUnavailable):
            await store.change(StoreChange("s", put={"a": b"1"}))
        (tmp_path / "later").mkdir()
        await store.open()
        assert await store.change(StoreChange("s", put={"a": b"1"}))
        await store.close()

    run(story())


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_a_folder_that_cannot_be_entered_is_told_and_survived(as_nobody: Path, run: Run):
    closed = as_nobody / "closed"
    (closed / "inner").mkdir(parents=True)

    async def story() -> None:
        store = SqliteStore(closed / "inner" / "store.db")
        closed.chmod(0o000)
        async with asyncio.timeout(DEADLINE):
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await store.get("s", ["a"])
                with pytest.raises(StoreUnavailable):
                    await store.change(StoreChange("s", put={"a": b"1"}))
            closed.chmod(0o700)
            assert await store.change(StoreChange("s", put={"a": b"1"}))
            assert await store.get("s", ["a"]) == {"a": b"1"}
            await store.close()

    run(story())


@pytest.mark.skipif(os.name != "posix", reason="a current folder that can be removed")
def test_a_current_folder_that_is_gone_is_told_and_survived(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    async def story() -> None:
        store = SqliteStore("store.db")
        async with asyncio.timeout(DEADLINE):
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await store.get("s", ["a"])
                with pytest.raises(StoreUnavailable):
                    await store.change(StoreChange("s", put={"a": b"1"}))
            assert "fix: start this process in a folder that exists" in caplog.text
            os.chdir(tmp_path)
            assert await store.change(StoreChange("s", put={"a": b"1"}))
            await store.close()

    run(story())


@for_each_row(
    ("place", "fix"),
    [("no/such/folder/store.db", "make its folder: mkdir -p "), ("spoiled.db", "name another file, or move it away")],
)
def test_the_log_names_the_file_and_what_to_do_and_the_error_does_not(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture, place: str, fix: str
):
    (tmp_path / "spoiled.db").write_bytes(b"not a database" * 1_000)
    with pytest.raises(StoreUnavailable) as told:
        run(SqliteStore(tmp_path / place).open())
    assert f"the store {tmp_path / place} is in trouble" in caplog.text and f"fix: {fix}" in caplog.text
    assert str(tmp_path) not in str(told.value)


@pytest.mark.parametrize("then", ["removed", "replaced"])
@pytest.mark.parametrize("first", ["a change", "a read"])
def test_what_is_acknowledged_after_the_file_was_taken_away_is_in_the_one_that_is_there(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture, then: str, first: str
):
    path, backup = tmp_path / "store.db", tmp_path / "backup"

    def take_away() -> None:
        for file in tmp_path.glob("store.db*"):
            file.unlink()
        if then == "replaced":
            backup.rename(path)

    async def story() -> None:
        store = SqliteStore(path)
        await store.change(StoreChange("s", put={"old": b"1"}))
        await store.close()
        shutil.copy(path, backup)
        await store.change(StoreChange("s", put={"newer": b"1"}))
        take_away()
        if first == "a read":
            assert [name async for name, _ in store.scan("s")] == (["old"] if then == "replaced" else [])
        assert not await store.change(StoreChange("s", put={"newer": b"2"}, expect={"newer": b"1"}))
        assert await store.change(StoreChange("s", put={"last": b"1"}))
        other = SqliteStore(path)
        expected = {"old": b"1", "last": b"1"} if then == "replaced" else {"last": b"1"}
        for one in (store, other):
            assert await one.get("s", ["old", "newer", "last"]) == expected
            await one.close()

    run(story())
    assert caplog.text.count(f"the store {path} was removed or replaced while it was in use") == 1


def test_a_file_that_is_no_database_is_corrupt_and_left_as_it_is(tmp_path: Path, run: Run):
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database" * 1_000)

    async def story() -> None:
        store = SqliteStore(path)
        with pytest.raises(StoreCorrupt):
            await store.open()
        with pytest.raises(StoreCorrupt):
            await store.change(StoreChange("s", put={"a": b"1"}))
        await store.close()

    run(story())
    assert path.read_bytes() == b"not a database" * 1_000


@pytest.mark.parametrize("version", [0, 1, 7])
def test_another_applications_database_is_not_touched(tmp_path: Path, run: Run, version: int):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE entries (a)")
        other.execute(f"PRAGMA user_version = {version}")
    other.close()

    async def story() -> None:
        store = SqliteStore(path)
        with pytest.raises(StoreUnavailable, match="another application"):
            await store.open()
        await store.close()

    run(story())


def test_a_file_that_another_process_sets_up_meanwhile_is_ours(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    path, connect = tmp_path / "store.db", sqlite3.connect

    class Overtaken(sqlite3.Connection):
        """Another process gets in wherever it can while this one looks at the file."""

        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            if "sqlite_master" in sql:
                other = connect(path, timeout=0, isolation_level=None)
                with suppress(sqlite3.OperationalError):
                    other.executescript(f"BEGIN; {MIGRATIONS[0]}; PRAGMA application_id = {APPLICATION}; COMMIT")
                other.close()
            return super().execute(sql, *rest)

    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Overtaken))

    async def story() -> None:
        store = SqliteStore(path)
        assert await store.change(StoreChange("a", {"name": b"value"}))
        await store.close()

    run(story())


def test_a_newer_schema_is_refused_and_an_older_one_migrated(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    async def story() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.change(StoreChange("s", put={"a": b"1"}))
        await store.close()
        with monkeypatch.context() as patched:
            patched.setattr(sqlite, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE second (a); CREATE TABLE third (a)"))
            assert await store.get("s", ["a"]) == {"a": b"1"}
            await store.close()
        with pytest.raises(
            StoreUnavailable,
            match=f"has format {len(MIGRATIONS) + 1}; .* reads up to format {len(MIGRATIONS)}: upgrade defserve",
        ):
            await store.open()
        await store.close()

    run(story())
    with sqlite3.connect(tmp_path / "store.db") as file:
        assert file.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
        assert file.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
        assert file.execute("SELECT count(*) FROM third").fetchone() == (0,)
    file.close()


def test_what_was_kept_by_the_first_version_is_there_in_this_one(tmp_path: Path, run: Run):
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as old:
        old.executescript(MIGRATIONS[0])
        old.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", [("s", "a", b"1", None), ("t", "b", b"2", 9e12)])
        old.execute(f"PRAGMA application_id = {APPLICATION}")
        old.execute("PRAGMA user_version = 1")
    old.close()

    async def story() -> None:
        store = SqliteStore(path)
        assert await store.get("s", ["a"]) == {"a": b"1"}
        assert [row async for row in store.scan("t")] == [("b", b"2")]
        assert await store.change(StoreChange("s", put={"a": b"3"}, expect={"a": b"1"}))
        assert await store.check() == []
        await store.close()

    run(story())


def test_a_store_that_another_keeps_locked_is_busy_and_then_free(tmp_path: Path, run: Run):
    path = tmp_path / "store.db"

    async def story() -> None:
        store = SqliteStore(path, busy=0.05)
        await store.change(StoreChange("s", put={"a": b"1"}))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy) as caught:
            await store.change(StoreChange("s", put={"a": b"2"}))
        assert caught.value.data == {"retry_after_ms": 50}
        assert await store.get("s", ["a"]) == {"a": b"1"}
        other.execute("ROLLBACK")
        other.close()
        assert await store.change(StoreChange("s", put={"a": b"2"}))
        await store.close()

    run(story())


def test_changes_that_come_together_share_a_transaction(tmp_path: Path, run: Run):
    async def story() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.open()
        sizes: list[int] = []
        work = store._writer._work
        store._writer._work = lambda changes: (sizes.append(len(changes)), work(changes))[1]
        await asyncio.gather(*(store.change(StoreChange(f"s{n}", put={"a": b""})) for n in range(64)))
        assert sum(sizes) == 64
        assert len(sizes) < 16
        await store.close()

    run(story())


def test_what_a_caller_who_left_had_asked_for_is_still_done(tmp_path: Path, run: Run):
    async def story() -> None:
        store = SqliteStore(tmp_path / "store.db")
        asked = asyncio.ensure_future(store.change(StoreChange("s", put={"a": b"1"})))
        await asyncio.sleep(0)
        asked.cancel()
        await store.close()
        assert await store.get("s", ["a"]) == {"a": b"1"}
        await store.close()

    run(story())


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_the_file_is_its_owners_alone_and_synchronous(tmp_path: Path, run: Run):
    path = tmp_path / "store.db"

    async def story() -> None:
        store = SqliteStore(path)
        await store.change(StoreChange("s", put={"a": b"1"}))
        modes = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in os.listdir(tmp_path)}
        assert modes == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm", "store.db-tally"), 0o600)
        assert await store._rows("PRAGMA synchronous") == [(2,)]
        assert await store._rows("PRAGMA journal_mode") == [("wal",)]
        await store.close()

    run(story())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forking")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_that_was_closed_can_be_used_in_a_forked_process(tmp_path: Path):
    async def write_and_close() -> None:
        await store.change(StoreChange("s", put={"parent": b"1"}))
        await store.close()

    store = SqliteStore(tmp_path / "store.db")
    asyncio.run(write_and_close())
    child = os.fork()
    if child == 0:
        done = asyncio.run(store.change(StoreChange("s", put={"child": b"2"}, expect={"parent": b"1"})))
        os._exit(0 if done else 1)
    assert os.waitpid(child, 0)[1] == 0

    async def story() -> None:
        assert await store.get("s", ["parent", "child"]) == {"parent": b"1", "child": b"2"}
        await store.close()

    asyncio.run(story())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forking")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_open_store_is_not_carried_into_a_forked_process(tmp_path: Path):
    # SQLite would go on there without its locks: what was told there would be lost when the parent closes.
    store = SqliteStore(tmp_path / "store.db")
    asyncio.run(store.change(StoreChange("s", put={"parent": b"1"})))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(store.change(StoreChange("s", put={"child": b"2"})))
        except UsageError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    asyncio.run(store.close())
