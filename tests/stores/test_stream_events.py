from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.stores.stream_events import EventBudget, SessionEventStreams, StoredEventKind
from tests.effort import examples


def after(store: SessionEventStreams, stream: str, number: int = 0) -> list[bytes] | None:
    """The data of what follows. None: nothing is known of the stream."""
    found = store.find_stream(stream)
    return [event.data for event in found.list_events_after(number)] if found is not None else None


def test_a_reader_goes_on_after_the_last_event_it_saw():
    store = SessionEventStreams()
    numbers = [store.append("call", data) for data in (b"1", b"2")]
    numbers.append(store.append("call", b"3", kind="result"))
    assert numbers == [1, 2, 3]
    stream = store.find_stream("call")
    assert stream is not None
    assert [event[:3] for event in stream.list_events_after(1)] == [(2, "message", b"2"), (3, "result", b"3")]
    assert stream.list_events_after(3) == [] and stream.is_over


def test_events_are_given_in_pages():
    store = SessionEventStreams()
    for number in range(5):
        store.append("call", b"%d" % number)
    stream = store.get_or_open_stream("call")
    assert [event.number for event in stream.list_events_after(1, 2)] == [2, 3]


def test_streams_do_not_mix():
    store = SessionEventStreams()
    store.append("one", b"1")
    store.append("two", b"2")
    store.append("one", b"3")
    assert after(store, "one", 1) == [b"3"] and after(store, "three") is None


def test_only_the_newest_progress_of_a_token_is_kept():
    store = SessionEventStreams()
    seen = store.append("call", b"a1", kind="progress", key="a")
    store.append("call", b"b1", kind="progress", key="b")
    store.append("call", b"a2", kind="progress", key="a")
    store.append("call", b"log")
    store.append("call", b"a3", kind="progress", key="a")
    assert after(store, "call") == [b"b1", b"log", b"a3"]
    assert after(store, "call", seen) == [b"b1", b"log", b"a3"], "an event that was superseded still marks its place"


def test_progress_of_one_token_takes_no_room_however_long_it_goes_on():
    store = SessionEventStreams(events=2)
    store.append("call", b"log")
    for n in range(1_000):
        store.append("call", b"%d" % n, kind="progress", key=7)
    assert after(store, "call") == [b"log", b"999"]


def test_progress_that_had_to_go_is_followed_by_the_next_of_its_token():
    store = SessionEventStreams(events=1)
    store.append("call", b"1", kind="progress", key="a")
    seen = store.append("call", b"log")
    store.append("call", b"2", kind="progress", key="a")
    assert after(store, "call", seen) == [b"2"]


def test_progress_without_a_key_and_messages_with_one_supersede_nothing():
    store = SessionEventStreams()
    store.append("call", b"1", kind="progress")
    store.append("call", b"2", kind="progress")
    store.append("call", b"3", kind="message", key="k")
    store.append("call", b"4", kind="message", key="k")
    assert after(store, "call") == [b"1", b"2", b"3", b"4"]


def test_a_reader_that_missed_more_messages_than_are_kept_gets_the_rest():
    store = SessionEventStreams(events=2)
    store.append("call", b"1")
    store.append("call", b"2")
    store.append("call", b"result", kind="result")
    store.append("call", b"3")
    assert after(store, "call") == [b"2", b"result", b"3"]


def test_messages_go_when_they_are_too_big_together():
    store = SessionEventStreams(size=10)
    for data in (b"12345", b"12345", b"6"):
        store.append("call", data)
    assert after(store, "call") == [b"12345", b"6"]
    store.append("call", b"1234567")
    assert after(store, "call") == [b"6", b"1234567"]


@pytest.mark.parametrize("kind", ["result", "request"])
def test_results_and_requests_stay_however_many_messages_pass(kind: StoredEventKind):
    store = SessionEventStreams(events=3, size=100)
    store.append("call", b"kept" * 100, kind=kind)
    for n in range(50):
        store.append("call", b"%d" % n)
    assert after(store, "call") == [b"kept" * 100, b"47", b"48", b"49"]
    (first, *_) = store.get_or_open_stream("call").list_events_after(0)
    assert first.kind == kind


def test_a_finished_stream_can_still_be_read_until_newer_ones_take_its_place():
    store = SessionEventStreams(finished=2)
    for n in range(3):
        store.append(f"call {n}", b"result", kind="result")
    store.mark_stream_received("call 0")
    store.mark_stream_received("call 1")
    assert after(store, "call 0") == [b"result"]
    store.mark_stream_received("call 2")
    assert after(store, "call 0") is None
    assert after(store, "call 1") == [b"result"]


def test_a_result_nobody_has_fetched_outlives_any_number_of_finished_streams():
    store = SessionEventStreams(finished=2)
    store.append("lost", b"result", kind="result")
    for n in range(100):
        store.append(f"call {n}", b"result", kind="result")
        store.mark_stream_received(f"call {n}")
    assert after(store, "lost") == [b"result"]


def test_a_session_over_its_bytes_loses_finished_streams_first_and_then_the_oldest():
    store = SessionEventStreams(held=30)
    store.append("old", b"0123456789", kind="result")
    store.append("done", b"0123456789", kind="result")
    store.mark_stream_received("done")
    store.append("new", b"0123456789", kind="request")
    store.append("new", b"x")
    assert after(store, "done") is None
    assert after(store, "old") == [b"0123456789"]
    store.append("new", b"0123456789", kind="result")
    assert after(store, "old") is None
    assert after(store, "new") == [b"0123456789", b"x", b"0123456789"]


def test_the_stream_just_appended_to_stays_though_it_is_the_oldest():
    store = SessionEventStreams(held=10)
    store.get_or_open_stream("old")
    store.append("new", b"01234", kind="result")
    store.append("old", b"0123456789", kind="result")
    assert after(store, "old") == [b"0123456789"]
    assert after(store, "new") is None


def test_one_result_larger_than_the_session_may_hold_is_kept_while_it_is_the_newest():
    store = SessionEventStreams(held=10)
    store.append("call", b"x" * 100, kind="result")
    assert after(store, "call") == [b"x" * 100]
    store.append("next", b"1", kind="result")
    assert after(store, "call") is None


def test_a_stream_that_goes_on_is_not_finished():
    store = SessionEventStreams(finished=1)
    store.get_or_open_stream("session")
    store.mark_stream_received("session")
    store.append("session", b"1")
    for n in range(5):
        store.append(f"call {n}", b"result", kind="result")
        store.mark_stream_received(f"call {n}")
    assert after(store, "session") == [b"1"]


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_stream_that_is_not_over_and_whose_events_had_to_go_counts_on(is_finished: bool):
    store = SessionEventStreams(finished=0)
    assert store.append("session", b"1") == 1
    store.mark_stream_received("session") if is_finished else store.evict_stream()
    assert store.bytes == 0 and not store.evict_stream()
    assert store.append("session", b"2") == 2
    assert after(store, "session") == [b"2"]


def test_a_stream_without_events_may_be_finished():
    SessionEventStreams().mark_stream_received("never opened")


def test_nothing_is_left_once_the_session_is_over():
    store = SessionEventStreams()
    store.append("call", b"result", kind="result")
    store.drop_events()
    assert after(store, "call") is None and store.bytes == 0


def test_who_sent_an_event_hears_when_it_was_dropped():
    store, heard = SessionEventStreams(events=2), list[int]()
    for number in range(1, 7):
        store.append("session", b"x")
        store.get_or_open_stream("session").untaken[number] = lambda number=number: heard.append(number)
    assert heard == [1, 2, 3, 4]
    store.drop_events()
    assert heard == [1, 2, 3, 4, 5, 6]


@dataclass
class Reader:
    """A client with one connection, which breaks. It has seen all of `seen`, up to the number `last`."""

    last: int = 0
    seen: list[bytes] = field(default_factory=list[bytes])
    on_the_way: list[tuple[int, bytes]] | None = field(default_factory=list[tuple[int, bytes]])

    def write(self, event: tuple[int, bytes]) -> None:
        if self.on_the_way is not None:
            self.on_the_way.append(event)

    def read(self, count: int | None = None) -> None:
        arrived = (self.on_the_way or [])[:count]
        del (self.on_the_way or [])[:count]
        for self.last, data in arrived:
            self.seen.append(data)

    def resume(self, store: SessionEventStreams, stream: str) -> None:
        found = store.get_or_open_stream(stream).list_events_after(self.last)
        self.on_the_way = [(event.number, event.data) for event in found]


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
def test_whatever_breaks_nothing_comes_twice_all_is_in_order_and_only_messages_are_lost(
    steps: list[tuple[str, tuple[str, StoredEventKind | int | None]]], events: int
):
    store = SessionEventStreams(events=events)
    readers = {stream: Reader() for stream in STREAMS}
    sent: dict[str, list[tuple[StoredEventKind, bytes]]] = {stream: [] for stream in STREAMS}
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
                reader.resume(store, stream)
    for stream, reader in readers.items():
        reader.read()
        order = [data for _, data in sent[stream]]
        assert reader.seen == [data for data in order if data in set(reader.seen)], "in order, each once"
        missed = {data for kind, data in sent[stream] if kind != "progress"} - set(reader.seen)
        assert not [data for data in missed if data.startswith((b"result", b"request"))]
        droppable = [data for kind, data in sent[stream] if kind in ("message", "progress")]
        assert set(droppable[-1:]) <= set(reader.seen), "the newest stays"


@given(st.lists(st.sampled_from(KINDS), max_size=40), st.integers(1, 5), st.data())
def test_only_the_oldest_messages_had_to_go(kinds: list[StoredEventKind], events: int, data: st.DataObject):
    store = SessionEventStreams(events=events)
    for number, kind in enumerate(kinds):
        store.append("call", b"%d" % number, kind=kind)
    place = data.draw(st.integers(0, len(kinds)))
    droppable = [n for n, kind in enumerate(kinds) if kind in ("message", "progress")]
    lost = set(droppable[:-events])
    expected = [b"%d" % n for n in range(place, len(kinds)) if n not in lost]
    assert (after(store, "call", place) or []) == expected


def test_a_request_that_was_released_goes_like_any_message():
    store = SessionEventStreams(events=2)
    first = store.append("s", b"0", kind="request")
    asked = [store.append("s", f"{n}".encode(), kind="request") for n in range(1, 6)]
    assert after(store, "s", first) == [b"1", b"2", b"3", b"4", b"5"]
    for number in (asked[3], asked[0], asked[1], asked[1], first):
        store.make_request_droppable("s", number)
    assert after(store, "s", first) == [b"2", b"3", b"5"]
    store.make_request_droppable("somebody else's", 1)


def test_of_finished_streams_only_some_bytes_are_kept_and_always_the_newest():
    store = SessionEventStreams(size=10)
    names = ("one", "two", "three")
    for name in names:
        store.append(name, b"12345678", kind="result")
    for name in names:
        store.mark_stream_received(name)
    assert [after(store, name) for name in names] == [None, None, [b"12345678"]] and store.bytes == 8
    store.append("three", b"9")
    store.mark_stream_received("three")
    assert store.bytes == 9


def test_sessions_together_keep_no_more_than_their_budget_and_the_largest_gives_way():
    budget = EventBudget(100)
    modest, greedy = SessionEventStreams(budget=budget), [SessionEventStreams(budget=budget) for _ in range(5)]
    modest.append("mine", b"1" * 10, kind="result")
    for store in greedy:
        store.append("call", b"2" * 30, kind="result")
    assert budget.used <= 100 and budget.used == modest.bytes + sum(store.bytes for store in greedy)
    assert after(modest, "mine") == [b"1" * 10]
    assert after(greedy[-1], "call") == [b"2" * 30]
    assert sum(store.bytes == 0 for store in greedy) == 2
    for store in (modest, *greedy):
        store.drop_events()
    assert budget.used == 0


def test_room_for_one_event_is_made_of_very_many_small_streams():
    budget = EventBudget(100_000)
    unread, caller = SessionEventStreams(budget=budget), SessionEventStreams(budget=budget)
    for number in range(10_000):
        unread.append(f"call {number}", b"1" * 10, kind="result")
    caller.append("mine", b"2" * 80_000, kind="result")
    assert after(caller, "mine") == [b"2" * 80_000]
    assert budget.used == caller.bytes + unread.bytes <= 90_000
