"""`defserve kernel access`: who may use which server and tool."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final, Protocol

from defserve.errors import UsageError
from defserve.kernel.governance.access import KernelAccess
from defserve.kernel.governance.governance import Governance
from defserve.kernel.members import Member
from defserve.kernel.operating.calling import operate
from defserve.proxying.catalogue.items import RemoteTool
from defserve.server.server import Server

FIX: Final = 'say keys = "keys.json", default_policy = "opt-in" or admins = […] in [kernel], and start the kernel again'

MOST_NAMED: Final = 20


class AccessKernel(Protocol):
    """The part of a kernel that these verbs use."""

    server: Server
    members: dict[str, Member]
    governance: Governance

    def member(self, id: str) -> Member: ...


class AccessVerbs:
    """Each method is a verb of the control socket."""

    def __init__(self, kernel: AccessKernel) -> None:
        self._kernel = kernel

    async def list(self, id: str | None = None, agent: str | None = None) -> list[dict[str, Any]]:
        """The default of each server, and every entry; of one server or agent, if they are named."""
        access = self._access()
        if id is not None:
            self._kernel.member(id)
        await self._kernel.governance.refresh()
        rows: list[dict[str, Any]] = []
        for one in [id] if id is not None else self._kernel.members:
            if (policy := access.named(one)) is None:
                continue
            rows.append({"server_id": one, "default": policy.default})
            for entry in policy.entries():
                if agent in (None, entry.agent_id):
                    state = {"expired": not entry.holds(access.clock())}
                    rows.append({**access.wire(entry, one), **state})
        return rows

    async def grant(
        self,
        agent: str,
        id: str,
        tool: str | None = None,
        reason: str | None = None,
        until: str | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        """Let an agent use a server, or one of its tools by the server's own name of it.

        Raises UsageError for a tool that a connected server does not have, unless `force` is set.
        """
        return await self._set("allow", agent, id, tool, reason, until, force)

    async def deny(
        self,
        agent: str,
        id: str,
        tool: str | None = None,
        reason: str | None = None,
        until: str | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        """Keep an agent from a server, or from one of its tools; see `grant`."""
        return await self._set("deny", agent, id, tool, reason, until, force)

    async def revoke(self, agent: str, id: str, tool: str | None = None) -> dict[str, Any]:
        """Remove an entry: then that of the server counts, or the default."""
        found = await self._operate("mgp_access_revoke", _about(agent, id, tool))
        if not found["revoked"]:
            raise UsageError(f"{agent!r} has no such entry", fix="see `defserve kernel access list`")
        return found

    async def _set(
        self, permission: str, agent: str, id: str, tool: str | None, reason: str | None, until: str | None, force: bool
    ) -> dict[str, Any]:
        if not force:
            self._check_tool(id, tool)
        more = {"permission": permission, "justification": reason, "expires_at": until}
        return await self._operate(
            "mgp_access_grant",
            {**_about(agent, id, tool), **{name: value for name, value in more.items() if value is not None}},
        )

    def _check_tool(self, id: str, tool: str | None) -> None:
        if tool is None or self._kernel.member(id).state != "connected":
            return
        tools = self._kernel.server.mcp.tools.registry
        known = sorted({one.inner for one in tools if isinstance(one, RemoteTool) and one.backend.id == id})
        if tool not in known and known:
            close = get_close_matches(tool, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known[:MOST_NAMED])}."
            raise UsageError(
                f"server {id!r} has no tool {tool[:128]!r}", fix=f"{hint} For a tool that is yet to come: --force"
            )

    async def _operate(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self._access()
        self._kernel.member(arguments["server_id"])
        await self._kernel.governance.refresh()
        return await operate(self._kernel.server, tool, arguments)

    def _access(self) -> KernelAccess:
        if (access := self._kernel.governance.access) is None:
            raise UsageError("this kernel has no access control: it cannot tell its callers apart", fix=FIX)
        return access


def _about(agent: str, id: str, tool: str | None) -> dict[str, Any]:
    named = {"tool_name": tool} if tool is not None else {}
    return {
        "entry_type": "tool_grant" if tool is not None else "server_grant",
        "agent_id": agent,
        "server_id": id,
    } | named
