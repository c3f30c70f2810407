"""A server's health and its end, from the client's side (MGP §11.3, §11.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from defserve.errors import PeerError
from defserve.host.conversation import object_of
from defserve.host.listening import News, NewsFilter, NewsStream

if TYPE_CHECKING:
    from defserve.host.client import Client

CHANGED: Final = "notifications/mgp.lifecycle"

Reason: TypeAlias = Literal[
    "operator_request", "configuration_change", "resource_limit", "idle_timeout", "kernel_shutdown"
]


@dataclass(frozen=True, slots=True)
class Pong:
    """A sign of life. `status` is "healthy", "degraded" or "unhealthy"."""

    status: str
    uptime_secs: float
    server_id: str
    timestamp: str


@dataclass(frozen=True, slots=True)
class Health:
    """How a server is; what it keeps to itself is empty. `problems` has a text for each check that failed."""

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
        """Whether the server says that all is well; degraded is not."""
        return self.status == "healthy"


@dataclass(frozen=True, slots=True)
class Drain:
    """What a server says to being asked to end: whether it will, and how long the calls it has may take."""

    accepted: bool
    pending_requests: int
    estimated_drain_ms: int


async def ping(client: Client) -> Pong:
    from defserve.protocols.mgp import instants

    said = await _ask(client, "mgp/health/ping", {"timestamp": instants.wire(instants.now())})
    return Pong(_status(said), _number(said, "uptime_secs"), str(said.get("server_id")), str(said.get("timestamp")))


async def status(client: Client) -> Health:
    said = await _ask(client, "mgp/health/status", {})
    checks, problems = object_of(said.get("checks")), object_of(said.get("problems"))
    return Health(
        _status(said),
        _number(said, "uptime_secs"),
        int(_number(said, "tools_available")),
        int(_number(said, "tools_total")),
        int(_number(said, "pending_requests")),
        object_of(said.get("resources")),
        {name: passed is True for name, passed in checks.items()},
        {name: str(problem) for name, problem in problems.items()},
    )


async def shutdown(client: Client, reason: str, seconds: float) -> Drain:
    said = await _ask(client, "mgp/lifecycle/shutdown", {"reason": reason, "timeout_ms": round(seconds * 1000)})
    pending, drain = _number(said, "pending_requests"), _number(said, "estimated_drain_ms")
    return Drain(said.get("accepted") is True, int(pending), int(drain))


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


class Lifecycle(NewsStream):
    """`async with client.lifecycle() as changes: async for change in changes`. A server that said it would leave ends
    it by leaving."""

    _leaving = False

    def __init__(self, audience: set[NewsStream]) -> None:
        super().__init__(NewsFilter((), ()), audience)

    async def __aenter__(self) -> Lifecycle:
        await self.open()
        return self

    def __aiter__(self) -> Lifecycle:
        self._audience.add(self)
        return self

    async def __anext__(self) -> Change:
        change = await super().__anext__()
        assert isinstance(change, Change)
        return change

    async def _begin(self) -> None:
        """Whoever negotiated it is told."""

    async def _finish(self) -> None:
        self.end()

    def hear(self, news: News) -> None:
        if news.method == CHANGED:
            change = Change(news.params)
            self._leaving = change.state in ("draining", "disconnected")
            self._keep(change)

    def end(self, reason: PeerError | None = None) -> None:
        super().end(None if self._leaving else reason)


async def _ask(client: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Raises PeerError where the server tells this client nothing of its life."""
    if client.mgp is None or "lifecycle" not in client.mgp.sections:
        raise PeerError("this server offers no lifecycle management to this client")
    return await client.request(method, params)


def _status(said: dict[str, Any]) -> str:
    found = said.get("status")
    if not isinstance(found, str):
        raise PeerError("the server told of its health without a status")
    return found


def _number(said: dict[str, Any], name: str) -> float:
    found = said.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else 0
