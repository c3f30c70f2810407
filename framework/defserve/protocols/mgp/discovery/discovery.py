"""The methods of §15: `mgp/discovery/list`, `register` and `deregister`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from defserve.core.call import Call
from defserve.protocols.mgp.agreed import VERSION
from defserve.protocols.mgp.discovery.reading import Registration, ServerFilter, read_id, read_prose
from defserve.wire.messages import Params


@dataclass(frozen=True, slots=True)
class KnownServer:
    """One server, as a caller may know it. `speaks_mgp` False: it is plain MCP."""

    id: str
    status: str
    trust_level: str
    tools: Sequence[str] = ()
    extensions: Sequence[str] = ()
    permissions: Sequence[str] = ()
    speaks_mgp: bool = False
    created_by: str | None = None

    def fits(self, wanted: ServerFilter) -> bool:
        return (
            wanted.status in (None, self.status)
            and wanted.extensions.issubset(self.extensions)
            and wanted.permissions.issubset(self.permissions)
        )

    def wire(self) -> Params:
        told: Params = {
            "id": self.id,
            "status": self.status,
            "mgp_version": VERSION if self.speaks_mgp else None,
            "extensions": list(self.extensions),
            "permissions_required": list(self.permissions),
            "tools": list(self.tools),
            "trust_level": self.trust_level,
        }
        return told if self.created_by is None else {**told, "created_by": self.created_by}


class Directory(Protocol):
    """The servers behind a kernel. It decides what a caller may know and do, and raises Refused."""

    def servers(self, call: Call) -> Sequence[KnownServer]:
        """Those that the caller may know of, with the tools that it may see."""
        ...

    def check(self, call: Call) -> None:
        """Raises Refused unless the caller may add and remove servers. Params are read after that."""
        ...

    async def register(self, call: Call, wanted: Registration) -> tuple[str, str]:
        """Add a server and begin to start it. Returns its status, and what there is to say about it."""
        ...

    async def deregister(self, call: Call, id: str, reason: str) -> None:
        """End a server that was registered, and forget it."""
        ...


class DiscoverySection:
    """The methods over a directory."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory

    async def list(self, call: Call, params: Params) -> Params:
        wanted = ServerFilter.of(params)
        return {"servers": [one.wire() for one in self.directory.servers(call) if one.fits(wanted)]}

    async def register(self, call: Call, params: Params) -> Params:
        self.directory.check(call)
        wanted = Registration.of(params)
        status, message = await self.directory.register(call, wanted)
        return {"id": wanted.id, "status": status, "message": message}

    async def deregister(self, call: Call, params: Params) -> Params:
        self.directory.check(call)
        id, reason = read_id(params), read_prose(params, "reason")
        await self.directory.deregister(call, id, reason)
        return {"id": id, "status": "deregistered", "message": f"{id} has ended and is forgotten"}
