"""Reads the history of a run and says what broke a promise: history in, violations out, and nothing else.

The promises stand in docs/what-is-kept.md, each under its name, which is also the name of a violation here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from tests.cluster.history import Operation, make_trace

OVER = ("completed", "failed", "cancelled")
# Of a task that did not come to its end, and says so.
WORDS = ("died", "has ended", "interrupted", "stopped", "drain", "shut", "lost")
RETRIES = 3
MAX_NAMED = 5
STARTED, EXECUTED = "dev.defserve.tool_started", "TOOL_EXECUTED"


class Violation(NamedTuple):
    """A promise, and what broke it."""

    promise: str
    text: str


@dataclass
class History:
    """`effects` are lines that tools have written, in their order. `audit` are the rows of the audit log: the trace of
    the call and the type of event. `audit_problem` is what is wrong with its chain. `redis_losses` are the times from
    which on Redis may have lost something."""

    operations: Sequence[Operation]
    effects: Sequence[str] = ()
    audit: Sequence[tuple[str, str]] = ()
    audit_problem: str = ""
    redis_losses: Sequence[float] = ()
    key_troubles: Sequence[tuple[float, float]] = ()
    """When a process said that it could not check keys in use, which ends what was opened with them."""
    unsynced: Sequence[tuple[float, float]] = ()
    """When a Postgres that had restarted without its standby may have shown what a failover then took back."""

    def may_be_taken_back(self, read: Operation) -> bool:
        return any(read.began < end and (read.ended or end) > begin for begin, end in self.unsynced)

    def of_kind(self, *kinds: str) -> list[Operation]:
        return [operation for operation in self.operations if operation.kind in kinds]


def check(history: History) -> list[Violation]:
    return [
        *check_ledgers(history),
        *check_tasks(history),
        *check_events(history),
        *check_streams(history),
        *check_sessions(history),
        *check_audit(history),
    ]


def _some(names: Iterable[Any]) -> str:
    listed = sorted(map(str, names))
    return f"{len(listed)}: {', '.join(listed[:MAX_NAMED])}"


# -- State: each lane is a list to which lines are only added.


def check_ledgers(history: History) -> Iterator[Violation]:
    lanes: defaultdict[int, list[Operation]] = defaultdict(list)
    for operation in history.of_kind("append", "read", "final read"):
        lanes[operation.arguments["lane"]].append(operation)
    for lane, operations in lanes.items():
        finals = [each.result for each in operations if each.kind == "final read" and each.outcome == "ok"]
        if not finals:
            yield Violation("state-readable", f"lane {lane} could not be read at the end")
            continue
        yield from _check_lane(lane, operations, finals[-1], history.may_be_taken_back)


def _check_lane(
    lane: int, operations: list[Operation], final: list[str], is_unsynced: Callable[[Operation], bool]
) -> Iterator[Violation]:
    appends = {each.arguments["name"]: each for each in operations if each.kind == "append"}
    places = {name: number for number, name in reversed(list(enumerate(final)))}
    kept = [each for each in appends.values() if each.outcome == "ok"]
    if lost := [each.arguments["name"] for each in kept if each.arguments["name"] not in places]:
        yield Violation("state-kept", f"lane {lane} has lost acknowledged lines, {_some(lost)}")
    if twice := [name for name, times in Counter(final).items() if times > 1]:
        yield Violation("state-once", f"lane {lane} has lines twice, {_some(twice)}")
    failed = [name for name in final if name in appends and appends[name].outcome == "failed"]
    if failed:
        yield Violation("state-once", f"lane {lane} has lines whose calls were refused, {_some(failed)}")
    if invented := [name for name in final if name not in appends]:
        yield Violation("state-once", f"lane {lane} has lines that nobody added, {_some(invented)}")
    acknowledged: defaultdict[int, list[str]] = defaultdict(list)
    for each in kept:
        acknowledged[each.result].append(each.arguments["name"])
    for place, names in acknowledged.items():
        if len(names) > 1:
            yield Violation("state-line", f"lane {lane}: place {place} was acknowledged to {_some(names)}")
        elif places.get(names[0], place) != place:
            yield Violation("state-line", f"lane {lane}: {names[0]} is at {places[names[0]]}, not at {place}")
    for each in operations:
        if each.kind == "read" and each.outcome == "ok":
            if each.result != final[: len(each.result)] and not is_unsynced(each):
                yield Violation("state-line", f"lane {lane}: {each.id} read {each.result[-3:]}, which is no beginning")
            before = {one.arguments["name"] for one in kept if one.ended is not None and one.ended < each.began}
            if stale := before - set(each.result):
                yield Violation("state-fresh", f"lane {lane}: {each.id} did not read {_some(stale)}")


# -- Tasks.


def check_tasks(history: History) -> Iterator[Violation]:
    effects = Counter(history.effects)
    created = history.of_kind("task")
    known = {each.result["taskId"]: each for each in created if each.outcome == "ok"}
    for each in created:
        name = each.arguments["name"]
        begun = effects[f"begin {name}"]
        if each.arguments["tool"] == "once" and begun > 1:
            yield Violation("task-once", f"{name} began {begun} times")
        if begun > 1 + RETRIES:
            yield Violation("task-once", f"{name} began {begun} times, with {RETRIES} retries")
        if each.outcome == "failed" and begun:
            yield Violation("task-once", f"{name} began although its call was refused")
    ends: dict[str, Operation] = {}
    for look in history.of_kind("look"):
        task = look.arguments["task"]
        if look.outcome != "ok":
            if "There is no task" in str(look.result) or "none any more" in str(look.result):
                yield Violation("task-kept", f"{task} is not known: {look.result}")
        elif task in ends and look.began > (ends[task].ended or 0.0) and not history.may_be_taken_back(ends[task]):
            if look.result["status"] != ends[task].result["status"]:
                yield Violation("task-final", f"{task} was {ends[task].result['status']}, then {look.result['status']}")
        elif look.result["status"] in OVER:
            ends[task] = look
    for task, creation in known.items():
        yield from _check_end(creation, ends.get(task), effects)


def _check_end(creation: Operation, end: Operation | None, effects: Counter[str]) -> Iterator[Violation]:
    name = creation.arguments["name"]
    if end is None:
        yield Violation("task-kept", f"{name} did not come to an end")
        return
    status, message = end.result["status"], end.result["message"] or ""
    if status == "completed":
        if end.result["text"] != name:
            yield Violation("task-result", f"{name} has the result {end.result['text']!r}")
        if not (effects[f"begin {name}"] and effects[f"end {name}"]):
            yield Violation("task-result", f"{name} is completed and did not come to its end")
    elif not any(word in message for word in WORDS):
        yield Violation("task-result", f"{name} is {status} and says only {message!r}")


# -- Events: one log, in the order of which all get them.


def check_events(history: History) -> Iterator[Violation]:
    polls = [each for each in history.of_kind("poll") if each.outcome == "ok"]
    log = [id for each in polls if each.client == "final" for id, _ in each.result["events"]]
    if any(each.result["truncated"] for each in polls if each.client == "final"):
        yield Violation("event-kept", "the log has let go of events, although it has room")
    emits = {each.arguments["name"]: each for each in history.of_kind("emit")}
    places = {id: place for place, id in enumerate(log)}
    kept = [each for each in emits.values() if each.outcome == "ok"]
    if lost := [each.arguments["name"] for each in kept if each.arguments["name"] not in places]:
        yield Violation("event-kept", f"acknowledged events are lost, {_some(lost)}")
    if twice := [id for id, times in Counter(log).items() if times > 1]:
        yield Violation("event-once", f"the log has events twice, {_some(twice)}")
    strange = [id for id in places if id not in emits or emits[id].outcome == "failed"]
    if strange:
        yield Violation("event-once", f"the log has events that nobody emitted, {_some(strange)}")
    ordered = sorted((each for each in kept if each.arguments["name"] in places), key=lambda each: each.ended or 0.0)
    newest = -1
    for each in sorted(ordered, key=lambda each: each.began):
        # All that had ended before this one began is before it in the log.
        earlier = [places[one.arguments["name"]] for one in ordered if (one.ended or 0.0) < each.began]
        newest = max(newest, *earlier[-1:], -1)
        if places[each.arguments["name"]] < newest:
            yield Violation("event-order", f"{each.arguments['name']} is before what was acknowledged before it began")
    for each in polls:
        if any(id != name for id, name in each.result["events"]):
            yield Violation("event-once", f"{each.id} got an event under another's id")
    for client in {each.client for each in polls} - {"final"}:
        yield from _check_poller(client, [each for each in polls if each.client == client], log, history)


def _check_poller(client: str, polls: list[Operation], log: list[str], history: History) -> Iterator[Violation]:
    """A poller gets what the log has, from the beginning on, unless it is told otherwise."""
    received: list[str] = []
    kept, taken_back = set(log), 0
    for each in polls:
        if each.result["truncated"]:
            return
        for id, _ in each.result["events"]:
            if id in kept or not history.may_be_taken_back(each):
                received.append(id)
            else:
                taken_back += 1
    # Where an event was that was taken back, another may be now: that one does not come any more.
    end = len(received) + taken_back
    missed = [id for id in log[:end] if id not in set(received)][:taken_back]
    if received in (log[: len(received)], [id for id in log if id not in missed][: len(received)]):
        return
    if again := [id for id, times in Counter(received).items() if times > 1]:
        yield Violation("event-once", f"{client} got events twice, {_some(again)}")
    place = next((n for n, id in enumerate(received) if n >= len(log) or id != log[n]), len(log))
    yield Violation(
        "event-order", f"{client} got {received[place : place + 3]} where the log has {log[place : place + 3]}"
    )


# -- Streams and sessions.


def check_streams(history: History) -> Iterator[Violation]:
    for each in history.of_kind("stream"):
        if (result := _as_object(each.result)) is not None:
            yield from _check_stream(each, result)


def _as_object(result: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", result) if isinstance(result, dict) else None


def _check_stream(stream: Operation, result: dict[str, Any]) -> Iterator[Violation]:
    name, total = stream.arguments["name"], stream.arguments["total"]
    seen: dict[int, str] = {}
    newest = -1
    for id, text in result["received"]:
        of, _, number_text = text.rpartition(" ")
        if of != name:
            yield Violation("stream-own", f"{name} got {text!r}")
            return
        number = int(number_text)
        if number in seen:
            if seen[number] and seen[number] != id:
                yield Violation("stream-once", f"{name} got {number} as {seen[number]} and again as {id}")
            continue
        if number != newest + 1:
            yield Violation("stream-gap", f"{name} got {number} ({id}) after {newest} ({seen.get(newest)})")
            return
        seen[number], newest = id, number
    if stream.outcome == "ok":
        if result["text"] != f"{name} {total}":
            yield Violation("stream-own", f"{name} got the result {result['text']!r}")
        if newest != total - 1:
            yield Violation("stream-gap", f"{name} ended after {newest + 1} of {total}, and said nothing")
    elif not result["told"]:
        yield Violation("stream-gap", f"{name} has no result and was not told why")


def check_sessions(history: History) -> Iterator[Violation]:
    for each in history.of_kind("echo", "stream"):
        if (result := _as_object(each.result)) is None:
            continue
        if each.kind == "echo" and each.outcome == "ok" and result["text"] != each.arguments["name"]:
            yield Violation("stream-own", f"{each.arguments['name']} got {result['text']!r}")
        if result["told"].startswith("404") and not _may_be_lost(history, each):
            yield Violation("session-kept", f"{each.id} lost its session: {result['told'][:120]}")


def _may_be_lost(history: History, operation: Operation) -> bool:
    ended = operation.ended or 0.0
    is_unchecked = any(begin < ended and operation.began < end for begin, end in history.key_troubles)
    return is_unchecked or any(loss < ended for loss in history.redis_losses)


# -- The audit log.


def check_audit(history: History) -> Iterator[Violation]:
    if history.audit_problem:
        yield Violation("audit-intact", history.audit_problem)
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trace, kind in history.audit:
        rows[trace][kind] += 1
    effects = Counter(line for line in history.effects if line.startswith("wipe "))
    for each in history.of_kind("wipe"):
        name = each.arguments["name"]
        found, done = rows[make_trace(name)], effects[f"wipe {name}"]
        if done > found[STARTED]:
            yield Violation("audit-kept", f"{name} was done, and the log does not say that it began")
        if each.outcome == "ok" and not found[EXECUTED]:
            yield Violation("audit-kept", f"{name} was acknowledged, and the log does not have its end")
        if done > 1 or found[EXECUTED] > 1:
            yield Violation("audit-once", f"{name} was done {done} times and has {found['TOOL_EXECUTED']} rows")
