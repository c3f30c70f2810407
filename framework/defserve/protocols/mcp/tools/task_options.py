"""How a tool runs as a task (tasks extension, SEP-2663): what its author says about it, checked when it is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.errors import UsageError
from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools.tools import Tool

TASK: Final = "tasks"
"""The facet of a tool that may run as a task."""

TTL_SECONDS: Final = 3600.0
POLL_SECONDS: Final = 1.0
LONGEST_POLL: Final = 3600.0
MOST_RETRIES: Final = 100


class TaskOptions(NamedTuple):
    """`ttl`: for how many seconds a task is kept, from its creation. `poll`: how often its client should ask for it.

    `is_required`: the tool does not answer at once; clients that take no tasks are refused. `retry`: how often a task
    is run again if the process that runs it dies; 0 means that it has failed then. `begins_later`: the function itself
    says when the task begins, with `ctx.task.begin()`. What it asks before that is asked in the reply to the call.
    """

    is_required: bool
    ttl: float
    poll: float
    retry: int
    begins_later: bool

    @classmethod
    def of(cls, tool: Tool, limits: Limits) -> TaskOptions:
        """Raises UsageError for options that do not fit together, or are beyond what the server allows."""
        options = tool.options
        ttl = TTL_SECONDS if options.ttl is None else options.ttl
        poll = POLL_SECONDS if options.poll is None else options.poll
        retry: Any = options.retry
        if options.task is None:
            raise UsageError(
                f"tool {tool.name!r} is no task, and ttl, poll, retry and begin are for tasks",
                where=tool.where,
                fix='add task="optional" or task="required"',
            )
        problems = {
            f"task={options.task!r}": (
                options.task not in ("optional", "required"),
                'say task="optional" or task="required"',
            ),
            f"ttl={ttl!r}": (
                not _is_between(ttl, 0.001, limits.task_ttl),
                f"give seconds, at most {limits.task_ttl:g} (Limits.task_ttl)",
            ),
            f"poll={poll!r}": (not _is_between(poll, 0.001, LONGEST_POLL), f"give seconds, at most {LONGEST_POLL:g}"),
            f"retry={retry!r}": (
                type(retry) is not int or not 0 <= retry <= MOST_RETRIES,
                f"say how often it may run again, at most {MOST_RETRIES} times",
            ),
            f"begin={options.begin!r}": (options.begin not in ("now", "later"), 'say begin="now" or begin="later"'),
        }
        for said, (is_wrong, fix) in problems.items():
            if is_wrong:
                raise UsageError(f"tool {tool.name!r} cannot run as a task with {said}", where=tool.where, fix=fix)
        return cls(options.task == "required", float(ttl), float(poll), retry, options.begin == "later")


def _is_between(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
