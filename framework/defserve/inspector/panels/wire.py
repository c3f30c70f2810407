"""The Wire and Latency panels: the timeline under a filter, single messages, both eras side by side, and durations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json

from defserve.client.client import Client
from defserve.client.mgp.server_claims import parse_tool_security
from defserve.client.replies import Json as JsonObject
from defserve.client.replies import object_or_empty
from defserve.errors import DefserveError
from defserve.inspector.differences import DiffRow, align_lines, fold_equal_rows
from defserve.inspector.inspection import ERA_NAMES, Inspection, PageRequestHandler, get_request_era
from defserve.inspector.protocol import BadMessage, Json, PageRequest, describe_error_for_page
from defserve.inspector.recording.recorder import RecordedMessage, Recorder
from defserve.inspector.recording.timeline import (
    MESSAGE_KIND_FILTERS,
    InvalidFilter,
    TimelineQuery,
    TimelineRows,
    parse_filter,
)

MAX_ROWS: Final = 500
BATCH_SECONDS: Final = 0.1
SAVED_AT_ONCE: Final = 1024 * 1024
SAVED_ROWS: Final = 500
MAX_OTHERS: Final = 200


async def check_filter(inspection: Inspection, request: PageRequest) -> Any:
    """A filter as `terms`: [start, where its value starts, stop]; or the `problem` with its place, message and fix."""
    try:
        terms = parse_filter(request.get_text("filter", "")).terms
    except InvalidFilter as found:
        problem = {"start": found.start, "stop": found.stop, "message": found.problem, "fix": found.way}
        return {"problem": problem}
    return {"terms": [[term.start, term.value_start, term.stop] for term in terms]}


async def follow_timeline(inspection: Inspection, request: PageRequest) -> Any:
    """How many rows there are under a filter, as parts whenever that may have changed, until it is cancelled.

    Parts: `rows`, `messages` and `errors` in all, `version` and `dropped` as in `TimelineRows`, the `overview`.
    """
    query, recorder = _query(request), inspection.recorder
    more = asyncio.Event()
    more.set()
    end = recorder.subscribe(lambda _: more.set())
    cleared = inspection.timeline.add_clear_listener(more.set)
    try:
        while True:
            await more.wait()
            more.clear()
            rows = await inspection.timeline.rows.get_current_rows(query)
            first, stop = _span(recorder, rows, request)
            request.send_part_if_changed(
                {
                    "rows": stop - first,
                    "messages": recorder.count - recorder.first,
                    "errors": recorder.errors,
                    "version": rows.version,
                    "dropped": rows.dropped,
                    "overview": inspection.timeline.overview.count_bars(),
                }
            )
            await asyncio.sleep(BATCH_SECONDS)
    finally:
        end()
        cleared()


async def list_rows(inspection: Inspection, request: PageRequest) -> Any:
    """The rows `start` to `stop` under a filter, and the `version` they are of."""
    found = await inspection.timeline.rows.get_current_rows(_query(request))
    first, last = _span(inspection.recorder, found, request)
    start = max(0, request.get_integer("start", 0))
    stop = min(request.get_integer("stop", MAX_ROWS), start + MAX_ROWS, last - first)
    seqs = found[first + start : first + stop] if stop > start else []
    told = [_row(inspection.recorder, entry) for seq in seqs if (entry := inspection.recorder.get_message(seq))]
    return {"start": start, "rows": told, "version": found.version, "dropped": found.dropped}


async def find_message(inspection: Inspection, request: PageRequest) -> Any:
    """The `place` of a message among the rows: of its request, if it has no row. None if neither has one."""
    found, entry = (
        await inspection.timeline.rows.get_current_rows(_query(request)),
        require_requested_message(inspection, request),
    )
    first, last = _span(inspection.recorder, found, request)
    for seq in (entry.seq, entry.of):
        if seq is not None and found.has_message(seq) and first <= found.find_row_index(seq) < last:
            return {"place": found.find_row_index(seq) - first}
    return {"place": None}


async def get_message(inspection: Inspection, request: PageRequest) -> Any:
    """A message whole, with its `other` half, and the `others` that belong to the same request."""
    recorder, entry = inspection.recorder, require_requested_message(inspection, request)
    asked = entry if entry.kind == "request" else recorder.get_message(entry.of) if entry.of is not None else None
    others = [each.to_wire() for each in _belonging(recorder, asked)] if asked is not None else []
    return {
        **(recorder.describe_message(entry.seq) or {}),
        "other": recorder.describe_message(entry.of) if entry.of is not None else None,
        "others": others,
    }


async def compare_eras(inspection: Inspection, request: PageRequest) -> Any:
    told = both_eras(inspection.recorder, require_requested_message(inspection, request))
    return told | ({"again": READ_ONLY_NOTE} if inspection.target.saved is not None else {})


async def send_again(inspection: Inspection, request: PageRequest) -> Any:
    return await send_in_both_eras(
        inspection, require_requested_message(inspection, request), request.arguments.get("confirmed") is True
    )


async def clear_timeline(inspection: Inspection, request: PageRequest) -> Any:
    """Forget every message, for every page. A saved session stays as it is."""
    if inspection.target.saved is not None:
        raise BadMessage("a saved session stays as it is")
    inspection.timeline.clear()


async def save_messages(inspection: Inspection, request: PageRequest) -> Any:
    """The shown messages and their answers as JSON lines, secrets masked: some of them, from the row `start` on.

    `next` is the row to go on with, None at the end.
    """
    recorder = inspection.recorder
    found = await inspection.timeline.rows.get_current_rows(_query(request))
    first, last = _span(recorder, found, request)
    place, size, lines = first + max(0, request.get_integer("start", 0)), 0, list[str]()
    stop = min(last, place + SAVED_ROWS)
    while place < stop and size < SAVED_AT_ONCE:
        for seq in found[place : place + 1]:
            entry = recorder.get_message(seq)
            answer = entry.of if entry is not None and entry.kind == "request" and not _query(request).answers else None
            for each in (seq, answer):
                if each is not None and (shown := recorder.describe_message(each)) is not None:
                    lines.append(to_json(shown, fallback=str, inf_nan_mode="null").decode() + "\n")
                    size += len(lines[-1])
        place += 1
    return {"text": "".join(lines), "next": place - first if place < last else None, "of": last - first}


def _query(request: PageRequest) -> TimelineQuery:
    kind = request.get_text("kind", "all")
    if kind not in MESSAGE_KIND_FILTERS:
        raise BadMessage(f"unknown kind {kind!r}", fix=f"use one of {', '.join(MESSAGE_KIND_FILTERS)}")
    answers, hides_own = (request.arguments.get(name) is True for name in ("answers", "hides_own"))
    return TimelineQuery(request.get_text("filter", "").strip(), kind, answers, hides_own)


def _span(recorder: Recorder, found: TimelineRows, request: PageRequest) -> tuple[int, int]:
    """The first row of the chosen span of time, and the one after its last."""
    start, stop = request.get_number("from"), request.get_number("to")
    if start is None or stop is None:
        return 0, len(found)
    return found.find_row_index(recorder.find_first_since(start)), found.find_row_index(recorder.find_first_since(stop))


def require_requested_message(inspection: Inspection, request: PageRequest) -> RecordedMessage:
    """The message that a request is about. Raises BadMessage."""
    if (entry := inspection.recorder.get_message(request.get_integer("seq"))) is None:
        raise BadMessage("this message is no longer kept")
    return entry


def _row(recorder: Recorder, entry: RecordedMessage) -> Json:
    """An entry with what its row draws: the size of its answer, and when its notices came, in ms after it."""
    told = entry.to_wire()
    if entry.kind == "request":
        if entry.of is not None and (answer := recorder.get_message(entry.of)) is not None:
            told["answer"] = answer.size
        if times := recorder.get_notice_times(entry.seq):
            told["parts"] = [round((each - entry.time) * 1000, 1) for each in times]
    return told


def _belonging(recorder: Recorder, asked: RecordedMessage) -> list[RecordedMessage]:
    """A request, its notices and its answer, the first of them."""
    found: list[RecordedMessage] = [asked]
    last = asked.of if asked.of is not None else recorder.count - 1
    for each in recorder.get_messages(asked.seq + 1, min(last + 1, asked.seq + 20_000)):
        if each.of == asked.seq:
            found.append(each)
            if len(found) >= MAX_OTHERS:
                break
    return found


# -- One request in both eras: its lines beside those of the other era, and sending it again in both.


LONG: Final = 300
"""Lines. With more, runs of equal ones are left out."""
MAX_LINE_LENGTH: Final = 2_000
SEND_SECONDS: Final = 60.0

OWN: Final = re.compile(r'  "id": | +"(?:progressToken|trace_id|request_id)": ')
"""Lines that name this one message. They differ by chance, so they are not marked."""
OF_EVERY_REQUEST: Final = frozenset(("host", "content-length", "accept", "accept-encoding", "connection", "user-agent"))
READS: Final = frozenset(
    (
        "tools/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "ping",
        "server/discover",
    )
)
READ_ONLY_NOTE: Final = "This is a saved session: nothing is sent."
NOT_AGAIN: Final = {
    "initialize": "It opens the conversation, and is sent once.",
    "subscriptions/listen": "It stays open for as long as the conversation.",
}


def both_eras(recorder: Recorder, entry: RecordedMessage) -> Json:
    """A message in both eras. Each of `handshake` and `stateless` has the `seq` of the request, or is missing.

    `lines` are those of the requests, `answers` those of the answers: [handshake, stateless, whether they differ], or a
    number of equal lines that are left out. `differences` counts runs of different lines.
    """
    asked = find_original_request(recorder, entry)
    found = {era: asked if asked.era == era else counterpart(recorder, asked, era) for era in ERA_NAMES}
    sides = [_side(recorder, found[era]) for era in ERA_NAMES]
    lines = _head(*(side["exchange"] for side in sides)) + _body(*(side["body"] for side in sides))
    answers = _body(*(side["answer"] for side in sides))
    is_both = all(found.values())
    return {
        **{era: _about(recorder, each) for era, each in found.items() if each is not None},
        "lines": _shorten_rows(lines),
        "answers": _shorten_rows(answers),
        "differences": _runs(lines) + _runs(answers) if is_both else None,
        "again": _why_not(asked),
    }


def _about(recorder: Recorder, entry: RecordedMessage) -> Json:
    answer = recorder.get_message(entry.of) if entry.of is not None and entry.kind == "request" else None
    return {"seq": entry.seq, "ms": entry.ms, "size": entry.size + (answer.size if answer else 0)}


def _side(recorder: Recorder, entry: RecordedMessage | None) -> Json:
    """The shown body of a request, of its answer, and its HTTP exchange; None where there is none."""
    answer = recorder.get_message(entry.of) if entry is not None and entry.of is not None else None
    asked, answered = _get_comparable_message(recorder, entry), _get_comparable_message(recorder, answer)
    return {
        "body": asked.get("body"),
        "exchange": asked.get("exchange"),
        "answer": answered.get("body") if answer and answer.kind == "answer" else None,
    }


def _get_comparable_message(recorder: Recorder, entry: RecordedMessage | None) -> Json:
    if entry is None:
        return {}
    if entry.size > MAX_COMPARED_BYTES:
        return {"body": f"{entry.size:,} bytes, too long to compare"}
    return recorder.describe_message(entry.seq) or {}


def _body(left: Any, right: Any) -> list[DiffRow]:
    if left is None or right is None:
        return [
            (each[0] if left is not None else None, each[0] if left is None else None, False)
            for each in align_lines(left if left is not None else right, left if left is not None else right)
            if left is not None or right is not None
        ]
    rows = align_lines(left, right)
    return [(a, b, differs and not (a and b and OWN.match(a) and OWN.match(b))) for a, b, differs in rows]


def _head(left: Json | None, right: Json | None) -> list[DiffRow]:
    """The request line and the headers that say something about the protocol."""
    if not left and not right:
        return []
    one, other = _headers(left), _headers(right)
    lines = [
        (f"{name}: {one[name]}" if name in one else None, f"{name}: {other[name]}" if name in other else None)
        for name in [*one, *(name for name in other if name not in one)]
    ]
    start = (_first_line(left), _first_line(right))
    return [(a, b, bool(left and right) and a != b) for a, b in (start, *lines)]


def _first_line(exchange: Json | None) -> str | None:
    return f"{exchange['method']} {exchange['address']}" if exchange else None


def _headers(exchange: Json | None) -> dict[str, str]:
    headers = object_or_empty((exchange or {}).get("headers"))
    return {name.lower(): str(value) for name, value in headers.items() if name.lower() not in OF_EVERY_REQUEST}


def _runs(rows: list[DiffRow]) -> int:
    return sum(1 for place, row in enumerate(rows) if row[2] and not (place and rows[place - 1][2]))


def _shorten_rows(rows: list[DiffRow]) -> list[DiffRow | int]:
    cut: list[DiffRow] = [(_cut(a), _cut(b), differs) for a, b, differs in rows]
    return fold_equal_rows(cut) if len(cut) > LONG else list[DiffRow | int](cut)


def _cut(line: str | None) -> str | None:
    return (
        line if line is None or len(line) <= MAX_LINE_LENGTH else f"{line[:MAX_LINE_LENGTH]}… ({len(line)} characters)"
    )


def _why_not(asked: RecordedMessage) -> str | None:
    """Why a message cannot be sent again; None if it can."""
    if asked.kind != "request" or asked.direction != "sent":
        return "Only requests of the inspector can be sent again."
    return NOT_AGAIN.get(asked.method)


async def send_in_both_eras(inspection: Inspection, entry: RecordedMessage, confirmed: bool) -> Json:
    """Send the request in both eras. What changes something is sent only if it is `confirmed`.

    Else `confirm` says what it is: its method, its tool and the mark of that. `sent` has the `seq` of each request,
    `errors` why an era could not do it; a refusal of the server is an answer like any other.
    """
    recorder = inspection.recorder
    asked = find_original_request(recorder, entry)
    if (why := _why_not(asked)) is not None:
        raise BadMessage(f"this message cannot be sent again: {why}")
    if recorder.get_body(asked.seq) is None:
        raise BadMessage("this message is no longer kept", fix="make the call again in the Tools panel")
    params = get_request_params(recorder, asked)
    mark = await find_call_risk_mark(await inspection.client(asked.era), asked.method, params)
    if mark != "safe" and not confirmed:
        return {"confirm": {"method": asked.method, "tool": asked.about or None, "mark": mark}}
    failed = await asyncio.gather(*(send_request_in_era(inspection, era, asked.method, params) for era in ERA_NAMES))
    found = {era: counterpart(recorder, asked, era) for era in ERA_NAMES}
    return {
        "sent": {era: each.seq for era, each in found.items() if each is not None},
        "errors": {era: error for era, error in zip(ERA_NAMES, failed, strict=True) if error},
    }


async def find_call_risk_mark(client: Client, method: str, params: Json) -> str | None:
    """`safe`, `moderate`, `dangerous`, or None if nobody said."""
    if method != "tools/call":
        return "safe" if method in READS else None
    name = params.get("name")
    tool = next((each for each in await client.tools() if each.get("name") == name), None)
    if tool is None:
        return None
    security = parse_tool_security(str(name), tool)
    return security.risk if security.is_marked_by_author else None


async def send_request_in_era(inspection: Inspection, era: str, method: str, params: Json) -> Json | None:
    """Send a request in an era. Why that was not possible; None if the server answered, whatever it said."""
    began = inspection.recorder.count
    try:
        await (await inspection.client(era)).request(method, params, timeout=SEND_SECONDS)
    except DefserveError as error:
        inspection.on_request_failed(era, error)
        is_answer = any(
            each.era == era and each.kind == "answer" and each.method == method
            for each in inspection.recorder.get_messages(began, inspection.recorder.count)
        )
        return None if is_answer else describe_error_for_page(error)
    return None


# -- Finds the same request in the other era.


SAME: Final = {"initialize": "server/discover", "server/discover": "initialize"}
"""Methods that do in one era what another does in the other."""
OF_THE_CALL: Final = ("_meta", "_mgp", "_mcpl", "state", "requestState", "inputResponses", "trace_id", "request_id")
"""Members of params that belong to one sending of a request, not to what it asks for."""
LOOKED_AT: Final = 50_000
READ: Final = 200
ENVELOPE: Final = 8 * 1024
"""Bytes by which the same request may differ from one era to the other."""
MAX_COMPARED_BYTES: Final = 256 * 1024
"""Bytes of a message that is read to compare it. Longer ones are never the same."""


def find_original_request(recorder: Recorder, entry: RecordedMessage) -> RecordedMessage:
    """The request of an answer or a notice, if it is known; else the message itself."""
    found = recorder.get_message(entry.of) if entry.kind in ("answer", "notice") and entry.of is not None else None
    return found or entry


def counterpart(recorder: Recorder, entry: RecordedMessage, era: str) -> RecordedMessage | None:
    """The newest request (or notice) of an era that asks for the same as `entry` does."""
    wanted = None if entry.method in SAME else get_request_params(recorder, entry)
    read = 0
    for each in reversed(recorder.get_messages(max(recorder.first, recorder.count - LOOKED_AT), recorder.count)):
        if each.era != era or each.kind != entry.kind or each.direction != entry.direction:
            continue
        if wanted is None:
            if each.method in (entry.method, SAME.get(entry.method)):
                return each
        elif (
            each.method == entry.method and abs(each.size - entry.size) <= ENVELOPE and entry.size <= MAX_COMPARED_BYTES
        ):
            if get_request_params(recorder, each) == wanted:
                return each
            if (read := read + 1) >= READ:
                return None
    return None


def get_request_params(recorder: Recorder, entry: RecordedMessage) -> JsonObject:
    """The params of a request, without what belongs to one sending of it. With its secrets: never show them."""
    params = object_or_empty(recorder.parse_body(entry.seq).get("params"))
    return {name: value for name, value in params.items() if name not in OF_THE_CALL}


# -- The Latency panel: how long the calls of each tool took, and how many there are a second.


async def follow_latency(inspection: Inspection, request: PageRequest) -> Any:
    """The figures as parts, a new one each second while there are calls, until it is cancelled."""
    connection = inspection.connection(get_request_era(request))
    while True:
        request.send_part_if_changed(inspection.latencies.describe_era(connection.era))
        await asyncio.sleep(1.0)


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "wire.filter": check_filter,
    "wire.follow": follow_timeline,
    "wire.rows": list_rows,
    "wire.find": find_message,
    "wire.message": get_message,
    "wire.eras": compare_eras,
    "wire.again": send_again,
    "wire.clear": clear_timeline,
    "wire.save": save_messages,
    "latency.follow": follow_latency,
}
