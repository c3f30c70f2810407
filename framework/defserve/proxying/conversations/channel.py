"""One open conversation with a backend, and the calls that are under way in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from defserve.base.background import BackgroundTasks
from defserve.errors import MethodNotFound, PeerError, PeerGone, ProtocolError
from defserve.host.conversation import ClientConversation
from defserve.host.eras import PREFIX, ClientOffer, SessionTerms, open_conversation
from defserve.host.exchange.pending import Follower
from defserve.host.fields import Json, object_of
from defserve.host.link import PollingLink
from defserve.protocols.mcp.apps.offer import OFFER
from defserve.protocols.mcp.reporting import RANK
from defserve.proxying.conversations.fronts import Front, is_confirmation
from defserve.proxying.conversations.updates import Updates
from defserve.proxying.descriptions import with_asker
from defserve.version import VERSION
from defserve.wire.codec import encode
from defserve.wire.messages import Encoded

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.host.exchange.raw_reply import RawReply
    from defserve.host.link import Link
    from defserve.proxying.conversations.granting import ChannelGrants
    from defserve.proxying.targets import Secrets
    from defserve.wire.messages import Id, Request

OPEN_SECONDS: Final = 30.0
LEVEL_SECONDS: Final = 5.0
CALL_WAIT_SECONDS: Final = 30.0
MOST_QUESTIONS: Final = 32
CAPABILITIES: Final = PREFIX + "clientCapabilities"
LOG_LEVEL: Final = PREFIX + "logLevel"
INFO: Final[Mapping[str, Any]] = {"name": "defserve", "version": VERSION}

# The requests of a backend, and what a front must have offered for each.
QUESTIONS: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

NO_YES: Final = "nobody vouches for the caller, so it cannot confirm anything"

OF_A_CALL: Final = frozenset({"notifications/message", "notifications/progress"})
"""The notifications that a front hears within its call."""


class BackendExchange(Follower, Protocol):
    """A call under way in a channel."""

    call: Call

    def ask(self, method: str, params: Json) -> Coroutine[Any, Any, Any]:
        """Have the front answer a question of the backend."""
        ...

    def hear(self, method: str, params: Json) -> None:
        """A notification came that belongs to this call."""
        ...

    def hang_up(self) -> None:
        """End the response of the front, where it can come back for the rest."""
        ...

    def lacked(self, capability: str) -> None:
        """The backend asked for what the front did not offer."""
        ...

    @property
    def listener(self) -> object:
        """Whose call it is. Who has several calls hears a message once."""
        ...


class ChannelOwner(Protocol):
    """What a channel tells the backend it belongs to."""

    id: str
    secrets: Secrets

    @property
    def is_shared(self) -> bool:
        """Whether the operator lets callers share a conversation, whoever they are."""
        ...

    def heard(self, channel: Channel, method: str, params: Json) -> None:
        """A notification came that belongs to no call."""
        ...

    def ended(self, channel: Channel, reason: PeerGone) -> None:
        """The backend has left this conversation."""
        ...


class Channel:
    """Opened for one `front`, or for nobody in particular (None): then the backend may ask nothing, and tells all.

    `by_era` is what only our own requests offer, and the calls of fronts do not.
    """

    def __init__(self, owner: ChannelOwner, front: Front | None, by_era: Mapping[str, Json] | None = None) -> None:
        self.front, self._owner, self._by_era = front, owner, by_era or {}
        self.offers: Json = dict(front.offers if front is not None else OFFER)
        self.may_ask = not self.offers.keys().isdisjoint(QUESTIONS.values())
        self.exchanges: dict[BackendExchange, None] = {}
        self._now = asyncio.get_running_loop().time
        self.used_at = self._now()
        self.gone: PeerGone | None = None
        self.level: str | None = None
        self._meta: tuple[Json, str | None, bytes] | None = None
        self.updates = Updates(self)
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

    async def open(self, link: Link, version: str | None) -> None:
        """Agree with the server. Raises PeerError if that fails; the link is closed then."""
        self.pid: int | None = getattr(link, "pid", None)
        if isinstance(link, PollingLink):
            link.on_hang_up = self._hung_up
        self.conversation = ClientConversation(
            link, on_request=self._asked, on_notification=self._heard, on_gone=self._left
        )
        self.conversation.show_as(lambda data: self._owner.secrets.hidden(data.decode(errors="replace")))
        self.conversation.start()
        try:
            offer = ClientOffer(dict(INFO), self.offers, self._by_era)
            self.terms: SessionTerms = await open_conversation(self.conversation, offer, version, OPEN_SECONDS)
            self._own_offers = offer.of_era("stateless") if self._by_era else self.offers
        except BaseException:
            await self.aclose()
            raise

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

    def dressed(self, params: Json, meta: Json, offers: Json, level: str | None) -> Json:
        """The params of a request for this server: with what its era wants in `_meta`."""
        if self.terms.stateless:
            own: Json = {**meta, **self.terms.envelope, CAPABILITIES: offers}
            if level is not None:
                own[LOG_LEVEL] = level
            return {**params, "_meta": own}
        return {**params, "_meta": meta} if meta else params

    def encoded(self, params: Json, offers: Json, level: str | None) -> Encoded:
        """The same as JSON, for a request that has no `_meta` of its own. What each call repeats is encoded once."""
        given = encode(params)
        if not self.terms.stateless:
            return Encoded(given)
        known = self._meta
        if known is None or known[0] is not offers or known[1] != level:
            known = self._meta = offers, level, encode(self.dressed({}, {}, offers, level))[1:]
        return Encoded(b"%b,%b" % (given[:-1], known[2]) if params else b"{" + known[2])

    def forward(self, method: str, params: Json, exchange: BackendExchange) -> Coroutine[Any, Any, RawReply]:
        """Send a request of an exchange that has begun. Raises PeerGone, and PeerError if the link refuses it."""
        return self.conversation.follow(method, params, exchange)

    def begin(self, exchange: BackendExchange) -> None:
        """A call is under way until `end`, and may send several requests."""
        self.exchanges[exchange] = None
        if self._began is not None:
            self._began.set()
            self._began = None

    def end(self, exchange: BackendExchange) -> None:
        self.exchanges.pop(exchange, None)
        if not self.exchanges:
            self.used_at = self._now()
            self.unused()

    def unused(self) -> None:
        """Who got this conversation for a call is done with it, and may never have begun."""
        if self.on_idle is not None and not self.exchanges:
            self.on_idle()

    async def request(self, method: str, params: Json, within: float) -> Json:
        """A request of our own. Raises PeerError."""
        complete = self.dressed(params, {}, self._own_offers, None)
        return object_of(await self.conversation.request(method, complete, within=within))

    def lacks_level(self, level: str | None) -> bool:
        """Whether a server of the handshake era has yet to be told to send logs of this level."""
        if level is None or level == self.level or self.terms.stateless or "logging" not in self.terms.capabilities:
            return False
        return self.level is None or RANK[self.level] > RANK[level]

    def send_only(self, method: str, params: Json, offers: Json) -> None:
        """A request whose answer nobody waits for."""
        complete = self.dressed(params, {}, offers, None)
        self._sending.start(_quietly(self.conversation.request(method, complete, within=LEVEL_SECONDS)))

    async def want_level(self, level: str | None) -> None:
        """Have it send logs of this level, and whatever others asked for."""
        self.level = level
        try:
            await self.request("logging/setLevel", {"level": level}, LEVEL_SECONDS)
        except PeerGone:
            raise
        except PeerError:
            pass  # its logs are not worth the call

    # -- what the server says ----------------------------------------------------------------------------

    async def _asked(self, request: Request) -> Any:
        """A request that does not say which call it belongs to: it is that of the call that began last."""
        if request.method == "ping":
            return {}
        if self.grants is not None and request.method not in QUESTIONS:
            return self.grants.reply(request.method, request.params, None)
        return await self._bounded(request, self._ask_last(request), next(reversed(self.exchanges), None))

    async def _bounded(
        self, request: Request, asking: Coroutine[Any, Any, Any], exchange: BackendExchange | None
    ) -> Any:
        """The answer to a question, if it was offered, and a person is not asked too many at once."""
        try:
            if (needed := QUESTIONS.get(request.method)) not in self.offers:
                if needed is not None and exchange is not None:
                    exchange.lacked(needed)
                raise MethodNotFound(f"Method not found: {request.method} (this client did not offer it)")
            if self.front is not None and not self.front.is_known and is_confirmation(request.method, request.params):
                raise ProtocolError(NO_YES)
            if self._open_questions >= MOST_QUESTIONS:
                raise ProtocolError(f"{MOST_QUESTIONS} questions are open already")
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
            params = with_asker(self._owner.id, request.method, self._owner.secrets.clean(request.params))
            return await _ask_session(self.front, request.method, params)
        if not self.exchanges:
            # Some servers ask as soon as they are opened. The call that opened them comes in a moment.
            began = self._began = self._began or asyncio.Event()
            try:
                async with asyncio.timeout(CALL_WAIT_SECONDS):
                    await began.wait()
            except TimeoutError:
                raise ProtocolError("no call is under way, so there is nobody to ask") from None
        return await next(reversed(self.exchanges)).ask(request.method, request.params)

    async def answer_in(self, exchange: BackendExchange, request: Request) -> Any:
        """The answer to a request that came within a call."""
        if request.method == "ping":
            return {}
        if self.grants is not None and request.method not in QUESTIONS:
            return self.grants.reply(request.method, request.params, exchange.call)
        return await self._bounded(request, exchange.ask(request.method, request.params), exchange)

    def heard_in(self, exchange: BackendExchange, method: str, params: Json) -> None:
        """A notification came within a call."""
        if method in OF_A_CALL:
            exchange.hear(method, params)
        else:
            self._owner.heard(self, method, params)

    def _heard(self, method: str, params: Json) -> None:
        self.updates.hear(method, params)
        if method == "notifications/message":
            for exchange in self._readers(params):
                exchange.hear(method, params)
        else:
            self._owner.heard(self, method, params)

    def _hung_up(self, id: Id) -> None:
        """The server has ended the response of a call, which goes on: so does ours, and our client comes back too."""
        follower = self.conversation.follower(id)
        for exchange in self.exchanges:
            if exchange is follower:
                exchange.hang_up()
                return

    def _readers(self, params: Json) -> Collection[BackendExchange]:
        """The calls that a log message belongs to: the one that it names by its progress token, or one of each caller.

        Several callers must not read each other's, unless the operator lets them share this conversation.
        """
        named = self.conversation.follower(object_of(params.get("_meta")).get("progressToken"))
        for exchange in self.exchanges:
            if exchange is named:
                return (exchange,)
        readers = {exchange.listener: exchange for exchange in self.exchanges}
        return readers.values() if self.front is not None or len(readers) == 1 or self._owner.is_shared else ()

    def lose(self, reason: PeerGone) -> None:
        """The backend does not answer: go on as if it had left."""
        if self.gone is None:
            self._left(reason)

    def _left(self, reason: PeerGone) -> None:
        self.gone = reason
        if not self._closing:
            self._owner.ended(self, reason)


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(PeerError):
        await work


async def _ask_session(front: Front, method: str, params: Json) -> Any:
    assert front.session is not None
    try:
        return await front.session.request(method, params, identity=front.caller)
    except PeerError as error:
        raise ProtocolError(error.message, code=error.code, data=error.data) from None
