"""The State panel: the trees of checkpoints, what lies between two of them, rolling back and branching."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from pydantic_core import to_json

from defserve.client.client import Client
from defserve.client.mcpl.peer import McplPeer
from defserve.client.replies import object_or_empty, string_or_none
from defserve.core.json_values import is_array
from defserve.inspector.differences import align_changed_lines, make_json_patch, shorten_patch_operations
from defserve.inspector.inspection import Inspection, PageRequestHandler, get_request_era, use_era_client
from defserve.inspector.panels.wire import (
    READ_ONLY_NOTE,
    find_call_risk_mark,
    find_original_request,
    get_request_params,
    require_requested_message,
    send_request_in_era,
)
from defserve.inspector.protocol import BadMessage, Json, PageRequest
from defserve.inspector.recording.masking import mask_value
from defserve.inspector.recording.recorder import RecordedMessage, read_state_left_by_call
from defserve.inspector.state_trees import MISSING_CONTENT, CheckpointTreeView

MAX_IDS: Final = 200
MAX_CONTENT_BYTES: Final = 1024 * 1024

OPAQUE: Final = "The server keeps this state for itself, so it has no contents to show."
NO_CHECKPOINT: Final = "This call has no checkpoint: its tool keeps no state."
UNTOLD: Final = "The server did not tell this content, and the inspector cannot read its store."


async def list_feature_sets(inspection: Inspection, request: PageRequest) -> Any:
    """The feature sets that keep state, each with its trees. `version` is None if the server does not speak MCPL."""
    era, client = await _client(inspection, request)
    mcpl = client.mcpl
    if mcpl is None or mcpl.version is None:
        return {"version": None, "sets": [], "others": 0}
    keeping = [declared for declared in mcpl.feature_sets if declared.rollback]
    found = [
        {
            "name": declared.name,
            "description": declared.description,
            "enabled": mcpl.feature_sets.is_enabled(declared.name),
            "at": mcpl.state(declared.name).checkpoint,
            "trees": await inspection.states.list_trees(era, declared.name),
        }
        for declared in keeping
    ]
    return {"version": mcpl.version, "sets": found, "others": len(mcpl.feature_sets) - len(keeping)}


async def follow_tree(inspection: Inspection, request: PageRequest) -> Any:
    """A tree, and whatever is new in it, as parts until it is cancelled. The first says what is known around it."""
    era, client = await _client(inspection, request)
    view, name = _view(inspection, request, era), request.get_text("set")
    request.part({"facts": view.describe_tree()})
    async with aclosing(inspection.states.follow_tree(view)) as parts:
        async for part in parts:
            mcpl = client.mcpl
            at = mcpl.state(name).checkpoint if mcpl is not None and name in mcpl.feature_sets else None
            request.part({**part, "at": at})


async def describe_changes(inspection: Inspection, request: PageRequest) -> Any:
    """What each of these checkpoints changed, in words."""
    era, _ = await _client(inspection, request)
    ids = request.arguments.get("ids")
    if not is_array(ids) or len(ids) > MAX_IDS:
        raise BadMessage(f"'ids' is a list of up to {MAX_IDS} checkpoints")
    return await inspection.states.describe_changes(_view(inspection, request, era), map(str, ids))


async def diff_checkpoints(inspection: Inspection, request: PageRequest) -> Any:
    """The patch from `a` to `b`: `ops` (the first of them), how many there are (`count`), and its size in `bytes`."""
    view, before, after = await _both(inspection, request)
    if before is MISSING_CONTENT or after is MISSING_CONTENT:
        return _missing(view)
    return describe_patch(before, after)


def describe_patch(before: Any, after: Any) -> Json:
    """The patch from one content to another, for the page."""
    ops = make_json_patch(before, after)
    return {"ops": shorten_patch_operations(ops), "count": len(ops), "bytes": len(to_json(ops))}


async def compare_contents(inspection: Inspection, request: PageRequest) -> Any:
    """The contents of `a` and `b` as `rows` of lines side by side."""
    view, before, after = await _both(inspection, request)
    if before is MISSING_CONTENT or after is MISSING_CONTENT:
        return _missing(view)
    return {"rows": await asyncio.to_thread(align_changed_lines, mask_value(before), mask_value(after))}


async def get_content(inspection: Inspection, request: PageRequest) -> Any:
    """The whole `content` at `b`; of a very long one, only its size in `bytes`."""
    era, _ = await _client(inspection, request)
    view = _view(inspection, request, era)
    found = await view.get_content(request.get_text("b"))
    if found is MISSING_CONTENT:
        return _missing(view)
    return describe_content(found)


def describe_content(content: Any) -> Json:
    """A content with its size, for the page; of a very long one, only its size."""
    size = len(to_json(content))
    return {"bytes": size} if size > MAX_CONTENT_BYTES else {"content": mask_value(content), "bytes": size}


async def roll_back(inspection: Inspection, request: PageRequest) -> Any:
    """Have the server go back to a checkpoint. `success`, and the server's `reason` if it refuses."""
    async with use_era_client(inspection, request) as client:
        done = await _mcpl(client).rollback(request.get_text("set"), request.get_text("checkpoint"))
    return {"success": done.success, "reason": done.reason}


async def branch_next_call(inspection: Inspection, request: PageRequest) -> Any:
    """Let the inspector's next call start at a checkpoint. The head stays where it is."""
    if inspection.target.saved is not None:
        raise BadMessage(READ_ONLY_NOTE)
    _, client = await _client(inspection, request)
    id = request.get_text("checkpoint", "") or None
    _mcpl(client).branch(request.get_text("set"), id)
    return {"at": id}


# -- A call and its state: what it began with, what it left behind, and the same call from one of them again.


async def describe_call_state(inspection: Inspection, request: PageRequest) -> Any:
    """The state of the call `seq`: the checkpoints `before` and `after` it, the `ops` between them, and the `content`.

    `after` is None if the call changed nothing. `missing` says why there are no contents to show.
    """
    call = _get_call(inspection, request)
    before, after = _find_checkpoints(inspection, call)
    shown = after or before
    found = inspection.states.find_tree(call.era, shown) if shown is not None else None
    told: Json = {"era": call.era, "before": before, "after": after, "set": None, "trace": call.trace or None}
    if found is None or shown is None:
        return {**told, "missing": NO_CHECKPOINT if shown is None else UNTOLD}
    told["set"], view = found
    content = await view.get_content(shown)
    if content is MISSING_CONTENT:
        return {**told, **_missing(view)}
    told |= describe_content(content)
    previous = await view.get_content(before) if before is not None else None
    if after is not None and previous is not MISSING_CONTENT:
        told |= describe_patch(previous, content)
    return told


async def run_again(inspection: Inspection, request: PageRequest) -> Any:
    """Make the call `seq` again, from the checkpoint `before` or `after` it. The line that it leaves stays as a branch.

    What may change something is made only if it is `confirmed`; else `confirm` says what it is. `seq` is the new call.
    """
    call, where = _get_call(inspection, request), request.get_text("at")
    if inspection.target.saved is not None:
        raise BadMessage(READ_ONLY_NOTE)
    points = dict(zip(("before", "after"), _find_checkpoints(inspection, call), strict=True))
    if where not in points:
        raise BadMessage("'at' is before or after")
    known = [point for point in points.values() if point is not None]
    found = inspection.states.find_tree(call.era, known[-1]) if known else None
    if found is None:
        raise BadMessage("this call has no checkpoint that is known", fix="call the tool in the Tools panel")
    params = {**get_request_params(inspection.recorder, call)}
    params.pop("checkpoint", None)
    client = await inspection.client(call.era)
    mark = await find_call_risk_mark(client, call.method, params)
    if mark != "safe" and request.arguments.get("confirmed") is not True:
        return {"confirm": {"method": call.method, "tool": call.about, "mark": mark}}
    _mcpl(client).branch(found[0], points[where])
    began = inspection.recorder.count
    error = await send_request_in_era(inspection, call.era, call.method, params)
    sent = inspection.recorder.get_messages(began, inspection.recorder.count)
    made = [each.seq for each in sent if each.kind == "request" and each.method == call.method]
    return {"seq": made[-1] if made else None, "error": error}


def _get_call(inspection: Inspection, request: PageRequest) -> RecordedMessage:
    call = find_original_request(inspection.recorder, require_requested_message(inspection, request))
    if call.method != "tools/call" or call.kind != "request" or call.direction != "sent":
        raise BadMessage("this message is not a call of a tool")
    return call


def _find_checkpoints(inspection: Inspection, call: RecordedMessage) -> tuple[str | None, str | None]:
    """The checkpoints that a call began with, and left behind."""
    recorder = inspection.recorder
    result = object_or_empty(recorder.parse_body(call.of).get("result")) if call.of is not None else {}
    state = read_state_left_by_call(result)
    if (after := string_or_none(state.get("checkpoint"))) is not None:
        return string_or_none(state.get("parent")), after
    params = object_or_empty(recorder.parse_body(call.seq).get("params"))
    return string_or_none(params.get("checkpoint")), None


async def _client(inspection: Inspection, request: PageRequest) -> tuple[str, Client]:
    """The client of the era, and the name of that era."""
    connection = inspection.connection(get_request_era(request))
    client = await connection.client()
    return connection.era, client


def _mcpl(client: Client) -> McplPeer:
    assert client.mcpl is not None, "an inspector always offers MCPL"
    return client.mcpl


def _view(inspection: Inspection, request: PageRequest, era: str) -> CheckpointTreeView:
    return inspection.states.open_tree(era, request.get_text("set"), request.get_text("owner", "") or None)


async def _both(inspection: Inspection, request: PageRequest) -> tuple[CheckpointTreeView, Any, Any]:
    """The contents at `a` and `b`. Without `a` it is compared with nothing: the state before its first checkpoint."""
    era, _ = await _client(inspection, request)
    view, a = _view(inspection, request, era), request.get_text("a", "")
    return view, await view.get_content(a) if a else None, await view.get_content(request.get_text("b"))


def _missing(view: CheckpointTreeView) -> Json:
    return {"missing": OPAQUE if view.describe_tree().get("opaque") else UNTOLD}


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "state.sets": list_feature_sets,
    "state.follow": follow_tree,
    "state.changes": describe_changes,
    "state.diff": diff_checkpoints,
    "state.lines": compare_contents,
    "state.content": get_content,
    "state.rollback": roll_back,
    "state.branch": branch_next_call,
    "state.of_call": describe_call_state,
    "state.run_again": run_again,
}
