"""One request in both eras: its lines beside those of the other era, and sending it again in both."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from defserve.errors import DefserveError
from defserve.host.client import Client
from defserve.host.fields import object_of
from defserve.host.mgp.security.tool_security import tool_security
from defserve.inspector.inspection import ERAS, Inspection
from defserve.inspector.protocol import BadMessage, Json, error_of
from defserve.inspector.recording.counterparts import LONGEST_READ, asked_for, counterpart, request_of
from defserve.inspector.recording.recorder import RecordedMessage, Recorder
from defserve.inspector.states.side_by_side import Row, aligned, folded

LONG: Final = 300
"""Lines. With more, runs of equal ones are left out."""
LONGEST_LINE: Final = 2_000
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
NOT_AGAIN: Final = {
    "initialize": "It opens the conversation, and is sent once.",
    "subscriptions/listen": "It stays open for as long as the conversation.",
}


def both_eras(recorder: Recorder, entry: RecordedMessage) -> Json:
    """A message in both eras. Each of `handshake` and `stateless` has the `seq` of the request, or is missing.

    `lines` are those of the requests, `answers` those of the answers: [handshake, stateless, whether they differ], or a
    number of equal lines that are left out. `differences` counts runs of different lines.
    """
    asked = request_of(recorder, entry)
    found = {era: asked if asked.era == era else counterpart(recorder, asked, era) for era in ERAS}
    sides = [_side(recorder, found[era]) for era in ERAS]
    lines = _head(*(side["exchange"] for side in sides)) + _body(*(side["body"] for side in sides))
    answers = _body(*(side["answer"] for side in sides))
    is_both = all(found.values())
    return {
        **{era: _about(recorder, each) for era, each in found.items() if each is not None},
        "lines": _bounded(lines),
        "answers": _bounded(answers),
        "differences": _runs(lines) + _runs(answers) if is_both else None,
        "again": _why_not(asked),
    }


def _about(recorder: Recorder, entry: RecordedMessage) -> Json:
    answer = recorder.entry(entry.of) if entry.of is not None and entry.kind == "request" else None
    return {"seq": entry.seq, "ms": entry.ms, "size": entry.size + (answer.size if answer else 0)}


def _side(recorder: Recorder, entry: RecordedMessage | None) -> Json:
    """The shown body of a request, of its answer, and its HTTP exchange; None where there is none."""
    answer = recorder.entry(entry.of) if entry is not None and entry.of is not None else None
    asked, answered = _shown(recorder, entry), _shown(recorder, answer)
    return {
        "body": asked.get("body"),
        "exchange": asked.get("exchange"),
        "answer": answered.get("body") if answer and answer.kind == "answer" else None,
    }


def _shown(recorder: Recorder, entry: RecordedMessage | None) -> Json:
    if entry is None:
        return {}
    if entry.size > LONGEST_READ:
        return {"body": f"{entry.size:,} bytes, too long to compare"}
    return recorder.message(entry.seq) or {}


def _body(left: Any, right: Any) -> list[Row]:
    if left is None or right is None:
        return [
            (each[0] if left is not None else None, each[0] if left is None else None, False)
            for each in aligned(left if left is not None else right, left if left is not None else right)
            if left is not None or right is not None
        ]
    rows = aligned(left, right)
    return [(a, b, differs and not (a and b and OWN.match(a) and OWN.match(b))) for a, b, differs in rows]


def _head(left: Json | None, right: Json | None) -> list[Row]:
    """The request line and the headers that say something about the protocol."""
    if not left and not right:
        return []
    one, other = _headers(left), _headers(right)
    names = [*one, *(name for name in other if name not in one)]
    lines = [
        (f"{name}: {one[name]}" if name in one else None, f"{name}: {other[name]}" if name in other else None)
        for name in names
    ]
    start = (_first_line(left), _first_line(right))
    return [(a, b, bool(left and right) and a != b) for a, b in (start, *lines)]


def _first_line(exchange: Json | None) -> str | None:
    return f"{exchange['method']} {exchange['address']}" if exchange else None


def _headers(exchange: Json | None) -> dict[str, str]:
    headers = object_of((exchange or {}).get("headers"))
    return {name.lower(): str(value) for name, value in headers.items() if name.lower() not in OF_EVERY_REQUEST}


def _runs(rows: list[Row]) -> int:
    return sum(1 for place, row in enumerate(rows) if row[2] and not (place and rows[place - 1][2]))


def _bounded(rows: list[Row]) -> list[Row | int]:
    cut: list[Row] = [(_cut(a), _cut(b), differs) for a, b, differs in rows]
    return folded(cut) if len(cut) > LONG else list[Row | int](cut)


def _cut(line: str | None) -> str | None:
    return line if line is None or len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}… ({len(line)} characters)"


def _why_not(asked: RecordedMessage) -> str | None:
    """Why a message cannot be sent again; None if it can."""
    if asked.kind != "request" or asked.direction != "sent":
        return "Only requests of the inspector can be sent again."
    return NOT_AGAIN.get(asked.method)


async def again(inspection: Inspection, entry: RecordedMessage, confirmed: bool) -> Json:
    """Send the request in both eras. What changes something is sent only if it is `confirmed`.

    Else `confirm` says what it is: its method, its tool and the mark of that. `sent` has the `seq` of each request,
    `errors` why an era could not do it; a refusal of the server is an answer like any other.
    """
    recorder = inspection.recorder
    asked = request_of(recorder, entry)
    if (why := _why_not(asked)) is not None:
        raise BadMessage(f"this message cannot be sent again: {why}")
    if recorder.body(asked.seq) is None:
        raise BadMessage("this message is no longer kept", fix="make the call again in the Tools panel")
    params = asked_for(recorder, asked)
    mark = await _mark(await inspection.client(asked.era), asked.method, params)
    if mark != "safe" and not confirmed:
        return {"confirm": {"method": asked.method, "tool": asked.about or None, "mark": mark}}
    failed = await asyncio.gather(*(_send(inspection, era, asked.method, params) for era in ERAS))
    found = {era: counterpart(recorder, asked, era) for era in ERAS}
    return {
        "sent": {era: each.seq for era, each in found.items() if each is not None},
        "errors": {era: error for era, error in zip(ERAS, failed, strict=True) if error},
    }


async def _mark(client: Client, method: str, params: Json) -> str | None:
    """`safe`, `moderate`, `dangerous`, or None if nobody said."""
    if method != "tools/call":
        return "safe" if method in READS else None
    name = params.get("name")
    tool = next((each for each in await client.tools() if each.get("name") == name), None)
    if tool is None:
        return None
    security = tool_security(str(name), tool)
    return security.risk if security.is_marked else None


async def _send(inspection: Inspection, era: str, method: str, params: Json) -> Json | None:
    """Send a request in an era. Why that was not possible; None if the server answered, whatever it said."""
    began = inspection.recorder.count
    try:
        client = await inspection.client(era)
        await client.request(method, params, timeout=SEND_SECONDS)
    except DefserveError as error:
        inspection.failed(era, error)
        is_answer = any(
            each.era == era and each.kind == "answer" and each.method == method
            for each in inspection.recorder.slice(began, inspection.recorder.count)
        )
        return None if is_answer else error_of(error)
    return None
