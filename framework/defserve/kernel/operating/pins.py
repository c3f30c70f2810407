"""`defserve kernel pins`: definitions that have changed and are held, what has changed, and to accept it."""

from __future__ import annotations

from typing import Any, Protocol

from defserve.kernel.governance.governance import Governance
from defserve.kernel.governance.pins import digest_of_all
from defserve.kernel.members import Member


class PinnedKernel(Protocol):
    """The part of a kernel that these verbs use."""

    members: dict[str, Member]
    governance: Governance

    def member(self, id: str) -> Member: ...
    async def approve(self, id: str, tool: str | None, digest: str, unseen: bool) -> list[dict[str, Any]]: ...


class PinVerbs:
    """Each method is a verb of the control socket."""

    def __init__(self, kernel: PinnedKernel) -> None:
        self._kernel = kernel

    async def list(self, id: str | None = None) -> list[dict[str, Any]]:
        """The held tools of one server, or of all, and the difference to what was pinned."""
        if id is not None:
            self._kernel.member(id)
        await self._kernel.governance.refresh()
        rows: list[dict[str, Any]] = []
        for one in [id] if id is not None else self._kernel.members:
            held = self._kernel.governance.pins.held_tools(one)
            all_held = digest_of_all(held)
            for tool in held:
                difference = tool.difference()
                rows.append(
                    {
                        "id": one,
                        "tool": tool.name,
                        "change": tool.change,
                        "pinned": tool.before.digest if tool.before is not None else None,
                        "now": tool.now.digest,
                        "all": all_held,
                        "difference": difference.lines,
                        "left_out": difference.left_out,
                    }
                )
        return rows

    async def accept(
        self, id: str, tool: str | None = None, digest: str = "", unseen: bool = False
    ) -> list[dict[str, Any]]:
        """Let held tools be used as they were shown: those that the digest names. See `Governance.approve`."""
        return await self._kernel.approve(id, tool, digest, unseen)
