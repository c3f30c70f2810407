"""What every store promises."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from defserve.errors import UsageError
from defserve.stores.identity import open_store
from defserve.stores.sqlite import SqliteStore
from defserve.stores.store import MemoryStore, SharedNonceStore, Store, StoreChange, StoreFull
from tests.rows import for_each_row
from tests.stores.conftest import Run


def test_a_change_happens_wholly_or_not_at_all(store: Store, run: Run):
    async def story() -> None:
        await store.open()
        assert await store.change(StoreChange("s", put={"a": b"1", "b": b"\x00\xff"}, expect={"a": None}))
        assert not await store.change(StoreChange("s", put={"c": b"3"}, drop=["b"], expect={"a": b"1", "b": b"other"}))
        assert not await store.change(StoreChange("s", put={"c": b"3"}, expect={"a": None}))
        assert not await store.change(StoreChange("s", put={"c": b"3"}, expect={"z": b""}))
        assert await store.get("s", ["a", "b", "c"]) == {"a": b"1", "b": b"\x00\xff"}
        assert await store.change(StoreChange("s", put={"c": b""}, drop=["b", "z"], expect={"a": b"1", "z": None}))
        assert {entry async for entry in store.scan("s")} == {("a", b"1"), ("c", b"")}
        assert await store.get("other", ["a"]) == await store.get("s", []) == {}
        assert await store.check() == []

    run(story())


def test_spaces_are_found_by_how_they_begin_while_they_hold_anything(store: Store, run: Run):
    async def story() -> None:
        for space in ("p:*", "p:[a]", "p:é", "q:1", "p"):
            await store.change(StoreChange(space, put={"a": b""}))
        await store.change(StoreChange("p:é", drop=["a"]))
        assert {space async for space in store.spaces("p:")} == {"p:*", "p:[a]"}
        assert {space async for space in store.spaces("p:*")} == {"p:*"}

    run(story())


def test_everything_is_scanned_however_much_it_is(store: Store, run: Run):
    async def story() -> None:
        entries = {f"n{n}": str(n).encode() for n in range(1_000)}
        await store.change(StoreChange("s", put=entries))
        assert {name: value async for name, value in store.scan("s")} == entries
        assert await store.get("s", list(entries)) == entries

    run(story())


def test_of_many_who_expect_the_same_one_succeeds(store: Store, run: Run):
    async def story() -> None:
        nonce = StoreChange("nonce:1", put={"spent": b""}, expect={"spent": None}, ttl=60)
        done = await asyncio.gather(*(store.change(nonce) for _ in range(100)))
        assert sorted(done) == [False] * 99 + [True]

    run(story())


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_space_is_forgotten_when_its_time_is_over(kind: str, run: Run, tmp_path: Path):
    now = [1_000.0]

    async def story() -> None:
        made = {"memory": lambda: MemoryStore(clock=lambda: now[0])}
        made["sqlite"] = lambda: SqliteStore(tmp_path / "s.db", clock=lambda: now[0])  # type: ignore[assignment]
        store = made[kind]()
        await store.change(StoreChange("e", put={"1": b""}, ttl=10))
        now[0] += 9
        await store.change(StoreChange("e", put={"2": b""}, ttl=10))
        now[0] += 9
        assert {name async for name, _ in store.scan("e")} == {"1", "2"}
        now[0] += 1
        assert await store.get("e", ["1", "2"]) == {}
        assert [space async for space in store.spaces("")] == []
        assert await store.change(StoreChange("e", put={"1": b"new"}, expect={"1": None}, ttl=10))
        now[0] += 100
        await store.change(StoreChange("x", put={"1": b""}))
        assert [space async for space in store.spaces("")] == ["x"]
        await store.close()

    run(story())


def test_a_full_memory_store_refuses_and_recovers(run: Run):
    async def story() -> None:
        store = MemoryStore(limit=2_000)
        await store.change(StoreChange("s", put={"a": b"x" * 900}))
        with pytest.raises(StoreFull):
            await store.change(StoreChange("t", put={"b": b"x" * 200}))
        assert await store.change(StoreChange("s", put={"a": b"x" * 10}))
        assert await store.change(StoreChange("t", put={"b": b"x" * 200}))

    run(story())


def test_a_memory_store_counts_what_many_small_spaces_cost(run: Run):
    async def story() -> None:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            store, now = MemoryStore(limit=1_000_000, clock=lambda: now[0]), [0.0]
            nonces = SharedNonceStore(store)
            with pytest.raises(StoreFull):
                for number in range(100_000):
                    assert await nonces.spend(f"a nonce {number}", ttl=10)
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert 500_000 < taken < 1_500_000
        now[0] = 11
        assert await nonces.spend("a nonce", ttl=10)
        assert await store.change(StoreChange("a", put={"large": bytes(990_000)}))
        await store.change(StoreChange("a", drop=["large"]))
        assert await store.change(StoreChange("b", put={"large": bytes(990_000)}))

    run(story())


def test_a_space_of_a_memory_store_that_changes_often_takes_no_more_for_it(run: Run):
    async def story() -> None:
        store = MemoryStore()
        for number in range(10_000):
            await store.change(StoreChange("a", put={"n": b"%d" % number}, ttl=3600))
            await store.change(StoreChange(f"short {number}", put={"n": b""}, ttl=3600))
            await store.change(StoreChange(f"short {number}", drop=["n"]))
        assert len(store._queue) < 200  # pyright: ignore[reportPrivateUsage]
        assert await store.get("a", ["n"]) == {"n": b"9999"}

    run(story())


@for_each_row(
    "address", ["", "sqlite", "sqlite:", "sqlite://x", "sqlite:///", "mysql://x", "postgres:", "memory:x", "redis:"]
)
def test_an_address_of_no_store_is_refused_with_examples(address: str):
    with pytest.raises(UsageError, match="sqlite:///"):
        open_store(address)


def test_an_address_that_lacks_a_slash_is_shown_as_it_should_be():
    with pytest.raises(
        UsageError, match="'sqlite://notes.db' is not .*: a slash is missing\n  fix: write 'sqlite:///notes.db'"
    ):
        open_store("sqlite://notes.db")


def test_a_path_after_three_slashes_is_relative_and_after_four_absolute():
    relative, absolute = open_store("sqlite:///notes.db"), open_store("sqlite:////var/notes.db")
    assert isinstance(relative, SqliteStore) and isinstance(absolute, SqliteStore)
    assert (relative.path, absolute.path) == (Path("notes.db"), Path("/var/notes.db"))
