"""Many changes at once: as if they came one after the other."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.stores.sqlite import MIGRATIONS
from defserve.stores.sqlite_entries import EntryRequest, apply_changes, find_entries, map_rows_to_values
from defserve.stores.store import MemoryStore, StoreChange

NOW = 1_000.0

spaces, names = st.sampled_from(["s", "t"]), st.sampled_from(["a", "b", "c"])
data = st.sampled_from([b"", b"1", b"2"])
changes = st.builds(
    StoreChange,
    spaces,
    put=st.dictionaries(names, data, max_size=2),
    drop=st.lists(names, max_size=1),
    expect=st.dictionaries(names, st.none() | data, max_size=1),
    ttl=st.none(),
)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    made = empty()
    yield made
    made.close()


def empty() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.executescript(";".join(MIGRATIONS))
    return made


def rows(connection: sqlite3.Connection) -> set[tuple[str, str, bytes]]:
    return set(connection.execute("SELECT space, name, value FROM entries"))


@pytest.mark.slow
@given(st.lists(st.lists(changes, max_size=8), max_size=3))
def test_changes_made_together_are_those_made_one_by_one(batches: list[list[StoreChange]]):
    connection, memory = empty(), MemoryStore()

    async def one_by_one(batch: list[StoreChange]) -> list[bool]:
        return [await memory.change(change) for change in batch]

    async def everything() -> set[tuple[str, str, bytes]]:
        return {(space, name, value) for space in "st" async for name, value in memory.scan(space)}

    for batch in batches:
        assert apply_changes(connection, batch, NOW).is_made == asyncio.run(one_by_one(batch))
    assert rows(connection) == asyncio.run(everything())
    connection.close()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 127, 128, 300])
def test_any_number_is_made_and_found(connection: sqlite3.Connection, count: int):
    assert (
        apply_changes(connection, [StoreChange(f"s{n}", put={"a": b"%d" % n}) for n in range(count)], NOW).is_made
        == [True] * count
    )
    places = [(f"s{n}", "a") for n in range(count)]
    assert map_rows_to_values(find_entries(connection, places, NOW)) == {
        place: b"%d" % n for n, place in enumerate(places)
    }


def test_each_is_told_of_what_it_wanted():
    found = {("s", "a"): b"1", ("t", "a"): b"2", ("t", "b"): b"3"}
    assert EntryRequest("t", ["b", "a", "z"]).pick_requested_values(found) == {"a": b"2", "b": b"3"}


def test_what_was_forgotten_does_not_come_back_with_the_next_of_its_space(connection: sqlite3.Connection):
    apply_changes(connection, [StoreChange("s", put={"old": b"1"}, ttl=10)], NOW)
    apply_changes(connection, [StoreChange("s", put={"new": b"2"}, expect={"old": None}, ttl=10)], NOW + 11)
    assert map_rows_to_values(find_entries(connection, [("s", "old"), ("s", "new")], NOW + 12)) == {("s", "new"): b"2"}
