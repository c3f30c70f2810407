"""The inbox of a set says what its reader has missed."""

from __future__ import annotations

import pytest

from defserve.protocols.mcpl import push
from defserve.protocols.mcpl.push import EventInbox


def test_a_cursor_from_before_a_restart_shows_all_events_and_that_some_are_missing():
    box = EventInbox("notes", "Notes")
    for number in range(3):
        box.store_event({"event": number}, "ada")
    seen = box.list_events_after("ada", 500)
    assert seen == {"events": [{"event": 0}, {"event": 1}, {"event": 2}], "cursor": 3, "missed": True}
    assert box.list_events_after("ada", seen["cursor"]) == {"events": [], "cursor": 3, "missed": False}


def test_a_cursor_from_before_a_restart_begins_again_in_an_empty_inbox():
    box = EventInbox("notes", "Notes")
    assert box.list_events_after("ada", 500) == {"events": [], "cursor": 0, "missed": True}
    box.store_event({"event": 1}, "ada")
    assert box.list_events_after("ada", 0) == {"events": [{"event": 1}], "cursor": 1, "missed": False}


def test_a_principal_whose_events_were_dropped_is_told_so_with_the_next_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(push, "PRINCIPALS", 2)
    box = EventInbox("notes", "Notes")
    for principal in ("ada", "bob", "eve"):
        box.store_event({"for": principal}, principal)
    assert box.list_events_after("ada", 0) == {"events": [], "cursor": 0, "missed": True}
    box.store_event({"for": "ada again"}, "ada")
    seen = box.list_events_after("ada", 0)
    assert seen == {"events": [{"for": "ada again"}], "cursor": 4, "missed": True}
    assert not box.list_events_after("ada", seen["cursor"])["missed"]
