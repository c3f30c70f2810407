"""What the Kernel panel needs of a kernel, whichever way it is reached."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final, Protocol

from defserve.inspector.protocol import Json


class InspectedKernel(Protocol):
    """A way to a kernel.

    name   how it is reached, for the page: "control" or "mgp"
    pause  seconds between two looks
    verbs  what can be done this way
    """

    name: str
    pause: float
    verbs: Mapping[str, str]

    async def look(self) -> Json:
        """The `status` of the kernel, a row for each of its `servers`, and a `note` if something cannot be told.

        It has `verbs` if this caller may do less than can be done this way.
        """
        ...

    def logs(self, id: str) -> AsyncGenerator[Json]:
        """The lines of a server: those that are kept, then new ones for ever."""
        ...

    async def held(self, id: str) -> list[Json]:
        """The tools of a server that are held because they changed."""
        ...

    async def do(self, verb: str, fields: Mapping[str, str | bool]) -> list[Json]:
        """Do one of `verbs`."""
        ...


COMMANDS: Final[Mapping[str, str]] = {
    "start": "start",
    "stop": "stop",
    "restart": "restart",
    "restart now": "restart --now",
    "accept": "pins accept",
    "reload": "reload",
}
"""A verb of the page, and the words after `defserve kernel` that do the same."""
