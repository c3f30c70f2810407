from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.client.mgp.streaming import MOST_EARLY, MOST_EARLY_BYTES, MOST_WANTED, ChunkOrder


@pytest.mark.slow
@given(st.permutations(range(12)), st.data())
def test_whatever_the_order_of_arrival_chunks_are_given_out_once_and_in_order(arrival: list[int], data: st.DataObject):
    order, given_out = ChunkOrder(), list[Any]()
    for index in arrival:
        for again in data.draw(st.lists(st.sampled_from(arrival), max_size=2)):
            given_out += order.take(again, again) if again in given_out else []
        given_out += order.take(index, index)
    assert given_out == list(range(12))
    assert (order.missed, order.wanted(), order.rest()) == (0, [], [])


def test_what_is_missing_is_wanted_once():
    order = ChunkOrder()
    assert order.take(0, "a") == ["a"]
    assert order.take(3, "d") == []
    assert order.wanted() == [1, 2]
    assert order.take(5, "f") == []
    assert order.wanted() == [4]
    assert order.wanted() == []


def test_what_is_lost_is_skipped_and_the_others_are_wanted_again():
    order = ChunkOrder()
    order.take(3, "d")
    assert order.wanted() == [0, 1, 2]
    assert order.lose(0) == []
    assert (order.missed, order.wanted()) == (1, [1, 2])
    assert order.take(2, "c") == []
    assert order.take(1, "b") == ["b", "c", "d"]


def test_the_rest_leaves_out_what_never_came():
    order = ChunkOrder()
    order.take(2, "c")
    order.take(5, "f")
    assert order.rest() == ["c", "f"]
    assert (order.missed, order.next) == (4, 6)


def test_a_repetition_gives_out_only_what_is_new():
    order = ChunkOrder()
    order.take(0, "a")
    order.take(2, "of the first time")
    order.repeat()
    assert [order.take(index, text) for index, text in enumerate("abc")] == [[], ["b"], ["c"]]


def test_an_index_beyond_all_measure_costs_nothing():
    order = ChunkOrder()
    order.take(10**15, "far")
    assert order.wanted() == list(range(MOST_WANTED))
    assert order.rest() == ["far"]
    assert order.missed == 10**15


def test_a_hole_is_given_up_when_too_much_waits_behind_it():
    order = ChunkOrder()
    given_out = [order.take(index, index) for index in range(1, MOST_EARLY + 2)]
    assert given_out[-1] == list(range(1, MOST_EARLY + 2))
    assert order.missed == 1


@pytest.mark.parametrize("deep", [False, True])
def test_a_hole_is_given_up_when_too_many_bytes_wait_behind_it(deep: bool):
    text = "x" * (MOST_EARLY_BYTES // 4)
    part: Any = {"type": "odd", "a": [{"b": text}]} if deep else text
    order = ChunkOrder()
    given_out = [order.take(index, part) for index in range(1, 5)]
    assert [len(parts) for parts in given_out] == [0, 0, 0, 4]
    # What was given out waits no longer.
    assert [order.take(index, part) for index in (6, 7, 8)] == [[], [], []]
    assert len(order.take(5, part)) == 4
