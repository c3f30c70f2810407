"""MGP §15: the servers of a kernel as a directory that peers may read, and operators change while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from defserve.base.background import BackgroundTasks
from defserve.errors import InvalidParams
from defserve.kernel.governance.operators import check_operator, is_operator
from defserve.kernel.governance.registering import check_rules, entry_of
from defserve.kernel.governance.said import governed, said_permissions, true_extensions
from defserve.kernel.governance.trust import level_of
from defserve.kernel.members import Creator, Member
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mgp.discovery.discovery import KnownServer
from defserve.protocols.mgp.errors import PermissionDenied, ResourceExhausted, ServerExists, ServerNotFound
from defserve.protocols.mgp.tool_discovery.catalogue import as_search

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import Session
    from defserve.kernel.config.entries import KernelConfig, ServerEntry
    from defserve.protocols.mgp.discovery.reading import Registration
    from defserve.server.server import Server

MOST_REGISTERED: Final = 64
OPEN_SECONDS: Final = 10.0
RETRY_MS: Final = 1_000
REGISTERED, DEREGISTERED = "dev.defserve.server_registered", "dev.defserve.server_deregistered"


class ListedKernel(Protocol):
    """The part of a kernel that a directory uses."""

    config: KernelConfig
    server: Server
    members: dict[str, Member]
    leaving: dict[str, Member]
    ending: BackgroundTasks

    async def add(self, entry: ServerEntry, creator: Creator) -> Member: ...
    async def remove(self, id: str, reason: str) -> None: ...


class KernelDirectory:
    """Operators know all servers. Others know those of which they see a tool."""

    def __init__(self, kernel: ListedKernel) -> None:
        self._kernel = kernel
        self._ending = BackgroundTasks()

    # -- list ----------------------------------------------------------------------------------------------

    def servers(self, call: Call) -> Sequence[KnownServer]:
        visible, asker = call.session.composition.visible, as_search(call)
        tools: dict[str, list[str]] = {}
        for tool in self._kernel.server.mcp.tools.registry:
            if tool.backend is not None and visible(asker, tool):
                tools.setdefault(tool.backend.id, []).append(tool.name)
        knows_all = is_operator(identity(call), self._kernel.config.settings.admins)
        members = self._kernel.members.values()
        return [_known(member, tools.get(member.id, ())) for member in members if knows_all or member.id in tools]

    # -- register ------------------------------------------------------------------------------------------

    def check(self, call: Call) -> None:
        check_operator(call, self._kernel.config.settings.admins)

    async def register(self, call: Call, wanted: Registration) -> tuple[str, str]:
        settings = self._kernel.config.settings
        caller = check_operator(call, settings.admins)
        if not settings.register.enabled:
            raise PermissionDenied("this kernel takes no registrations: [kernel.register] of its file is not enabled")
        if dialect_of(call).stateless and not wanted.keep:
            raise InvalidParams(
                "Invalid params: a request without a session has no end at which the server could end: send keep: true"
            )
        await check_rules(wanted, settings.register)
        entry = entry_of(wanted, self._kernel.config.path.parent, caller.id)
        self._check_room(wanted.id)
        await self._record(call, REGISTERED, wanted.id, wanted.justification, wanted.created_by, entry.launch.shown)
        self._check_room(wanted.id)
        session = None if wanted.keep else call.root.session
        member = await self._kernel.add(entry, Creator(caller.id, wanted.justification, session))
        if member.backend is None:
            return "error", member.problem
        await member.backend.ready(OPEN_SECONDS)
        note = member.hidden(member.backend.note) if member.state != "connected" else "its tools are listed"
        return member.state, note or "it is being started"

    def _check_room(self, id: str) -> None:
        if id in self._kernel.leaving:
            raise ServerExists(
                f"server {id!r} is still ending: try again shortly", details={"server_id": id}, retry_after_ms=RETRY_MS
            )
        # One of the file may not be a member yet.
        of_file = (entry.id for entry in self._kernel.config.servers)
        if id in (*self._kernel.members, *of_file, self._kernel.server.mgp.server_id):
            raise ServerExists(f"there is a server {id!r} already", details={"server_id": id})
        if sum(member.creator is not None for member in self._kernel.members.values()) >= MOST_REGISTERED:
            raise ResourceExhausted(f"{MOST_REGISTERED} servers are registered, and no more can be")

    # -- deregister ----------------------------------------------------------------------------------------

    async def deregister(self, call: Call, id: str, reason: str) -> None:
        check_operator(call, self._kernel.config.settings.admins)
        member = self._kernel.members.get(id)
        if member is None:
            raise ServerNotFound(f"there is no server {id!r}", details={"server_id": id})
        if member.creator is None:
            raise PermissionDenied(f"{id} comes from the kernel's file: remove it there")
        await self._record(call, DEREGISTERED, id, reason)
        if self._kernel.members.get(id) is member:
            await self._kernel.remove(id, reason or "deregistered")

    def session_closed(self, session: Session) -> None:
        """End what was registered in a conversation that has ended."""
        members = self._kernel.members.values()
        for id in [one.id for one in members if one.creator is not None and one.creator.session is session]:
            self._ending.start(self._kernel.remove(id, "its creator has left"))

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """When it ends, what was ending has ended: no process is left behind."""
        try:
            yield
        finally:
            await asyncio.gather(*self._ending, return_exceptions=True)
            await asyncio.gather(*self._kernel.ending, return_exceptions=True)

    async def _record(self, call: Call, event: str, id: str, why: str, claimed: str = "", where: str = "") -> None:
        """A change that cannot be recorded is not made."""
        details = {"id": id, "reason": why, "created_by": claimed, "where": where}
        audit = self._kernel.server.mgp.audit
        told = {name: value for name, value in details.items() if value}
        await call.in_thread(lambda: audit.report(call, event, details=told, durable=True))


def _known(member: Member, tools: Sequence[str]) -> KnownServer:
    """Before the server is open, what the file says. After that, what is true of it."""
    entry, said, mgp = member.entry, member.said, member.entry.mgp
    extensions = mgp.extensions if mgp is not None else ()
    permissions = mgp.permissions_required if mgp is not None else ()
    if member.state == "connected" and said is not None:
        extensions = true_extensions(entry, said)
        permissions = tuple(dict.fromkeys((*permissions, *said_permissions(said))))
    return KnownServer(
        member.id,
        member.state,
        level_of(governed(entry, said)),
        tools,
        extensions,
        permissions,
        speaks_mgp=bool(extensions),
        created_by=member.creator.id if member.creator is not None else None,
    )
