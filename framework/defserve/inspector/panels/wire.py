"""The Wire panel: the timeline under a filter, single messages, both eras side by side, saving."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json

from defserve.inspector.calls.both_eras import again, both_eras
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb
from defserve.inspector.protocol import BadMessage, Json, Request
from defserve.inspector.recording.filter import FilterProblem, parse
from defserve.inspector.recording.recorder import RecordedMessage, Recorder
from defserve.inspector.recording.rows import KINDS, Query, Rows

MOST_ROWS: Final = 500
BATCH_SECONDS: Final = 0.1
SAVED_AT_ONCE: Final = 1024 * 1024
SAVED_ROWS: Final = 500
MOST_OTHERS: Final = 200


async def check(inspection: Inspection, request: Request) -> Any:
    """A filter as `terms`: [start, where its value starts, stop]; or the `problem` with its place, message and fix."""
    try:
        terms = parse(request.text("filter", "")).terms
    except FilterProblem as found:
        problem = {"start": found.start, "stop": found.stop, "message": found.problem, "fix": found.way}
        return {"problem": problem}
    return {"terms": [[term.start, term.value_start, term.stop] for term in terms]}


async def follow(inspection: Inspection, request: Request) -> Any:
    """How many rows there are under a filter, as parts whenever that may have changed, until it is cancelled.

    Parts: `rows`, `messages` and `errors` in all, `version` and `dropped` as in `Rows`, the `overview`.
    """
    query, recorder = _query(request), inspection.recorder
    more = asyncio.Event()
    more.set()
    last: Json = {}
    end = recorder.subscribe(lambda _: more.set())
    cleared = inspection.timeline.on_clear(more.set)
    try:
        while True:
            await more.wait()
            more.clear()
            rows = await inspection.timeline.rows.of(query)
            first, stop = _span(recorder, rows, request)
            told: Json = {
                "rows": stop - first,
                "messages": recorder.count - recorder.first,
                "errors": recorder.errors,
                "version": rows.version,
                "dropped": rows.dropped,
                "overview": inspection.timeline.overview.bars(),
            }
            if told != last:
                request.part(told)
                last = told
            await asyncio.sleep(BATCH_SECONDS)
    finally:
        end()
        cleared()


async def rows(inspection: Inspection, request: Request) -> Any:
    """The rows `start` to `stop` under a filter, and the `version` they are of."""
    found = await inspection.timeline.rows.of(_query(request))
    first, last = _span(inspection.recorder, found, request)
    start = max(0, request.whole("start", 0))
    stop = min(request.whole("stop", MOST_ROWS), start + MOST_ROWS, last - first)
    seqs = found[first + start : first + stop] if stop > start else []
    told = [_row(inspection.recorder, entry) for seq in seqs if (entry := inspection.recorder.entry(seq))]
    return {"start": start, "rows": told, "version": found.version, "dropped": found.dropped}


async def find(inspection: Inspection, request: Request) -> Any:
    """The `place` of a message among the rows: of its request, if it has no row. None if neither has one."""
    found, entry = await inspection.timeline.rows.of(_query(request)), _entry(inspection, request)
    first, last = _span(inspection.recorder, found, request)
    for seq in (entry.seq, entry.of):
        if seq is not None and found.has(seq) and first <= found.place(seq) < last:
            return {"place": found.place(seq) - first}
    return {"place": None}


async def message(inspection: Inspection, request: Request) -> Any:
    """A message whole, with its `other` half, and the `others` that belong to the same request."""
    recorder, entry = inspection.recorder, _entry(inspection, request)
    asked = entry if entry.kind == "request" else recorder.entry(entry.of) if entry.of is not None else None
    others = [each.wire() for each in _belonging(recorder, asked)] if asked is not None else []
    return {
        **(recorder.message(entry.seq) or {}),
        "other": recorder.message(entry.of) if entry.of is not None else None,
        "others": others,
    }


async def compare(inspection: Inspection, request: Request) -> Any:
    return both_eras(inspection.recorder, _entry(inspection, request))


async def send_again(inspection: Inspection, request: Request) -> Any:
    return await again(inspection, _entry(inspection, request), request.arguments.get("confirmed") is True)


async def clear(inspection: Inspection, request: Request) -> Any:
    """Forget every message, for every page."""
    inspection.timeline.clear()


async def save(inspection: Inspection, request: Request) -> Any:
    """The shown messages and their answers as JSON lines, secrets masked: some of them, from the row `start` on.

    `next` is the row to go on with, None at the end.
    """
    recorder = inspection.recorder
    found = await inspection.timeline.rows.of(_query(request))
    first, last = _span(recorder, found, request)
    place, size, lines = first + max(0, request.whole("start", 0)), 0, list[str]()
    stop = min(last, place + SAVED_ROWS)
    while place < stop and size < SAVED_AT_ONCE:
        for seq in found[place : place + 1]:
            entry = recorder.entry(seq)
            answer = entry.of if entry is not None and entry.kind == "request" and not _query(request).answers else None
            for each in (seq, answer):
                if each is not None and (shown := recorder.message(each)) is not None:
                    lines.append(to_json(shown, fallback=str, inf_nan_mode="null").decode() + "\n")
                    size += len(lines[-1])
        place += 1
    return {"text": "".join(lines), "next": place - first if place < last else None, "of": last - first}


def _query(request: Request) -> Query:
    kind = request.text("kind", "all")
    if kind not in KINDS:
        raise BadMessage(f"unknown kind {kind!r}", fix=f"use one of {', '.join(KINDS)}")
    return Query(request.text("filter", "").strip(), kind, request.arguments.get("answers") is True)


def _span(recorder: Recorder, found: Rows, request: Request) -> tuple[int, int]:
    """The first row of the chosen span of time, and the one after its last."""
    start, stop = request.number("from"), request.number("to")
    if start is None or stop is None:
        return 0, len(found)
    return found.place(recorder.since(start)), found.place(recorder.since(stop))


def _entry(inspection: Inspection, request: Request) -> RecordedMessage:
    if (entry := inspection.recorder.entry(request.whole("seq"))) is None:
        raise BadMessage("this message is no longer kept")
    return entry


def _row(recorder: Recorder, entry: RecordedMessage) -> Json:
    """An entry with what its row draws: the size of its answer, and when its notices came, in ms after it."""
    told = entry.wire()
    if entry.kind == "request":
        if entry.of is not None and (answer := recorder.entry(entry.of)) is not None:
            told["answer"] = answer.size
        if times := recorder.notices(entry.seq):
            told["parts"] = [round((each - entry.time) * 1000, 1) for each in times]
    return told


def _belonging(recorder: Recorder, asked: RecordedMessage) -> list[RecordedMessage]:
    """A request, its notices and its answer, the first of them."""
    found: list[RecordedMessage] = [asked]
    last = asked.of if asked.of is not None else recorder.count - 1
    for each in recorder.slice(asked.seq + 1, min(last + 1, asked.seq + 20_000)):
        if each.of == asked.seq:
            found.append(each)
            if len(found) >= MOST_OTHERS:
                break
    return found


VERBS: Final[Mapping[str, Verb]] = {
    "wire.filter": check,
    "wire.follow": follow,
    "wire.rows": rows,
    "wire.find": find,
    "wire.message": message,
    "wire.eras": compare,
    "wire.again": send_again,
    "wire.clear": clear,
    "wire.save": save,
}
