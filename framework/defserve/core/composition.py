"""All extensions of a server, folded once into plain lookup tables; clashes are named."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic_core import from_json

from defserve.core.extension import (
    ALL_METHODS,
    Carrier,
    Extension,
    Handler,
    Listener,
    Offer,
    Provider,
    StagePipeline,
    Stages,
    Wrapper,
    is_coroutine_function,
)
from defserve.core.json_values import is_mapping
from defserve.core.messages import EncodedJson, Notification, Params, Request
from defserve.core.peer import Profile
from defserve.core.service import ServiceLifecycle, SessionTable
from defserve.errors import TimedOut, UsageError
from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import Session

WatchMessage: TypeAlias = Callable[["Session", str, Params, "Call | None"], AbstractContextManager[Any]]
"""`Extension.watch_message`."""

REMEMBERED_TERMS = 256
REMEMBERED_PIPELINES = 4_096


class WrappedMethod:
    """A handler inside its wrappers. An `immediate` one needs no event loop; a `vital` one is served while draining.

    An `urgent` one does not wait behind other calls.
    """

    __slots__ = ("run", "immediate", "vital", "urgent")

    def __init__(self, run: Handler, immediate: bool, vital: bool = False, urgent: bool = False) -> None:
        self.run, self.immediate, self.vital, self.urgent = run, immediate, vital, urgent


class DispatchTable:
    """The lookup tables for a set of active extensions. Peers with the same active extensions share one."""

    __slots__ = ("active", "methods", "listeners", "_failures", "_stages", "_pipelines")

    def __init__(
        self,
        active: frozenset[str],
        extensions: Sequence[Extension],
        stages: Sequence[Stages],
        methods: Mapping[str, WrappedMethod],
        listeners: Mapping[str, tuple[Listener, ...]],
    ) -> None:
        self.active, self.methods, self.listeners = active, methods, listeners
        self._failures = tuple(e.failure for e in extensions if _overrides(e, "failure"))
        self._stages = stages
        self._pipelines: dict[object, StagePipeline] = {}

    def pipeline(self, item: Any) -> StagePipeline:
        """The stages that concern an item."""
        found = self._pipelines.get(item)
        if found is None:
            found = StagePipeline([s for s in self._stages if s.concerns is None or s.concerns(item, self.active)])
            if len(self._pipelines) >= REMEMBERED_PIPELINES:  # do not keep removed items for ever
                self._pipelines.clear()
            self._pipelines[item] = found
        return found

    def failure(self, call: Call, error: BaseException) -> Params | None:
        """The error in the words of an active extension; None if none has words for it."""
        return next((body for failure in self._failures if (body := failure(call, error)) is not None), None)


class NegotiatedTerms:
    """What was agreed with a peer: its offer, each active extension's state, and their table."""

    __slots__ = ("offer", "states", "profile", "table", "methods", "listeners")

    def __init__(self, offer: Offer | None, states: Mapping[str, Any], table: DispatchTable) -> None:
        self.offer, self.states, self.table = offer, states, table
        self.methods, self.listeners = table.methods, table.listeners
        self.profile = next((state for state in states.values() if isinstance(state, Profile)), Profile())


class Composition:
    """A server ready to be served. Sessions share it; its tables never change after it is made.

    `idle` counts the calls that wait for their peers or never end, `running` the others that were begun. `queued` wait,
    in the queues of their sessions; the sessions in the `line` wait for room in the whole server.
    """

    def __init__(
        self,
        extensions: Sequence[Extension],
        *,
        limits: Limits | None = None,
        around: Mapping[str, Sequence[Wrapper]] | None = None,
    ) -> None:
        self.extensions = tuple(extensions)
        self.limits = limits or Limits()
        self._session_table = SessionTable(self.limits)
        self.admit = self._session_table.admit
        self.sessions = self._session_table.open
        self.short_sessions: set[Session] = set()
        self.running = self.idle = self.queued = self.queued_bytes = 0
        self.line: dict[Session, None] = {}
        self.draining = False
        # By event loop: a server may be served on several, each with its own lifespans and threads.
        self.lives: dict[object, object] = {}
        self.has_lifespan = any(e.lifespan() is not None for e in extensions)
        self.overrides: Mapping[Any, Any] = {}
        """A function that others depend on → what stands in for it, in a test."""
        self._around = dict(around or {})
        self._terms: dict[object, NegotiatedTerms] = {}
        self._tables: dict[frozenset[str], DispatchTable] = {}
        self.known_methods = _unique("method", {e.name: tuple(e.methods()) for e in extensions})
        self.known_notifications = frozenset(name for e in extensions for name in e.notifications())
        self.injectables: Mapping[Any, Provider] = {
            kind: provider for e in extensions for kind, provider in e.injectables().items()
        }
        _unique("injectable", {e.name: tuple(e.injectables()) for e in extensions})
        self._stages = [stages for e in extensions if (stages := e.stages())]
        _hide_by_view(extensions)
        self._viewers = tuple(e for e in extensions if _overrides(e, "view") or _overrides(e, "describe"))
        self._visible = tuple(e.visible for e in extensions if _overrides(e, "visible") and e.hides)
        self.hides = bool(self._visible)
        """Whether there may be items that a caller does not see."""
        self.phase_watchers = tuple(e.phase_changed for e in extensions if _overrides(e, "phase_changed"))
        self.service = ServiceLifecycle(self)
        self._watchers = tuple(e.watch_message for e in extensions if _overrides(e, "watch_message"))
        self.request_wrappers = tuple(wrap for e in extensions if (wrap := e.around_requests()) is not None)
        self._vital = frozenset(name for e in extensions for name in e.while_draining)
        self._urgent = self._vital.union(*(e.ahead_of_queue for e in extensions))
        self._listing = frozenset(name for e in extensions for name in e.listing)
        self._refusals = tuple(e.refusal for e in extensions if _overrides(e, "refusal"))
        self.closers = tuple(e.session_closed for e in extensions if _overrides(e, "session_closed"))
        self.request_binders: Mapping[str, Callable[[Call], Any]] = {
            e.name: e.bind_request for e in extensions if _overrides(e, "bind_request")
        }
        self.keepers = tuple(e for e in extensions if _overrides(e, "export_state"))
        self.credential_enders = tuple(e.credential_ended for e in extensions if _overrides(e, "credential_ended"))
        self._offers = tuple(e.offer_in for e in extensions if _overrides(e, "offer_in"))
        self.offer_in: Callable[[Request | Notification], Offer | None] = (
            self._offers[0] if len(self._offers) == 1 else self._first_offer
        )
        """The offer that a message carries, if it carries one."""
        self.carrier = _only_carrier(extensions)
        self.unopened = self._before_opening()

    def refusal(self, code: int, text: str) -> Params | None:
        """The `data` of an error about an unreadable message, in the words of an extension."""
        return next((data for refusal in self._refusals if (data := refusal(code, text)) is not None), None)

    # -- negotiation -------------------------------------------------------------------------------------

    def _first_offer(self, message: Request | Notification) -> Offer | None:
        return next((offer for read in self._offers if (offer := read(message)) is not None), None)

    def negotiate_terms(self, offer: Offer) -> NegotiatedTerms:
        """The terms that follow from an offer.

        Terms of a single message are cached, so the same offer again costs one lookup. Each session has terms of its
        own, because their states may change. Sessions with the same offer share only the offer.
        """
        known = self._terms.get(offer.key) if offer.key is not None else None
        if known is not None and known.offer is not None:
            if offer.stateless:
                return known
            offer = known.offer
        states = {e.name: s for e in self.extensions if (s := e.negotiate(offer)) is not None}
        terms = NegotiatedTerms(offer, states, self._table(frozenset(states)))
        if offer.key is not None and known is None:
            if len(self._terms) >= REMEMBERED_TERMS:
                self._terms.pop(next(iter(self._terms)))
            self._terms[offer.key] = terms
        return terms

    def capabilities(self, offer: Offer) -> dict[str, Any]:
        """The server's capabilities for a peer that made this offer."""
        merged: dict[str, Any] = {}
        for extension in self.extensions:
            merged = _merge_fields(merged, extension.capabilities(offer), extension.name)
        return merged

    # -- lists -------------------------------------------------------------------------------------------

    def get_views(self, call: Call) -> tuple[object, ...]:
        """Each extension's view of this caller: the key under which lists are remembered."""
        return tuple([extension.view(call) for extension in self._viewers])

    def visible(self, call: Call, item: Any) -> bool:
        """Whether every extension lets this caller see the item."""
        for visible in self._visible:  # noqa: SIM110  `all(…)` costs a frame of its own for each item
            if not visible(call, item):
                return False
        return True

    def has_author_wrapper(self, method: str) -> bool:
        """Whether code of the author runs around a method, and may change what it answers."""
        return method in self._around or ALL_METHODS in self._around

    def describe(self, item: Any, views: tuple[object, ...], fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a listed item, with what extensions add to them."""
        for extension, view in zip(self._viewers, views, strict=True):
            fields = _merge_fields(fields, extension.describe(item, view), extension.name)
        return fields

    # -- sessions ----------------------------------------------------------------------------------------

    def remove_session(self, session: Session) -> None:
        """Count a session out."""
        self.short_sessions.discard(session)
        self._session_table.remove_session(session)

    def list_calls(self) -> Iterator[Call]:
        """Every call in flight."""
        for session in (*self.sessions, *self.short_sessions):
            yield from tuple(session.in_flight.values())

    def adjust_idle_calls(self, calls: int) -> None:
        """So many calls more, or less, are idle. What there is of them beyond `sessions` counts as running."""
        before, self.idle = self.idle, self.idle + calls
        self.running -= min(self.idle, self.limits.sessions) - min(before, self.limits.sessions)
        if self.line:
            self.admit_waiting_calls()

    def admit_waiting_calls(self) -> None:
        """There is more room: admit calls that wait for it in the whole server, one session after the other."""
        while self.line and self.running < self.limits.in_flight_total:
            session = next(iter(self.line))
            del self.line[session]
            if session.queue is None:
                continue
            if session.engine.is_on_loop():
                session.queue.admit_waiting_calls()
            else:
                session.engine.post_to_loop(session.queue.admit_waiting_calls)

    # -- folding -----------------------------------------------------------------------------------------

    def _table(self, active: frozenset[str]) -> DispatchTable:
        if active not in self._tables:
            extensions = [e for e in self.extensions if e.name in active]
            methods = {
                name: self._fold(name, handler, extensions) for e in extensions for name, handler in e.methods().items()
            }
            listeners = self._watch_listeners(_listeners(extensions))
            self._tables[active] = DispatchTable(active, extensions, self._stages, methods, listeners)
        return self._tables[active]

    def _fold(self, name: str, handler: Handler, extensions: Sequence[Extension]) -> WrappedMethod:
        around = [extension.around() for extension in extensions]
        wrappers = [*self._around.get(name, ()), *(w for a in around if (w := a.get(name) or a.get(ALL_METHODS)))]
        if not wrappers:
            return WrappedMethod(handler, not is_coroutine_function(handler), name in self._vital, name in self._urgent)
        folded = handler if is_coroutine_function(handler) else _as_coroutine(handler)
        for wrapper in reversed(wrappers):
            folded = self.wrap_handler(wrapper, folded)
        if name in self._listing:
            folded = _add_timeout(folded, name, self.limits.discovery)
        return WrappedMethod(folded, False, name in self._vital, name in self._urgent)

    def wrap_handler(self, wrapper: Wrapper, following: Handler) -> Handler:
        """A handler inside one wrapper. Called when a table is made, never during a call."""

        def call_wrapper(call: Call, params: Params) -> Any:
            return wrapper(call, params, following)

        return call_wrapper

    def _watch_listeners(self, listeners: dict[str, tuple[Listener, ...]]) -> dict[str, tuple[Listener, ...]]:
        for watch in self._watchers:
            listeners = {name: (_watch_listeners(watch, name, heard),) for name, heard in listeners.items()}
        return listeners

    def _watch_opening(self, name: str, handler: Handler) -> Handler:
        for watch in self._watchers:
            handler = _watch_opening(watch, name, handler)
        return handler

    def _before_opening(self) -> NegotiatedTerms:
        methods = {
            name: self._fold(name, self._watch_opening(name, handler), ())
            for e in self.extensions
            for name, handler in e.methods().items()
            if name in e.opens_with
        }
        listeners = self._watch_listeners(_listeners(self.extensions, before_opening=True))
        table = DispatchTable(frozenset(), (), self._stages, MappingProxyType(methods), MappingProxyType(listeners))
        return NegotiatedTerms(None, {}, table)


def _overrides(extension: Extension, contribution: str) -> bool:
    return getattr(type(extension), contribution) is not getattr(Extension, contribution)


def _hide_by_view(extensions: Sequence[Extension]) -> None:
    """Lists are cached by view, so an extension that hides items must give its callers different views."""
    for extension in extensions:
        if _overrides(extension, "visible") and not _overrides(extension, "view"):
            raise UsageError(
                f"{extension.name} hides items with `visible` but has no `view`",
                fix="override `view` too: callers who may not see the same items need different keys",
            )


def _listeners(extensions: Sequence[Extension], *, before_opening: bool = False) -> dict[str, tuple[Listener, ...]]:
    found: dict[str, tuple[Listener, ...]] = {}
    for extension in extensions:
        for name, listener in extension.notifications().items():
            if not before_opening or name in extension.opens_with:
                found[name] = (*found.get(name, ()), listener)
    return found


def _watch_listeners(watch: WatchMessage, name: str, listeners: tuple[Listener, ...]) -> Listener:
    """All listeners of a notification as one, with the watcher around what they do at once, or else all they do."""

    def listen_at_once(session: Session, params: Params) -> Any:
        with watch(session, name, params, None):
            pending = [work for listener in listeners if (work := listener(session, params)) is not None]
        return _await_all(pending) if pending else None

    async def listen(session: Session, params: Params) -> None:
        with watch(session, name, params, None):
            for listener in listeners:
                if (work := listener(session, params)) is not None:
                    await work

    return listen if any(map(is_coroutine_function, listeners)) else listen_at_once


def _watch_opening(watch: WatchMessage, name: str, handler: Handler) -> Handler:
    """A handler with the watcher around it. It stays one that answers at once, if it is one."""

    def run_at_once(call: Call, params: Params) -> Any:
        with watch(call.session, name, params, call):
            return handler(call, params)

    async def run(call: Call, params: Params) -> Any:
        with watch(call.session, name, params, call):
            return await handler(call, params)

    return run if is_coroutine_function(handler) else run_at_once


async def _await_all(pending: Sequence[Awaitable[Any]]) -> None:
    for work in pending:
        await work


def _add_timeout(following: Handler, method: str, seconds: float) -> Handler:
    async def run(call: Call, params: Params) -> Any:
        try:
            return await call.engine.run_with_timeout(call, seconds, following(call, params))
        except TimedOut:
            if not call.timed_out:
                raise
            raise TimedOut.of("discovery", method, seconds) from None

    return run


def _as_coroutine(handler: Handler) -> Handler:
    async def run(call: Call, params: Params) -> Any:
        result = handler(call, params)
        # A wrapper works on the result's members, so encoded bytes are decoded again.
        return from_json(result) if type(result) is EncodedJson else result

    return run


def _unique(kind: str, names: Mapping[str, tuple[Any, ...]]) -> frozenset[Any]:
    owners: dict[Any, str] = {}
    for owner, served in names.items():
        for name in served:
            if name in owners:
                raise UsageError(
                    f"{kind} {name!r} is contributed by both {owners[name]} and {owner}",
                    fix="leave one of the two out of Server(extensions=…)",
                )
            owners[name] = owner
    return frozenset(owners)


def _only_carrier(extensions: Sequence[Extension]) -> Carrier | None:
    carriers = [(e.name, carrier) for e in extensions if (carrier := e.carrier()) is not None]
    if len(carriers) > 1:
        names = " and ".join(name for name, _ in carriers)
        raise UsageError(f"{names} both bring a carrier", fix="serve them as two servers: a pipe has one framing")
    return carriers[0][1] if carriers else None


def _merge_fields(fields: Mapping[str, Any], more: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Both merged at every depth. The result is a new dict: the inputs may belong to an author or another view."""
    found = dict(fields)
    for key, value in more.items():
        present = found.get(key)
        if is_mapping(value) and (present is None or is_mapping(present)):
            found[key] = _merge_fields(present or {}, value, owner)
        elif key in found and present != value:
            problem = f"{key!r} is set to {present!r} and, by {owner}, to {value!r}"
            raise UsageError(problem, fix="leave one of the two out of Server(extensions=…)")
        else:
            found[key] = value
    return found
