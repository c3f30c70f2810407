"""What a sentence asks for and what a tool does: the kinds of deed, found behind politeness and before details."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.search.entries import ToolEntry
from defserve.search.ranking import READ, deeds_of, deeds_wanted, finds, rate_lookup_intent
from tests.effort import cpu_within
from tests.rows import for_each_row


def does(name: str, said: str = "") -> int:
    return deeds_of(ToolEntry(name, "s", name, description=said))


@for_each_row(
    "query",
    [
        "Which rooms did we paint?",
        "Did Ann delete the list?",
        "Can you tell me who created this?",
        "Give me everything that was removed.",
        "I'd like to see the drafts.",
        "We moved house, please find the old address.",
    ],
)
def test_questions_ask_to_read_whatever_verbs_follow(query: str):
    assert deeds_wanted(query) == READ


@for_each_row(
    ("query", "tool"),
    [
        ("Could you please delete the old rooms?", "remove_room"),
        ("Get rid of the old rooms.", "remove_room"),
        ("Let everyone know that the room is ready.", "send_message"),
        ("I want to rename a room.", "update_room"),
        ("Please note down a new room.", "create_room"),
        ("The room is ready, please tell Ann.", "send_message"),
    ],
)
def test_a_request_has_the_kind_of_its_tool_and_not_of_others(query: str, tool: str):
    tools = {name: does(name) for name in ("list_rooms", "remove_room", "update_room", "create_room", "send_message")}
    assert deeds_wanted(query) & tools[tool]
    others = [name for name, kinds in tools.items() if not kinds & deeds_wanted(query)]
    assert len(others) >= 2


def test_things_in_a_name_are_no_deeds_and_a_description_helps_out():
    assert does("message_list") == does("rooms", "Lists all rooms.") == READ
    assert does("rooms") == 0


@for_each_row("query", ["", "rooms", "the blue room", "日本語", "please"])
def test_without_a_verb_nothing_is_asked(query: str):
    assert deeds_wanted(query) == 0


@given(st.text(max_size=300))
def test_any_text_gives_kinds(text: str):
    assert 0 <= deeds_wanted(text) < 64
    assert 0 <= does(text[:64], text) < 64


@for_each_row("piece", ["please ", "i want to ", "let me ", "get ", "i'", "a"])
def test_no_query_takes_long(piece: str):
    assert cpu_within(1, lambda: deeds_wanted(piece * 500))


@for_each_row(
    ("query", "looked"),
    [
        ("Where did I leave the keys?", 2),
        ("Has anybody written about paint?", 2),
        ("Which rooms are red?", 1),
        ("hey, show the rooms", 1),
        ("Paint the room that has no colour.", 0),
        ("", 0),
    ],
)
def test_a_query_that_wants_to_find_out_something_is_told_from_one_that_wants_something_done(query: str, looked: int):
    assert rate_lookup_intent(query) == looked


@for_each_row(("name", "found"), [("search_rooms", 2), ("findRoom", 2), ("list-rooms", 1), ("paint_room", 0)])
def test_tools_that_find_are_known_by_their_names(name: str, found: int):
    assert finds(ToolEntry(name, "s", name)) == found
