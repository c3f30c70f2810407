"""Which of the sessions that a process knows it tells news. There may be many, and news may come often."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class OwnableSession(Protocol):
    """What of a session says whether it is told news, and whether it is known what it wants to hear."""

    @property
    def is_closed(self) -> bool: ...
    @property
    def is_owner(self) -> bool: ...
    @property
    def is_stale(self) -> bool: ...


S = TypeVar("S", bound=OwnableSession)


class OwnedSessions(Generic[S]):
    """`all` are those that this process owns, `stale` those of them that another process has changed since.

    A session says itself when one of the two may have changed.
    """

    __slots__ = ("all", "stale")

    def __init__(self) -> None:
        self.all: dict[S, None] = {}
        self.stale: set[S] = set()

    def update_session(self, session: S) -> None:
        """Whether it is owned, or stale, may have changed."""
        if session.is_closed or not session.is_owner:
            self.all.pop(session, None)
            self.stale.discard(session)
            return
        self.all[session] = None
        if session.is_stale:
            self.stale.add(session)
        else:
            self.stale.discard(session)
