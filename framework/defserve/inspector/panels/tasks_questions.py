"""The Tasks and Questions panels: tools that go on, and what servers ask the person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.client.replies import object_or_empty
from defserve.client.tasks import TASKS_EXTENSION_ID
from defserve.core.json_values import is_array
from defserve.inspector.inspection import Inspection, PageRequestHandler, get_request_era, use_era_client
from defserve.inspector.protocol import BadMessage, Json, PageRequest


async def list_tasks(inspection: Inspection, request: PageRequest) -> Any:
    """The tasks of both eras, newest first. `offered`: the server has tasks. `session`: there are none in this era."""
    async with use_era_client(inspection, request) as client:
        offered = TASKS_EXTENSION_ID in object_or_empty(client.capabilities.get("extensions"))
        return {"tasks": inspection.tasks.to_wire(), "offered": offered, "session": not client.stateless}


async def start_task(inspection: Inspection, request: PageRequest) -> Any:
    """Start a tool. What becomes of it is told with the topic `task`."""
    tool, arguments = request.get_text("tool"), request.get_object("arguments")
    return inspection.tasks.start(
        get_request_era(request) or inspection.connection().era, tool, arguments
    ).record.to_wire()


async def follow_known_task(inspection: Inspection, request: PageRequest) -> Any:
    """Follow a task by its id."""
    async with use_era_client(inspection, request) as client:
        return (await inspection.tasks.resume(client, request.get_text("taskId"))).record.to_wire()


async def describe_task(inspection: Inspection, request: PageRequest) -> Any:
    """One task with its arguments, its steps and its result."""
    return inspection.tasks[request.get_integer("task")].record.to_full_wire()


async def refresh_task(inspection: Inspection, request: PageRequest) -> Any:
    task = inspection.tasks[request.get_integer("task")]
    await task.refresh()
    return task.record.to_wire()


async def cancel_task(inspection: Inspection, request: PageRequest) -> Any:
    task = inspection.tasks[request.get_integer("task")]
    await task.cancel()
    return task.record.to_wire()


async def drop_finished_tasks(inspection: Inspection, request: PageRequest) -> Any:
    """Drop what is over from the list."""
    inspection.tasks.drop_finished()
    return {"tasks": inspection.tasks.to_wire()}


# -- The Questions panel: what waits, what is over, and the answers that stand: the roots, and a model made of rules.


MAX_ROOTS: Final = 100
MAX_ROOT_LENGTH: Final = 4_096


async def open_questions(inspection: Inspection, request: PageRequest) -> Any:
    return inspection.questions.waiting


async def answer_question(inspection: Inspection, request: PageRequest) -> Any:
    return {
        "answered": inspection.questions.answer_question(request.get_integer("question"), request.get_object("answer"))
    }


async def list_past_questions(inspection: Inspection, request: PageRequest) -> Any:
    """The questions that are over, newest first, and the standing answers."""
    return {"past": list(reversed(inspection.questions.past)), **standing(inspection)}


def standing(inspection: Inspection) -> Json:
    """What is answered without a question, because the person has said so before."""
    roots = [{"uri": root} if isinstance(root, str) else root for root in inspection.questions.roots]
    return {"roots": roots, "model": inspection.questions.model.to_wire()}


async def set_roots(inspection: Inspection, request: PageRequest) -> Any:
    """The roots from now on. Servers with a session are told that they changed; the others ask each time."""
    given = request.arguments.get("roots")
    if not is_array(given) or len(given) > MAX_ROOTS:
        raise BadMessage(f"roots are a list of at most {MAX_ROOTS}")
    inspection.questions.roots[:] = [_root(object_or_empty(each)) for each in given]
    for client in inspection.connected_clients:
        if not client.stateless:
            client.notify_soon("notifications/roots/list_changed")
    return _push_standing(inspection)


def _root(given: Json) -> Json:
    uri, name = given.get("uri"), given.get("name", "")
    if not isinstance(uri, str) or not isinstance(name, str) or not 0 < len(uri) <= MAX_ROOT_LENGTH >= len(name):
        raise BadMessage("a root has a URI, and may have a name", fix="write it as file:///home/me/project")
    return {"uri": uri, "name": name} if name else {"uri": uri}


async def set_model(inspection: Inspection, request: PageRequest) -> Any:
    """The rules of the scripted model, and whether it answers."""
    rules = request.arguments.get("rules")
    if not is_array(rules):
        raise BadMessage("the argument 'rules' is missing, or is not a list")
    inspection.questions.model.set_rules(request.arguments.get("on") is True, rules)
    return _push_standing(inspection)


def _push_standing(inspection: Inspection) -> Json:
    told = standing(inspection)
    inspection.push("standing", told)
    return told


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "tasks.list": list_tasks,
    "tasks.start": start_task,
    "tasks.resume": follow_known_task,
    "tasks.show": describe_task,
    "tasks.refresh": refresh_task,
    "tasks.cancel": cancel_task,
    "tasks.forget": drop_finished_tasks,
    "questions.list": open_questions,
    "questions.answer": answer_question,
    "questions.past": list_past_questions,
    "questions.roots": set_roots,
    "questions.model": set_model,
}
