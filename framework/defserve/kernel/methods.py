"""MGP §6, §11.3, §11.4 at a kernel: health and lifecycle of the server that `server_id` names, and the audit log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from defserve.base.background import BackgroundTasks
from defserve.core.call import Call
from defserve.core.extension import Handler, Next, Wrapper
from defserve.errors import InvalidParams, MethodNotFound, PeerError, UsageError
from defserve.kernel.config.entries import KernelConfig
from defserve.kernel.governance.operators import check_operator
from defserve.kernel.members import Member
from defserve.kernel.operating.audit import KernelAudit
from defserve.kernel.operating.health import health
from defserve.kernel.operating.tools import AUDIT, HEALTH, RESTART
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.agreed import sections
from defserve.protocols.mgp.discovery.operator_tools import Answer
from defserve.protocols.mgp.errors import ServerNotFound, ServerNotReady
from defserve.protocols.mgp.lifecycle.lifecycle import reason_of
from defserve.proxying.backend import Backend
from defserve.server.server import Server
from defserve.wire.messages import Params

PING_SECONDS: Final = 5.0
LONGEST_DRAIN_MS: Final = 3_600_000


class OperatedKernel(Protocol):
    """The part of a kernel that these methods use."""

    config: KernelConfig
    server: Server
    members: dict[str, Member]

    def member(self, id: str) -> Member: ...
    async def restart(self, id: str, now: bool = False) -> dict[str, Any]: ...
    async def stop(self, id: str, reason: str = "", timeout: float | None = None) -> dict[str, Any]: ...


class KernelMethods:
    """Without a `server_id`, or with the kernel's own, the kernel itself is meant. Only operators may name another."""

    def __init__(self, kernel: OperatedKernel) -> None:
        self._kernel, self._audit = kernel, KernelAudit(kernel)
        self._stopping = BackgroundTasks()

    def around(self) -> Mapping[str, Wrapper]:
        return {
            "mgp/health/ping": self._around(self._ping),
            "mgp/health/status": self._around(self._status),
            "mgp/lifecycle/shutdown": self._around(self._shutdown),
        }

    def methods(self) -> Mapping[str, Handler]:
        return {
            "mgp/lifecycle/restart": _where_agreed("lifecycle", self.restart),
            "mgp/audit/replay": _where_agreed("audit", self._audit.replay),
        }

    def tools(self) -> Mapping[str, Answer]:
        """What clients without MGP find as tools."""
        return {HEALTH: self.health, RESTART: self.restart, AUDIT: self._audit.replay}

    def _around(self, answer: Any) -> Wrapper:
        async def wrapper(call: Call, params: Params, following: Next) -> Any:
            id = params.get("server_id")
            if id is None or id == self._kernel.server.mgp.server_id or "lifecycle" not in sections(call):
                return await following(call, params)
            return await answer(self._backend(call, id), params)

        return wrapper

    # -- methods -------------------------------------------------------------------------------------------

    async def _ping(self, backend: Backend, params: Params) -> Params:
        return {
            "status": await self._health(backend),
            "timestamp": instants.wire(instants.now()),
            "uptime_secs": int(time.time() - backend.since),
            "server_id": backend.id,
            "observed_at": instants.wire(instants.now()),
        }

    async def _status(self, backend: Backend, params: Params) -> Params:
        return {
            "server_id": backend.id,
            "status": await self._health(backend),
            "state": backend.state,
            "uptime_secs": int(time.time() - backend.since),
            "tools_available": backend.tools,
            "tools_total": backend.tools,
            "pending_requests": backend.calls,
            "restarts": backend.restarts,
            "observed_at": instants.wire(instants.now()),
        }

    async def _health(self, backend: Backend) -> str:
        """What it answers now. Raises ServerNotReady if it cannot be asked."""
        if backend.state != "connected":
            raise ServerNotReady(
                f"server {backend.id!r} is {backend.state}", data={"server_id": backend.id, "state": backend.state}
            )
        try:
            return await backend.ping(PING_SECONDS) or "healthy"
        except PeerError:
            return "unhealthy"

    async def _shutdown(self, backend: Backend, params: Params) -> Params:
        """Begin to drain and answer at once, with the true numbers."""
        reason, seconds = reason_of(params), self._seconds(params)
        pending = backend.calls
        self._stopping.start(self._kernel.stop(backend.id, reason, seconds))
        return {
            "server_id": backend.id,
            "accepted": True,
            "pending_requests": pending,
            "estimated_drain_ms": int(seconds * 1000) if pending else 0,
        }

    async def health(self, call: Call, params: Params) -> Params:
        """The health of the server that `server_id` names, or of all."""
        check_operator(call, self._kernel.config.settings.admins)
        if (id := params.get("server_id")) is not None:
            self._member(id)
        return {"servers": await health(self._kernel, id)}

    async def restart(self, call: Call, params: Params) -> Params:
        """Start a server again."""
        backend = self._backend(call, params.get("server_id"))
        try:
            done = await self._kernel.restart(backend.id)
        except PeerError:
            raise ServerNotReady(f"server {backend.id!r} did not start again", data={"server_id": backend.id}) from None
        return {"id": backend.id, "status": done["state"]}

    # -- who and which -------------------------------------------------------------------------------------

    def _backend(self, call: Call, id: Any) -> Backend:
        """The server that is meant. Raises PermissionDenied for a caller who is no operator: first, so that it learns
        no ids."""
        check_operator(call, self._kernel.config.settings.admins)
        member = self._member(id)
        if member.backend is None:
            raise ServerNotReady(f"server {id!r} is {member.state}: {member.problem or 'it was not started'}")
        return member.backend

    def _member(self, id: Any) -> Member:
        if not isinstance(id, str):
            raise InvalidParams("Invalid params: server_id must be the id of a server")
        try:
            return self._kernel.member(id)
        except UsageError as error:
            raise ServerNotFound(error.problem, details={"server_id": id[:128]}) from None

    def _seconds(self, params: Params) -> float:
        given = params.get("timeout_ms", self._kernel.config.settings.drain_secs * 1000)
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= LONGEST_DRAIN_MS:
            raise InvalidParams(f"Invalid params: timeout_ms must be a number from 0 to {LONGEST_DRAIN_MS}")
        return given / 1000


def _where_agreed(section: str, handler: Answer) -> Handler:
    """A method that is not found where its section was not agreed on."""

    async def run(call: Call, params: Params) -> Any:
        if section not in sections(call):
            raise MethodNotFound(f"Method not found: {call.method}")
        return await handler(call, params)

    return run
