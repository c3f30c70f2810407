"""The session as a file, and as a test: everything that an inspector knows, and chosen calls as one file for pytest."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic_core import to_json

from defserve.base.version import VERSION
from defserve.client.client import Client
from defserve.client.eras import MCP_KEY_PREFIX
from defserve.client.replies import Json, list_if_supported, object_or_empty
from defserve.core.json_values import find_limit_violation, is_array, is_object
from defserve.errors import DefserveError, PeerError
from defserve.inspector.call_code import SavedCall, format_call_test
from defserve.inspector.inspection import ERA_NAMES, Inspection, PageRequestHandler
from defserve.inspector.protocol import BadMessage, PageRequest
from defserve.inspector.recording.masking import mask_address, mask_command_words, mask_value
from defserve.inspector.recording.recorder import MAX_KEPT_BODY_BYTES, RecordedMessage, Recorder
from defserve.inspector.session_files import (
    CONVERSATION_OPENING_METHODS,
    FORMAT_VERSION,
    MAX_CHECKPOINTS,
    MAX_DEPTH,
    MAX_KEYS,
)
from defserve.inspector.state_trees import MISSING_CONTENT, CheckpointTreeView
from defserve.tooling.listing import LIST_FETCHERS, LIST_WIRE_NAMES, make_initialize_result

MAX_SAVED_CONTENT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of contents that are written. Beyond it, checkpoints are saved without theirs, the oldest first."""
MAX_SAVED_BYTES: Final = 128 * 1024 * 1024
"""Bytes of messages that are written, the newest."""
PIECE_BYTES: Final = 1024 * 1024
PIECE_MESSAGES: Final = 500
MAX_LOOKED_AT: Final = 10_000


async def save_session(inspection: Inspection, request: PageRequest) -> Any:
    """A piece of the file as `text`, and where the `next` begins; None at the end. Without `start` it is the first.

    `stop` is the number of the first message that came too late: the page gives it back for each further piece.
    """
    recorder = inspection.recorder
    if "start" not in request.arguments:
        text = await _write_beginning(inspection)
        return {"text": text, "next": find_first_saved(recorder), "stop": recorder.count}
    seq, stop = max(request.get_integer("start"), recorder.first), min(request.get_integer("stop"), recorder.count)
    lines, size, last = list[str](), 0, min(stop, seq + PIECE_MESSAGES)
    while seq < last and size < PIECE_BYTES:
        lines.append(write_message(recorder, seq))
        size += len(lines[-1])
        seq += 1
    is_over = seq >= stop
    return {"text": "".join(lines) + (write_record("end", True) if is_over else ""), "next": None if is_over else seq}


async def _write_beginning(inspection: Inspection) -> str:
    """All but the messages."""
    target, clients = inspection.target, {each.era: each.connected_client for each in inspection.connections.values()}
    lines = [
        write_header(mask_address(target.address, target.words), mask_command_words(target.words), time.time()),
        *[await write_definitions(era, clients.get(era), inspection.recorder) for era in ERA_NAMES],
    ]
    room = [MAX_SAVED_CONTENT_BYTES]
    for era, client in clients.items():
        mcpl = client.mcpl if client is not None else None
        for declared in mcpl.feature_sets if mcpl is not None and mcpl.version is not None else ():
            for tree in await inspection.states.list_trees(era, declared.name) if declared.rollback else ():
                view = inspection.states.open_tree(era, declared.name, tree["owner"])
                lines.append(await write_tree(era, declared.name, tree["owner"], view, room))
    return "".join(lines)


def write_record(kind: str, record: Any) -> str:
    """One line of a session file."""
    return to_json({kind: record}, fallback=str, inf_nan_mode="null").decode() + "\n"


def write_header(address: str, words: Iterable[str], now: float) -> str:
    """The first line. `address` and `words` are masked already."""
    about = {"version": FORMAT_VERSION, "maker": f"defserve {VERSION}", "time": now}
    return write_record("defsession", {**about, "address": address, "words": list(words)})


def write_message(recorder: Recorder, seq: int) -> str:
    """A message as the page would show it; nothing if it is forgotten."""
    shown = recorder.describe_message(seq)
    if shown is None:
        return ""
    body = shown.get("body")
    # A record is an object around the body, and may not be deeper than a reader allows.
    if (is_object(body) or is_array(body)) and find_limit_violation(body, MAX_DEPTH - 4, MAX_KEYS) is not None:
        shown["body"] = to_json(body, inf_nan_mode="null").decode()
    return write_record("message", shown)


def find_first_saved(recorder: Recorder) -> int:
    """The first message that a file has room for: it gets the newest."""
    left = MAX_SAVED_BYTES
    for entry in reversed(recorder.get_messages(recorder.first, recorder.count)):
        left -= min(entry.size, MAX_KEPT_BODY_BYTES)
        if left < 0:
            return entry.seq + 1
    return recorder.first


async def write_definitions(era: str, client: Client | None, recorder: Recorder) -> str:
    """What the server says and lists, asked for now; if it is away, as the timeline has it. Nothing if nobody knows."""
    listing: Json | None = None
    if client is not None:
        try:
            listing = await _ask_definitions(client)
        except PeerError:
            pass
    listing = listing or _find_definitions(era, recorder)
    return write_record("definitions", {"era": era, **mask_value(listing)}) if listing else ""


async def _ask_definitions(client: Client) -> Json:
    found: Json = {"initialize": make_initialize_result(client)}
    for name, (needed, method, ask) in LIST_FETCHERS.items():
        found[name] = (await list_if_supported(method, ask(client))).items if needed in client.capabilities else []
    return found


def _find_definitions(era: str, recorder: Recorder) -> Json | None:
    """The newest answers to what asks for definitions. Of a list in several pages, the last one."""
    wanted = {method: name for name, (method, _) in LIST_WIRE_NAMES.items()} | dict.fromkeys(
        CONVERSATION_OPENING_METHODS, "initialize"
    )
    found: Json = {}
    for entry in reversed(recorder.get_messages(recorder.first, recorder.count)):
        name = wanted.get(entry.method)
        if entry.era != era or entry.kind != "answer" or entry.error is not None or name is None or name in found:
            continue
        body = object_or_empty((recorder.describe_message(entry.seq) or {}).get("body"))
        result = object_or_empty(body.get("result"))
        found[name] = _normalize_opening(result) if name == "initialize" else result.get(LIST_WIRE_NAMES[name][1], [])
        if len(found) == len(LIST_WIRE_NAMES) + 1:
            break
    return found if "initialize" in found else None


def _normalize_opening(result: Json) -> Json:
    """What a server says of itself, in the form of an `initialize` result: the stateless era puts some elsewhere."""
    versions, meta = result.get("supportedVersions"), object_or_empty(result.get("_meta"))
    opening = {name: result[name] for name in ("protocolVersion", "capabilities", "instructions") if name in result}
    if "protocolVersion" not in opening and is_array(versions) and versions:
        opening["protocolVersion"] = versions[-1]
    info = object_or_empty(result.get("serverInfo") or meta.get(f"{MCP_KEY_PREFIX}serverInfo"))
    return {**opening, "serverInfo": info}


async def write_tree(era: str, feature_set: str, owner: str | None, view: CheckpointTreeView, room: list[int]) -> str:
    """A tree and its newest checkpoints. `room` has the bytes that are left for contents, and is what is left then."""
    kept = list(await view.list_checkpoints())[-MAX_CHECKPOINTS:]
    contents: dict[str, Any] = {}
    for each in reversed(kept):
        try:
            content = await view.get_content(each.id)
        except DefserveError:  # it was forgotten meanwhile
            continue
        if content is MISSING_CONTENT:
            continue
        shown = mask_value(content)
        room[0] -= len(to_json(shown, inf_nan_mode="null"))
        if room[0] < 0 or find_limit_violation(shown, MAX_DEPTH - 4, MAX_KEYS) is not None:
            break
        contents[each.id] = shown
    about = {
        "era": era,
        "set": feature_set,
        "owner": owner,
        "head": await view.get_head_id(),
        "facts": view.describe_tree(),
    }
    lines = [write_record("tree", mask_value(about))]
    for each in kept:
        told: Json = {
            "id": each.id,
            "parent": each.parent,
            "number": each.number,
            "time": each.time,
            "call": each.call,
            "change": each.change,
            "who": each.who,
        }
        lines.append(write_record("checkpoint", told | ({"content": contents[each.id]} if each.id in contents else {})))
    return "".join(lines)


# -- Chosen calls of the timeline as one test.


MAX_TESTED_CALLS: Final = 200
ANSWERS: Final = "inputResponses"
CONFIRMED: Final[Mapping[str, bool]] = {"confirm": True, "cancel": False}
"""What MGP calls the two answers to a confirmation."""


async def write_session_test(inspection: Inspection, request: PageRequest) -> Any:
    """The calls `seqs` as a `text` for pytest, in the order in which they were made, and a `name` for the file.

    `left` counts what was chosen and is no call, or has no answer that is kept. Calls of two eras do not mix: the era
    of the first counts.
    """
    seqs = request.arguments.get("seqs")
    if not is_array(seqs) or not 0 < len(seqs) <= MAX_TESTED_CALLS or not all(type(seq) is int for seq in seqs):
        raise BadMessage(f"'seqs' is a list of up to {MAX_TESTED_CALLS} messages")
    recorder = inspection.recorder
    entries = [
        entry
        for seq in sorted(set(seqs))
        if (entry := recorder.get_message(seq)) is not None and entry.is_answered_call
    ]
    era = entries[0].era if entries else ""
    calls = [call for entry in entries if entry.era == era and (call := _read_call(recorder, entry)) is not None]
    if not calls:
        raise BadMessage("none of these messages is a call that was answered", fix="tick rows of tools/call")
    text = format_call_test(inspection.target.words, calls, era)
    named = re.search(r"^def (test_\w{1,60})", text, re.MULTILINE)
    return {"text": text, "name": f"{named.group(1) if named else 'test_session'}.py", "left": len(seqs) - len(calls)}


def _read_call(recorder: Recorder, entry: RecordedMessage) -> SavedCall | None:
    """A call with its outcome. What is secret in it is masked when it is written."""
    params = object_or_empty(recorder.parse_body(entry.seq).get("params"))
    answer = recorder.parse_body(entry.of) if entry.of is not None else {}
    tool = params.get("name")
    if not isinstance(tool, str) or ("result" not in answer and "error" not in answer):
        return None
    outcome = answer["result"] if "result" in answer else {"error": answer["error"]}
    said = [*object_or_empty(params.get(ANSWERS)).values(), *_find_answers(recorder, entry)]
    arguments = object_or_empty(params.get("arguments"))
    return SavedCall(tool, arguments, outcome, [each for each in said if is_object(each)], entry.time)


def _find_answers(recorder: Recorder, call: RecordedMessage) -> Iterator[Json]:
    """What a person answered to the questions that the server asked during a call."""
    for entry in recorder.get_messages(call.seq, min(call.of or 0, call.seq + MAX_LOOKED_AT)):
        if entry.kind != "request" or entry.era != call.era or entry.of is None:
            continue
        if entry.direction == "received" and entry.method == "elicitation/create":
            yield object_or_empty(recorder.parse_body(entry.of).get("result"))
        elif entry.direction == "sent" and entry.method == "mgp/callback/respond":
            said = object_or_empty(recorder.parse_body(entry.seq).get("params")).get("response")
            yield {"action": "accept", "content": CONFIRMED.get(said, said) if isinstance(said, str) else said}


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "session.save": save_session,
    "session.test": write_session_test,
}
