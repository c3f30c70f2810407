"""`client.start` without `await`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from defserve.host.tasks import StartedCall

# pytest leaves out the frames of this module, so that a failure shows the line of the test.
__tracebackhide__ = True


class SyncTask:
    """The verbs of `StartedCall`. Made by `SyncClient.start`."""

    def __init__(self, task: StartedCall, do: Callable[[Callable[[Any], Awaitable[Any]]], Any]) -> None:
        self._task, self._do = task, do

    @property
    def id(self) -> str | None:
        """The id of the task; None if the call is no task of the server."""
        return self._task.id

    @property
    def status(self) -> str:
        """What was known last: "working", "input_required", "completed", "failed" or "cancelled"."""
        return self._task.status

    @property
    def message(self) -> str:
        """The status message that was known last."""
        return self._task.message

    def refresh(self) -> str:
        """Ask the server how far the call is; returns the status."""
        return self._do(lambda client: self._task.refresh())

    def result(self) -> Any:
        """The value of the call, when it is there. Prepare answers to questions with `will_answer`.

        Raises ToolError if the tool failed, PeerError if the call failed or was cancelled.
        """
        return self._do(lambda client: self._task.result())

    def result_raw(self) -> dict[str, Any]:
        """The result unchanged, even if it has `isError`."""
        return self._do(lambda client: self._task.result_raw())

    def cancel(self) -> None:
        """Ask the server to stop. It may end all the same."""
        self._do(lambda client: self._task.cancel())
