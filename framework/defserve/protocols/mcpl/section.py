"""What the parts of MCPL have in common: what each knows of its server, and what each is told."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from defserve.core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from defserve.core.composition import Composition
    from defserve.core.session import Session
    from defserve.protocols.mcp.function import FindProvider
    from defserve.protocols.mcpl.feature import Feature


class OtherProcesses(Protocol):
    """The other processes that serve the same sessions."""

    async def find(self, principal: str) -> None:
        """Get to know the sessions of a principal, wherever they were opened."""

    async def once(self, session: Session, key: str, work: Callable[[], Awaitable[tuple[str, bool]]]) -> str:
        """The outcome of `work`, or of another process that did it for this session and key. The bool: keep it."""
        ...

    def publish(self, verb: str, value: Any) -> None:
        """Have the others do this for the sessions that they own. `MCPL.received` gets it there."""


class LiveServer:
    """What the sections know of their server, which is the `owner`. `composition` is None until it is composed."""

    __slots__ = ("composition", "find_provider", "owner", "sets", "others")

    def __init__(self, find_provider: FindProvider, owner: object) -> None:
        self.find_provider, self.owner = find_provider, owner
        self.sets: Registry[Feature] = Registry("feature set")
        self.composition: Composition | None = None
        self.others: OtherProcesses | None = None

    @property
    def sessions(self) -> list[Session]:
        """The sessions that are open now; none before the server is composed."""
        return list(self.composition.sessions) if self.composition is not None else []

    def for_each_session(self, action: Callable[[Session], None]) -> None:
        """Do something for every session, on its event loop. From any thread."""
        for session in self.sessions:
            engine = session.engine
            if engine.ready and engine.on_loop():
                action(session)
            elif engine.ready:
                engine.post(partial(action, session))


class Section:
    """One part of MCPL, made when it is first needed. Override the methods whose events matter to it."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server

    def lifespan(self) -> AbstractAsyncContextManager[None] | None:
        """Entered when the server starts."""
        return None

    def session_changed(self, session: Session) -> None:
        """A host that speaks MCPL is ready, or its `featureSets/update` has taken effect. On the session's loop."""

    def session_closed(self, session: Session) -> None:
        """The conversation ended. Called on the session's loop."""

    def removed(self, feature_set: Feature) -> None:
        """The author took a set back. Called in the author's thread."""
