from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import LimitExceeded
from defserve.stores.store import MemoryNonceStore, NonceStore, SharedNonceStore, Store, StoreChange
from tests.rows import for_each_row
from tests.stores.conftest import Run


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def spend(store: NonceStore, nonce: str, ttl: float = 60.0) -> bool:
    return asyncio.run(store.spend(nonce, ttl=ttl))


def test_a_nonce_is_spent_once():
    store = MemoryNonceStore()
    assert [spend(store, "a"), spend(store, "a"), spend(store, "b"), spend(store, "a")] == [True, False, True, False]


def test_a_nonce_is_forgotten_when_its_time_is_over_and_not_before():
    clock = Clock()
    store = MemoryNonceStore(clock=clock)
    spend(store, "short", 10)
    spend(store, "long", 20)
    clock.now += 9.9
    assert spend(store, "short") is False
    assert len(store) == 2
    clock.now += 0.1
    assert spend(store, "other") is True
    assert len(store) == 2
    assert spend(store, "long") is False


@for_each_row("ttl", [0.0, -1.0, -math.inf, math.nan])
def test_an_expired_nonce_cannot_be_spent(ttl: float):
    store = MemoryNonceStore()
    assert spend(store, "a", ttl) is False
    assert len(store) == 0


def test_a_full_store_refuses_rather_than_forgets():
    clock = Clock()
    store = MemoryNonceStore(2, clock=clock)
    spend(store, "a", 5)
    spend(store, "b", 50)
    with pytest.raises(LimitExceeded) as full:
        spend(store, "c")
    assert full.value.data["limit"] == "nonces"
    assert full.value.data["retry_after_ms"] == 5001
    assert spend(store, "a") is False, "a second use is still known as one"
    clock.now += 5.001
    assert spend(store, "c") is True


def test_of_many_threads_one_spends_it():
    store = MemoryNonceStore()
    with ThreadPoolExecutor(8) as pool:
        for nonce in map(str, range(50)):
            results = list(pool.map(lambda _, nonce=nonce: store.spend_now(nonce, ttl=60), range(8)))
            assert sorted(results) == [False] * 7 + [True]


STEPS = st.lists(st.one_of(st.tuples(st.sampled_from("abcd"), st.floats(0.5, 30)), st.floats(0, 10)), max_size=60)


@given(STEPS)
def test_whatever_the_order_no_nonce_is_spent_twice_within_its_time(steps: list[tuple[str, float] | float]):
    clock = Clock()
    store = MemoryNonceStore(clock=clock)
    until: dict[str, float] = {}
    for step in steps:
        if isinstance(step, float):
            clock.now += step
            continue
        nonce, ttl = step
        fresh = until.get(nonce, 0.0) <= clock.now
        assert spend(store, nonce, ttl) is fresh
        if fresh:
            until[nonce] = clock.now + ttl


def test_in_a_store_a_nonce_is_spent_once_by_all_who_share_it(store: Store, run: Run):
    async def story() -> None:
        workers = [SharedNonceStore(store) for _ in range(8)]
        for nonce in ("a", "b"):
            assert sorted(await asyncio.gather(*(worker.spend(nonce, ttl=60) for worker in workers))) == (
                [False] * 7 + [True]
            )
        assert not await workers[0].spend("a", ttl=60)

    run(story())


@pytest.mark.parametrize("ttl", [0.0, -1.0, math.nan])
def test_in_a_store_an_expired_nonce_cannot_be_spent(store: Store, run: Run, ttl: float):
    assert run(SharedNonceStore(store).spend("a", ttl=ttl)) is False
    assert run(SharedNonceStore(store).spend("a", ttl=60)) is True


def test_a_store_that_asked_twice_is_told_of_its_own_nonce(store: Store, run: Run, monkeypatch: pytest.MonkeyPatch):
    change = store.change

    async def twice(asked: StoreChange) -> bool:
        await change(asked)
        return await change(asked)

    monkeypatch.setattr(store, "change", twice)
    assert run(SharedNonceStore(store).spend("a", ttl=60)) is True
    assert run(SharedNonceStore(store).spend("a", ttl=60)) is False
