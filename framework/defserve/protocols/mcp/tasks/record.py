"""What is kept of a task, and how the wire shows it (tasks extension: Task, CreateTaskResult, DetailedTask)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pydantic_core import from_json, to_json

from defserve.wire.messages import Params

Status: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]

TERMINAL: Final[frozenset[Status]] = frozenset(("completed", "failed", "cancelled"))
MOST_MESSAGE: Final = 1024
NOBODY: Final = ""
"""The runner of a task that waits to be run again."""

_LATER_FIELDS: Final = frozenset(("brought", "marks", "stranger"))
"""Left out if empty, so that a process of an older version, which does not know them, reads most tasks."""


@dataclass(slots=True)
class TaskRecord:
    """One task. Times are milliseconds since the epoch, `ttl` and `poll` milliseconds.

    `owner` is None if whoever has the id may use it; `rights` are those of the call that made it. `runner` is the
    process that runs it, `retries` how often another may run it again. `revision` grows with every change.
    `questions` are the requests that wait for an answer, each with the digest of what it says. `answers` are those
    given, with the digest of their question: a run that begins again finds them. `effects` is what `ctx.once` gave,
    `arguments` are those of the call, `brought` is what else its request had, and `marks` are those of the call; they
    are kept only if it may run again. `stranger` is the address of who made it, if nobody vouches for them.
    `elsewhere` says where it runs, if another server runs it.
    """

    id: str
    tool: str
    created: int
    updated: int
    ttl: int
    poll: int
    owner: str | None
    rights: Any
    runner: str
    retries: int
    revision: int = 0
    status: Status = "working"
    message: str = ""
    questions: dict[str, Params] = field(default_factory=dict[str, Params])
    answers: dict[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    effects: Params = field(default_factory=Params)
    arguments: Params | None = None
    elsewhere: Params | None = None
    brought: Params = field(default_factory=Params)
    marks: dict[str, str] = field(default_factory=dict[str, str])
    stranger: str = ""

    @classmethod
    def read(cls, data: bytes) -> TaskRecord:
        return cls(**from_json(data))

    def encoded(self) -> bytes:
        said = asdict(self)
        return to_json({name: value for name, value in said.items() if value or name not in _LATER_FIELDS})

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL

    @property
    def weight(self) -> int:
        """Bytes of the questions, answers and effects."""
        return len(to_json([self.questions, self.answers, self.effects]))

    @property
    def expires(self) -> int:
        return self.created + self.ttl

    def end(self, status: Status, message: str = "") -> None:
        """It is over. Questions that nobody answered are dropped, and so is what a further run would need."""
        self.status, self.message = status, message[:MOST_MESSAGE]
        self.questions, self.answers, self.effects, self.arguments = {}, {}, {}, None
        self.brought, self.marks = {}, {}

    def wire(self) -> Params:
        """The fields that every form of a task has."""
        said: Params = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": _iso(self.created),
            "lastUpdatedAt": _iso(self.updated),
            "ttlMs": self.ttl,
            "pollIntervalMs": self.poll,
        }
        return {**said, "statusMessage": self.message} if self.message else said


class StoredTask(NamedTuple):
    """A record and, if the task has an outcome, the encoded `{"result": …}` or `{"error": …}`."""

    record: TaskRecord
    outcome: bytes | None = None

    def detailed(self) -> Params:
        """The task as `tasks/get` and notifications tell it."""
        said = self.record.wire()
        if self.record.status == "input_required":
            asked = self.record.questions.items()
            said["inputRequests"] = {key: {"method": one["method"], "params": one["params"]} for key, one in asked}
        elif self.outcome is not None:
            said |= from_json(self.outcome)
        return said


def _iso(milliseconds: int) -> str:
    from defserve.wire.instants import instant_at

    return instant_at(milliseconds / 1000, "milliseconds")
