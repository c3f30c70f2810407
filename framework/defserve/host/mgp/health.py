"""MGP §11.3, §11.4: the health of a server, changes of its state, and asking it to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from defserve.errors import PeerError
from defserve.host.fields import object_of
from defserve.host.listening import News, NewsFilter, NewsStream

if TYPE_CHECKING:
    from defserve.host.mgp.peer import MgpPeer

CHANGED: Final = "notifications/mgp.lifecycle"

Reason: TypeAlias = Literal[
    "operator_request", "configuration_change", "resource_limit", "idle_timeout", "kernel_shutdown"
]


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a health ping. `status` is "healthy", "degraded" or "unhealthy"."""

    status: str
    uptime_secs: float
    server_id: str
    timestamp: str


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a server. Fields that the server does not send are empty. `problems`: a text per failed check."""

    status: str
    uptime_secs: float
    tools_available: int
    tools_total: int
    pending_requests: int
    resources: dict[str, Any]
    checks: dict[str, bool]
    problems: dict[str, str]

    @property
    def is_healthy(self) -> bool:
        """Whether the status is "healthy"; "degraded" is not."""
        return self.status == "healthy"


@dataclass(frozen=True, slots=True)
class Drain:
    """A server's answer to a shutdown request: whether it will end, and how long its open calls may take."""

    accepted: bool
    pending_requests: int
    estimated_drain_ms: int


async def ping(peer: MgpPeer) -> Pong:
    from defserve.protocols.mgp import instants

    reply = await peer.request("lifecycle", "mgp/health/ping", {"timestamp": instants.wire(instants.now())})
    return Pong(_status(reply), _number(reply, "uptime_secs"), str(reply.get("server_id")), str(reply.get("timestamp")))


async def status(peer: MgpPeer) -> Health:
    reply = await peer.request("lifecycle", "mgp/health/status", {})
    checks, problems = object_of(reply.get("checks")), object_of(reply.get("problems"))
    return Health(
        _status(reply),
        _number(reply, "uptime_secs"),
        int(_number(reply, "tools_available")),
        int(_number(reply, "tools_total")),
        int(_number(reply, "pending_requests")),
        object_of(reply.get("resources")),
        {name: passed is True for name, passed in checks.items()},
        {name: str(problem) for name, problem in problems.items()},
    )


async def shutdown(peer: MgpPeer, reason: str, seconds: float) -> Drain:
    params = {"reason": reason, "timeout_ms": round(seconds * 1000)}
    reply = await peer.request("lifecycle", "mgp/lifecycle/shutdown", params)
    return Drain(
        reply.get("accepted") is True,
        int(_number(reply, "pending_requests")),
        int(_number(reply, "estimated_drain_ms")),
    )


class Change(News):
    """A server went from one state to another."""

    __slots__ = ("server_id", "previous", "state", "reason", "timestamp")

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(CHANGED, params)
        self.server_id, self.reason = str(params.get("server_id")), str(params.get("reason"))
        self.previous, self.state = str(params.get("previous_state")), str(params.get("new_state"))
        self.timestamp = str(params.get("timestamp"))

    def __repr__(self) -> str:
        return f"Change({self.previous!r} to {self.state!r}, {self.reason!r})"


class LifecycleChanges(NewsStream[Change]):
    """`async with client.lifecycle() as changes: async for change in changes`.

    If the server announced that it would leave, iterating stops when it does, without an error.
    """

    _leaving = False

    def __init__(self, listeners: set[NewsStream[Any]]) -> None:
        super().__init__(NewsFilter(), listeners)

    def __aiter__(self) -> LifecycleChanges:
        self._listeners.add(self)
        return self

    async def _begin(self) -> None:
        """Nothing to ask for: the server tells every client that negotiated it."""

    async def _finish(self) -> None:
        self.end()

    def hear(self, news: News) -> None:
        if news.method == CHANGED:
            change = Change(news.params)
            self._leaving = change.state in ("draining", "disconnected")
            self._keep(change)

    def end(self, reason: PeerError | None = None) -> None:
        super().end(None if self._leaving else reason)


def _status(reply: dict[str, Any]) -> str:
    found = reply.get("status")
    if not isinstance(found, str):
        raise PeerError("the server reported its health without a status")
    return found


def _number(reply: dict[str, Any], name: str) -> float:
    found = reply.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else 0
