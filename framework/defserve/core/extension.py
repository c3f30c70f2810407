"""What a protocol may contribute to a conversation, and the fixed order of the steps before an author's function.

Every contribution is optional. A protocol with many features is a `SectionedExtension`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from defserve.base.frozen import FrozenDataclass
from defserve.core.messages import Notification, Params, Request, RequestId

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.composition import Composition
    from defserve.core.peer import PeerIdentity
    from defserve.core.service import Phase
    from defserve.core.session import Session


Handler: TypeAlias = Callable[["Call", Params], Any]
"""`(call, params)` to the result. A coroutine function runs as a task, a plain one at once."""

Next: TypeAlias = Callable[["Call", Params], Awaitable[Any]]
Wrapper: TypeAlias = Callable[["Call", Params, Next], Awaitable[Any]]
"""`async (call, params, next)`: sees the params in and the result out of the method it wraps."""

ALL_METHODS = "*"

SendRequest: TypeAlias = Callable[[Params, Callable[[RequestId], None] | None], Awaitable[Any]]
"""`async (params, numbered)`: sends a request whose method is chosen. `numbered` is called with its id."""
RequestWrapper: TypeAlias = Callable[
    ["Session", str, SendRequest, Params, Callable[[RequestId], None] | None], Awaitable[Any]
]
"""`async (session, method, send, params, numbered)`: sees a request of ours on its way out, and its result."""

Listener: TypeAlias = Callable[["Session", Params], Any]
"""`(session, params)` for an incoming notification; a coroutine it returns runs as a task."""

Provider: TypeAlias = Callable[["Call"], Any]


class Offer:
    """What a peer says it can do: once in a session, or with every request. Offers with the same `key` are equal."""

    __slots__ = ("version", "capabilities", "info", "stateless", "key")

    def __init__(
        self,
        version: str,
        capabilities: Mapping[str, Any],
        info: Mapping[str, Any],
        *,
        stateless: bool = False,
        key: object = None,
    ) -> None:
        self.version, self.capabilities, self.info = version, capabilities, info
        self.stateless, self.key = stateless, key


class Carrier(Protocol):
    """Reads and writes the frames of a transport that carries several peers."""

    def unwrap(self, frame: bytes) -> list[CarriedMessage]:
        """The messages and events in a frame; an empty list drops it."""
        ...

    def wrap(self, data: bytes, peer: str, answers: object | None) -> bytes:
        """A message for `peer`; `answers` is the envelope of the one it replies to, if it replies to one."""
        ...

    def handle_event(self, session: Session, event: object) -> Any:
        """Something other than a message came from the peer; a coroutine it returns runs as a task.

        `session.close()` here ends the conversation with a peer that has left.
        """
        ...


class CarriedMessage:
    """What a carrier's frame held: a message from `peer`, or an event (then `data` is None)."""

    __slots__ = ("peer", "data", "envelope", "event")

    def __init__(self, peer: str, data: bytes | None, envelope: object = None, event: object = None) -> None:
        self.peer, self.data, self.envelope, self.event = peer, data, envelope, event


class Extension:
    """A protocol, or a part of one. Subclass it and override what you contribute.

    `negotiate` decides whether the extension is active for a peer. Methods, notifications and `around` work
    only if it is. Stages, visibility, injectables and the lifespan always work: a peer that speaks less must
    lose fields on the wire, never protection.
    """

    name: str = ""

    opens_with: frozenset[str] = frozenset()
    """Methods and notifications taken before the conversation is open."""

    while_draining: frozenset[str] = frozenset()
    """Methods that are still served while the server drains."""

    listing: frozenset[str] = frozenset()
    """Methods that list what there is. `Limits.discovery` bounds what is wrapped around them."""

    ahead_of_queue: frozenset[str] = frozenset()
    """Methods that do not wait for room, because running calls may wait for them."""

    def offer_in(self, message: Request | Notification) -> Offer | None:
        """The offer inside this message, for protocols without a handshake."""
        return None

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        """Merged, at any depth, into the server's capabilities for a peer that made this offer."""
        return {}

    def negotiate(self, offer: Offer) -> object | None:
        """This peer's state, or None if the extension stays inactive. A `core.peer.Profile` shapes replies.

        A session keeps its state to the end. Requests that carry the same offer share one state, so keep things of a
        single request in `call.local`.
        """
        return None

    def methods(self) -> Mapping[str, Handler]:
        """Name to handler. A peer for which the extension is inactive is answered "method not found"."""
        return {}

    def notifications(self) -> Mapping[str, Listener]:
        """Name to listener. Notifications of a peer for which the extension is inactive are ignored."""
        return {}

    def around(self) -> Mapping[str, Wrapper]:
        """Method to wrapper; `ALL_METHODS` stands for all others. The first extension's wrapper is outermost."""
        return {}

    def watch_message(
        self, session: Session, method: str, params: Params, call: Call | None
    ) -> AbstractContextManager[Any]:
        """Entered around what no wrapper sees: a notification, or the `call` of a method that opens a conversation."""
        return nullcontext()

    def around_requests(self) -> RequestWrapper | None:
        """Wraps the requests that this server sends to its peers."""
        return None

    def stages(self) -> Stages | None:
        """Steps around the call of a listed item, in the fixed order of `Stages`."""
        return None

    hides = True
    """Set to False if nothing is hidden: then `visible` is not called."""

    def visible(self, call: Call, item: Any) -> bool:
        """Whether this caller may see, and so use, the item. Checked for lists and again at the call."""
        return True

    def describe(self, item: Any, view: object) -> Mapping[str, Any]:
        """Fields added to a listed item, for the given `view`."""
        return {}

    def view(self, call: Call) -> object:
        """A hashable key: callers with the same key see the same lists in the same words."""
        return None

    def on_item_declared(self, item: Any) -> None:
        """An item is about to be offered. Raises UsageError for one that breaks this protocol's rules.

        The extension may keep what it found in `item.facets`.
        """

    def failure(self, call: Call, error: BaseException) -> Params | None:
        """The rest of the reply to a request that raised, or None to leave it to others. Only if negotiated."""
        return None

    def refusal(self, code: int, text: str) -> Params | None:
        """The `data` of the error that answers an unreadable message, or None. It applies to every peer, negotiated
        or not."""
        return None

    def injectables(self) -> Mapping[Any, Provider]:
        """Annotation to provider, for parameters the peer does not send."""
        return {}

    def lifespan(self) -> AbstractAsyncContextManager[Any] | None:
        """Entered once, when the server starts."""
        return None

    def carrier(self) -> Carrier | None:
        """At most one extension of a server has one."""
        return None

    def bind_request(self, call: Call) -> Any:
        """What a request brings beside its arguments, as a JSON value; None if it brings nothing.

        A request that is repeated, with answers to what it was asked, must bring the same again.
        """
        return None

    def session_closed(self, session: Session) -> None:
        """The conversation has ended: free what was kept for it."""

    def credential_ended(self, session: Session, credential: str) -> None:
        """A key or token was revoked, or has expired: free what was kept for it in this conversation, which goes on."""

    def export_state(self, session: Session) -> Mapping[str, Any]:
        """What another process must know to go on with this conversation: JSON values by name, bounded.

        Say `session.mark_dirty()` when it changes. Two processes may change different names at the same time.
        """
        return {}

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        """Another process has kept this, and it takes the place of what is kept here."""

    def phase_changed(self, composition: Composition, previous: Phase) -> None:
        """The server has entered another phase, `composition.service.phase`: it starts, serves, drains or has ended."""


# -- A protocol in sections: each is an extension of its own, imported and made when it is first needed.
#
#     class Acme(SectionedExtension):
#         @section(methods=("acme/badge/issue",), notifications=("acme/badge/shown",))
#         def badges(self) -> BadgeSection:
#             from acme.badges import BadgeSection
#
#             return BadgeSection(self.server_id)
#
# The tables of a server are made before any section is. So the names that a section serves stand here, and what
# answers them is looked up in the section's own `methods()` when the first of them comes. `acme.badges` makes the
# section; `Acme.badges.peek(acme)` doesn't. Somebody else's section takes its place by `acme.badges = …`.


S = TypeVar("S", covariant=True)


class Section(cached_property[S]):
    """Where an extension keeps one of its sections, and what is known of it before it's made. See `section`."""

    def __init__(
        self,
        make: Callable[[Any], S],
        methods: Sequence[str],
        at_once: Sequence[str],
        notifications: Sequence[str],
        keeps: tuple[str, ...],
        agreed_as: str,
    ) -> None:
        super().__init__(make)
        self.methods, self.at_once, self.notifications = methods, at_once, notifications
        self.keeps, self.agreed_as = keeps, agreed_as

    def get_section(self, owner: SectionedExtension) -> S:
        """The section of this extension. It's made now, if there is none."""
        return self.__get__(owner)

    def get_existing_section(self, owner: SectionedExtension) -> S | None:
        """The same, or None if it was not needed yet."""
        return vars(owner).get(self.func.__name__)


def section(
    *,
    methods: Sequence[str] = (),
    at_once: Sequence[str] = (),
    notifications: Sequence[str] = (),
    keeps: tuple[str, ...] = (),
    agreed_as: str = "",
) -> Callable[[Callable[[Any], S]], Section[S]]:
    """Declare a section of a `SectionedExtension`. The method below it makes it; None: this server has no such section.

    `methods` may wait. Those `at_once` are answered without a turn of the event loop, whatever else runs. What it
    exports of a session has names that begin as `keeps` says. `agreed_as` is what peers call it, if an extension agrees
    on each section.
    """
    return lambda make: Section(make, methods, at_once, notifications, keeps, agreed_as)


class SectionedExtension(Extension):
    """An extension that is put together from others, its sections.

    Those in `permanent` are always there: what they contribute is used as it is. The others are declared with
    `@section`. Each section hears of the events of a session and of the server while it exists. Stages, and what
    concerns items, are up to the extension: it knows the order of its sections.
    """

    permanent: tuple[Extension, ...] = ()
    _late: tuple[Section[Any], ...] = ()

    def __init_subclass__(cls) -> None:
        cls._late = (*cls._late, *(each for each in vars(cls).values() if isinstance(each, Section)))

    def sections(self) -> list[Any]:
        """The sections that exist now, in the order of their declaration."""
        late = (each.get_existing_section(self) for each in self._late)
        return [*self.permanent, *(each for each in late if each is not None)]

    def check_method(self, section: Section[Any], call: Call) -> None:
        """Raises what a peer is answered that may not use this section now."""

    def is_notified(self, section: Section[Any], session: Session, method: str, params: Params) -> bool:
        """Whether a section is told of this notification."""
        return True

    def methods(self) -> Mapping[str, Handler]:
        found = {name: handler for each in self.permanent for name, handler in each.methods().items()}
        for each in self._late:
            found |= {name: self._find_and_run(each, name) for name in each.at_once}
            found |= {name: _as_waiting(self._find_and_run(each, name)) for name in each.methods}
        return found

    def _find_and_run(self, section: Section[Any], name: str) -> Handler:
        def run(call: Call, params: Params) -> Any:
            self.check_method(section, call)
            return section.get_section(self).methods()[name](call, params)

        return run

    def notifications(self) -> Mapping[str, Listener]:
        found = {name: listener for each in self.permanent for name, listener in each.notifications().items()}
        return found | {name: self._find_and_tell(each, name) for each in self._late for name in each.notifications}

    def _find_and_tell(self, section: Section[Any], name: str) -> Listener:
        def listen(session: Session, params: Params) -> Any:
            if self.is_notified(section, session, name, params):
                return section.get_section(self).notifications()[name](session, params)
            return None

        return listen

    def around(self) -> Mapping[str, Wrapper]:
        return {name: wrapper for each in self.sections() for name, wrapper in each.around().items()}

    def lifespan(self) -> AbstractAsyncContextManager[Any] | None:
        found = [lifespan for each in self.sections() if (lifespan := each.lifespan()) is not None]
        return _enter_all(found) if found else None

    def phase_changed(self, composition: Composition, previous: Phase) -> None:
        for each in self.sections():
            each.phase_changed(composition, previous)

    def session_closed(self, session: Session) -> None:
        for each in self.sections():
            each.session_closed(session)

    def credential_ended(self, session: Session, credential: str) -> None:
        for each in self.sections():
            each.credential_ended(session, credential)

    def export_state(self, session: Session) -> Mapping[str, Any]:
        return {name: value for each in self.sections() for name, value in each.export_state(session).items()}

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        for each in self._late:
            if any(name.startswith(each.keeps) for name in kept):
                each.get_section(self)
        for each in self.sections():
            each.import_state(session, kept)


def _as_waiting(run: Handler) -> Handler:
    """Make a handler one that may wait: it is answered in its turn, not at once."""

    async def later(call: Call, params: Params) -> Any:
        result = run(call, params)
        return await result if hasattr(result, "__await__") else result

    return later


@asynccontextmanager
async def _enter_all(lifespans: Iterable[AbstractAsyncContextManager[Any]]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for lifespan in lifespans:
            await stack.enter_async_context(lifespan)
        yield


class OutgoingMessage:
    """One encoded message for the peer, and the call it belongs to, if it belongs to one.

    `answers` is true for the reply that ends that call; `asks` is the id of a request of ours, else False. `envelope`
    is that of the message it replies to; `code` is the reply's error code, if it is an error. Of messages with the same
    `replaces` only the newest matters. `taken` is called on the loop when the message has left this process or was
    dropped, so that a sender of many can wait for its reader. `bulk` messages are never dropped; those of other calls
    overtake them.
    `release` is set by a transport that keeps a request for a reader who may come back. It is called when nobody waits
    for the answer any more. `audience` are those who may read it, whoever reads the session's messages: any of them,
    or who has their rights. None stands for who opened the session, and an empty one for everybody.
    """

    __slots__ = ("data", "relates_to", "answers", "envelope", "code", "asks", "replaces", "taken", "bulk", "release")

    def __init__(
        self,
        data: bytes,
        relates_to: Call | None,
        answers: bool = False,
        envelope: object | None = None,
        code: int | None = None,
        *,
        asks: RequestId | bool = False,
        replaces: Hashable = None,
        taken: Callable[[], None] | None = None,
        bulk: bool = False,
    ) -> None:
        self.data, self.relates_to, self.answers = data, relates_to, answers
        self.envelope, self.code, self.asks, self.replaces = envelope, code, asks, replaces
        self.taken, self.bulk = taken, bulk
        self.release: Callable[[], None] | None = None

    @property
    def audience(self) -> tuple[PeerIdentity, ...] | None:
        caller = self.relates_to.identity if self.relates_to is not None else None
        return (caller,) if caller is not None else None

    @property
    def destination(self) -> object | None:
        """The envelope of the message it replies to, or else of the call it belongs to."""
        return self.envelope if self.envelope is not None or self.relates_to is None else self.relates_to.envelope


class AddressedMessage(OutgoingMessage):
    """A message that belongs to no call, for those who may read it."""

    __slots__ = ("_audience",)

    def __init__(
        self,
        data: bytes,
        audience: tuple[PeerIdentity, ...],
        *,
        asks: RequestId | bool = False,
        taken: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(data, None, asks=asks, taken=taken)
        self._audience = audience

    @property
    def audience(self) -> tuple[PeerIdentity, ...]:
        return self._audience


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine, so that it needs an event loop."""
    # inspect.iscoroutinefunction without importing inspect: CO_COROUTINE on the code object.
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return bool(code and code.co_flags & 0x80)


# -- The steps between a call and the author's function, in one fixed order.


Admit: TypeAlias = Callable[["Call", Any], Awaitable[None] | None]
Judge: TypeAlias = Callable[["Call", Any, dict[str, Any]], Awaitable[None] | None]
Hold: TypeAlias = Callable[["Call", Any, dict[str, Any]], AbstractAsyncContextManager[Any] | None]
Audit: TypeAlias = Callable[["Call", Any], AbstractAsyncContextManager[Any] | None]
Concerns: TypeAlias = Callable[[Any, frozenset[str]], bool]


class Stages(FrozenDataclass):
    """What one extension adds to the call of an item.

    `audit` is entered first and sees how everything else ended. `admit` decides before the arguments are read.
    `judge` sees the validated arguments. `hold` surrounds the function and sees whether it succeeded. `admit` and
    `judge` refuse by raising. `concerns(item, active)` says whether the stages apply to an item; `active` are the names
    of the extensions that are active for the peer. It is called once. An item without stages is called directly.
    """

    audit: Audit | None = None
    admit: Admit | None = None
    judge: Judge | None = None
    hold: Hold | None = None
    concerns: Concerns | None = None


class StagePipeline:
    """The stages of all extensions, a tuple for each step; empty ones cost nothing."""

    __slots__ = ("audits", "admits", "judges", "holds", "empty")

    def __init__(self, stages: Sequence[Stages]) -> None:
        self.audits = tuple(s.audit for s in stages if s.audit)
        self.admits = tuple(s.admit for s in stages if s.admit)
        self.judges = tuple(s.judge for s in stages if s.judge)
        self.holds = tuple(s.hold for s in stages if s.hold)
        self.empty = not (self.audits or self.admits or self.judges or self.holds)

    async def run_admit_steps(self, call: Call, item: Any) -> None:
        for step in self.admits:
            pending = step(call, item)
            if pending is not None:
                await pending

    async def run_judge_steps(self, call: Call, item: Any, arguments: dict[str, Any]) -> None:
        for step in self.judges:
            pending = step(call, item, arguments)
            if pending is not None:
                await pending


async def enter_stage_context_managers(
    stack: AsyncExitStack, stages: Iterable[AbstractAsyncContextManager[Any] | None]
) -> None:
    """Enter the context managers of `audit` or `hold`, in order. They cannot swallow an exception."""
    for stage in stages:
        if stage is not None:
            await stage.__aenter__()
            stack.push_async_exit(_exit_of(stage))


def _exit_of(stage: AbstractAsyncContextManager[Any]) -> Callable[..., Awaitable[bool]]:
    async def leave(*exception: Any) -> bool:
        await stage.__aexit__(*exception)
        return False

    return leave
