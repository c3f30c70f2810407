"""One open conversation with a backend, and the calls that are under way in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import to_json

from defserve.auth.authority import is_stranger
from defserve.auth.principals import Principal
from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import get_logger
from defserve.base.version import VERSION
from defserve.client.eras import (
    MCP_KEY_PREFIX,
    ClientOffer,
    ServerUpdate,
    SessionTerms,
    StatelessUpdateStream,
    UpdateFilter,
    UpdateStream,
    open_conversation,
)
from defserve.client.extension import choose_conversation_factory
from defserve.client.link import PollingLink
from defserve.client.replies import Json, is_method_missing, object_or_empty
from defserve.core.json_values import is_object
from defserve.core.messages import EncodedJson, encode
from defserve.errors import MethodNotFound, PeerError, PeerGone, ProtocolError
from defserve.protocols.mcp.app_policy import APPS_CAPABILITY, can_show_apps
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.reporting import LOG_LEVEL_RANKS
from defserve.protocols.mcp.tasks.records import can_take_tasks
from defserve.proxying.boundary import add_asker_to_question
from defserve.serve.address import AddressUnreachable

if TYPE_CHECKING:
    from defserve.client.link import ClientLink
    from defserve.client.replies import RawReply
    from defserve.core.call import Call
    from defserve.core.messages import Request, RequestId
    from defserve.core.peer import PeerIdentity
    from defserve.core.session import Session
    from defserve.proxying.backend import Backend
    from defserve.proxying.conversations import ChannelGrants
    from defserve.proxying.relay import RelayedCall


OPEN_SECONDS: Final = 30.0
LEVEL_SECONDS: Final = 5.0
CALL_WAIT_SECONDS: Final = 30.0
MAX_OPEN_QUESTIONS: Final = 32
CAPABILITIES: Final = MCP_KEY_PREFIX + "clientCapabilities"
LOG_LEVEL: Final = MCP_KEY_PREFIX + "logLevel"
INFO: Final[Mapping[str, Any]] = {"name": "defserve", "version": VERSION}

# The requests of a backend, and what a front must have offered for each.
QUESTION_CAPABILITIES: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

CANNOT_CONFIRM_REASON: Final = "the caller is not authenticated, so it cannot confirm anything"

OF_A_CALL: Final = frozenset({"notifications/message", "notifications/progress"})
"""The notifications that a front hears within its call."""


class BackendChannel:
    """Opened for one `front`, or for nobody in particular (None): then the backend may ask nothing, and tells all.

    `by_era` is what only our own requests offer, and the calls of fronts do not.
    """

    def __init__(self, owner: Backend, front: FrontClient | None, by_era: Mapping[str, Json] | None = None) -> None:
        self.front, self._owner, self._by_era = front, owner, by_era or {}
        self.offers: Json = dict(front.offers if front is not None else APPS_CAPABILITY)
        self.may_ask = not self.offers.keys().isdisjoint(QUESTION_CAPABILITIES.values())
        self.exchanges: dict[RelayedCall, None] = {}
        self._now = asyncio.get_running_loop().time
        self.used_at = self._now()
        self.gone: PeerGone | None = None
        self.level: str | None = None
        self._meta: tuple[Json, str | None, bytes] | None = None
        self.updates = Updates(self)
        self.event_listeners: set[UpdateStream[Any]] = set()
        """The open streams of events (MCP Events)."""
        self._began: asyncio.Event | None = None
        self._closing = False
        self.grants: ChannelGrants | None = None
        """What the server is told of permissions, if it asks for some."""
        self.is_watched = False
        """Whether it ends with the credential of its front."""
        self._open_questions = 0
        self._sending = BackgroundTasks()
        self.on_idle: Callable[[], None] | None = None
        """Called when the last call under way is over."""

    async def open(self, link: ClientLink, version: str | None) -> None:
        """Agree with the server. Raises PeerError if that fails; the link is closed then."""
        self.pid: int | None = getattr(link, "pid", None)
        if isinstance(link, PollingLink):
            link.on_hang_up = self._hung_up
        self.conversation = choose_conversation_factory(self._owner.telemetry)(
            link,
            on_request=self.answer_request,
            on_notification=self._heard,
            on_gone=self._on_peer_gone,
            shown=self._show_message,
        )
        self.conversation.start()
        try:
            offer = ClientOffer(dict(INFO), self.offers, self._by_era)
            self.terms: SessionTerms = await open_conversation(self.conversation, offer, version, OPEN_SECONDS)
            self._own_offers = offer.capabilities_for_era("stateless") if self._by_era else self.offers
        except BaseException:
            await self.aclose()
            raise

    def _show_message(self, data: bytes) -> str:
        return self._owner.secrets.redact_text(data.decode(errors="replace"))

    async def aclose(self) -> None:
        """End the conversation, and the child if it is one."""
        self._closing = True
        self.updates.close()
        await asyncio.shield(asyncio.ensure_future(self.conversation.aclose()))

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._closing or self.gone is not None

    @property
    def offers_mgp(self) -> bool:
        return bool(self._by_era)

    @property
    def stateless(self) -> bool:
        return self.terms.stateless

    @property
    def idle_since(self) -> float | None:
        """When its last call ended; None while one is under way."""
        return None if self.exchanges else self.used_at

    def with_meta(self, params: Json, meta: Json, offers: Json, level: str | None) -> Json:
        """The params of a request for this server: with what its era wants in `_meta`."""
        if self.terms.stateless:
            own: Json = {**meta, **self.terms.envelope, CAPABILITIES: offers}
            if level is not None:
                own[LOG_LEVEL] = level
            return {**params, "_meta": own}
        return {**params, "_meta": meta} if meta else params

    def encode_params(self, params: Json, offers: Json, level: str | None) -> EncodedJson:
        """The same as JSON, for a request that has no `_meta` of its own. What each call repeats is encoded once."""
        given = encode(params)
        if not self.terms.stateless:
            return EncodedJson(given)
        known = self._meta
        if known is None or known[0] is not offers or known[1] != level:
            known = self._meta = offers, level, encode(self.with_meta({}, {}, offers, level))[1:]
        return EncodedJson(b"%b,%b" % (given[:-1], known[2]) if params else b"{" + known[2])

    def forward(self, method: str, params: Json, exchange: RelayedCall) -> Coroutine[Any, Any, RawReply]:
        """Send a request of an exchange that has begun. Raises PeerGone, and PeerError if the link refuses it."""
        return self.conversation.forward_request(method, params, exchange)

    def begin_exchange(self, exchange: RelayedCall) -> None:
        """A call is under way until `end_exchange`, and may send several requests."""
        self.exchanges[exchange] = None
        if self._began is not None:
            self._began.set()
            self._began = None

    def end_exchange(self, exchange: RelayedCall) -> None:
        self.exchanges.pop(exchange, None)
        if not self.exchanges:
            self.used_at = self._now()
            self.notify_if_idle()

    def notify_if_idle(self) -> None:
        """Who got this conversation for a call is done with it, and may never have begun."""
        if self.on_idle is not None and not self.exchanges:
            self.on_idle()

    async def request(self, method: str, params: Json, within: float) -> Json:
        """A request of our own. Raises PeerError."""
        complete = self.with_meta(params, {}, self._own_offers, None)
        return object_or_empty(await self.conversation.request(method, complete, within=within))

    def needs_log_level(self, level: str | None) -> bool:
        """Whether a server of the handshake era has yet to be told to send logs of this level."""
        return (
            level is not None
            and level != self.level
            and not self.terms.stateless
            and "logging" in self.terms.capabilities
            and (self.level is None or LOG_LEVEL_RANKS[self.level] > LOG_LEVEL_RANKS[level])
        )

    def send_without_waiting(self, method: str, params: Json, offers: Json) -> None:
        """A request whose answer nobody waits for."""
        complete = self.with_meta(params, {}, offers, None)
        self._sending.start(_quietly(self.conversation.request(method, complete, within=LEVEL_SECONDS)))

    async def set_log_level(self, level: str | None) -> None:
        """Have it send logs of this level, and whatever others asked for."""
        self.level = level
        try:
            await self.request("logging/setLevel", {"level": level}, LEVEL_SECONDS)
        except PeerGone:
            raise
        except PeerError:
            pass  # its logs are not worth the call

    # -- what the server says ----------------------------------------------------------------------------

    async def answer_request(self, request: Request, within: RelayedCall | None = None) -> Any:
        """The answer to a request. One that came within no call belongs to the one that began last."""
        if request.method == "ping":
            return {}
        if self.grants is not None and request.method not in QUESTION_CAPABILITIES:
            return self.grants.answer_permission_request(
                request.method, request.params, None if within is None else within.call
            )
        asking = self._ask_last(request) if within is None else within.ask_front(request.method, request.params)
        return await self._answer_question(request, asking, within or next(reversed(self.exchanges), None))

    async def _answer_question(
        self, request: Request, asking: Coroutine[Any, Any, Any], exchange: RelayedCall | None
    ) -> Any:
        """The answer to a question, if it was offered, and a person is not asked too many at once."""
        try:
            if (needed := QUESTION_CAPABILITIES.get(request.method)) not in self.offers:
                if needed is not None and exchange is not None:
                    exchange.lacks = needed
                raise MethodNotFound(f"Method not found: {request.method} (this client did not offer it)")
            if (
                self.front is not None
                and not self.front.is_known
                and is_confirmation_question(request.method, request.params)
            ):
                raise ProtocolError(CANNOT_CONFIRM_REASON)
            if self._open_questions >= MAX_OPEN_QUESTIONS:
                raise ProtocolError(f"{MAX_OPEN_QUESTIONS} questions are open already")
        except ProtocolError:
            asking.close()
            raise
        self._open_questions += 1
        try:
            return await asking
        finally:
            self._open_questions -= 1

    async def _ask_last(self, request: Request) -> Any:
        if not self.exchanges and self.front is not None and self.front.session is not None:
            params = add_asker_to_question(
                self._owner.id, request.method, self._owner.secrets.redact_sure_secrets(request.params)
            )
            try:
                return await self.front.session.request(request.method, params, identity=self.front.caller)
            except PeerError as error:
                raise ProtocolError(error.message, code=error.code, data=error.data) from None
        if not self.exchanges:
            # Some servers ask as soon as they are opened. The call that opened them comes in a moment.
            try:
                async with asyncio.timeout(CALL_WAIT_SECONDS):
                    while not self.exchanges:  # one that could not be sent is over at once
                        began = self._began = self._began or asyncio.Event()
                        await began.wait()
            except TimeoutError:
                raise ProtocolError("no call is under way, so there is nobody to ask") from None
        return await next(reversed(self.exchanges)).ask_front(request.method, request.params)

    def on_call_notification(self, exchange: RelayedCall, method: str, params: Json) -> None:
        """A notification came within a call."""
        if method in OF_A_CALL:
            exchange.on_call_notification(method, params)
        else:
            self._owner.heard(self, method, params)

    def _heard(self, method: str, params: Json) -> None:
        self.updates.feed_notification(method, params)
        for stream in tuple(self.event_listeners):
            stream.receive_update(ServerUpdate(method, params))
        if method == "notifications/message":
            for exchange in self._readers(params):
                exchange.on_call_notification(method, params)
        else:
            self._owner.heard(self, method, params)

    def _hung_up(self, id: RequestId) -> None:
        """The server has ended the response of a call, which goes on: so does ours, and our client comes back too."""
        if (exchange := self._find_exchange(id)) is not None:
            exchange.call.root.hang_up()

    def _find_exchange(self, id: Any) -> RelayedCall | None:
        follower = self.conversation.find_forwarded_listener(id)
        return next((exchange for exchange in self.exchanges if exchange is follower), None)

    def _readers(self, params: Json) -> Collection[RelayedCall]:
        """The calls that a log message belongs to: the one that it names by its progress token, or one of each caller.

        Several callers must not read each other's, unless the operator lets them share this conversation.
        """
        if (named := self._find_exchange(object_or_empty(params.get("_meta")).get("progressToken"))) is not None:
            return (named,)
        readers = {exchange.listener: exchange for exchange in self.exchanges}
        return readers.values() if self.front is not None or len(readers) == 1 or self._owner.is_shared else ()

    def mark_gone(self, reason: PeerGone) -> None:
        """The backend does not answer: go on as if it had left."""
        if self.gone is None:
            self._on_peer_gone(reason)

    def _on_peer_gone(self, reason: PeerGone) -> None:
        self.gone = reason
        if not self._closing:
            self._owner.on_channel_ended(self, reason)


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(PeerError):
        await work


# -- What a backend is asked to tell in one conversation: changes of its lists, and of single resources.


UPDATE_SECONDS: Final = 10.0
REOPEN_UPDATES_SECONDS: Final = 2.0

log = get_logger("proxying")


class OpenRequest(StatelessUpdateStream):
    """An open `subscriptions/listen` request. Its news are heard by the conversation, like all others."""

    over: Callable[[], None]

    def _queue_news(self, news: ServerUpdate) -> None:
        """They are not kept."""

    def end(self, reason: PeerError | None = None) -> None:
        self.over()


class Updates:
    """The subscriptions of one conversation. `request_updates` says what they should be, in either era."""

    def __init__(self, channel: BackendChannel) -> None:
        self._channel = channel
        self._lock = asyncio.Lock()
        self._kinds: tuple[str, ...] = ()
        self.uris: frozenset[str] = frozenset()
        self._stream: OpenRequest | None = None
        self._listeners: set[UpdateStream[Any]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._is_deaf = False

    async def request_updates(
        self, *, kinds: Collection[str] | None = None, uris: Callable[[], Collection[str]] | None = None
    ) -> None:
        """Ask for these changes, and for no others. Raises PeerError if the server refuses.

        `uris` is called when it is this one's turn: what another one asked for may have been refused meanwhile.
        """
        async with self._lock:
            kinds = self._kinds if kinds is None else tuple(kinds)
            wanted = self.uris if uris is None else frozenset(uris())
            if self._channel.stateless:
                if (kinds, wanted) != (self._kinds, self.uris) or self._stream is None:
                    await self._listen(kinds, wanted)
            else:
                await self._subscribe(wanted)
            self._kinds, self.uris = kinds, wanted

    def feed_notification(self, method: str, params: dict[str, Any]) -> None:
        """A notification of the server, which may belong to the open request."""
        news = ServerUpdate(method, params)
        for stream in tuple(self._listeners):
            stream.receive_update(news)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._stream = None

    async def _subscribe(self, wanted: frozenset[str]) -> None:
        """One by one. What was accepted before one is refused is known, so that it can be taken back."""
        for uri in sorted(wanted - self.uris):
            await self._channel.request("resources/subscribe", {"uri": uri}, UPDATE_SECONDS)
            self.uris |= {uri}
        for uri in self.uris - wanted:
            with suppress(PeerError):
                await self._channel.request("resources/unsubscribe", {"uri": uri}, UPDATE_SECONDS)

    async def _listen(self, kinds: tuple[str, ...], uris: frozenset[str]) -> None:
        old, channel = self._stream, self._channel
        if self._is_deaf:
            return
        stream: OpenRequest | None = None
        if kinds or uris:
            wanted = UpdateFilter(kinds, tuple(sorted(uris)))
            stream = OpenRequest(wanted, self._listeners, channel.conversation, channel.terms, UPDATE_SECONDS)
            stream.over = lambda: self._on_stream_ended(stream)
        self._stream = stream
        try:
            if stream is not None:
                await stream.open()
        except PeerError as error:
            if isinstance(error, PeerGone):
                raise
            # Many servers have no such method. What they offer is then read again only when they are opened.
            self._is_deaf = is_method_missing(error)
            log.debug("a backend does not tell of changes: %s", error.message)
        except asyncio.CancelledError:
            # The old one still tells, unless it has ended meanwhile.
            self._stream = old
            if old not in self._listeners:
                self._on_stream_ended(old)
            raise
        if old is not None:
            await old.close()

    def _on_stream_ended(self, stream: OpenRequest | None) -> None:
        """The server has ended the stream. Ask again in a moment, unless we have another one."""
        if stream is self._stream and self._channel.gone is None:
            self._again = asyncio.get_running_loop().call_later(REOPEN_UPDATES_SECONDS, self._reopen)

    def _reopen(self) -> None:
        self._stream = None
        self._tasks.start(self._want_again())

    async def _want_again(self) -> None:
        try:
            await self.request_updates()
        except AddressUnreachable as gone:
            # A server without sessions has no other link whose end would tell.
            self._channel.mark_gone(gone)
        except PeerError:
            pass


# -- Who is served: which calls may share one conversation with a backend.


MAIN_PROCESS_KEY: Final = "main"
"""The key of a backend's own conversation. No client has it: theirs are lists."""

OFFERED: Final = ("elicitation", "sampling", "roots")
"""What a front may offer to a backend, beside views. Everything else of its offer concerns us alone."""


class FrontClient(NamedTuple):
    """One client, as a backend may know it. Calls with the same `key` share a conversation; None shares with nobody.

    `session` is its conversation with us, if it has one that lasts. `offers` is what it lets a backend ask of it.
    `principal` is who it is counted for. `is_known`: somebody vouches for it, so that its yes counts.
    `can_take_tasks`: its call may become a task. `waits`: it cannot, and the front waits for the result of one.
    `caller` is who sent its call. `place` is the key with what it offers: two clients of one principal may offer
    different things, and a backend is told what its own front offers.

    A backend's question may name no call. It is then asked in any call of the conversation, so that all of them must
    have the same rights: `key` has those too.
    """

    key: Hashable | None
    session: Session | None
    offers: dict[str, Any]
    principal: str
    is_known: bool
    takes_tasks: bool = False
    waits: bool = False
    caller: PeerIdentity | None = None
    place: Hashable = None

    @property
    def credential(self) -> str:
        """Names the key or token that it showed."""
        return self.caller.credential if self.caller is not None else ""

    @property
    def process_key(self) -> str:
        """The same wherever this client calls next. Empty: it is known by its session or its call alone."""
        caller = self.caller
        if self.key is None or self.session is not None or not isinstance(caller, Principal):
            return ""
        # As `rights_class` has it, which another process could not compare.
        kind, rights = caller.rights_class
        own = "" if isinstance(rights, frozenset) else caller.credential
        return encode([self.principal, kind.__name__, sorted(caller.scopes), own, self.offers]).decode()


@dataclass(slots=True, eq=False)
class KnownFront:
    """The front of the last call of a session. The next one mostly has the same sender and the same terms."""

    terms: object = None
    identity: object = None
    front: FrontClient | None = None


def identify_front(call: Call) -> FrontClient:
    """The client behind a call: its session, else its verified principal, else nobody who comes again."""
    known = call.session.peek(KnownFront)
    if (
        known is not None
        and known.terms is call.terms
        and known.identity is call.identity
        and known.front is not None
        and call.outer is None
    ):
        return known.front
    front = _front_of(call)
    if front.session is not None and call.outer is None:
        known = call.session.local(KnownFront)
        known.terms, known.identity, known.front = call.terms, call.identity, front
    return front


def _front_of(call: Call) -> FrontClient:
    session, offer = call.session, call.terms.offer
    waits = call.outer is not None or offer is None or not offer.stateless
    takes = not waits and can_take_tasks(call)
    capabilities: Mapping[str, Any] = offer.capabilities if offer is not None else {}
    offers: dict[str, Any] = {}
    if capabilities:
        offers.update((name, capabilities[name]) for name in OFFERED if name in capabilities)
        if can_show_apps(capabilities):
            offers |= APPS_CAPABILITY
    caller, principal = identify_caller(call), call.principal
    is_known = not is_stranger(caller)
    key: Hashable = (principal, caller.rights_class) if is_known else None
    # `short_sessions` has only those that are open: who stops listening may have none any more.
    lasting = None if session.is_short else session
    if lasting is not None:
        # Another credential may use the same session.
        key = session, principal, caller.rights_class
    place = key, to_json(offers) if offers else b""
    return FrontClient(key, lasting, offers, principal, is_known, takes, waits, call.identity, place)


def is_confirmation_question(method: str, params: Mapping[str, Any]) -> bool:
    """Whether a question of a backend asks for nothing but a yes.

    It has no field, or one, a boolean `value`, as our own `ctx.confirm` and FastMCP have it. Other forms are questions
    of an author, who would hear a stranger's answer without a front, too.
    """
    if method != "elicitation/create" or params.get("mode", "form") != "form":
        return False
    schema = params.get("requestedSchema")
    fields = schema.get("properties") if is_object(schema) else None
    if not is_object(fields) or not fields:
        return True
    only = fields.get("value")
    return len(fields) == 1 and is_object(only) and only.get("type") == "boolean"
