"""The checker of a cluster's history: what it must find, and what it must let pass."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.cluster.checker import EXECUTED, STARTED, History, check
from tests.cluster.history import Operation, make_trace, parse_history
from tests.cluster.schedule import DIRECTIONS, KINDS, make_faults
from tests.rows import for_each_row


class Told:
    """A history that is told: each operation begins when the one before it has ended, unless it says otherwise."""

    def __init__(self) -> None:
        self._ids = count(1)
        self.operations: list[Operation] = []

    def add(
        self, kind: str, outcome: Any = "ok", result: Any = None, client: str = "c", at: float = 0, **of: Any
    ) -> Told:
        number = next(self._ids)
        began = at or float(number)
        self.operations.append(Operation(f"o{number}", kind, client, of, began, began + 0.5, outcome, result))
        return self

    def append(self, name: str, place: int, outcome: str = "ok") -> Told:
        return self.add("append", outcome, place, lane=0, name=name)

    def final(self, *names: str) -> Told:
        return self.add("final read", "ok", list(names), lane=0)

    def poll(self, *names: str, client: str = "poller", truncated: bool = False) -> Told:
        page = {"events": [[name, name] for name in names], "truncated": truncated, "cursor": "", "more": False}
        return self.add("poll", "ok", page, client)

    def stream(self, numbers: str, outcome: str = "ok", told: str = "", total: int = 3) -> Told:
        """`numbers` are the numbers of events; those in capitals (a for 0) came without an id."""
        received = [["" if each.isalpha() else f"s-{each}", f"n {int(each, 36) % 10}"] for each in numbers]
        found: dict[str, Any] = {
            "received": received,
            "text": f"n {total}" if outcome == "ok" else None,
            "told": told,
            "cuts": 0,
        }
        return self.add("stream", outcome, found, name="n", total=total)

    def task(self, status: str = "completed", message: str = "", tool: str = "once", text: str = "t") -> Told:
        self.add("task", "ok", {"taskId": "1"}, tool=tool, name="t")
        return self.add("look", "ok", {"status": status, "message": message, "text": text}, task="1")


def promises(told: Told, **more: Any) -> set[str]:
    return {violation.promise for violation in check(History(told.operations, **more))}


@for_each_row(
    "told, broken",
    [
        (Told().append("a", 0).append("b", 1).final("a", "b"), set()),
        (Told().append("a", 0).append("b", 1).final("a"), {"state-kept"}),
        (Told().append("a", 0).append("b", 0).final("a", "b"), {"state-line"}),
        (Told().append("a", 1).append("b", 0).final("a", "b"), {"state-line"}),
        (Told().append("a", 0).final("a", "a"), {"state-once"}),
        (Told().append("a", 0).append("b", 1, "failed").final("a", "b"), {"state-once"}),
        (Told().append("a", 0).append("b", 1, "unknown").final("a", "b"), set()),
        (Told().append("a", 0).append("b", 1, "unknown").final("a"), set()),
        (Told().final("a"), {"state-once"}),
        (Told().append("a", 0).add("read", "ok", [], lane=0).final("a"), {"state-fresh"}),
        (Told().append("a", 0).append("b", 1).add("read", "ok", ["a", "x"], lane=0).final("a", "b"),
         {"state-line", "state-fresh"}),
        (Told().append("a", 0), {"state-readable"}),
    ],
)  # fmt: skip
def test_a_state_keeps_what_was_acknowledged_in_one_line(told: Told, broken: set[str]):
    assert promises(told) == broken


def test_what_a_primary_without_its_standby_has_shown_may_be_taken_back():
    told = Told().append("b", 1, "unknown").add("read", "ok", ["b"], lane=0).append("a", 0).final("a")
    assert promises(told) == {"state-line"}
    assert promises(told, unsynced=[(1.0, 2.2)]) == set()
    assert promises(Told().append("a", 0).final(), unsynced=[(0.0, 9.0)]) == {"state-kept"}
    told = Told().add("emit", "unknown", name="x").poll("x").add("emit", name="a").poll("a").poll("a", client="final")
    assert promises(told) == {"event-order"}
    assert promises(told, unsynced=[(0.0, 9.0)]) == set()
    told = Told().add("emit", name="a").add("emit", name="b").poll("x", "b").poll("a", "b", client="final")
    assert promises(told) == {"event-order"}
    assert promises(told, unsynced=[(0.0, 9.0)]) == set()
    told = Told().add("emit", name="a").add("emit", name="b").poll("b").poll("a", "b", client="final")
    assert promises(told, unsynced=[(0.0, 9.0)]) == {"event-order"}


@for_each_row(
    "told, effects, broken",
    [
        (Told().task(), ["begin t", "end t"], set()),
        (Told().task(), ["begin t", "end t", "begin t", "end t"], {"task-once"}),
        (Told().task(tool="again"), ["begin t", "begin t", "end t"], set()),
        (Told().task(tool="again"), ["begin t"] * 5 + ["end t"], {"task-once"}),
        (Told().task(), ["begin t"], {"task-result"}),
        (Told().task(text="u"), ["begin t", "end t"], {"task-result"}),
        (Told().task("failed", "the process that ran the task has died"), ["begin t"], set()),
        (Told().task("failed", "?"), ["begin t"], {"task-result"}),
        (Told().task("working"), ["begin t"], {"task-kept"}),
        (Told().task().add("look", "ok", {"status": "working", "message": "", "text": None}, task="1"),
         ["begin t", "end t"], {"task-final"}),
        (Told().task().add("look", "unknown", "400: There is no task 1", task="1"),
         ["begin t", "end t"], {"task-kept"}),
        (Told().add("task", "failed", "", tool="once", name="t"), ["begin t"], {"task-once"}),
    ],
)  # fmt: skip
def test_a_task_runs_once_and_says_how_it_ended(told: Told, effects: list[str], broken: set[str]):
    assert promises(told, effects=effects) == broken


def emitted() -> Told:
    return Told().add("emit", name="a").add("emit", name="b")


@for_each_row(
    "told, broken",
    [
        (emitted().poll("a").poll("b").poll("a", "b", client="final"), set()),
        (emitted().poll("a", client="final"), {"event-kept"}),
        (emitted().poll("b", "a", client="final"), {"event-order"}),
        (emitted().poll("a", "b", "b", client="final"), {"event-once"}),
        (emitted().poll("a", "b", "c", client="final"), {"event-once"}),
        (emitted().poll("b").poll("a", "b", client="final"), {"event-order"}),
        (emitted().poll("a").poll("a").poll("a", "b", client="final"), {"event-once", "event-order"}),
        (emitted().poll("b", truncated=True).poll("a", "b", client="final"), set()),
        (emitted().add("emit", "unknown", name="c").poll("a", "b", client="final"), set()),
        (emitted().add("emit", "failed", name="c").poll("a", "b", "c", client="final"), {"event-once"}),
    ],
)
def test_all_get_the_events_of_one_log_in_its_order(told: Told, broken: set[str]):
    assert promises(told) == broken


@for_each_row(
    "told, broken",
    [
        (Told().stream("012"), set()),
        (Told().stream("01", "unknown", "404"), {"session-kept"}),
        (Told().stream("01", "unknown", "interrupted"), set()),
        (Told().stream("01", "unknown"), {"stream-gap"}),
        (Told().stream("02"), {"stream-gap"}),
        (Told().stream("01"), {"stream-gap"}),
        (Told().stream("021", "unknown", "cut"), {"stream-gap"}),
        (Told().stream("0112"), set()),
        (Told().stream("0a12"), {"stream-once"}),
        (Told().stream("a012"), set()),
    ],
)
def test_a_stream_has_no_gap_that_nobody_is_told_of(told: Told, broken: set[str]):
    assert promises(told) == broken


def test_an_event_that_comes_again_under_another_id_is_found():
    told = Told().stream("012")
    told.operations[0].result["received"].insert(2, ["s-9", "n 1"])
    assert promises(told) == {"stream-once"}


def test_a_session_may_be_lost_when_redis_failed_over_or_keys_could_not_be_checked():
    told = Told().stream("0", "unknown", "404")
    assert promises(told) == {"session-kept"}
    assert promises(told, redis_losses=[0.5]) == set()
    assert promises(told, redis_losses=[7.0]) == {"session-kept"}
    assert promises(told, key_troubles=[(0.0, 3.0)]) == set()
    assert promises(told, key_troubles=[(5.0, 9.0)]) == {"session-kept"}


@pytest.mark.parametrize("kind", ["echo", "stream"])
def test_an_answer_of_another_call_is_found(kind: str):
    found: dict[str, Any] = {"received": [], "text": "another", "told": "", "cuts": 0}
    assert "stream-own" in promises(Told().add(kind, "ok", found, name="n", total=0))


@for_each_row(
    "rows, effects, broken",
    [
        ([STARTED, EXECUTED], ["wipe w"], set()),
        ([EXECUTED], ["wipe w"], {"audit-kept"}),
        ([STARTED], ["wipe w"], {"audit-kept"}),
        ([STARTED, EXECUTED, EXECUTED], ["wipe w"], {"audit-once"}),
    ],
)
def test_nothing_dangerous_is_done_without_a_row(rows: list[str], effects: list[str], broken: set[str]):
    audit = [(make_trace("w"), kind) for kind in rows]
    assert promises(Told().add("wipe", name="w"), audit=audit, effects=effects) == broken


def test_a_chain_that_is_not_intact_is_found():
    assert promises(Told(), audit_problem="line 3") == {"audit-intact"}


def test_an_operation_without_an_end_is_unknown():
    begun = '{"id": "a-1", "kind": "emit", "client": "a", "arguments": {"name": "x"}, "began": 1.0}'
    (operation,) = parse_history([begun, '{"id": "a-1", "end'])
    assert operation.outcome == "unknown" and operation.ended is None


# -- The schedule.


def test_a_seed_gives_the_same_faults_again():
    faults, again = make_faults(7), make_faults(7)
    assert [next(faults) for _ in range(100)] == [next(again) for _ in range(100)]


def test_each_kind_and_each_pair_comes_before_one_comes_again():
    faults = make_faults(1)
    deck = [next(faults) for _ in range(sum(KINDS.values()) * 20)]
    first = {fault.kind for fault in deck[: sum(KINDS.values())]}
    assert first == set(KINDS)
    one_way = [fault.targets for fault in deck if fault.kind == "cut one way"]
    assert set(one_way[: len(DIRECTIONS)]) == set(DIRECTIONS)
