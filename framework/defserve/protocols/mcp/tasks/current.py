"""The task that a call runs as, for the function that runs in it: `ctx.task`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from defserve.core.call import Call


class RunningTask(Protocol):
    """The task that this function runs as. Use it from any thread, except for `begin`."""

    @property
    def id(self) -> str:
        """The id that the client has. Empty until the task has begun."""
        ...

    @property
    def retries(self) -> int:
        """How often the task may still be run again if this process dies."""
        ...

    def say(self, message: str) -> None:
        """Set the status message, which the client sees when it asks for the task."""
        ...

    async def begin(self) -> None:
        """Begin the task now, if it has not begun. The client gets its id; what follows runs in the background.

        Needed only with `begin="later"`. Raises LimitExceeded if too many tasks are kept, and what the store raises.
        """
        ...


class InTask:
    """The place of the running task in a call."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: RunningTask | None = None


def current_task(call: Call) -> RunningTask | None:
    """The task that a call runs as; None for a plain call."""
    found = call.peek(InTask)
    return found.task if found is not None else None
