"""The Tasks panel: tools that are started and go on, what becomes of them, and the tasks of others by their id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.host.fields import object_of
from defserve.host.tasks import EXTENSION
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb, asking, era_of
from defserve.inspector.protocol import Request


async def list_tasks(inspection: Inspection, request: Request) -> Any:
    """The tasks of both eras, newest first. `offered`: the server has tasks. `session`: there are none in this era."""
    async with asking(inspection, request) as client:
        offered = EXTENSION in object_of(client.capabilities.get("extensions"))
        return {"tasks": inspection.tasks.wire(), "offered": offered, "session": not client.stateless}


async def start(inspection: Inspection, request: Request) -> Any:
    """Start a tool. What becomes of it is told with the topic `task`."""
    tool, arguments = request.text("tool"), request.object("arguments")
    return inspection.tasks.start(era_of(request) or inspection.connection().era, tool, arguments).record.wire()


async def resume(inspection: Inspection, request: Request) -> Any:
    """Follow a task by its id."""
    async with asking(inspection, request) as client:
        return (await inspection.tasks.resume(client, request.text("taskId"))).record.wire()


async def show(inspection: Inspection, request: Request) -> Any:
    """One task with its arguments, its steps and its result."""
    return inspection.tasks[request.whole("task")].record.whole()


async def refresh(inspection: Inspection, request: Request) -> Any:
    task = inspection.tasks[request.whole("task")]
    await task.refresh()
    return task.record.wire()


async def cancel(inspection: Inspection, request: Request) -> Any:
    task = inspection.tasks[request.whole("task")]
    await task.cancel()
    return task.record.wire()


async def forget(inspection: Inspection, request: Request) -> Any:
    """Drop what is over from the list."""
    inspection.tasks.forget()
    return {"tasks": inspection.tasks.wire()}


VERBS: Final[Mapping[str, Verb]] = {
    "tasks.list": list_tasks,
    "tasks.start": start,
    "tasks.resume": resume,
    "tasks.show": show,
    "tasks.refresh": refresh,
    "tasks.cancel": cancel,
    "tasks.forget": forget,
}
