"""Finds the same request in the other era."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import from_json

from defserve.host.fields import Json, object_of
from defserve.inspector.recording.recorder import RecordedMessage, Recorder

SAME: Final = {"initialize": "server/discover", "server/discover": "initialize"}
"""Methods that do in one era what another does in the other."""
OF_THE_CALL: Final = ("_meta", "_mgp", "_mcpl", "state", "requestState", "inputResponses", "trace_id", "request_id")
"""Members of params that belong to one sending of a request, not to what it asks for."""
LOOKED_AT: Final = 50_000
READ: Final = 200
ENVELOPE: Final = 8 * 1024
"""Bytes by which the same request may differ from one era to the other."""
LONGEST_READ: Final = 256 * 1024
"""Bytes of a message that is read to compare it. Longer ones are never the same."""


def request_of(recorder: Recorder, entry: RecordedMessage) -> RecordedMessage:
    """The request of an answer or a notice, if it is known; else the message itself."""
    found = recorder.entry(entry.of) if entry.kind in ("answer", "notice") and entry.of is not None else None
    return found or entry


def counterpart(recorder: Recorder, entry: RecordedMessage, era: str) -> RecordedMessage | None:
    """The newest request (or notice) of an era that asks for the same as `entry` does."""
    wanted = None if entry.method in SAME else asked_for(recorder, entry)
    read = 0
    for each in reversed(recorder.slice(max(recorder.first, recorder.count - LOOKED_AT), recorder.count)):
        if each.era != era or each.kind != entry.kind or each.direction != entry.direction:
            continue
        if wanted is None:
            if each.method in (entry.method, SAME.get(entry.method)):
                return each
        elif each.method == entry.method and abs(each.size - entry.size) <= ENVELOPE and entry.size <= LONGEST_READ:
            if asked_for(recorder, each) == wanted:
                return each
            if (read := read + 1) >= READ:
                return None
    return None


def asked_for(recorder: Recorder, entry: RecordedMessage) -> Json:
    """The params of a request, without what belongs to one sending of it. With its secrets: never show them."""
    try:
        message: Any = from_json(recorder.body(entry.seq) or b"{}")
    except ValueError:
        return {}
    params = object_of(object_of(message).get("params"))
    return {name: value for name, value in params.items() if name not in OF_THE_CALL}
