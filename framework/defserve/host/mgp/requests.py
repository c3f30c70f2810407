"""What a server that speaks MGP can be asked: its health, to end, and who may use which tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Unpack

from defserve.host.fields import Json
from defserve.host.mgp import access

if TYPE_CHECKING:
    from defserve.host.mgp.health import Drain, Health, Pong, Reason
    from defserve.host.mgp.peer import MgpPeer


class MgpRequests(ABC):
    """Methods that need `mgp`. Each raises PeerError without it."""

    __slots__ = ()

    @property
    @abstractmethod
    def _mgp_peer(self) -> MgpPeer: ...

    async def health(self) -> Health:
        """The server's health, with its resources and checks (MGP §11.3). Needs `mgp`."""
        from defserve.host.mgp import health

        return await health.status(self._mgp_peer)

    async def health_ping(self) -> Pong:
        """The health that the server knows without running its checks."""
        from defserve.host.mgp import health

        return await health.ping(self._mgp_peer)

    async def shutdown(self, reason: Reason = "operator_request", timeout: float = 30.0) -> Drain:
        """Have the server finish its calls within `timeout` seconds, then end (§11.4). For admins and local peers."""
        from defserve.host.mgp import health

        return await health.shutdown(self._mgp_peer, reason, timeout)

    async def access_query(self, agent_id: str, tool: str | None = None) -> Json:
        """Whether an agent may use a tool, or the server (MGP §5.4). Needs `mgp`, and an admin's credentials."""
        return await access.query(self._mgp_peer, agent_id, tool)

    async def access_grant(self, agent_id: str, tool: str | None = None, **entry: Unpack[access.AccessEntry]) -> Json:
        """Allow an agent a tool or the server; with `permission="deny"`, forbid it. Returns the entry."""
        return await access.grant(self._mgp_peer, agent_id, tool, **entry)

    async def access_revoke(self, agent_id: str, tool: str | None = None) -> Json:
        """Remove an entry."""
        return await access.revoke(self._mgp_peer, agent_id, tool)
