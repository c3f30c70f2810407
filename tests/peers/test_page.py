from __future__ import annotations

from datetime import date
from pathlib import Path

from tests.peers.catalogue import PEERS
from tests.peers.features import FEATURES
from tests.peers.packages import Package
from tests.peers.page import PAGE, page, table
from tests.peers.peer import HTTP, STDIO, Fault, Peer
from tests.peers.trial import DRIVERS, Outcome

LATE = Fault((STDIO,), ("call",), "it is late.", "a clock.")
NOBODY = Peer("nobody", "client", Package("pip", "nobody", "1"), "x", (STDIO, HTTP), ("connect", "call"), (LATE,))


def test_a_cell_says_yes_or_failed_or_names_the_note_of_the_fault():
    known = Outcome(NOBODY, STDIO, {"connect": "ok", "call": "saw None"})
    broken = Outcome(NOBODY, HTTP, {"connect": "ok", "call": "saw None"})
    text = page([NOBODY], [known, broken], {}, date(2026, 1, 2))
    assert "| nobody | 1 | stdio 2025-11-25 | yes | – | [1] | – |" in text
    assert "| nobody | 1 | http 2025-11-25 | yes | – | *failed* | – |" in text
    assert "1. nobody: it is late. Found out by: a clock." in text


def test_part_of_a_column_that_fails_is_shown_beside_the_part_that_works():
    lists = Fault((STDIO,), ("structured list",), "it knows no lists.", "a look.")
    peer = Peer("nobody", "client", NOBODY.package, "x", (STDIO,), (), (lists,))
    outcome = Outcome(peer, STDIO, {"structured": "ok", "structured list": "saw None"})
    assert "| yes [1] |" in page([peer], [outcome], {}, date(2026, 1, 2))


def test_the_table_of_a_terminal_marks_what_fails_and_what_is_the_peers_fault():
    known = Outcome(NOBODY, STDIO, {"connect": "ok", "call": "saw None"})
    broken = Outcome(NOBODY, HTTP, {"connect": "ok", "call": "saw None"})
    head, first, second = table([known, broken])
    assert head.split()[:3] == ["connect", "list", "call"]
    assert first.split()[2:6] == ["2025-11-25", "ok", "-", "fault"]
    assert second.split()[2:6] == ["2025-11-25", "ok", "-", "FAIL"]
    assert known.known == ["nobody, stdio 2025-11-25: it is late."] and broken.known == []


def test_a_peer_that_could_not_be_installed_is_named_with_the_reason():
    text = page([NOBODY], [], {"nobody": "there is no network"}, date(2026, 1, 2))
    assert "Not installed: nobody 1: there is no network" in text


def test_every_peer_has_a_driver_and_asks_for_features_that_are_judged():
    for peer in PEERS:
        assert (DRIVERS / peer.driver).exists(), peer.name
        assert set(peer.features) <= set(FEATURES), peer.name
        for fault in peer.faults:
            assert set(fault.ways) <= set(peer.ways) and set(fault.features) <= set(peer.features), peer.name


def test_the_page_is_of_the_releases_that_are_tried():
    text = Path(PAGE).read_text(encoding="utf-8")
    missing = [row for peer in PEERS if (row := f"| {peer.name} | {peer.package.version} |") not in text]
    assert not missing, "run: make peers ARGS=--write"
    assert "macOS and Windows: untested" in text
