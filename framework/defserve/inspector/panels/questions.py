"""The Questions panel: what waits, what is over, and the answers that stand: the roots, and a model made of rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.host.fields import object_of
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb
from defserve.inspector.protocol import BadMessage, Json, Request
from defserve.wire.jsonvalue import is_array

MOST_ROOTS: Final = 100
LONGEST_ROOT: Final = 4_096
ROOTS_CHANGED: Final = "notifications/roots/list_changed"


async def open_questions(inspection: Inspection, request: Request) -> Any:
    return inspection.questions.open


async def answer(inspection: Inspection, request: Request) -> Any:
    return {"answered": inspection.questions.answer(request.whole("question"), request.object("answer"))}


async def past(inspection: Inspection, request: Request) -> Any:
    """The questions that are over, newest first, and the standing answers."""
    return {"past": list(reversed(inspection.questions.past)), **standing(inspection)}


def standing(inspection: Inspection) -> Json:
    """What is answered without a question, because the person has said so before."""
    roots = [{"uri": root} if isinstance(root, str) else root for root in inspection.questions.roots]
    return {"roots": roots, "model": inspection.questions.model.wire()}


async def set_roots(inspection: Inspection, request: Request) -> Any:
    """The roots from now on. Servers with a session are told that they changed; the others ask each time."""
    given = request.arguments.get("roots")
    if not is_array(given) or len(given) > MOST_ROOTS:
        raise BadMessage(f"roots are a list of at most {MOST_ROOTS}")
    inspection.questions.roots[:] = [_root(object_of(each)) for each in given]
    for connection in inspection.connections.values():
        if (client := connection.client_now) is not None and not client.stateless:
            client.say(ROOTS_CHANGED)
    return _told(inspection)


def _root(given: Json) -> Json:
    uri, name = given.get("uri"), given.get("name", "")
    if not isinstance(uri, str) or not isinstance(name, str) or not 0 < len(uri) <= LONGEST_ROOT >= len(name):
        raise BadMessage("a root has a URI, and may have a name", fix="write it as file:///home/me/project")
    return {"uri": uri, "name": name} if name else {"uri": uri}


async def set_model(inspection: Inspection, request: Request) -> Any:
    """The rules of the scripted model, and whether it answers."""
    rules = request.arguments.get("rules")
    if not is_array(rules):
        raise BadMessage("the argument 'rules' is missing, or is not a list")
    inspection.questions.model.set(request.arguments.get("on") is True, rules)
    return _told(inspection)


def _told(inspection: Inspection) -> Json:
    told = standing(inspection)
    inspection.push("standing", told)
    return told


VERBS: Final[Mapping[str, Verb]] = {
    "questions.list": open_questions,
    "questions.answer": answer,
    "questions.past": past,
    "questions.roots": set_roots,
    "questions.model": set_model,
}
