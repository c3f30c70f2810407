"""The log in every store: order, retention, cursors, and several processes that add to it at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import InvalidParams
from defserve.protocols.mcp.events.event_log import (
    LOG_TTL_SECONDS,
    BackendPosition,
    Cursor,
    CursorCodec,
    EventLog,
    load_events_secret,
)
from defserve.protocols.mcp.events.event_types import encode_canonical_json, matches_filter
from defserve.server import EventSettings
from defserve.stores.identity import ServerIdentity, make_server_store
from defserve.stores.store import MemoryStore, StoreChange, StoreFull

pytestmark = pytest.mark.anyio

IDENTITY = ServerIdentity("name", "git")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def make_log(store: Any = None, **settings: Any) -> EventLog:
    return EventLog(make_server_store(store or MemoryStore(), IDENTITY), EventSettings(**settings))


async def read_all(log: EventLog, cursor: Cursor) -> tuple[list[int], bool]:
    found, is_truncated = list[int](), False
    while True:
        page = await log.read_page("pushed", cursor)
        found += [event.data["n"] for event in page.events]
        is_truncated, cursor = is_truncated or page.is_truncated, page.cursor
        if not page.has_more:
            return found, is_truncated


async def test_events_come_in_the_order_in_which_they_were_added(address: str):
    log = make_log(address)
    start = await log.ensure_end_cursor("pushed")
    for number in range(250):
        await log.append("pushed", {}, {"n": number})
    assert await read_all(log, start) == (list(range(250)), False)
    await log.store.close()


async def test_several_processes_add_at_once_and_nothing_is_lost(address: str):
    logs = [make_log(address) for _ in range(4)]
    start = await logs[0].ensure_end_cursor("pushed")

    async def add(log: EventLog, first: int) -> None:
        for number in range(first, first + 10):
            await log.append("pushed", {}, {"n": number})

    await asyncio.gather(*(add(log, 10 * place) for place, log in enumerate(logs)))
    found, _ = await read_all(logs[1], start)
    assert sorted(found) == list(range(40))
    for place in range(4):
        mine = [number for number in found if number // 10 == place]
        assert mine == sorted(mine)
    for log in logs:
        await log.store.close()


class SlowStore(MemoryStore):
    """Takes a turn of the loop for each change, and counts them. `lost` answers of changes get lost: it says False."""

    def __init__(self, lost: int = 0) -> None:
        super().__init__()
        self.changes, self.lost = 0, lost

    async def change(self, change: StoreChange) -> bool:
        await asyncio.sleep(0)
        self.changes += 1
        is_changed = await super().change(change)
        if is_changed and self.lost:
            self.lost -= 1
            return False
        return is_changed


async def test_events_that_wait_for_the_store_are_written_together_and_in_order():
    store = SlowStore()
    log = make_log(store)
    start = await log.ensure_end_cursor("pushed")
    store.changes = 0
    added = await asyncio.gather(*(log.append("pushed", {}, {"n": number}) for number in range(60)))
    assert [event.number for event in added] == list(range(60))
    assert await read_all(log, start) == (list(range(60)), False)
    assert store.changes < 5


async def test_an_event_whose_acknowledgement_got_lost_is_not_written_again():
    log = make_log(SlowStore())
    start = await log.ensure_end_cursor("pushed")
    log.store.raw.lost = 2  # pyright: ignore
    for number in range(4):
        assert (await log.append("pushed", {}, {"n": number})).number == number
    assert await read_all(log, start) == ([0, 1, 2, 3], False)


async def test_a_store_that_never_answers_does_not_hold_up_the_end_and_what_it_has_not_taken_is_counted(
    caplog: pytest.LogCaptureFixture,
):
    class DeafStore(MemoryStore):
        async def change(self, change: StoreChange) -> bool:
            return await asyncio.Event().wait()

    log = make_log(DeafStore())
    emissions = [asyncio.create_task(log.append("pushed", {}, {"n": number})) for number in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await log.finish_writing(0)
    assert "3 events of type 'pushed' were not written" in caplog.text
    assert [type(each) for each in await asyncio.gather(*emissions, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 3


async def test_what_the_store_has_no_room_for_fails_alone():
    log = make_log(MemoryStore(limit=5_000))
    start = await log.ensure_end_cursor("pushed")
    sizes = [10, 5_000, 10]
    added = await asyncio.gather(
        *(log.append("pushed", {}, {"n": size, "text": "x" * size}) for size in sizes), return_exceptions=True
    )
    assert [isinstance(each, StoreFull) for each in added] == [False, True, False]
    assert await read_all(log, start) == ([10, 10], False)


async def test_an_emission_that_is_cancelled_does_not_keep_others_from_the_log():
    log = make_log(SlowStore())
    start = await log.ensure_end_cursor("pushed")
    tasks = [asyncio.create_task(log.append("pushed", {}, {"n": number})) for number in range(5)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    found, _ = await read_all(log, start)
    assert [number for number in found if number != 1] == [0, 2, 3, 4]


async def test_what_was_added_survives_the_process(address: str):
    first = make_log(address)
    start = await first.ensure_end_cursor("pushed")
    await first.append("pushed", {}, {"n": 1}, "upstream")
    await first.store.close()
    again = make_log(address)
    (event,) = (await again.read_page("pushed", start)).events
    assert (event.id, event.data) == ("upstream", {"n": 1})
    other = make_log(address)
    assert await load_events_secret(again.store) == await load_events_secret(other.store)
    await again.store.close()
    await other.store.close()


@pytest.mark.parametrize(("settings", "kept"), [({"max_events": 3}, 3), ({"max_bytes": 300}, 3), ({"max_age": 2.5}, 3)])
async def test_a_log_keeps_so_many_so_much_and_for_so_long(settings: Any, kept: int):
    clock = Clock()
    log = EventLog(make_server_store(MemoryStore(), IDENTITY), EventSettings(**settings), clock)
    start = await log.ensure_end_cursor("pushed")
    for number in range(20):
        await log.append("pushed", {}, {"n": number}, "x" * 60)
        clock.now += 1
    found, is_truncated = await read_all(log, start)
    assert is_truncated
    assert found == list(range(20))[-len(found) :]
    assert len(found) in (kept, kept - 1)
    held = [name async for name, _ in log.store.scan("event log:pushed")]  # pyright: ignore[reportArgumentType]
    assert len(held) <= kept + 2


async def test_a_place_in_another_server_ends_with_the_log():
    clock = Clock()
    log = EventLog(make_server_store(MemoryStore(clock=clock), IDENTITY), EventSettings(), clock)
    await log.store_first_backend_position("pushed", "b", "1")
    clock.now += LOG_TTL_SECONDS - 1
    await log.move_backend_position("pushed", BackendPosition("b", "1", "2"))
    clock.now += LOG_TTL_SECONDS - 1
    assert await log.read_backend_position("pushed", "b") == "2"
    clock.now += 2
    assert await log.read_backend_position("pushed", "b") is None


async def test_a_log_that_was_lost_is_another_one():
    before = make_log()
    await before.append("pushed", {}, {"n": 1})
    cursor = await before.ensure_end_cursor("pushed")
    after = make_log()
    await after.append("pushed", {}, {"n": 2})
    await after.append("pushed", {}, {"n": 3})
    page = await after.read_page("pushed", cursor)
    assert (page.is_truncated, [event.data["n"] for event in page.events]) == (True, [2, 3])


async def test_who_has_read_what_a_failover_took_back_is_told():
    log = make_log()
    await log.append("pushed", {}, {"n": 1})
    end = await log.ensure_end_cursor("pushed")
    read_further = Cursor(end.epoch, end.number + 2)
    page = await log.read_page("pushed", read_further)
    assert (page.is_truncated, page.cursor) == (True, end)
    await log.append("pushed", {}, {"n": 2})
    page = await log.read_page("pushed", page.cursor)
    assert (page.is_truncated, [event.data["n"] for event in page.events]) == (False, [2])


async def test_a_cursor_of_a_lost_log_that_is_empty_leads_on():
    cursor, after = await make_log().ensure_end_cursor("pushed"), make_log()
    page = await after.read_page("pushed", cursor)
    assert page.is_truncated
    await after.append("pushed", {}, {"n": 1})
    page = await after.read_page("pushed", page.cursor)
    assert (page.is_truncated, [event.data["n"] for event in page.events]) == (False, [1])


# -- cursors


NAMES = st.text("abc._-", max_size=30)
NUMBERS = st.integers(0, 2**64 - 1)
EPOCHS = st.binary(min_size=8, max_size=8).map(bytes.hex)


@given(NAMES, EPOCHS, NUMBERS)
def test_a_cursor_is_read_as_it_was_written(name: str, epoch: str, number: int):
    codec, cursor = CursorCodec(b"k" * 32), Cursor(epoch, number)
    assert codec.decode_cursor(name, codec.encode_cursor(name, cursor)) == cursor


@given(NAMES, EPOCHS, NUMBERS, st.integers(0, 500), st.binary(min_size=1, max_size=3))
def test_a_cursor_that_was_changed_is_refused(name: str, epoch: str, number: int, place: int, noise: bytes):
    codec = CursorCodec(b"k" * 32)
    text = codec.encode_cursor(name, Cursor(epoch, number))
    place %= len(text)
    changed = text[:place] + noise.hex() + text[place + 1 :]
    if changed != text:
        with pytest.raises(InvalidParams):
            codec.decode_cursor(name, changed)


@given(st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.lists(st.text())))
def test_anything_else_is_no_cursor(value: Any):
    with pytest.raises(InvalidParams):
        CursorCodec(b"k" * 32).decode_cursor("pushed", value)


@given(NAMES, EPOCHS, NUMBERS)
def test_another_server_does_not_take_a_cursor(name: str, epoch: str, number: int):
    with pytest.raises(InvalidParams):
        CursorCodec(b"b" * 32).decode_cursor(name, CursorCodec(b"a" * 32).encode_cursor(name, Cursor(epoch, number)))


# -- filters


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.text(min_size=1, max_size=3), JSON, max_size=4)


@given(ARGUMENTS, st.data())
def test_a_subscriber_that_asks_for_less_gets_it_too(emitted: Any, data: st.DataObject):
    names = data.draw(st.sets(st.sampled_from(sorted(emitted)))) if emitted else set[str]()
    assert matches_filter({name: emitted[name] for name in names}, emitted)


@given(ARGUMENTS, ARGUMENTS)
def test_an_event_is_for_a_subscriber_if_and_only_if_each_argument_is_equal(wanted: Any, emitted: Any):
    same = all(
        name in emitted and encode_canonical_json(emitted[name]) == encode_canonical_json(value)
        for name, value in wanted.items()
    )
    assert matches_filter(wanted, emitted) == same


def test_true_is_not_one():
    assert not matches_filter({"flag": True}, {"flag": 1})


@given(ARGUMENTS, ARGUMENTS)
def test_what_a_source_yields_is_for_those_with_its_arguments_alone(wanted: Any, emitted: Any):
    wanted = {name: value for name, value in wanted.items() if value is not None}
    same = encode_canonical_json(wanted) == encode_canonical_json(
        {name: value for name, value in emitted.items() if value is not None}
    )
    assert matches_filter(wanted, emitted, is_exact=True) == same
