"""The store in Postgres, in trouble: killed, stopped, cut off, read-only, behind a pooler. The server is a real one."""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from defserve.errors import LimitExceeded, UsageError
from defserve.stores import postgres as store_module
from defserve.stores.audit.log_file import AuditUnavailable
from defserve.stores.audit.stored_log import StoredAuditLog
from defserve.stores.checkpoints.checkpoint_store import CheckpointStore
from defserve.stores.identity import open_store
from defserve.stores.postgres import NewsFollower, PostgresStore
from defserve.stores.postgres_connections import ConnectionPool, PostgresAddress
from defserve.stores.store import StoreBusy, StoreChange, StoreReadOnly, StoreUnavailable
from tests.rows import for_each_row
from tests.stores.committing import KEY, SECRET, assert_one_line, committing_to
from tests.stores.conftest import Run
from tests.stores.postgres_server import PORT, PgBouncer, PostgresServer
from tests.waiting import until, wait_until


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """One that nobody else uses, and that keeps what it acknowledges."""
    server = PostgresServer("-c", "fsync=on").start()
    yield server
    server.remove()


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[PgBouncer]:
    made = PgBouncer(postgres)
    yield made
    made.remove()


# -- nothing that was acknowledged is lost ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_processes_on_one_postgres_never_fork_or_lose_a_serialised_tree(postgres: PostgresServer, run: Run):
    address = postgres.make_address()
    processes = [committing_to(address, 60, name) for name in ("a", "b")]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]

    async def story() -> None:
        store = open_store(address)
        await assert_one_line(CheckpointStore(store, secret=SECRET), outputs)
        await store.close()

    run(story())


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_when_postgres_is_killed(own_postgres: PostgresServer, run: Run):
    acknowledged: list[str] = []
    for _ in range(int(os.environ.get("DEFSERVE_KILLS", "3"))):
        process = committing_to(own_postgres.url, 100_000, "killed")
        assert process.stdout is not None
        acknowledged += [process.stdout.readline() for _ in range(random.randint(1, 60))]
        own_postgres.kill()
        process.kill()
        acknowledged += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        own_postgres.start()
    commits = [line.split() for line in acknowledged if line.endswith("\n")]

    async def story() -> None:
        store = open_store(own_postgres.url)
        trees = CheckpointStore(store, secret=SECRET)
        for id, mark in commits:
            assert (await trees.load_content(KEY, id))["marks"][-1] == mark
        assert await trees.verify(KEY) == []
        await store.close()

    run(story())


def test_a_postgres_that_is_away_is_told_and_found_again(own_postgres: PostgresServer, run: Run):
    async def story() -> None:
        store = open_store(own_postgres.url)
        assert await store.change(StoreChange("s", put={"a": b"1"}))
        own_postgres.kill()
        for asked in (
            store.get("s", ["a"]),
            store.change(StoreChange("s", put={"a": b"2"})),
            store.open(),
            store.check(),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                await asked
            assert str(own_postgres.folder) not in caught.value.message
        own_postgres.start()
        assert await store.get("s", ["a"]) == {"a": b"1"}
        assert await store.change(StoreChange("s", put={"a": b"2"}, expect={"a": b"1"}))
        await store.close()

    run(story())


def test_a_restart_between_two_changes_is_not_noticed(own_postgres: PostgresServer, run: Run):
    async def story() -> None:
        store = open_store(own_postgres.url)
        assert await store.change(StoreChange("s", put={"a": b"1"}))
        own_postgres.stop()
        own_postgres.start()
        assert await store.change(StoreChange("s", put={"a": b"2"}, expect={"a": b"1"}))
        await store.close()

    run(story())


class LossyRoad:
    """Passes on what a client and Postgres say. `lose` is what is swallowed next, before both are cut off."""

    def __init__(self, postgres: PostgresServer, folder: Path) -> None:
        self._behind, self._socket = str(postgres.folder / f".s.PGSQL.{PORT}"), folder / f".s.PGSQL.{PORT}"
        self.address = postgres.make_address().replace(str(postgres.folder), str(folder))
        self.lose = ""
        self._tasks = set[asyncio.Task[None]]()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._pass_on, self._socket)

    async def close(self) -> None:
        self._server.close()
        await asyncio.wait(self._tasks)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
        answers, requests = await asyncio.open_unix_connection(self._behind)
        both = [
            asyncio.create_task(self._copy("request", reader, requests)),
            asyncio.create_task(self._copy("answer", answers, writer)),
        ]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for end in (requests, writer):
            end.close()
        await asyncio.wait(both)
        for end in (requests, writer):
            with suppress(OSError):
                await end.wait_closed()

    async def _copy(self, what: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.lose == what:
                self.lose = ""
                return
            writer.write(data)


@for_each_row(
    "change, lost, is_acknowledged",
    [
        (StoreChange("s", put={"a": b"2"}, expect={"a": b"1"}), "answer", True),
        (StoreChange("s", put={"a": b"2"}), "answer", True),
        (StoreChange("s", put={"a": b"2"}, expect={"a": b"1"}), "request", False),
        (StoreChange("s", put={"a": b"2"}), "request", False),
        # Nothing is left that could tell.
        (StoreChange("s", drop=["a"]), "answer", False),
    ],
)
def test_a_change_whose_connection_broke_is_acknowledged_only_if_it_happened(
    change: StoreChange, lost: str, is_acknowledged: bool, postgres: PostgresServer, run: Run, tmp_path: Path
):
    async def story() -> None:
        road = LossyRoad(postgres, tmp_path)
        await road.open()
        store = open_store(road.address)
        assert await store.change(StoreChange("s", put={"a": b"1"}))
        road.lose = lost
        if is_acknowledged:
            assert await store.change(change) is True
        else:
            with pytest.raises(StoreUnavailable):
                await store.change(change)
        expected = {"request": {"a": b"1"}, "answer": {"a": b"2"} if change.put else {}}[lost]
        assert await store.get("s", ["a"]) == expected
        await store.close()
        await road.close()

    run(story())


def lose_standby(server: PostgresServer) -> None:
    """From now on a commit waits for a synchronous standby that never comes."""
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    server.execute("SELECT pg_reload_conf()")
    wait_until(lambda: server.execute("SHOW synchronous_standby_names") == [("nobody",)])


def end_waiting_commits(server: PostgresServer) -> None:
    """End the sessions that wait for the standby, as an operator may. What they wrote can be read from then on."""
    waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_until(lambda: server.execute(f"SELECT 1 {waiting}") != [])
    server.execute(f"SELECT pg_terminate_backend(pid) {waiting}")


@pytest.mark.slow
def test_a_change_that_no_standby_has_is_not_acknowledged_although_it_can_be_read(
    own_postgres: PostgresServer, run: Run
):
    async def story() -> None:
        store = PostgresStore(own_postgres.url, timeout=2)
        assert await store.change(StoreChange("s", put={"a": b"1"}))
        lose_standby(own_postgres)
        changing = asyncio.create_task(store.change(StoreChange("s", put={"a": b"2"})))
        await asyncio.to_thread(end_waiting_commits, own_postgres)
        with pytest.raises(StoreUnavailable):
            await changing
        assert await store.get("s", ["a"]) == {"a": b"2"}
        await store.close()

    run(story())


@pytest.mark.slow
def test_an_audit_event_that_no_standby_has_is_refused(own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PostgresStore.__init__, "__kwdefaults__", {"timeout": 2.0})
    log = StoredAuditLog(own_postgres.url, key=b"k" * 32)
    log.append({"event_type": "first"}, durable=True)
    lose_standby(own_postgres)
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(log.append, {"event_type": "second"}, durable=True)
        end_waiting_commits(own_postgres)
        with pytest.raises(AuditUnavailable):
            adding.result()
    own_postgres.kill()
    with suppress(AuditUnavailable):
        log.close()


def test_what_only_reads_is_asked_once_more(postgres: PostgresServer, run: Run, tmp_path: Path):
    async def story() -> None:
        road = LossyRoad(postgres, tmp_path)
        await road.open()
        store = open_store(road.address)
        await store.change(StoreChange("s", put={"a": b"1"}))
        for lost in ("request", "answer"):
            road.lose = lost
            assert await store.get("s", ["a"]) == {"a": b"1"}
        await store.close()
        await road.close()

    run(story())


@pytest.mark.slow
def test_a_postgres_that_stands_still_does_not_hold_a_caller(own_postgres: PostgresServer, run: Run):
    async def story() -> None:
        store = PostgresStore(own_postgres.url, timeout=0.2)
        await store.change(StoreChange("s", put={"a": b"1"}))
        pids = own_postgres.pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                await store.change(StoreChange("s", put={"a": b"2"}))
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert await store.change(StoreChange("s", put={"a": b"3"}))
        await store.close()

    run(story())


# -- what is told of an address and of errors ------------------------------------------------------------


PASSWORD = "hunter2secret"


@for_each_row(
    "address",
    [
        f"postgres://ann:{PASSWORD}@localhost:port/notes",
        f"postgres://ann:x/{PASSWORD}@localhost/notes",
        f"postgres://ann:x#{PASSWORD}@localhost/notes",
        f"postgres://ann:x?{PASSWORD}@localhost/notes",
        f"postgres://ann:x%zz{PASSWORD}@localhost/notes",
        f"postgres://ann:{PASSWORD}@localhost/notes?prefix=mine",
        f"postgres://ann:{PASSWORD}@localhost/notes?schema=Mine;",
        f"postgres://ann:{PASSWORD}@localhost/notes?pool=0",
        f"postgresql://ann:{PASSWORD}@localhost/notes?pool=many",
    ],
)
def test_a_wrong_address_is_refused_without_its_password(address: str):
    with pytest.raises(UsageError, match="is not the address of a Postgres") as caught:
        open_store(address)
    assert PASSWORD not in str(caught.value)


def test_what_cannot_be_reached_is_logged_without_its_password(run: Run, caplog: pytest.LogCaptureFixture):
    with pytest.raises(StoreUnavailable) as caught:
        run(open_store(f"postgres://ann:{PASSWORD}@127.0.0.1:1/notes?sslpassword={PASSWORD}").open())
    assert "postgres://127.0.0.1:1/notes" in caplog.text
    assert PASSWORD not in caplog.text + str(caught.value)


def test_without_the_extra_the_install_line_is_in_the_error(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("psycopg"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"pip install 'defserve\[postgres\]'"):
        open_store("postgres://localhost/notes")


@for_each_row(
    "settings, problem, fix",
    [
        ("-c%20default_transaction_read_only%3Don", StoreReadOnly, "read-only"),
        ("-c%20default_transaction_isolation%3Dserializable", StoreUnavailable, "SET default_transaction_isolation"),
    ],
)
def test_settings_that_a_store_cannot_work_with_are_told(
    settings: str,
    problem: type[Exception],
    fix: str,
    postgres: PostgresServer,
    run: Run,
    caplog: pytest.LogCaptureFixture,
):
    async def story() -> None:
        address = postgres.make_address()
        ready = open_store(address)
        await ready.change(StoreChange("s", put={"a": b"1"}))
        await ready.close()
        store = open_store(f"{address}&options={settings}")
        with pytest.raises(problem):
            await store.change(StoreChange("s", put={"a": b"2"}))
        assert await store.get("s", ["a"]) == {"a": b"1"}
        await store.close()

    run(story())
    assert fix in caplog.text


def test_a_store_is_written_again_when_its_database_is_no_longer_read_only(postgres: PostgresServer, run: Run):
    postgres.execute("CREATE ROLE frozen LOGIN; CREATE SCHEMA frozen AUTHORIZATION frozen")

    async def story() -> None:
        change = StoreChange("s", put={"a": b"1"})
        store = open_store(postgres.url.replace("tester@", "frozen@") + "&schema=frozen")
        await store.change(change)
        await store.close()
        postgres.execute("ALTER ROLE frozen SET default_transaction_read_only = on")
        await asyncio.gather(*(store.get("s", ["a"]) for _ in range(4)))
        for _ in range(2):
            with pytest.raises(StoreReadOnly):
                await store.change(change)
        postgres.execute("ALTER ROLE frozen RESET default_transaction_read_only")
        assert await store.change(change)
        await store.close()

    run(story())


def test_a_role_that_may_not_make_the_schema_is_told_what_to_do(
    postgres: PostgresServer, run: Run, caplog: pytest.LogCaptureFixture
):
    postgres.execute("CREATE ROLE weak LOGIN")
    address = postgres.url.replace("tester@", "weak@") + "&schema=weak"
    with pytest.raises(StoreUnavailable):
        run(open_and_close(address))
    assert "CREATE SCHEMA … AUTHORIZATION" in caplog.text
    postgres.execute("CREATE SCHEMA weak AUTHORIZATION weak")

    async def story() -> None:
        store = open_store(address)
        assert await store.change(StoreChange("s", put={"a": b"1"}))
        await store.close()

    run(story())


def test_opening_warns_of_a_postgres_that_may_forget(
    own_postgres: PostgresServer, run: Run, caplog: pytest.LogCaptureFixture
):
    async def story(options: str) -> None:
        store = open_store(own_postgres.url + options)
        with caplog.at_level(logging.WARNING, "defserve"):
            await store.open()
        await store.close()

    run(story(""))
    assert caplog.text == ""
    run(story("&options=-c%20synchronous_commit%3Doff"))
    assert "may lose what it acknowledged: its synchronous_commit is off" in caplog.text


def test_a_name_may_hold_anything_but_is_not_endless(postgres: PostgresServer, run: Run):
    async def story() -> None:
        store = open_store(postgres.make_address())
        assert await store.change(StoreChange("s\0'\"é", put={"\0": b"\0"}))
        assert await store.get("s\0'\"é", ["\0"]) == {"\0": b"\0"}
        rough = os.urandom(600).hex()
        assert await store.change(StoreChange(rough, put={rough: b"1"}))
        with pytest.raises(LimitExceeded):
            await store.change(StoreChange("s", put={"x" * 1201: b""}))
        await store.close()

    run(story())


# -- the schema ------------------------------------------------------------------------------------------


def test_of_many_that_find_no_schema_one_makes_it(postgres: PostgresServer, run: Run):
    address = postgres.make_address()

    async def story() -> None:
        stores = [open_store(address) for _ in range(8)]
        assert await asyncio.gather(
            *(store.change(StoreChange("s", put={str(n): b""})) for n, store in enumerate(stores))
        )
        assert len([entry async for entry in stores[0].scan("s")]) == 8
        await asyncio.gather(*(store.close() for store in stores))

    run(story())
    schema = address.rpartition("schema=")[2]
    assert postgres.execute(f"SELECT version FROM {schema}.format") == [(len(store_module.MIGRATIONS),)]


def test_a_schema_of_a_later_version_is_refused(postgres: PostgresServer, run: Run):
    address = postgres.make_address()
    schema = address.rpartition("schema=")[2]
    run(open_and_close(address))
    postgres.execute(f"UPDATE {schema}.format SET version = 99")
    with pytest.raises(StoreUnavailable, match="has format 99; .* reads up to format 1: upgrade defserve"):
        run(open_and_close(address))


def test_an_older_schema_is_upgraded_and_keeps_what_it_has(
    postgres: PostgresServer, run: Run, monkeypatch: pytest.MonkeyPatch
):
    address = postgres.make_address()

    async def change(put: dict[str, bytes]) -> dict[str, bytes]:
        store = open_store(address)
        await store.change(StoreChange("s", put=put))
        values = await store.get("s", ["a", "b"])
        await store.close()
        return values

    run(change({"a": b"1"}))
    more = "ALTER TABLE {schema}.entries ADD COLUMN remark text"
    monkeypatch.setattr(store_module, "MIGRATIONS", (*store_module.MIGRATIONS, more))
    assert run(change({"b": b"2"})) == {"a": b"1", "b": b"2"}
    schema = address.rpartition("schema=")[2]
    assert postgres.execute(f"SELECT version FROM {schema}.format") == [(2,)]
    assert postgres.execute(f"SELECT count(remark) FROM {schema}.entries") == [(0,)]


async def open_and_close(address: str) -> None:
    store = open_store(address)
    try:
        await store.open()
    finally:
        await store.close()


def test_a_space_is_forgotten_when_its_time_is_over(
    postgres: PostgresServer, run: Run, monkeypatch: pytest.MonkeyPatch
):
    address = postgres.make_address()
    schema = address.rpartition("schema=")[2]

    def pass_time() -> None:
        postgres.execute(f"UPDATE {schema}.entries SET expires = expires - interval '1 hour'")

    async def story() -> None:
        store = open_store(address)
        await store.change(StoreChange("e", put={"1": b""}, ttl=60))
        await store.change(StoreChange("e", put={"2": b""}, ttl=4000))
        pass_time()
        assert {name async for name, _ in store.scan("e")} == {"1", "2"}, "the whole space was renewed"
        pass_time()
        assert await store.get("e", ["1", "2"]) == {}
        assert [space async for space in store.spaces("")] == []
        assert await store.change(StoreChange("e", put={"1": b"new"}, expect={"1": None}, ttl=60))
        assert [name async for name, _ in store.scan("e")] == ["1"]
        pass_time()
        monkeypatch.setattr(store_module, "SWEEP_SECONDS", -1)
        await store.change(StoreChange("other", put={"1": b""}, ttl=60))
        await store.close()

    run(story())
    assert postgres.execute(f"SELECT count(*) FROM {schema}.entries") == [(1,)]


def test_of_many_changes_at_once_one_deletes_what_has_expired(
    postgres: PostgresServer, run: Run, monkeypatch: pytest.MonkeyPatch
):
    sweeps, sweep = list[float](), PostgresStore._sweep

    async def sweep_and_count(store: PostgresStore) -> None:
        sweeps.append(time.monotonic())
        await sweep(store)

    async def story() -> None:
        store = PostgresStore(postgres.make_address())
        for _ in ("each has its connection", "measured"):
            sweeps.clear()
            monkeypatch.setattr(store, "_swept", time.monotonic() - store_module.SWEEP_SECONDS - 1)
            await asyncio.gather(*(store.change(StoreChange(f"s{n}", put={"a": b""}, ttl=60)) for n in range(8)))
        await store.close()

    monkeypatch.setattr(PostgresStore, "_sweep", sweep_and_count)
    run(story())
    assert len(sweeps) == 1


# -- connections -----------------------------------------------------------------------------------------


def test_a_process_has_no_more_connections_than_its_pool(postgres: PostgresServer, run: Run):
    async def story() -> None:
        store = open_store(f"{postgres.make_address()}&pool=2&application_name=counted")
        await asyncio.gather(*(store.change(StoreChange("s", put={str(n): b""})) for n in range(50)))
        counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
        assert postgres.execute(counted) == [(2,)]
        await store.close()

    run(story())


def test_a_pool_that_stays_full_says_how_long_it_was_waited_for(run: Run, caplog: pytest.LogCaptureFixture):
    async def story() -> None:
        async with ConnectionPool(asyncio.Event().wait, 0, 0.01).borrow_connection():  # type: ignore[arg-type]
            pass

    with pytest.raises(StoreBusy):
        run(story())
    assert "within 0.01 s" in caplog.text


def test_one_store_may_be_used_in_one_loop_after_the_other(postgres: PostgresServer):
    store = open_store(postgres.make_address())

    async def use(value: bytes, *, is_closed: bool) -> dict[str, bytes]:
        await store.change(StoreChange("s", put={"a": value}))
        values = await store.get("s", ["a"])
        if is_closed:
            await store.close()
        return values

    assert [asyncio.run(use(value, is_closed=value != b"1")) for value in (b"1", b"2", b"3")] == [
        {"a": value} for value in (b"1", b"2", b"3")
    ]


@pytest.mark.slow
def test_a_cancelled_task_leaves_a_store_that_works(postgres: PostgresServer, run: Run):
    async def cancel_at(turn: int, store: Any) -> bool:
        asking = asyncio.ensure_future(store.get("space", ["name"]))
        for _ in range(turn):
            await asyncio.sleep(0)
        is_told = asking.cancel()
        await asyncio.wait([asking])
        return asking.cancelled() or not is_told

    async def story() -> None:
        store = open_store(f"{postgres.make_address()}&pool=2")
        await store.open()
        assert all([await cancel_at(turn % 12, store) for turn in range(60)])
        assert await store.change(StoreChange("s", put={"a": b"1"}))
        await store.close()

    run(story())


# -- news, and a pooler ----------------------------------------------------------------------------------


async def hear_of(listening: PostgresStore, telling: PostgresStore) -> None:
    """Announcements of one store reach another."""
    news, heard = listening.follow("n"), list[str]()

    async def listen() -> None:
        async for about in news:
            heard.append(about)

    task = asyncio.create_task(listen())
    await until(lambda: heard == [""])
    for about in ("orders", "bills"):
        await telling.announce("n", about)
        await until(lambda about=about: heard[-1] == about)
    await telling.announce("other", "orders")
    await telling.announce("n", "last")
    await until(lambda: heard[-1] == "last")
    assert heard == ["", "orders", "bills", "last"]
    task.cancel()
    await asyncio.wait([task])
    await news.aclose()


@for_each_row("is_behind_pooler", [False, True])
def test_what_one_process_announces_another_hears(
    is_behind_pooler: bool, postgres: PostgresServer, pooler: PgBouncer, run: Run
):
    address = (pooler if is_behind_pooler else postgres).make_address()

    async def story() -> None:
        listening, telling = PostgresStore(address), PostgresStore(address)
        follower = NewsFollower(listening, b"n", "channel")
        await follower.open()
        assert follower.can_listen is not is_behind_pooler
        follower.close()
        await hear_of(listening, telling)
        await listening.close()
        await telling.close()

    run(story())


def test_who_follows_is_told_that_something_may_be_missed(
    own_postgres: PostgresServer, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_module, "AGAIN", 0.01)

    async def story() -> None:
        store = PostgresStore(own_postgres.url)
        news = store.follow("n")
        assert await anext(news) == ""
        own_postgres.kill()
        own_postgres.start()
        assert await anext(news) == ""
        await store.announce("n", "orders")
        assert await anext(news) == "orders"
        await news.aclose()
        await store.close()

    run(story())


def test_following_a_schema_that_cannot_be_used_leaves_no_connection_open(
    postgres: PostgresServer, run: Run, monkeypatch: pytest.MonkeyPatch
):
    address, opened = postgres.make_address(), list[Any]()
    schema, connect = address.rpartition("schema=")[2], PostgresAddress.connect
    run(open_and_close(address))
    postgres.execute(f"UPDATE {schema}.format SET version = 99")

    async def connect_and_note(*given: Any) -> Any:
        opened.append(await connect(*given))
        return opened[-1]

    async def story() -> None:
        news = PostgresStore(address).follow("n")
        hearing = asyncio.ensure_future(anext(news))
        await until(lambda: len(opened) > 1)
        hearing.cancel()
        await asyncio.wait([hearing])

    monkeypatch.setattr(store_module, "AGAIN", 0.01)
    monkeypatch.setattr(PostgresAddress, "connect", connect_and_note)
    run(story())
    assert all(connection.closed for connection in opened)


def test_behind_a_pooler_that_gives_each_transaction_another_session_everything_works(pooler: PgBouncer, run: Run):
    async def story() -> None:
        store = open_store(pooler.make_address())
        nonce = StoreChange("nonce:1", put={"spent": b""}, expect={"spent": None}, ttl=60)
        done = await asyncio.gather(*(store.change(nonce) for _ in range(40)))
        assert sorted(done) == [False] * 39 + [True]
        entries = {f"n{n}": str(n).encode() for n in range(600)}
        await store.change(StoreChange("s", put=entries))
        assert {name: value async for name, value in store.scan("s")} == entries
        assert sorted([space async for space in store.spaces("")]) == ["nonce:1", "s"]
        await store.close()

    run(story())
