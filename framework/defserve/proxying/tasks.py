"""Tasks of backends (both generations), for fronts that take tasks and for those that wait for the result.

| front | backend's tool | |
|---|---|---|
| takes tasks | may run as a task | the task is the front's, under an id of ours |
| stateless, takes none | must run as a task | the backend's refusal |
| handshake, or a call within a call | must run as a task | we take the task, and wait for its result |
| any | must run as a task of 2025-11-25 | we take the task, and wait for its result |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from defserve.errors import PeerError
from defserve.host.fields import Json, object_of
from defserve.host.tasks import LONGEST_POLL, OVER, POLL_SECONDS, SHORTEST_POLL
from defserve.protocols.mcp.tasks.offer import EXTENSION

METHODS: Final = frozenset({"tools/call", "tasks/get", "tasks/update", "tasks/cancel"})
LONGEST_ID: Final = 1024

Ask = Callable[[str, Json], Awaitable[Json]]
"""Sends a method and its params to the backend that has the task."""


def with_tasks(offers: Json) -> Json:
    """What a front offers, and that tasks are taken."""
    return {**offers, "extensions": {**object_of(offers.get("extensions")), EXTENSION: {}}}


def has_tasks(capabilities: Json) -> bool:
    """Whether a server runs tasks of the extension."""
    return EXTENSION in object_of(capabilities.get("extensions"))


def must_be_task(tool: Json) -> bool:
    """Whether a listed tool of 2025-11-25 can only be called as a task."""
    return object_of(tool.get("execution")).get("taskSupport") == "required"


def id_of(created: Json) -> str:
    """The id of a new task. Raises PeerError if there is none that could be used."""
    id = created.get("taskId")
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID:
        raise PeerError("it began a task without a usable id")
    return id


async def outcome(created: Json, ask: Ask, answer: Callable[[Json], Awaitable[Json]]) -> Json:
    """The task of a call when it is over. `answer` gives the answers to its questions, by key."""
    id, found, answered = id_of(created), created, set[str]()
    while found.get("status") not in OVER:
        await asyncio.sleep(_pause(found))
        found = await ask("tasks/get", {"taskId": id})
        asked = object_of(found.get("inputRequests")) if found.get("status") == "input_required" else {}
        # An answer may not show in the task yet. It must not be given twice.
        if new := {key: request for key, request in asked.items() if key not in answered}:
            given = await answer(new)
            answered |= new.keys()
            await ask("tasks/update", {"taskId": id, "inputResponses": given})
    return found


def _pause(task: Json) -> float:
    wanted: Any = task.get("pollIntervalMs")
    seconds = wanted / 1000 if type(wanted) is int else POLL_SECONDS
    return min(max(seconds, SHORTEST_POLL), LONGEST_POLL)
