"""What is kept of a peer is bounded in number and in bytes, whatever it sends."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from defserve.base.peer_bounds import (
    AROUND_CONTAINER,
    FirstComeTable,
    RecentItems,
    estimate_parsed_json_bytes,
    estimate_value_bytes,
)

SIZES = st.lists(st.integers(0, 60))


@given(SIZES)
def test_recent_items_are_the_newest_that_have_room(sizes: list[int]):
    items: RecentItems[int] = RecentItems(5, 100, measure=lambda size: size)
    for size in sizes:
        items.append(size)
        assert len(items) <= 5 and sum(items) == items.bytes <= 100
    assert list(items) == sizes[len(sizes) - len(items) :]
    while items:
        items.popleft()
    assert items.bytes == 0


def test_an_item_that_alone_takes_too_much_is_not_kept_and_pushes_nothing_out():
    items: RecentItems[int] = RecentItems(5, 100, measure=lambda size: size)
    items.extend([40, 101, 50])
    assert list(items) == [40, 50]
    items.clear()
    assert items.has_room(100)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 600))))
def test_a_table_never_holds_more_than_it_may(puts: list[tuple[str, int]]):
    table: FirstComeTable[str] = FirstComeTable(5, 2_000)
    for name, length in puts:
        was_put = table.store_value(name, "x" * length)
        assert (name in table) is was_put and table.get(name) == ("x" * length if was_put else None)
        assert len(table) <= 5 and sum(map(len, table.values())) <= 2_000
    for name in "abcdefgh":
        table.drop(name)
    assert table.store_value("a", "x" * 1_000)


def test_many_small_values_weigh_what_they_take_in_memory():
    assert estimate_value_bytes([[]] * 1_000) > 1_000 * AROUND_CONTAINER
    assert estimate_parsed_json_bytes(b"[" + b"1," * 1_000 + b"1]") > 8_000


def test_anything_that_was_decoded_can_be_weighed():
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    for value in ("\ud800" * 1_000, float("inf"), {"a": object()}, deep, b"\xff" * 1_000):
        assert estimate_value_bytes(value) > 0
    assert estimate_value_bytes("\ud800" * 1_000) > 1_000
