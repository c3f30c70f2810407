"""Which sessions want to hear of a resource: few of many, found without looking at the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defserve.core.identity import PeerIdentity
    from defserve.core.session import Session


class SubscribedUris:
    """The resources a session wants to hear of, each with the callers who asked, by credential.

    `listed` are those under which `Subscribers` lists the session.
    """

    __slots__ = ("uris", "listed")

    def __init__(self) -> None:
        self.uris: dict[str, dict[str, PeerIdentity | None]] = {}
        self.listed: frozenset[str] = frozenset()

    def asked_for(self) -> list[str]:
        """Each resource, as often as it was asked for."""
        return [uri for uri, callers in self.uris.items() for _ in callers]

    def drop(self, uris: Iterable[str], is_over: Callable[[PeerIdentity | None], bool]) -> None:
        """Forget those who asked for a resource and no longer do."""
        for uri in list(uris):
            left = {name: caller for name, caller in self.uris.get(uri, {}).items() if not is_over(caller)}
            if left:
                self.uris[uri] = left
            else:
                self.uris.pop(uri, None)


class Subscribers:
    """The sessions of a server by the resources they have subscribed to. From any thread."""

    def __init__(self) -> None:
        self._sessions: dict[str, set[Session]] = {}
        self._lock = threading.Lock()

    def of(self, uri: str) -> list[Session]:
        """Those that want to hear of a resource."""
        return list(self._sessions.get(uri, ()))

    def note(self, session: Session) -> None:
        """What a session has subscribed to may have changed."""
        if (subscribed := session.peek(SubscribedUris)) is None:
            return
        wanted = frozenset(subscribed.uris) if not session.closed else frozenset[str]()
        with self._lock:
            for uri in subscribed.listed - wanted:
                self._sessions[uri].discard(session)
                if not self._sessions[uri]:
                    del self._sessions[uri]
            for uri in wanted - subscribed.listed:
                self._sessions.setdefault(uri, set()).add(session)
            subscribed.listed = wanted
