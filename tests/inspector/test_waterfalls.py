"""The waterfall of a call: its bounds, its place in the round trip, and what is known of a server elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from defserve.inspector.waterfalls import (
    MAX_DEPTH,
    MAX_STAGES,
    MAX_TITLE_LENGTH,
    ServerWaterfall,
    Waterfall,
    WaterfallStage,
    make_waterfall,
    measure_round_trip,
    parse_waterfall,
    place_in_round_trip,
)

GOOD = {"kind": "function", "title": "add", "depth": 0, "start": 0, "ms": 1}


def wire(*stages: Any, **more: Any) -> dict[str, Any]:
    return {"ms": 10, "stages": list(stages), **more}


def test_what_is_written_is_read_as_it_was():
    waterfall = Waterfall(
        10.0,
        (WaterfallStage("check", "rights", 0, 0.5, 1.0, True), WaterfallStage("function", "add", 1, 2.0, 3.0)),
        3,
        "no",
    )
    assert parse_waterfall(waterfall.to_wire()) == waterfall


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"ms": 1, "stages": {}},
        {"stages": []},
        wire("text"),
        wire(*[GOOD] * (MAX_STAGES + 1)),
        wire({**GOOD, "kind": "<img>"}),
        wire({**GOOD, "kind": ["function"]}),
        wire({**GOOD, "title": "x" * (MAX_TITLE_LENGTH + 1)}),
        wire({**GOOD, "title": ""}),
        wire({**GOOD, "title": {"a": 1}}),
        wire({**GOOD, "depth": MAX_DEPTH + 1}),
        wire({**GOOD, "depth": True}),
        wire({**GOOD, "depth": -1}),
        wire({**GOOD, "start": -1}),
        wire({**GOOD, "start": 9.5}),
        wire({**GOOD, "ms": float("nan")}),
        wire({**GOOD, "ms": float("inf")}),
        wire({**GOOD, "ms": True}),
        wire({**GOOD, "ms": "1"}),
        wire({**GOOD, "failed": "yes"}),
        wire(GOOD, ms=1e12),
        wire(GOOD, left_out=-1),
        wire(GOOD, left_out=1.5),
        wire(GOOD, note="x" * 1_000),
        wire(GOOD, note=["x"]),
    ],
)
def test_what_is_no_waterfall_is_refused(value: Any):
    with pytest.raises(ValueError, match=r"waterfall|stage"):
        parse_waterfall(value)


def test_what_a_server_has_too_many_of_is_left_out_and_counted():
    stages = [WaterfallStage("check", "x" * 500, 99, float(at), 1.0) for at in range(MAX_STAGES + 7)]
    made = make_waterfall(1_000.0, stages, left_out=1)
    assert (len(made.stages), made.left_out) == (MAX_STAGES, 8)
    assert {(len(each.title), each.depth) for each in made.stages} == {(MAX_TITLE_LENGTH, MAX_DEPTH)}
    assert parse_waterfall(made.to_wire()) == made


def test_the_time_between_the_stages_is_what_none_of_them_has():
    stages = (
        WaterfallStage("around", "outer", 0, 1.0, 4.0),
        WaterfallStage("function", "inner", 1, 2.0, 1.0),
        WaterfallStage("function", "beside", 0, 4.0, 3.0),
        WaterfallStage("pack", "last", 0, 8.0, 1.0),
    )
    assert Waterfall(10.0, stages).ms_between_stages == pytest.approx(3.0)


def test_the_stages_of_a_server_lie_where_its_clock_says():
    inner = Waterfall(4.0, (WaterfallStage("function", "add", 0, 1.0, 2.0),))
    placed = place_in_round_trip(ServerWaterfall(100.001, inner), sent=100.0, ms=10.0)
    assert [(each.title, round(each.start, 3), round(each.ms, 3)) for each in placed.stages] == [
        ("to the server", 0.0, 1.0),
        ("add", 2.0, 2.0),
        ("back from the server", 5.0, 5.0),
    ]
    assert placed.ms == 10.0


@pytest.mark.parametrize("began", [0.0, 99.0, 100.02, 1e12])
def test_a_clock_that_cannot_be_right_puts_the_server_in_the_middle(began: float):
    inner = Waterfall(4.0, (WaterfallStage("function", "add", 0, 0.0, 4.0),))
    placed = place_in_round_trip(ServerWaterfall(began, inner), sent=100.0, ms=10.0)
    assert [each.start for each in placed.stages] == [0.0, 3.0, 7.0]


def test_a_server_that_says_it_took_longer_than_its_call_fills_all_of_it():
    inner = Waterfall(20.0, (WaterfallStage("function", "add", 0, 0.0, 20.0),))
    placed = place_in_round_trip(ServerWaterfall(0.0, inner), sent=0.0, ms=10.0)
    assert placed.ms == 20.0 and parse_waterfall(placed.to_wire()).ms == 20.0


def test_of_a_server_elsewhere_there_is_the_round_trip_and_why_there_is_no_more():
    made = measure_round_trip(10.0, head=4.0, first=6.0, is_failed=False, note="why")
    assert [(each.title, each.start, each.ms) for each in made.stages] == [
        ("sending, and waiting for the server", 0.0, 4.0),
        ("receiving the response", 4.0, 2.0),
        ("receiving its parts", 6.0, 4.0),
    ]
    assert made.note == "why" and {each.kind for each in made.stages} == {"outside"}


def test_a_round_trip_that_fails_is_marked_at_its_end():
    made = measure_round_trip(10.0, head=4.0, is_failed=True, note="")
    assert [each.is_failed for each in made.stages] == [False, True]


def test_server_timing_is_shown_if_the_server_sends_it():
    made = measure_round_trip(
        10.0, is_failed=False, note="", server_timing='db;dur=2.5, app;desc="the app";dur=4, cache;desc=hit, x;dur=1e9'
    )
    told = [(each.title, each.ms) for each in made.stages if each.kind == "function"]
    assert told == [("the server says: db", 2.5), ("the server says: app", 4.0), ("the server says: x", 1.0)]


@pytest.mark.parametrize(
    "header", ["", ",,,", ";dur=1", "a" * 100_000, 'x;dur="' + "9" * 1_000, "<b>;dur=3", "x;dur=-1"]
)
def test_a_hostile_server_timing_is_left_out_or_cut(header: str):
    made = measure_round_trip(10.0, is_failed=False, note="", server_timing=header)
    assert parse_waterfall(made.to_wire()).ms == 10.0
