from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from defserve.stores import store as leases
from defserve.stores.sqlite import SqliteStore
from defserve.stores.store import Lease, MemoryStore, Space, Store, StoreBusy, StoreChange, StoreUnavailable
from tests.raw import until
from tests.stores.conftest import Run


def test_one_at_a_time_has_a_lease(store: Store, run: Run):
    at_work = most = 0

    async def work() -> None:
        nonlocal at_work, most
        lease = Lease(store, "tree")
        await lease.acquire(10)
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001)
        at_work -= 1
        await lease.release()

    async def together() -> None:
        await asyncio.gather(*(work() for _ in range(8)))

    run(together())
    assert most == 1


def test_who_waits_too_long_is_told_so(store: Store, run: Run):
    async def wait() -> None:
        held = Lease(store, "tree")
        await held.acquire(10)
        other = Lease(store, "tree")
        with pytest.raises(StoreBusy):
            await other.acquire(0.02)
        await other.release()  # which is none of its business
        with pytest.raises(StoreBusy):
            await other.acquire(0.02)
        await held.release()
        await other.acquire(10)
        await other.release()

    run(wait())


def test_a_lease_ends_with_its_holder_and_not_before(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.001)
    now = 0.0
    store = MemoryStore(clock=lambda: now)

    def is_renewed() -> bool:
        return store._expires["lease:tree"] == now + leases.TTL

    async def wait() -> None:
        nonlocal now
        held, other = Lease(store, "tree"), Lease(store, "tree")
        await held.acquire(10)
        for _ in range(5):
            now += leases.TTL * 0.9
            await until(is_renewed)
        with pytest.raises(StoreBusy):
            await other.acquire(0.02)
        held._renewing.cancel()  # pyright: ignore
        await asyncio.sleep(0)
        now += leases.TTL * 1.1
        await other.acquire(10)
        await held.release()  # which no longer holds it
        with pytest.raises(StoreBusy):
            await Lease(store, "tree").acquire(0.02)
        await other.release()

    run(wait())


def test_a_lease_is_renewed_whatever_the_store_raised_before(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.001)
    now = 0.0

    class Odd(MemoryStore):
        failures = [StoreUnavailable("away"), RuntimeError("password=hunter2-canary"), AttributeError("write")]

        async def change(self, change: StoreChange) -> bool:
            if now and self.failures:
                raise self.failures.pop()
            return await super().change(change)

    store = Odd(clock=lambda: now)

    async def wait() -> None:
        nonlocal now
        held = Lease(store, "tree")
        await held.acquire(10)
        now += leases.TTL * 0.9
        await until(lambda: store._expires["lease:tree"] == now + leases.TTL)
        await held.release()

    run(wait())
    assert caplog.messages == ["a lease could not be renewed"] * 2
    assert "RuntimeError: password=[redacted]" in caplog.text and "hunter2" not in caplog.text


def test_who_stops_waiting_leaves_nothing_behind(run: Run):
    class Slow(MemoryStore):
        async def change(self, change: object) -> bool:
            done = await super().change(change)  # pyright: ignore
            await asyncio.sleep(0)
            return done

    store = Slow()

    async def stop() -> None:
        waiting = asyncio.ensure_future(Lease(store, "tree").acquire(10))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await Lease(store, "tree").acquire(10)

    run(stop())


class Late:
    """A store whose answers come late: what was asked for has happened by then."""

    def __init__(self, store: Store) -> None:
        self.store, self.asked = store, 0

    async def change(self, change: StoreChange) -> bool:
        done = await self.store.change(change)
        self.asked += 1
        await asyncio.sleep(0.05)
        return done


@pytest.mark.parametrize("how", ["timeout", "cancel", "cancel twice", "cancel the release"])
def test_a_lease_whose_answer_comes_too_late_is_not_left_held(store: Store, run: Run, how: str):
    async def stop() -> None:
        late = Late(store)
        lease = Lease(late, "tree")  # pyright: ignore
        if how == "timeout":
            with pytest.raises(StoreBusy):
                await lease.acquire(0.01)
        elif how == "cancel the release":
            await lease.acquire(10)
            await cancelled(lease.release(), 1)
        else:
            await cancelled(lease.acquire(10), 2 if how == "cancel twice" else 1)
        await Lease(store, "tree").acquire(leases.TTL / 2)

    async def cancelled(work: Coroutine[Any, Any, None], times: int) -> None:
        task = asyncio.ensure_future(work)
        for _ in range(times):
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(stop())


def test_a_store_that_fails_on_the_way_does_not_leave_the_lease_held(run: Run):
    class Broken(MemoryStore):
        failures = 1

        async def change(self, change: StoreChange) -> bool:
            done = await super().change(change)
            self.failures -= 1
            if self.failures >= 0:
                raise StoreUnavailable("the connection was lost")
            return done

    async def fail() -> None:
        store = Broken()
        with pytest.raises(StoreUnavailable):
            await Lease(store, "tree").acquire(10)
        await Lease(store, "tree").acquire(leases.TTL / 2)

    run(fail())


def test_a_holder_who_could_not_release_has_it_again_at_once(run: Run):
    store = MemoryStore()

    async def take_again() -> None:
        await Lease(store, "tree", b"one").acquire(10)  # and is never released
        with pytest.raises(StoreBusy):
            await Lease(store, "tree", b"other").acquire(0.02)
        again = Lease(store, "tree", b"one")
        await again.acquire(10)
        await again.release()
        await Lease(store, "tree", b"other").acquire(10)

    run(take_again())


def test_a_holder_is_told_when_another_has_its_lease(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.01)
    store = MemoryStore()

    async def lose() -> None:
        lost = asyncio.Event()
        lease = Lease(store, "tree", b"one")
        lease.on_lost = lost.set
        await lease.acquire(10)
        assert await lease.find_holder() == b"one" and await lease.is_held()
        # As if it had been paused until its lease had ended.
        await Lease(store, "tree", b"one").release()
        await Lease(store, "tree", b"other").acquire(10)
        async with asyncio.timeout(10):
            await lost.wait()
        assert await lease.find_holder() == b"other" and not await lease.is_held()

    run(lose())


def test_a_release_does_not_wait_for_ever_for_a_store_that_never_answers(run: Run, monkeypatch: pytest.MonkeyPatch):
    class DeafStore(MemoryStore):
        async def change(self, change: StoreChange) -> bool:
            return await (asyncio.Event().wait() if change.drop else super().change(change))

    async def release() -> None:
        lease = Lease(DeafStore(), "tree")
        await lease.acquire(10)
        monkeypatch.setattr(leases, "TTL", 0.01)
        async with asyncio.timeout(10):
            await lease.release()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    run(release())


@pytest.mark.parametrize("prefix", ["", "server:name=notes:"])
def test_a_lease_that_a_killed_process_took_before_the_clock_was_set_back_has_ended(
    tmp_path: Path, run: Run, prefix: str
):
    async def set_back() -> None:
        now = 1_000_000.0
        store = SqliteStore(tmp_path / "store.db", clock=lambda: now)
        space = f"{prefix}lease:tree"
        took = StoreChange(Space(space), {"holder": b"killed"}, expect={"holder": None}, ttl=leases.TTL)
        lasting = StoreChange(Space(f"{prefix}task:lease:1"), {"record": b"kept"}, ttl=86_400.0)
        assert await store.change(took) and await store.change(lasting)
        now -= leases.TTL
        assert await store.get(Space(space), ["holder"]) == {"holder": b"killed"}
        assert not await store.change(took)
        now -= 3_600
        assert await store.get(Space(space), ["holder"]) == {}
        assert await store.get(lasting.space, ["record"]) == {"record": b"kept"}
        # Whoever takes it now has it for as long as any lease.
        assert await store.change(took._replace(put={"holder": b"other"}))
        now += leases.TTL * 0.9
        assert await store.get(Space(space), ["holder"]) == {"holder": b"other"}
        assert not await store.change(took)
        now += leases.TTL * 0.2
        assert await store.change(took)
        await store.close()

    run(set_back())


def test_a_living_holder_keeps_its_lease_when_the_clock_is_set_back(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.01)

    async def set_back() -> None:
        now, lost = 1_000_000.0, asyncio.Event()
        store = SqliteStore(tmp_path / "store.db", clock=lambda: now)
        held = Lease(store, "tree", b"one")
        held.on_lost = lost.set
        await held.acquire(10)
        now -= 3_600
        await asyncio.sleep(0.1)
        assert await held.is_held() and not lost.is_set()
        with pytest.raises(StoreBusy):
            await Lease(store, "tree").acquire(0.05)
        await held.release()
        await store.close()

    run(set_back())
