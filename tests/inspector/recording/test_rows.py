"""Rows under a filter, extended as messages come."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.inspector.recording.recorder import Recorder
from defserve.inspector.recording.timeline import (
    MAX_FILTERS,
    InvalidFilter,
    RecentQueryRows,
    TimelineQuery,
    TimelineRows,
)
from tests.effort import examples

pytestmark = pytest.mark.anyio


def add(recorder: Recorder, direction: Literal["sent", "received"] = "sent", **message: Any) -> int:
    return recorder.append("stateless", direction, json.dumps(message).encode()).seq


def call(recorder: Recorder, id: int, tool: str = "add") -> int:
    return add(recorder, id=id, method="tools/call", params={"name": tool, "arguments": {}})


async def found(recorder: Recorder, **query: Any) -> list[int]:
    rows = TimelineRows(recorder, TimelineQuery(**query))
    await rows.catch_up()
    return rows[:]


async def test_an_answer_is_part_of_the_row_of_its_request_unless_asked_for():
    recorder = Recorder()
    asked = call(recorder, 1)
    notice = add(recorder, "received", method="notifications/progress", params={"progressToken": 1, "progress": 1})
    answer = add(recorder, "received", id=1, error={"code": -1, "message": "no"})
    stray = add(recorder, "received", id=99, result={})
    assert await found(recorder) == [asked, notice, stray]
    assert await found(recorder, answers=True) == [asked, notice, answer, stray]
    assert await found(recorder, kind="requests") == [asked, stray]
    assert await found(recorder, kind="notices") == [notice]
    assert await found(recorder, kind="errors") == [asked]
    assert await found(recorder, text="not:method:tools") == [notice, stray]


async def test_an_answer_moves_its_request_into_a_filter_and_out_of_it():
    recorder = Recorder()
    wrong, right = (
        TimelineRows(recorder, TimelineQuery("is:error")),
        TimelineRows(recorder, TimelineQuery("not:is:error")),
    )
    first, second = call(recorder, 1), call(recorder, 2)
    for rows in (wrong, right):
        await rows.catch_up()
    assert (wrong[:], right[:]) == ([], [first, second])
    add(recorder, "received", id=2, result={"isError": True})
    add(recorder, "received", id=1, error={"code": -1, "message": "no"})
    for rows in (wrong, right):
        await rows.catch_up()
    assert (wrong[:], right[:]) == ([first, second], [])
    assert (wrong.version, right.version) == (2, 2)


async def test_forgotten_messages_leave_at_the_beginning_and_clearing_empties():
    recorder = Recorder(most=50)
    rows = TimelineRows(recorder, TimelineQuery())
    for id in range(60):
        call(recorder, id)
        await rows.catch_up()
    assert rows[:] == list(range(recorder.first, 60)) and rows.dropped == recorder.first
    recorder.clear()
    await rows.catch_up()
    assert (len(rows), rows.dropped) == (0, 60)
    last = call(recorder, 1)
    await rows.catch_up()
    assert (
        rows[:] == [last]
        and rows.has_message(last)
        and rows.find_row_index(last) == 0
        and not rows.has_message(last - 1)
    )


@pytest.mark.slow
async def test_many_messages_are_looked_at_in_turns():
    recorder = Recorder()
    for id in range(12_000):
        call(recorder, id, "odd" if id % 2 else "even")
    assert len(await found(recorder, text="tool:odd")) == 6_000


async def test_only_the_filters_in_use_are_kept():
    recorder = Recorder()
    call(recorder, 1)
    in_use = RecentQueryRows(recorder)
    first = await in_use.get_current_rows(TimelineQuery("a"))
    assert await in_use.get_current_rows(TimelineQuery("a")) is first
    for number in range(MAX_FILTERS):
        await in_use.get_current_rows(TimelineQuery(str(number)))
    assert await in_use.get_current_rows(TimelineQuery("a")) is not first
    with pytest.raises(InvalidFilter):
        await in_use.get_current_rows(TimelineQuery("is:"))


STEPS = st.lists(
    st.tuples(st.sampled_from(["call", "answer", "fail", "notice", "look"]), st.integers(0, 5)), max_size=60
)
QUERIES = st.builds(
    TimelineQuery,
    st.sampled_from(["", "is:error", "not:is:error", "tool:1", "not:tool:1 dir:sent", "method:progress"]),
    st.sampled_from(["all", "requests", "notices", "errors"]),
    st.booleans(),
)


@pytest.mark.slow
@given(STEPS, QUERIES)
@settings(max_examples=examples(150))
def test_rows_that_grew_are_those_that_are_found_at_once(steps: list[tuple[str, int]], query: TimelineQuery):
    recorder = Recorder(most=30)
    grown = TimelineRows(recorder, query)
    for step, id in steps:
        if step == "call":
            call(recorder, id, f"tool{id}")
        elif step == "notice":
            add(recorder, "received", method="notifications/progress", params={"progressToken": id, "progress": 1})
        elif step == "look":
            _run(grown)
        else:
            outcome = {"result": {}} if step == "answer" else {"error": {"code": 1, "message": "x"}}
            add(recorder, "received", id=id, **outcome)
    _run(grown)
    at_once = TimelineRows(recorder, query)
    _run(at_once)
    assert grown[:] == at_once[:]


def _run(rows: TimelineRows) -> None:
    """A few messages are looked at without waiting for anything."""
    with pytest.raises(StopIteration):
        rows.catch_up().send(None)
