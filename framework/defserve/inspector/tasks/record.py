"""What is known of one started tool, and how the page gets it."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import to_json

from defserve.host.fields import Json, object_of, text_of
from defserve.inspector.protocol import error_of

Kind: TypeAlias = Literal["starting", "task", "plain"]
"""`plain`: a call that is no task, because there are none in a session, or because the server answered at once."""

LONGEST_TEXT: Final = 2_000
LONGEST_RESULT: Final = 4 * 1024 * 1024
LONGEST_ARGUMENTS: Final = 64 * 1024
MOST_STEPS: Final = 100


class FollowedRecord:
    """The facts. `steps` are its states so far, newest last; `result` is None while it has none, or a too long one."""

    def __init__(self, number: int, era: str, tool: str, arguments: Json) -> None:
        self.number, self.era, self.tool = number, era, tool
        self.arguments = arguments if _size(arguments) <= LONGEST_ARGUMENTS else None
        self.kind: Kind = "starting"
        self.id: str | None = None
        self.told: Json = {}
        self.status, self.message = "starting", ""
        self.unanswered = ""
        """Why a question of its has no answer. It is shown while the task waits for one, whatever the server says."""
        self.progress: Json | None = None
        self.by = ""
        self.since = time.time()
        self.over: float | None = None
        self.result: Json | None = None
        self.size = 0
        self.error: Json | None = None
        self.steps: deque[Json] = deque(maxlen=MOST_STEPS)

    def step(self, status: str, message: str = "") -> bool:
        """Note the state, and whether it is a new one."""
        message = message[:LONGEST_TEXT]
        if (status, message) == (self.status, self.message):
            return False
        self.status, self.message = status[:LONGEST_TEXT], message
        self.steps.append({"at": time.time(), "status": self.status, "message": message})
        return True

    def end(self, status: str, result: Json | None = None, error: BaseException | None = None) -> None:
        """It is over. Of a result that is too long only the size is kept."""
        self.over = time.time()
        self.error = error_of(error) if error is not None else None
        if result is not None:
            self.size = _size(result)
            self.result = result if self.size <= LONGEST_RESULT else None
        self.step(status, self.message)

    def forget_result(self) -> None:
        self.result = None

    def wire(self) -> Json:
        """For the list: all but the result, the arguments and the steps."""
        told = self.told
        return {
            "task": self.number,
            "era": self.era,
            "tool": self.tool,
            "kind": self.kind,
            "id": self.id,
            "status": self.status,
            "message": (self.status == "input_required" and self.unanswered) or self.message,
            "progress": self.progress,
            "by": self.by,
            "since": self.since,
            "over": self.over,
            "created": _text(told, "createdAt"),
            "updated": _text(told, "lastUpdatedAt"),
            "ttl": _number(told, "ttlMs"),
            "poll": _number(told, "pollIntervalMs"),
            "asks": len(object_of(told.get("inputRequests"))) if self.status == "input_required" else 0,
            "failed": self.error is not None or object_of(self.result).get("isError") is True,
            "error": self.error,
            "size": self.size,
        }

    def whole(self) -> Json:
        kept = {"result": self.result, "arguments": self.arguments, "steps": list(self.steps)}
        return {**self.wire(), **kept}


def _size(value: Any) -> int:
    return len(to_json(value, fallback=str, inf_nan_mode="null"))


def _text(told: Json, name: str) -> str | None:
    found = text_of(told.get(name))
    return found[:100] if found else None


def _number(told: Json, name: str) -> float | None:
    found = told.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 2**53 else None
