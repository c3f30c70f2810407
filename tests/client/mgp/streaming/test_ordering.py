from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.client.mgp.streaming import MAX_EARLY_BYTES, MAX_EARLY_CHUNKS, MAX_MISSING_INDICES, ChunkOrder
from tests.rows import for_each_row


@pytest.mark.slow
@given(st.permutations(range(12)), st.data())
def test_whatever_the_order_of_arrival_chunks_are_given_out_once_and_in_order(arrival: list[int], data: st.DataObject):
    order, given_out = ChunkOrder(), list[Any]()
    for index in arrival:
        for again in data.draw(st.lists(st.sampled_from(arrival), max_size=2)):
            given_out += order.add_chunk(again, again) if again in given_out else []
        given_out += order.add_chunk(index, index)
    assert given_out == list(range(12))
    assert (order.missed, order.take_unrequested_indices(), order.take_remaining()) == (0, [], [])


def test_what_is_missing_is_wanted_once():
    order = ChunkOrder()
    assert order.add_chunk(0, "a") == ["a"]
    assert order.add_chunk(3, "d") == []
    assert order.take_unrequested_indices() == [1, 2]
    assert order.add_chunk(5, "f") == []
    assert order.take_unrequested_indices() == [4]
    assert order.take_unrequested_indices() == []


def test_what_is_lost_is_skipped_and_the_others_are_wanted_again():
    order = ChunkOrder()
    order.add_chunk(3, "d")
    assert order.take_unrequested_indices() == [0, 1, 2]
    assert order.skip_chunk(0) == []
    assert (order.missed, order.take_unrequested_indices()) == (1, [1, 2])
    assert order.add_chunk(2, "c") == []
    assert order.add_chunk(1, "b") == ["b", "c", "d"]


def test_the_rest_leaves_out_what_never_came():
    order = ChunkOrder()
    order.add_chunk(2, "c")
    order.add_chunk(5, "f")
    assert order.take_remaining() == ["c", "f"]
    assert (order.missed, order.next) == (4, 6)


def test_a_repetition_gives_out_only_what_is_new():
    order = ChunkOrder()
    order.add_chunk(0, "a")
    order.add_chunk(2, "of the first time")
    order.repeat()
    assert [order.add_chunk(index, text) for index, text in enumerate("abc")] == [[], ["b"], ["c"]]


def test_an_index_beyond_all_measure_costs_nothing():
    order = ChunkOrder()
    order.add_chunk(10**15, "far")
    assert order.take_unrequested_indices() == list(range(MAX_MISSING_INDICES))
    assert order.take_remaining() == ["far"]
    assert order.missed == 10**15


def test_a_hole_is_given_up_when_too_much_waits_behind_it():
    order = ChunkOrder()
    given_out = [order.add_chunk(index, index) for index in range(1, MAX_EARLY_CHUNKS + 2)]
    assert given_out[-1] == list(range(1, MAX_EARLY_CHUNKS + 2))
    assert order.missed == 1


@for_each_row("deep", [False, True])
def test_a_hole_is_given_up_when_too_many_bytes_wait_behind_it(deep: bool):
    text = "x" * (MAX_EARLY_BYTES // 4)
    part: Any = {"type": "odd", "a": [{"b": text}]} if deep else text
    order = ChunkOrder()
    given_out = [order.add_chunk(index, part) for index in range(1, 5)]
    assert [len(parts) for parts in given_out] == [0, 0, 0, 4]
    # What was given out waits no longer.
    assert [order.add_chunk(index, part) for index in (6, 7, 8)] == [[], [], []]
    assert len(order.add_chunk(5, part)) == 4
