from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.stores.stream_events import EventBudget, EventGap, MemoryEvents, StoredEvent, StoredEventKind
from tests.effort import examples
from tests.rows import for_each_row


def after(store: MemoryEvents, event_id: str) -> list[bytes]:
    """The data of what follows, which must all be there."""
    found = store.list_events_after(event_id)
    assert found is not None
    return [data for _, data in found[1]]


def test_a_reader_goes_on_after_the_last_event_it_saw():
    store = MemoryEvents()
    first, second = store.append("call", b"1"), store.append("call", b"2")
    third = store.append("call", b"3", kind="result")
    assert store.list_events_after(first) == ("call", [(second, b"2"), (third, b"3")])
    assert store.list_events_after(third) == ("call", [])


def test_streams_do_not_mix():
    store = MemoryEvents()
    one = store.append("one", b"1")
    store.append("two", b"2")
    store.append("one", b"3")
    assert after(store, one) == [b"3"]


def test_a_mark_stands_before_the_first_event():
    store = MemoryEvents()
    mark = store.make_position_id("call")
    assert store.list_events_after(mark) == ("call", [])
    store.append("call", b"1")
    assert after(store, mark) == [b"1"]


def test_a_mark_later_on_is_the_place_of_the_newest_event():
    store = MemoryEvents()
    newest = store.append("call", b"1")
    assert store.make_position_id("call") == newest


@for_each_row("event_id", ["", "x", "1-1", "0-0-0", "00-1-1", "é-1-1", "--", "-1-1", f"{'9' * 5000}-1-1"])
def test_an_id_the_store_never_gave_is_unknown(event_id: str):
    store = MemoryEvents()
    store.append("call", b"1")
    assert store.list_events_after(event_id) is None


def test_an_id_of_the_future_or_of_a_changed_form_is_unknown():
    store = MemoryEvents()
    tag, stream, place = store.append("call", b"1").split("-")
    for forged in (f"{tag}-{stream}-2", f"{tag}-2-1", f"{tag}-0-1", f"{tag}-{stream}-{place}\n", f"{tag}-{stream}-١"):
        assert store.list_events_after(forged) is None
    assert store.list_events_after(f"{tag}-{stream}-{place}") == ("call", [])


def test_an_id_of_another_session_is_unknown():
    mine, yours = MemoryEvents(), MemoryEvents()
    mine.append("call", b"secret")
    mine.append("call", b"secret")
    assert mine.list_events_after(yours.append("call", b"1")) is None


def test_ids_are_unique_and_fit_in_a_header():
    store = MemoryEvents()
    ids = [store.append(f"stream {n % 7}", b"") for n in range(100)]
    assert len(set(ids)) == 100
    assert all(id.isascii() and id.isprintable() and " " not in id for id in ids)


def test_only_the_newest_progress_of_a_token_is_kept():
    store = MemoryEvents()
    mark = store.make_position_id("call")
    seen = store.append("call", b"a1", kind="progress", key="a")
    store.append("call", b"b1", kind="progress", key="b")
    store.append("call", b"a2", kind="progress", key="a")
    store.append("call", b"log")
    store.append("call", b"a3", kind="progress", key="a")
    assert after(store, mark) == [b"b1", b"log", b"a3"]
    assert after(store, seen) == [b"b1", b"log", b"a3"], "an event that was superseded still marks its place"


def test_progress_of_one_token_takes_no_room_however_long_it_goes_on():
    store = MemoryEvents(events=2)
    mark = store.make_position_id("call")
    store.append("call", b"log")
    for n in range(1_000):
        store.append("call", b"%d" % n, kind="progress", key=7)
    assert after(store, mark) == [b"log", b"999"]


def test_progress_that_had_to_go_is_followed_by_the_next_of_its_token():
    store = MemoryEvents(events=1)
    store.append("call", b"1", kind="progress", key="a")
    seen = store.append("call", b"log")
    store.append("call", b"2", kind="progress", key="a")
    assert after(store, seen) == [b"2"]


def test_progress_without_a_key_and_messages_with_one_supersede_nothing():
    store = MemoryEvents()
    mark = store.make_position_id("call")
    store.append("call", b"1", kind="progress")
    store.append("call", b"2", kind="progress")
    store.append("call", b"3", kind="message", key="k")
    store.append("call", b"4", kind="message", key="k")
    assert after(store, mark) == [b"1", b"2", b"3", b"4"]


def test_a_reader_that_missed_more_messages_than_are_kept_is_told_of_the_gap():
    store = MemoryEvents(events=2)
    mark = store.make_position_id("call")
    first, second = store.append("call", b"1"), store.append("call", b"2")
    result = store.append("call", b"result", kind="result")
    third = store.append("call", b"3")
    with pytest.raises(EventGap) as gap:
        store.list_events_after(mark)
    assert gap.value.stream == "call"
    assert gap.value.left == [(second, b"2"), (result, b"result"), (third, b"3")]
    assert after(store, first) == [b"2", b"result", b"3"], "it saw the one that had to go"


def test_messages_go_when_they_are_too_big_together():
    store = MemoryEvents(size=10)
    first = store.append("call", b"12345")
    store.append("call", b"12345")
    assert after(store, first) == [b"12345"]
    store.append("call", b"6")
    assert after(store, first) == [b"12345", b"6"]
    store.append("call", b"1234567")
    with pytest.raises(EventGap):
        store.list_events_after(first)


@pytest.mark.parametrize("kind", ["result", "request"])
def test_results_and_requests_stay_however_many_messages_pass(kind: StoredEventKind):
    store = MemoryEvents(events=3, size=100)
    mark = store.make_position_id("call")
    store.append("call", b"kept" * 100, kind=kind)
    for n in range(50):
        store.append("call", b"%d" % n)
    with pytest.raises(EventGap) as gap:
        store.list_events_after(mark)
    assert [data for _, data in gap.value.left] == [b"kept" * 100, b"47", b"48", b"49"]


def test_a_finished_stream_can_still_be_read_until_newer_ones_take_its_place():
    store = MemoryEvents(finished=2)
    marks = [store.make_position_id(f"call {n}") for n in range(3)]
    for n in range(3):
        store.append(f"call {n}", b"result", kind="result")
    store.finish_stream("call 0")
    store.finish_stream("call 1")
    assert after(store, marks[0]) == [b"result"]
    store.finish_stream("call 2")
    with pytest.raises(EventGap) as gap:
        store.list_events_after(marks[0])
    assert (gap.value.stream, gap.value.left) == (None, [])
    assert after(store, marks[1]) == [b"result"]


def test_a_result_nobody_has_fetched_outlives_any_number_of_finished_streams():
    store = MemoryEvents(finished=2)
    mark = store.make_position_id("lost")
    store.append("lost", b"result", kind="result")
    for n in range(100):
        store.append(f"call {n}", b"result", kind="result")
        store.finish_stream(f"call {n}")
    assert after(store, mark) == [b"result"]


def test_a_session_over_its_bytes_loses_finished_streams_first_and_then_the_oldest():
    store = MemoryEvents(held=30)
    marks = {name: store.make_position_id(name) for name in ("old", "done", "new")}
    store.append("old", b"0123456789", kind="result")
    store.append("done", b"0123456789", kind="result")
    store.finish_stream("done")
    store.append("new", b"0123456789", kind="result")
    store.append("new", b"x")
    with pytest.raises(EventGap):
        store.list_events_after(marks["done"])
    assert after(store, marks["old"]) == [b"0123456789"]
    store.append("new", b"0123456789", kind="result")
    with pytest.raises(EventGap):
        store.list_events_after(marks["old"])
    assert after(store, marks["new"]) == [b"0123456789", b"x", b"0123456789"]


def test_the_stream_just_appended_to_stays_though_it_is_the_oldest():
    store = MemoryEvents(held=10)
    old, new = store.make_position_id("old"), store.make_position_id("new")
    store.append("new", b"01234", kind="result")
    store.append("old", b"0123456789", kind="result")
    assert after(store, old) == [b"0123456789"]
    with pytest.raises(EventGap):
        store.list_events_after(new)


def test_one_result_larger_than_the_session_may_hold_is_kept_while_it_is_the_newest():
    store = MemoryEvents(held=10)
    mark = store.make_position_id("call")
    store.append("call", b"x" * 100, kind="result")
    assert after(store, mark) == [b"x" * 100]
    store.append("next", b"1", kind="result")
    with pytest.raises(EventGap):
        store.list_events_after(mark)


def test_a_stream_that_goes_on_is_not_finished():
    store = MemoryEvents(finished=1)
    mark = store.make_position_id("session")
    store.finish_stream("session")
    store.append("session", b"1")
    for n in range(5):
        store.append(f"call {n}", b"result", kind="result")
        store.finish_stream(f"call {n}")
    assert after(store, mark) == [b"1"]


def test_a_stream_whose_events_had_to_go_starts_anew_under_other_ids():
    store = MemoryEvents(finished=0)
    old = store.append("session", b"1")
    store.finish_stream("session")
    new = store.append("session", b"2")
    with pytest.raises(EventGap):
        store.list_events_after(old)
    assert store.list_events_after(new) == ("session", [])


def test_a_stream_without_events_may_be_finished():
    MemoryEvents().finish_stream("never opened")


def test_nothing_is_left_once_the_session_is_over():
    store = MemoryEvents()
    mark = store.make_position_id("call")
    store.append("call", b"result", kind="result")
    store.drop_events()
    with pytest.raises(EventGap) as gap:
        store.list_events_after(mark)
    assert gap.value.left == []


@dataclass
class Reader:
    """A client with one connection, which breaks. It has seen all of `seen`, up to the id `last`."""

    last: str
    seen: list[bytes] = field(default_factory=list[bytes])
    on_the_way: list[StoredEvent] | None = field(default_factory=list[StoredEvent])

    def write(self, event: StoredEvent) -> None:
        if self.on_the_way is not None:
            self.on_the_way.append(event)

    def read(self, count: int | None = None) -> None:
        arrived = (self.on_the_way or [])[:count]
        del (self.on_the_way or [])[:count]
        for self.last, data in arrived:
            self.seen.append(data)

    def resume(self, store: MemoryEvents, stream: str) -> bool:
        """Connect again; whether there was a gap."""
        try:
            found = store.list_events_after(self.last)
            assert found is not None
            assert found[0] == stream
            self.on_the_way = found[1]
            return False
        except EventGap as gap:
            assert gap.stream == stream
            self.on_the_way = gap.left
            return True


STREAMS = ["one", "two"]
KINDS: list[StoredEventKind] = ["result", "request", "message", "progress"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(STREAMS),
        st.one_of(
            *[st.tuples(st.just("append"), st.just(kind)) for kind in KINDS],
            st.tuples(st.just("read"), st.integers(1, 4)),
            st.tuples(st.just("break"), st.none()),
            st.tuples(st.just("resume"), st.none()),
        ),
    ),
    min_size=20,
    max_size=120,
)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(STEPS, st.integers(1, 8))
def test_whatever_breaks_nothing_is_lost_unsaid_nothing_comes_twice_and_all_is_in_order(
    steps: list[tuple[str, tuple[str, StoredEventKind | int | None]]], events: int
):
    store = MemoryEvents(events=events)
    readers = {stream: Reader(store.make_position_id(stream)) for stream in STREAMS}
    sent: dict[str, list[tuple[StoredEventKind, bytes]]] = {stream: [] for stream in STREAMS}
    gaps = dict.fromkeys(STREAMS, False)
    for stream, (step, value) in [*steps, *((stream, ("resume", None)) for stream in STREAMS)]:
        reader = readers[stream]
        match step, value:
            case "append", ("result" | "request" | "message" | "progress") as kind:
                data = b"%s %d" % (kind.encode(), len(sent[stream]))
                sent[stream].append((kind, data))
                reader.write((store.append(stream, data, kind=kind, key=stream), data))
            case "read", int(count):
                reader.read(count)
            case "break", _:
                reader.on_the_way = None
            case _:
                gaps[stream] |= reader.resume(store, stream)
    for stream, reader in readers.items():
        reader.read()
        order = [data for _, data in sent[stream]]
        assert reader.seen == [data for data in order if data in set(reader.seen)], "in order, each once"
        missed = {data for kind, data in sent[stream] if kind != "progress"} - set(reader.seen)
        if not gaps[stream]:
            assert not missed
        assert not [data for data in missed if data.startswith((b"result", b"request"))]
        if (newest := [data for kind, data in sent[stream] if kind == "progress"][-1:]) and not gaps[stream]:
            assert newest[0] in reader.seen


@given(st.lists(st.sampled_from(KINDS), max_size=40), st.integers(1, 5), st.data())
def test_a_gap_is_told_only_to_a_reader_that_missed_something(
    kinds: list[StoredEventKind], events: int, data: st.DataObject
):
    store = MemoryEvents(events=events)
    ids = [store.make_position_id("call")]
    for number, kind in enumerate(kinds):
        ids.append(store.append("call", b"%d" % number, kind=kind))
    place = data.draw(st.integers(0, len(kinds)))
    droppable = [n for n, kind in enumerate(kinds) if kind in ("message", "progress")]
    lost = set(droppable[:-events])
    expected = [b"%d" % n for n in range(place, len(kinds)) if n not in lost]
    try:
        found = store.list_events_after(ids[place])
        assert found is not None
        assert not [n for n in lost if n >= place]
        assert [event for _, event in found[1]] == expected
    except EventGap as gap:
        assert [n for n in lost if n >= place]
        assert [event for _, event in gap.left] == expected


def test_a_request_that_was_released_goes_like_any_message():
    store = MemoryEvents(events=2)
    first = store.append("s", b"0", kind="request")
    asked = [store.append("s", f"{n}".encode(), kind="request") for n in range(1, 6)]
    assert after(store, first) == [b"1", b"2", b"3", b"4", b"5"]
    for id in (asked[3], asked[0], asked[1], asked[1], first):
        store.release_request(id)
    with pytest.raises(EventGap) as gap:
        store.list_events_after(first)
    assert [data for _, data in gap.value.left] == [b"2", b"3", b"5"]
    store.release_request("somebody else's")


def test_of_finished_streams_only_some_bytes_are_kept_and_always_the_newest():
    store = MemoryEvents(size=10)
    ids = {name: store.append(name, b"12345678", kind="result") for name in ("one", "two", "three")}
    for name in ids:
        store.finish_stream(name)
    for name in ("one", "two"):
        with pytest.raises(EventGap):
            store.list_events_after(ids[name])
    assert store.list_events_after(ids["three"]) == ("three", []) and store.bytes == 8
    store.append("three", b"9")
    store.finish_stream("three")
    assert store.bytes == 9


def test_sessions_together_keep_no_more_than_their_budget_and_the_largest_gives_way():
    budget = EventBudget(100)
    modest, greedy = MemoryEvents(budget=budget), [MemoryEvents(budget=budget) for _ in range(5)]
    mine = modest.append("mine", b"1" * 10, kind="result")
    taken = [store.append("call", b"2" * 30, kind="result") for store in greedy]
    assert budget.used <= 100 and budget.used == modest.bytes + sum(store.bytes for store in greedy)
    assert modest.list_events_after(mine) == ("mine", [])
    assert greedy[-1].list_events_after(taken[-1]) == ("call", [])
    assert sum(store.bytes == 0 for store in greedy) == 2
    for store in (modest, *greedy):
        store.drop_events()
    assert budget.used == 0


def test_room_for_one_event_is_made_of_very_many_small_streams():
    budget = EventBudget(100_000)
    unread, caller = MemoryEvents(budget=budget), MemoryEvents(budget=budget)
    for number in range(10_000):
        unread.append(f"call {number}", b"1" * 10, kind="result")
    asked = caller.make_position_id("mine")
    caller.append("mine", b"2" * 80_000, kind="result")
    assert after(caller, asked) == [b"2" * 80_000]
    assert budget.used == caller.bytes + unread.bytes <= 90_000
