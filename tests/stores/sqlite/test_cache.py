"""What is known of a store without asking it: never older than what anybody was told."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from defserve.stores.sqlite import SqliteStore
from defserve.stores.sqlite_entries import MAX_CACHED_VALUES, SMALL, SqliteCache
from defserve.stores.store import StoreChange
from tests.effort import examples
from tests.stores.conftest import Run

PLACE = ("s", "a")
FIND = ("s", ["a"])


def opened(folder: Path) -> SqliteCache:
    (folder / "store.db").touch()
    seen = SqliteCache(folder / "store.db")
    seen.open()
    return seen


def commit(seen: SqliteCache, *values: bytes | None) -> None:
    seen.get_values(is_alone=True)
    seen.begin_commit([PLACE])
    seen.finish_commit({(PLACE[0], name): value for name, value in zip("abc", values, strict=False)})


def test_nothing_is_known_at_first_nor_after_the_end(tmp_path: Path):
    (tmp_path / "store.db").touch()
    seen = SqliteCache(tmp_path / "store.db")
    assert seen.find_values("s", ["a"]) is None
    seen.open()
    assert seen.find_values("s", ["a"]) is None
    commit(seen, b"1")
    seen.close()
    assert seen.find_values("s", ["a"]) is None


def test_what_was_committed_is_known_and_all_of_it_has_to_be(tmp_path: Path):
    seen = opened(tmp_path)
    commit(seen, b"1", b"2")
    assert seen.find_values("s", ["a", "b"]) == {"a": b"1", "b": b"2"}
    assert seen.find_values("s", ["a", "c"]) is None
    assert seen.find_values("t", ["a"]) is None


def test_what_is_gone_or_large_is_not(tmp_path: Path):
    seen = opened(tmp_path)
    commit(seen, b"1", b"x" * SMALL)
    commit(seen, None, b"x" * (SMALL + 1))
    assert seen.find_values("s", ["a"]) is seen.find_values("s", ["b"]) is None


def test_while_one_commits_it_does_not_give_out_what_it_is_about_to_change(tmp_path: Path):
    seen = opened(tmp_path)
    commit(seen, b"1")
    assert seen.get_values(is_alone=True) == {PLACE: b"1"}
    seen.begin_commit([PLACE])
    assert seen.find_values("s", ["a"]) is None, "others may see the new one by now"
    seen.abort_commit()
    assert seen.find_values("s", ["a"]) is None, "whether it was committed is not known"


def test_what_another_has_done_or_is_about_to_makes_one_look(tmp_path: Path):
    one, other = opened(tmp_path), opened(tmp_path)
    commit(one, b"1")
    other.get_values(is_alone=False)
    other.begin_commit([PLACE])
    assert one.find_values("s", ["a"]) is None
    other.finish_commit({PLACE: b"2"})
    assert one.find_values("s", ["a"]) is None
    assert other.find_values("s", ["a"]) == {"a": b"2"}
    one.keep_read_values({PLACE: b"2"}, one.begin_reading())
    assert one.find_values("s", ["a"]) == {"a": b"2"}


def test_one_who_died_amid_it_makes_everybody_look_until_the_next_commit(tmp_path: Path):
    one, dead = opened(tmp_path), opened(tmp_path)
    commit(one, b"1")
    dead.begin_commit([PLACE])
    one.keep_read_values({PLACE: b"1"}, one.begin_reading())
    assert one.find_values("s", ["a"]) is None
    commit(one, b"3")
    assert one.find_values("s", ["a"]) == {"a": b"3"}


def test_one_whose_turn_ended_does_not_speak_for_the_next(tmp_path: Path):
    one, next_one = opened(tmp_path), opened(tmp_path)
    one.begin_commit([PLACE])
    next_one.get_values(is_alone=False)
    next_one.begin_commit([PLACE])
    one.finish_commit({PLACE: b"1"})
    assert one.find_values("s", ["a"]) is None
    next_one.finish_commit({PLACE: b"2"})
    assert one.find_values("s", ["a"]) is None
    assert next_one.find_values("s", ["a"]) == {"a": b"2"}


def test_one_whose_reader_has_seen_the_next_commit_does_not_go_back_before_it(tmp_path: Path):
    one, next_one = opened(tmp_path), opened(tmp_path)
    one.begin_commit([PLACE])
    next_one.begin_commit([PLACE])
    next_one.finish_commit({PLACE: b"2"})
    one.begin_reading()
    one.finish_commit({PLACE: b"1"})
    assert one.find_values(*FIND) is None
    one.keep_read_values({PLACE: b"2"}, one.begin_reading())
    assert one.find_values(*FIND) in (None, {"a": b"2"})


def test_one_who_is_late_to_say_it_is_done_makes_everybody_look(tmp_path: Path):
    one, next_one = opened(tmp_path), opened(tmp_path)
    one.begin_commit([PLACE])
    late = one._mine
    next_one.begin_commit([PLACE])
    next_one.finish_commit({PLACE: b"2"})
    one._tally[1] = late  # as if it had been interrupted between its look at the first number and this
    one._store_values({PLACE: b"1"})
    assert one.find_values(*FIND) is None
    assert one.begin_reading() == -1
    commit(next_one, b"3")
    one.keep_read_values({PLACE: b"3"}, one.begin_reading())
    assert one.find_values(*FIND) == {"a": b"3"}


def test_by_whatever_name_a_store_is_opened_there_is_one_tally(tmp_path: Path, run: Run):
    async def story() -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "link.db").symlink_to(tmp_path / "store.db")
        one, other = SqliteStore(tmp_path / "store.db"), SqliteStore(tmp_path / "other" / "link.db")
        await one.change(StoreChange("s", put={"a": b"1"}))
        assert await other.get("s", ["a"]) == {"a": b"1"}
        await one.change(StoreChange("s", put={"a": b"2"}))
        assert await other.get("s", ["a"]) == {"a": b"2"}
        await one.close()
        await other.close()

    run(story())


def test_what_others_may_do_with_the_store_they_may_with_its_tally(tmp_path: Path):
    (tmp_path / "store.db").touch()
    (tmp_path / "store.db").chmod(0o666)
    before = os.umask(0o077)
    try:
        seen = opened(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "store.db-tally").stat().st_mode & 0o777 == 0o666
    seen.close()


def test_a_connection_made_anew_does_not_pass_for_the_one_before(tmp_path: Path, run: Run):
    import sqlite3

    async def story() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.change(StoreChange("s", put={"a": b"1"}))
        await store.close()
        await store.get("s", ["a"])
        with sqlite3.connect(tmp_path / "store.db") as by_hand:
            by_hand.execute("UPDATE entries SET value = ?", (b"2",))
        by_hand.close()
        assert not await store.change(StoreChange("s", put={"a": b"3"}, expect={"a": b"1"}))
        await store.close()

    run(story())


def test_a_writer_that_is_not_alone_in_sqlites_eyes_forgets_whatever_the_number_says(tmp_path: Path):
    seen = opened(tmp_path)
    commit(seen, b"1")
    assert seen.get_values(is_alone=False) == {}


def test_what_was_read_before_an_own_commit_is_not_taken_for_what_is_after(tmp_path: Path):
    seen = opened(tmp_path)
    number = seen.begin_reading()
    commit(seen, b"2")
    seen.keep_read_values({PLACE: b"1"}, number)
    assert seen.find_values("s", ["a"]) == {"a": b"2"}


def test_it_does_not_grow_without_end(tmp_path: Path):
    seen = opened(tmp_path)
    for n in range(3 * MAX_CACHED_VALUES):
        seen.get_values(is_alone=True)
        seen.begin_commit([PLACE])
        seen.finish_commit({("s", str(n)): b"1"})
    assert len(seen._values) <= MAX_CACHED_VALUES
    assert seen.find_values("s", [str(3 * MAX_CACHED_VALUES - 1)]) == {str(3 * MAX_CACHED_VALUES - 1): b"1"}


class Process:
    """One of several that use a store."""

    def __init__(self, folder: Path) -> None:
        self.seen = opened(folder)
        self.committed: int | None = None
        self.reading: tuple[int, int] | None = None
        self.knows_version = -1


class Processes(RuleBasedStateMachine):
    """A store of one value, its version, changed by several processes that stop and die at any step."""

    processes = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.all = [Process(Path(self.folder.name)) for _ in range(3)]
        self.version = self.told = 0
        self.writer: Process | None = None

    def teardown(self) -> None:
        for process in self.all:
            process.seen.close()
        self.folder.cleanup()

    @precondition(lambda self: self.writer is None)
    @rule(number=processes)
    def begin(self, number: int) -> None:
        process = self.all[number]
        if process.committed is None:
            known = process.seen.get_values(is_alone=process.knows_version == self.version)
            assert known.get(PLACE, b"%d" % self.version) == b"%d" % self.version
            process.seen.begin_commit([PLACE])
            self.writer = process

    @precondition(lambda self: self.writer is not None)
    @rule()
    def commit(self) -> None:
        assert self.writer is not None
        self.version += 1
        self.writer.committed = self.writer.knows_version = self.version
        self.writer = None

    @rule(number=processes)
    def tell(self, number: int) -> None:
        process = self.all[number]
        if process.committed is not None:
            process.seen.finish_commit({PLACE: b"%d" % process.committed})
            self.told, process.committed = max(self.told, process.committed), None

    @precondition(lambda self: self.writer is not None)
    @rule()
    def give_up(self) -> None:
        assert self.writer is not None
        self.writer.seen.abort_commit()
        self.writer = None

    @rule(number=processes)
    def die(self, number: int) -> None:
        if self.writer is self.all[number]:
            self.writer = None
        self.all[number] = Process(Path(self.folder.name))

    @rule(number=processes)
    def begin_to_read(self, number: int) -> None:
        process = self.all[number]
        if process.reading is None:
            process.reading = process.seen.begin_reading(), self.version

    @rule(number=processes)
    def end_reading(self, number: int) -> None:
        process = self.all[number]
        if process.reading is not None:
            (token, version), process.reading = process.reading, None
            process.seen.keep_read_values({PLACE: b"%d" % version}, token)
            self.told = max(self.told, version)

    @rule(number=processes)
    def ask(self, number: int) -> None:
        found = self.all[number].seen.find_values(PLACE[0], [PLACE[1]])
        if found is not None:
            assert int(found[PLACE[1]]) >= self.told


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)


def test_two_stores_on_one_file_see_at_once_what_the_other_was_told(tmp_path: Path, run: Run):
    async def story() -> None:
        stores = [SqliteStore(tmp_path / "store.db") for _ in range(2)]
        last: bytes | None = None
        for n in range(40):
            one, other = stores[n % 2], stores[(n // 2 + 1) % 2]
            assert await one.change(StoreChange("s", put={"a": b"%d" % n}, expect={"a": last}))
            last = b"%d" % n
            assert await other.get("s", ["a"]) == await one.get("s", ["a"]) == {"a": last}
        for store in stores:
            await store.close()

    run(story())


def test_a_stranger_to_the_number_is_noticed_before_anything_is_overwritten(tmp_path: Path, run: Run):
    import sqlite3

    async def story() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.change(StoreChange("s", put={"a": b"1"}))
        with sqlite3.connect(tmp_path / "store.db") as by_hand:
            by_hand.execute("UPDATE entries SET value = ?", (b"2",))
        by_hand.close()
        assert not await store.change(StoreChange("s", put={"a": b"3"}, expect={"a": b"1"}))
        assert await store.get("s", ["a"]) == {"a": b"2"}
        await store.close()

    run(story())


def test_a_value_that_is_known_is_given_without_a_turn_of_the_loop(tmp_path: Path, run: Run):
    async def story() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.change(StoreChange("s", put={"a": b"1"}))
        with pytest.raises(StopIteration) as done:
            store.get("s", ["a"]).send(None)
        assert done.value.value == {"a": b"1"}
        await store.close()

    run(story())


def test_what_expires_is_never_known(tmp_path: Path, run: Run):
    now = [1_000.0]

    async def story() -> None:
        store = SqliteStore(tmp_path / "store.db", clock=lambda: now[0])
        await store.change(StoreChange("s", put={"a": b"1"}, ttl=10))
        assert await store.get("s", ["a"]) == {"a": b"1"}
        now[0] += 11
        assert await store.get("s", ["a"]) == {}
        await store.close()

    run(story())
