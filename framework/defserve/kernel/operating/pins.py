"""`defserve kernel pins`: definitions that have changed and are held, what has changed, and to accept it."""

from __future__ import annotations

from typing import Any, Protocol

from defserve.kernel.governance.governance import Governance
from defserve.kernel.members import Member


class PinnedKernel(Protocol):
    """The part of a kernel that these verbs use."""

    members: dict[str, Member]
    governance: Governance

    def member(self, id: str) -> Member: ...
    async def approve(self, id: str, tool: str | None, digest: str) -> list[dict[str, Any]]: ...


class PinVerbs:
    """Each method is a verb of the control socket."""

    def __init__(self, kernel: PinnedKernel) -> None:
        self._kernel = kernel

    async def list(self, id: str | None = None) -> list[dict[str, Any]]:
        """The held tools of one server, or of all, and the difference to what was pinned."""
        if id is not None:
            self._kernel.member(id)
        await self._kernel.governance.refresh()
        return [
            {
                "id": one,
                "tool": held.name,
                "change": "new" if held.before is None else "changed",
                "pinned": held.before.digest if held.before is not None else None,
                "now": held.now.digest,
                "difference": held.difference(),
            }
            for one in ([id] if id is not None else self._kernel.members)
            for held in self._kernel.governance.pins.held_tools(one)
        ]

    async def accept(self, id: str, tool: str | None = None, digest: str = "") -> list[dict[str, Any]]:
        """Let held tools be used as they are now: one of them, those of a digest, or all."""
        return await self._kernel.approve(id, tool, digest)
