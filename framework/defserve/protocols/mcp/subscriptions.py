"""MCP change notifications (resources: subscriptions; 2026-07-28: subscriptions/listen): who is told of what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.errors import InvalidParams, LimitExceeded
from defserve.protocols.mcp.lifecycle import PREFIX, Dialect, handshake_only, stateless_only
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.composition import Composition
    from defserve.core.session import Session

SUBSCRIPTION_KEY = PREFIX + "subscriptionId"

# The kind of change: its member in a listen filter, and its notification.
KINDS = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}
UPDATED = "notifications/resources/updated"


class Subscribed:
    """The resources a session wants to hear of."""

    __slots__ = ("uris",)

    def __init__(self) -> None:
        self.uris: set[str] = set()


class Listening:
    """One open `subscriptions/listen` request."""

    __slots__ = ("call", "kinds", "uris")

    def __init__(self, call: Call, kinds: frozenset[str], uris: frozenset[str]) -> None:
        self.call, self.kinds, self.uris = call, kinds, uris

    def tell(self, method: str, params: Params) -> None:
        self.call.notify(method, {**params, "_meta": {SUBSCRIPTION_KEY: self.call.id}})


class Subscriptions:
    """Tells sessions and open listen requests what changed; several changes at once are told once."""

    def __init__(self, readable: Callable[[Call, str], bool]) -> None:
        self.composition: Composition | None = None
        self._readable = readable
        self._listening: set[Listening] = set()
        self._changed: set[str] = set()
        self._forwards: list[Callable[[str], None]] = []

    # -- the client's wishes -----------------------------------------------------------------------------

    def subscribe(self, call: Call, params: Params) -> Params:
        handshake_only(call)
        uri = self._uri(call, params)
        uris = call.session.local(Subscribed).uris
        if uri not in uris and len(uris) >= call.session.composition.limits.subscriptions:
            raise LimitExceeded("too many subscriptions in this session", data={"limit": "subscriptions"})
        uris.add(uri)
        return {}

    def unsubscribe(self, call: Call, params: Params) -> Params:
        handshake_only(call)
        uri = params.get("uri")
        if not isinstance(uri, str):
            raise InvalidParams("Invalid params: uri must be a string")
        call.session.local(Subscribed).uris.discard(uri)
        return {}

    async def listen(self, call: Call, params: Params) -> Params:
        """Stays open until the client cancels it or the server drains."""
        stateless_only(call)
        wanted = params.get("notifications")
        if not isinstance(wanted, dict):
            raise InvalidParams("Invalid params: notifications must be an object")
        listening = self._listening_for(call, wanted)  # pyright: ignore[reportUnknownArgumentType]
        call.endless = True
        self._listening.add(listening)
        honoured: Params = {member: True for kind, member in KINDS.items() if kind in listening.kinds}
        if listening.uris:
            honoured["resourceSubscriptions"] = sorted(listening.uris)
        try:
            listening.tell("notifications/subscriptions/acknowledged", {"notifications": honoured})
            await call.engine.pending()
        except BaseException:
            if call.cancelled or not call.session.composition.draining:
                raise
        finally:
            self._listening.discard(listening)
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_KEY: call.id}}

    def _listening_for(self, call: Call, wanted: Params) -> Listening:
        uris = wanted.get("resourceSubscriptions", [])
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):  # pyright: ignore
            raise InvalidParams("Invalid params: resourceSubscriptions must be a list of URIs")
        if len(uris) > call.session.composition.limits.subscriptions:  # pyright: ignore[reportUnknownArgumentType]
            raise LimitExceeded("too many subscriptions in one request", data={"limit": "subscriptions"})
        kinds = frozenset(kind for kind, member in KINDS.items() if wanted.get(member) is True)
        readable = frozenset(uri for uri in uris if self._readable(call, uri))  # pyright: ignore
        return Listening(call, kinds, readable)  # pyright: ignore[reportUnknownArgumentType]

    def _uri(self, call: Call, params: Params) -> str:
        uri = params.get("uri")
        if not isinstance(uri, str):
            raise InvalidParams("Invalid params: uri must be a string")
        if not self._readable(call, uri):
            from defserve.protocols.mcp.failures import ResourceNotFound

            raise ResourceNotFound(uri)
        return uri

    # -- the server's news -------------------------------------------------------------------------------

    def changed(self, kind: str) -> None:
        """The list of tools, prompts or resources is not what it was. From any thread."""
        engine = self.composition.engine if self.composition is not None else None
        if engine is None:
            return
        first = not self._changed
        self._changed.add(kind)
        if first:
            if engine.on_loop():
                engine.soon(self._tell_changes)
            else:
                engine.post(self._tell_changes)

    def updated(self, uri: str) -> None:
        """A resource's contents changed. From any thread."""
        for forward in self._forwards:
            forward(uri)
        engine = self.composition.engine if self.composition is not None else None
        if engine is None:
            return
        if engine.on_loop():
            self._tell_updated(uri)
        else:
            engine.post(lambda: self._tell_updated(uri))

    def forward(self, updated: Callable[[str], None]) -> None:
        """Pass every update on, to the server this one is mounted on."""
        self._forwards.append(updated)

    def _tell_changes(self) -> None:
        changed, self._changed = self._changed, set()
        for kind in sorted(changed):
            method = f"notifications/{kind}/list_changed"
            for session in self._sessions():
                session.notify(method, {})
            for listening in list(self._listening):
                if kind in listening.kinds:
                    listening.tell(method, {})

    def _tell_updated(self, uri: str) -> None:
        for session in self._sessions():
            subscribed = session.peek(Subscribed)
            if subscribed is not None and uri in subscribed.uris:
                session.notify(UPDATED, {"uri": uri})
        for listening in list(self._listening):
            if uri in listening.uris:
                listening.tell(UPDATED, {"uri": uri})

    def _sessions(self) -> Iterable[Session]:
        """Sessions opened by a handshake that have said they are ready."""
        assert self.composition is not None
        return [s for s in self.composition.sessions if s.ready and s.terms and _handshake(s.terms.profile)]


def _handshake(profile: Any) -> bool:
    return isinstance(profile, Dialect) and not profile.stateless
