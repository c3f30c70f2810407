"""MCP change notifications (resources: subscriptions; 2026-07-28: subscriptions/listen): who is told of what."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from defserve.core.call import Call
from defserve.core.extension import Extension, Handler
from defserve.core.json_values import is_array
from defserve.core.messages import Params
from defserve.core.peer import can_act_for
from defserve.errors import InvalidParams, LimitExceeded, TooManyCalls
from defserve.protocols.mcp.errors import ResourceNotFound, read_object_param, read_text_param
from defserve.protocols.mcp.items import WaitForLateItems
from defserve.protocols.mcp.lifecycle import MCP_NAMESPACE, Dialect, require_handshake, require_stateless

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.core.composition import Composition
    from defserve.core.engine import Engine
    from defserve.core.peer import PeerIdentity
    from defserve.core.session import Session
    from defserve.proxying.mounts import Mounts

    Hears = Callable[[Session, PeerIdentity | None], bool]

SUBSCRIPTION_ID_META_KEY = MCP_NAMESPACE + "subscriptionId"

# The kind of change: its member in a listen filter, and its notification.
LIST_CHANGED_FILTERS = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}
RESOURCE_UPDATED_METHOD = "notifications/resources/updated"
_LIST_CHANGED = "notifications/%s/list_changed"

# What other processes are told of.
LIST, RESOURCE = "list", "resource"

# The most bytes of the URIs of one session, or of one request.
MAX_URI_BYTES = 256 * 1024

SendNotification = Callable[[str, Params], None]


URI = "uri "
"""How what is kept of a session is named."""


class GrantedFilter(NamedTuple):
    """What a listener is granted of a further member of its filter. `begin` is called after the acknowledgement.

    What is `honoured` is told to the listener, unless it is False.
    """

    honoured: list[str] | bool
    begin: Callable[[], None]
    end: Callable[[], None]


Follow = Callable[[Call, Any, SendNotification], Awaitable[GrantedFilter]]


class ListenRequest:
    """One open `subscriptions/listen` request."""

    __slots__ = ("call", "kinds", "uris")

    def __init__(self, call: Call, kinds: frozenset[str], uris: frozenset[str]) -> None:
        self.call, self.kinds, self.uris = call, kinds, uris

    def notify(self, method: str, params: Params) -> None:
        self.call.notify(method, {**params, "_meta": {SUBSCRIPTION_ID_META_KEY: self.call.id}})


class Subscriptions(Extension):
    """Tells sessions and open listen requests what changed; several changes at once are told once."""

    def __init__(self, find_resource: Callable[[Call, str], object | None]) -> None:
        self.composition: Composition | None = None
        self._find_resource = find_resource
        self._listening: set[ListenRequest] = set()
        self._subscribers = Subscribers()
        self._changed: dict[Engine, set[str]] = {}
        self._changing = threading.Lock()
        self._forwards: list[Callable[[str], None]] = []
        self.source: Mounts | None = None
        self.late: WaitForLateItems | None = None
        self._follows: dict[str, Follow] = {}
        self.share: Callable[[str, str], object] | None = None
        """Tells other processes, and sessions that they share, of a change: a list or a resource, and which."""
        self._told_elsewhere = threading.local()

    @contextmanager
    def suppress_sharing(self) -> Generator[None]:
        """What changes here, in this thread, is told to the other processes by another one."""
        self._told_elsewhere.is_on = True
        try:
            yield
        finally:
            self._told_elsewhere.is_on = False

    def add_filter_member(self, member: str, follow: Follow) -> None:
        """Let a listener's filter have a further member, which `follow` reads. It may raise to refuse the request."""
        self._follows[member] = follow

    # -- what clients ask for ----------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        is_mixed = self.source is not None
        return {
            "resources/subscribe": self.subscribe_elsewhere if is_mixed else self.subscribe,
            "resources/unsubscribe": self.unsubscribe_elsewhere if is_mixed else self.unsubscribe,
            "subscriptions/listen": self.listen,
        }

    def subscribe(self, call: Call, params: Params) -> Params:
        require_handshake(call)
        uri = read_text_param(params, "uri")
        if self._find_resource(call, uri) is None:
            raise ResourceNotFound(uri)
        subscribed, caller = call.session.local(SubscribedUris), call.identity
        name, known = caller.credential if caller is not None else "", subscribed.uris.get(uri, {})
        if name not in known and not _is_within_limits([*subscribed.list_requested_uris(), uri], call):
            raise LimitExceeded("too many subscriptions in this session", data={"limit": "subscriptions"})
        subscribed.uris[uri] = {**known, name: caller}
        self._note_subscriptions(call.session)
        return {}

    def unsubscribe(self, call: Call, params: Params) -> Params:
        require_handshake(call)
        subscribed = call.session.local(SubscribedUris)
        subscribed.drop_unsubscribed(
            [read_text_param(params, "uri")], lambda caller: can_act_for(call.identity, caller)
        )
        self._note_subscriptions(call.session)
        return {}

    def _note_subscriptions(self, session: Session) -> None:
        self._subscribers.refresh_session(session)
        session.mark_dirty()

    async def subscribe_elsewhere(self, call: Call, params: Params) -> Params:
        """`subscribe`, where there is a `source`."""
        require_handshake(call)
        if self.late is not None:
            await self.late(call, read_text_param(params, "uri"))
        answer = self.subscribe(call, params)
        if self.source is not None:
            await self.source.watch_resources(call, [params["uri"]])
        return answer

    async def unsubscribe_elsewhere(self, call: Call, params: Params) -> Params:
        """`unsubscribe`, where there is a `source`."""
        subscribed = call.session.peek(SubscribedUris)
        was_known = subscribed is not None and params.get("uri") in subscribed.uris
        answer = self.unsubscribe(call, params)
        if self.source is not None and was_known:
            await self.source.unwatch_resources(call, [params["uri"]])
        return answer

    async def listen(self, call: Call, params: Params) -> Params:
        """Stays open until the client cancels it or the server drains."""
        require_stateless(call)
        _check_room(call)
        wanted = read_object_param(params, "notifications")
        if self.late is not None and "resourceSubscriptions" in wanted:
            await self.late(call, "")
        listening = self._listening_for(call, wanted)
        followed = {
            member: await follow(call, wanted[member], listening.notify)
            for member, follow in self._follows.items()
            if member in wanted
        }
        call.endless = True
        call.session.make_room(1)
        self._listening.add(listening)
        honoured: Params = {member: True for kind, member in LIST_CHANGED_FILTERS.items() if kind in listening.kinds}
        if listening.uris:
            honoured["resourceSubscriptions"] = sorted(listening.uris)
        honoured |= {member: each.honoured for member, each in followed.items() if each.honoured is not False}
        is_watched = False
        try:
            if self.source is not None and listening.uris:
                await self.source.watch_resources(call, listening.uris)
                is_watched = True
            listening.notify("notifications/subscriptions/acknowledged", {"notifications": honoured})
            for each in followed.values():
                each.begin()
            await call.engine.create_future()
        except BaseException:
            if call.cancelled or not call.session.composition.draining:
                raise
        finally:
            for each in followed.values():
                each.end()
            self._listening.discard(listening)
            call.session.make_room(-1)
            if self.source is not None and is_watched:
                call.engine.spawn(self.source.unwatch_resources(call, listening.uris))
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: call.id}}

    def _listening_for(self, call: Call, wanted: Params) -> ListenRequest:
        uris = wanted.get("resourceSubscriptions", [])
        if not is_array(uris) or not all(isinstance(uri, str) for uri in uris):
            raise InvalidParams("Invalid params: resourceSubscriptions must be a list of URIs")
        if not _is_within_limits(uris, call):
            raise LimitExceeded("too many subscriptions in one request", data={"limit": "subscriptions"})
        kinds = frozenset(kind for kind, member in LIST_CHANGED_FILTERS.items() if wanted.get(member) is True)
        return ListenRequest(call, kinds, frozenset(uri for uri in uris if self._find_resource(call, uri) is not None))

    def credential_ended(self, session: Session, credential: str) -> None:
        """Forget what was subscribed to with a key or token that is no longer good."""
        if (subscribed := session.peek(SubscribedUris)) is not None:
            subscribed.drop_unsubscribed(
                subscribed.uris, lambda caller: caller is not None and caller.credential == credential
            )
            self._note_subscriptions(session)

    def session_closed(self, session: Session) -> None:
        self._subscribers.refresh_session(session)

    def export_state(self, session: Session) -> Params:
        """What a session is subscribed to, for another process."""
        if (subscribed := session.peek(SubscribedUris)) is None:
            return {}
        from defserve.auth.principals import encode_principal

        return {
            f"{URI}{uri}": {
                name: encode_principal(cast("Principal", caller)) if caller is not None else None
                for name, caller in callers.items()
            }
            for uri, callers in subscribed.uris.items()
        }

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        """What another process has `kept`."""
        from defserve.auth.principals import decode_principal

        mine = {name.removeprefix(URI): callers for name, callers in kept.items() if name.startswith(URI)}
        if mine or session.peek(SubscribedUris) is not None:
            session.local(SubscribedUris).uris = {
                uri: {
                    name: decode_principal(caller) if caller is not None else None for name, caller in callers.items()
                }
                for uri, callers in mine.items()
            }
            self._subscribers.refresh_session(session)

    # -- what clients are told ---------------------------------------------------------------------------

    def notify_list_changed(self, kind: str) -> None:
        """The list of tools, prompts or resources has changed. From any thread."""
        if self.share is not None and not getattr(self._told_elsewhere, "is_on", False):
            self.share(LIST, kind)
        for engine in self._engines(self._all_sessions()):
            # Between the two lines, the loop must not take the set and tell what is in it.
            with self._changing:
                first = not (kinds := self._changed.setdefault(engine, set()))
                kinds.add(kind)
            if first and not _run(engine, partial(self._tell_changes, engine)):
                self._changed.pop(engine, None)

    def notify_resource_updated(
        self, uri: str, principal: str | None = None, session: Session | None = None, hears: Hears | None = None
    ) -> None:
        """A resource's contents changed, for everybody, for one principal or in one session. From any thread.

        Of those who asked, only the callers are told for whom `hears` is true: rights may have ended since.
        """
        for forward in self._forwards if principal is None and session is None else ():
            forward(uri)
        if self.share is not None and principal is None and session is None and hears is None:
            self.share(RESOURCE, uri)
        for engine in self._engines(self._subscribers.find_by_uri(uri)):
            _run(engine, partial(self._tell_updated, engine, uri, principal, session, hears))

    def _all_sessions(self) -> list[Session]:
        return list(self.composition.sessions) if self.composition is not None else []

    def _engines(self, sessions: Iterable[Session]) -> set[Engine]:
        """The loops on which these sessions may want to hear of changes, or somebody listens."""
        listening = {each.call.engine for each in list(self._listening)}
        return listening | {session.engine for session in sessions if session.engine.ready}

    def add_update_listener(self, updated: Callable[[str], None]) -> None:
        """Call `updated` with every update that is for everybody. Used to tell the server this one is mounted on."""
        self._forwards.append(updated)

    def find_concerned_sessions(self, what: str, name: str) -> list[Session] | None:
        """The sessions of this process that want to hear of a change. None: all of them may."""
        return self._subscribers.find_by_uri(name) if what == RESOURCE else None

    def deliver_shared_change(self, what: str, name: str, shared: Iterable[Session]) -> None:
        """A process has shared a change, of which these sessions are told, as far as it concerns them."""
        tell = self._tell_subscribers if what == RESOURCE else self._tell_list
        tell(self._select_ready(shared), name)

    def deliver_change_locally(self, what: str, name: str) -> None:
        """Another process has shared a change, of which those are told that only this process knows."""
        for forward in self._forwards if what == RESOURCE else ():
            forward(name)
        for engine in self._engines(self._subscribers.find_by_uri(name) if what == RESOURCE else self._all_sessions()):
            if not engine.is_on_loop():
                continue
            if what == RESOURCE:
                self._tell_updated(engine, name, None, None, None)
            else:
                self._tell_list(self._sessions(engine), name)
                self._tell_listening(engine, name)

    def tell_session_everything_changed(self, session: Session) -> None:
        """What has changed is no longer known, so a session is told that everything may have."""
        for kind in LIST_CHANGED_FILTERS:
            self._tell_list(self._select_ready([session]), kind)
        if (subscribed := session.peek(SubscribedUris)) is not None:
            for uri in subscribed.uris:
                self._tell_subscribers(self._select_ready([session]), uri)

    def _tell_changes(self, engine: Engine) -> None:
        with self._changing:
            kinds = self._changed.pop(engine, ())
        for kind in sorted(kinds):
            self._tell_list(self._sessions(engine), kind)
            self._tell_listening(engine, kind)

    def _tell_list(self, sessions: Iterable[Session], kind: str) -> None:
        for session in sessions:
            session.notify(_LIST_CHANGED % kind, {}, audience=())

    def _tell_listening(self, engine: Engine, kind: str) -> None:
        for listening in self._listening_on(engine):
            if kind in listening.kinds:
                listening.notify(_LIST_CHANGED % kind, {})

    def _tell_updated(
        self, engine: Engine, uri: str, principal: str | None, only: Session | None, hears: Hears | None
    ) -> None:
        is_shared = principal is None and only is None and hears is None
        here = self._select_ready(each for each in self._subscribers.find_by_uri(uri) if each.engine is engine)
        sessions = self._exclude_shared(here) if is_shared else here
        meant = (each for each in sessions if only in (None, each) and principal in (None, each.principal))
        self._tell_subscribers(meant, uri, hears)
        for listening in self._listening_on(engine):
            call = listening.call
            is_meant = principal in (None, call.principal) and only in (None, call.session)
            if uri in listening.uris and is_meant and (hears is None or hears(call.session, call.identity)):
                listening.notify(RESOURCE_UPDATED_METHOD, {"uri": uri})

    def _tell_subscribers(self, sessions: Iterable[Session], uri: str, hears: Hears | None = None) -> None:
        for session in sessions:
            subscribed = session.peek(SubscribedUris)
            if subscribed is not None and uri in subscribed.uris:
                asked = [each for each in subscribed.uris[uri].values() if hears is None or hears(session, each)]
                if asked:
                    callers = tuple(caller for caller in asked if caller is not None)
                    session.notify(RESOURCE_UPDATED_METHOD, {"uri": uri}, audience=callers or None)

    def _listening_on(self, engine: Engine) -> list[ListenRequest]:
        return [each for each in list(self._listening) if each.call.engine is engine]

    def _sessions(self, engine: Engine) -> Iterable[Session]:
        """Those of one loop that are told directly."""
        return self._exclude_shared(self._select_ready(each for each in self._all_sessions() if each.engine is engine))

    def _exclude_shared(self, sessions: Iterable[Session]) -> Iterable[Session]:
        """Sessions that are shared hear of a change when all processes do."""
        return sessions if self.share is None else [each for each in sessions if each.sharer is None]

    @staticmethod
    def _select_ready(sessions: Iterable[Session]) -> list[Session]:
        """Those opened by a handshake that have said they are ready."""
        profiles = [(s, s.terms.profile) for s in sessions if s.ready and s.terms]
        return [s for s, profile in profiles if isinstance(profile, Dialect) and not profile.stateless]


def _run(engine: Engine, action: Callable[[], None]) -> bool:
    """Run `action` on the engine's loop, after what is ready there; False when that loop has ended."""
    if engine.is_on_loop():
        engine.call_soon(action)
        return True
    return engine.post_to_loop(action)


def _check_room(call: Call) -> None:
    """Calls that never end may not be so many that others find no room."""
    composition = call.session.composition
    if composition.idle >= composition.limits.sessions:
        raise TooManyCalls(
            f"too many open subscriptions and questions: at most {composition.limits.sessions} in this server",
            data={"limit": "sessions", "retry_after_ms": 1000},
        )


def _is_within_limits(uris: Collection[str], call: Call) -> bool:
    if len(uris) > call.session.composition.limits.subscriptions:
        return False
    # A lone surrogate is kept as well, so it is counted.
    return sum(len(uri.encode("utf-8", "surrogatepass")) for uri in uris) <= MAX_URI_BYTES


# -- Which sessions want to hear of a resource: few of many, found without looking at the others.


class SubscribedUris:
    """The resources a session wants to hear of, each with the callers who asked, by credential.

    `listed` are those under which `Subscribers` lists the session.
    """

    __slots__ = ("uris", "listed")

    def __init__(self) -> None:
        self.uris: dict[str, dict[str, PeerIdentity | None]] = {}
        self.listed: frozenset[str] = frozenset()

    def list_requested_uris(self) -> list[str]:
        """Each resource, as often as it was asked for."""
        return [uri for uri, callers in self.uris.items() for _ in callers]

    def drop_unsubscribed(self, uris: Iterable[str], is_over: Callable[[PeerIdentity | None], bool]) -> None:
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

    def find_by_uri(self, uri: str) -> list[Session]:
        """Those that want to hear of a resource."""
        return list(self._sessions.get(uri, ()))

    def refresh_session(self, session: Session) -> None:
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
