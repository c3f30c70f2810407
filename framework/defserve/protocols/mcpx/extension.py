"""MCPx as an extension: what an author declares for topics. It changes nothing for other peers.

`TopicCarrier` makes a server a participant: every other participant is a peer with a conversation of its own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic_core import from_json

from defserve.auth.authority import is_stranger
from defserve.auth.principals import MAX_PRINCIPAL_ID_LENGTH, PARTICIPANT_PREFIX, Principal, make_anonymous_principal
from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.extension import CarriedMessage, Extension, Offer, is_coroutine_function
from defserve.core.messages import INVALID_REQUEST, EncodedJson, Reply, encode
from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError
from defserve.protocols.mcpx.envelope import (
    CHAT_KIND,
    REQUEST_KIND,
    RESPONSE_KIND,
    TOPIC_MCP_VERSION,
    Envelope,
    make_message_kind,
)
from defserve.protocols.mcpx.participant import NotCapable, NotWelcome, Participant, Payload
from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import (
    Chat,
    GatewayRefusal,
    Presence,
    SpoofedMessage,
    TopicRequest,
    TopicView,
    Welcome,
)

if TYPE_CHECKING:
    from defserve.core.engine import Engine


ChatHandler: TypeAlias = Callable[[Chat, Participant], Awaitable[None] | None]
ProposalHandler: TypeAlias = Callable[[Proposal, Participant], Awaitable[bool | None] | bool | None]


class MCPX(Extension):
    """Handlers for chat and proposals, and a carrier for each topic.

    It has no `carrier()` of its own: only the connection to a gateway carries envelopes, and the same server may be
    served elsewhere at the same time.
    """

    name = "mcpx"

    def __init__(self) -> None:
        self.chat_handlers: list[ChatHandler] = []
        self.decisions: list[ProposalHandler] = []
        self.carriers: list[TopicCarrier] = []

    def new_carrier(self) -> TopicCarrier:
        """The carrier for one more topic."""
        carrier = TopicCarrier(on_chat=self._chat, on_proposal=self._decide)
        self.carriers.append(carrier)
        return carrier

    async def _chat(self, participant: Participant, chat: Chat) -> None:
        for handler in self.chat_handlers:
            await _call_handler(handler, chat, participant)

    async def _decide(self, participant: Participant, proposal: Proposal) -> None:
        """The first handler that says yes or no decides; None leaves it to the next, and to other participants."""
        for decide in self.decisions:
            answer = await _call_handler(decide, proposal, participant)
            if proposal.status != "pending":
                return
            if answer is True:
                await participant.fulfil(proposal)
            elif answer is False:
                participant.decline(proposal)
            if answer is not None:
                return


def participant_of(call: Call) -> Participant | None:
    """This server's participant in the topic that a call came from; None if the call did not come from a topic."""
    membership = call.session.peek(TopicMembership)
    return membership.participant if membership is not None else None


def send_chat_message(call: Call, text: str, to: str | Sequence[str] | None, format: str) -> Envelope:
    """Say something in the topic that a call came from, as part of that call's thread."""
    if (participant := participant_of(call)) is None:
        raise NoBackChannel("chat: this call did not come from a topic")
    about = call.envelope.id if isinstance(call.envelope, ReceivedRequest) else None
    recipients = to if to is None or isinstance(to, str) else tuple(to)
    return participant.chat(text, recipients, format=format, about=about)


def can_chat(call: Call) -> bool:
    participant = participant_of(call)
    return participant is not None and participant.may(CHAT_KIND)


async def _call_handler(handler: Callable[..., Any], *args: Any) -> Any:
    if is_coroutine_function(handler):
        return await handler(*args)
    return await asyncio.to_thread(handler, *args)


# -- A server as a participant: every other participant is a peer with a conversation of its own, no handshake needed.


ANSWERED_BY_ALL: Final = frozenset({"ping", "tools/list", "resources/list", "resources/templates/list", "prompts/list"})
"""The requests that we answer even if they are sent to everyone. A request with an effect must name its target."""

MAX_REPORTS: Final = 16

log = get_logger("protocols.mcpx")


class TopicMembership:
    """What a session knows of its topic. Its terms are `assumed` until the peer offers some."""

    participant: Participant | None = None
    assumed: bool = False


class ReceivedRequest:
    """The envelope of a request, as the reply will need it: who gets it and what it is about."""

    __slots__ = ("id", "kind", "to")

    def __init__(self, asked: TopicRequest) -> None:
        envelope, proposal = asked.envelope, asked.fulfils
        self.id, self.kind = envelope.id, str(asked.kind._replace(base=RESPONSE_KIND))
        # A23: the proposer learns the outcome.
        proposer = (proposal.proposer,) if proposal is not None and proposal.proposer != envelope.sender else ()
        self.to = (envelope.sender, *proposer)


# Events of a conversation: it opens on assumed terms, the peer brings its own terms, the peer left.
BEGIN, HANDSHAKE, LEFT = "begin", "handshake", "left"


class TopicCarrier:
    """Implements `core.extension.Carrier` for one server in one topic.

    `topic.place` names the gateway and the topic. `on_chat` is told what is said to us, `on_proposal` everything that
    others propose; both run as tasks.
    """

    def __init__(
        self,
        *,
        on_chat: Callable[[Participant, Chat], Awaitable[None]] | None = None,
        on_proposal: Callable[[Participant, Proposal], Awaitable[None]] | None = None,
    ) -> None:
        self.participant = Participant(misbehaved=partial(log.warning, "ignored a message of %r: %s"))
        self._on_chat, self._on_proposal = on_chat, on_proposal
        self._sessions: dict[str, Session] = {}
        self._engine: Engine | None = None

    @property
    def topic(self) -> TopicView:
        return self.participant.topic

    @property
    def admitted(self) -> asyncio.Event:
        """Set from the gateway's welcome until the connection is gone."""
        return self.participant.present

    def on_connected(self, engine: Engine, send: Callable[[bytes], None]) -> None:
        """There is a gateway now."""
        self._engine = engine
        self.participant.attach_gateway(send)

    def on_disconnected(self) -> None:
        """The gateway is gone, and all conversations with it."""
        self.participant.detach_gateway()
        self._sessions.clear()

    def caller(self, peer: str) -> Principal:
        """Who a participant is, for one conversation.

        The gateway vouches for a name only if it says so. Then the principal names the gateway and the topic too: the
        same name elsewhere is somebody else. All others are strangers, and each conversation is one of its own,
        because the next guest may have the same name.
        """
        if id := self.topic.make_participant_principal_id(peer):
            return Principal(id, kind="participant")
        return make_anonymous_principal(
            f"{PARTICIPANT_PREFIX}{repr(peer)[:MAX_PRINCIPAL_ID_LENGTH]}#{secrets.token_urlsafe(12)}"
        )

    # -- in ----------------------------------------------------------------------------------------------

    def unwrap(self, frame: bytes) -> list[CarriedMessage]:
        heard = self.participant.receive_frame(frame)
        if isinstance(heard, TopicRequest):
            return self._unwrap_request(heard)
        if isinstance(heard, Presence) and heard.is_other and heard.participant in self._sessions:
            return [CarriedMessage(heard.participant, None, event=LEFT)]
        if isinstance(heard, SpoofedMessage):
            self._refuse(heard)
        elif isinstance(heard, GatewayRefusal):
            log.warning("the gateway refused something: %s %s", heard.error, heard.message)
        elif isinstance(heard, Welcome) and heard.replaced:
            log.warning("another connection had the name %r and the same token; this one took its place", self.topic.me)
        elif isinstance(heard, Chat) and (not heard.to or self.topic.me in heard.to):
            self._spawn(self._on_chat, heard)
        elif isinstance(heard, Proposal):
            self._spawn(self._on_proposal, heard)
        return []

    def handle_event(self, session: Session, event: object) -> None:
        membership = session.local(TopicMembership)
        if event is LEFT:
            self._sessions.pop(session.peer, None)
            session.close()
        elif event is HANDSHAKE:
            membership.assumed, session.terms, session.ready = False, None, False
        else:
            self._sessions[session.peer] = session
            membership.participant, membership.assumed = self.participant, True
            session.open(Offer(TOPIC_MCP_VERSION, {}, {"name": session.peer, "version": ""}))
            session.ready = True

    def _unwrap_request(self, asked: TopicRequest) -> list[CarriedMessage]:
        envelope, payload = asked.envelope, asked.envelope.body
        if not self._is_ours(asked, is_request="id" in payload):
            return []
        peer = envelope.sender
        session = self._sessions.get(peer)
        ended: list[CarriedMessage] = []
        if session is not None and not self._is_still(session):
            session, ended = None, [CarriedMessage(peer, None, event=LEFT)]
        is_new = session is None or session.closed or session.terms is None
        found = [CarriedMessage(peer, None, event=BEGIN)] if is_new else []
        is_assumed = session is None or is_new or session.local(TopicMembership).assumed
        if asked.kind.method == "initialize" and is_assumed:
            found.append(CarriedMessage(peer, None, event=HANDSHAKE))
        return [*ended, *found, CarriedMessage(peer, encode(payload), ReceivedRequest(asked))]

    def _is_still(self, session: Session) -> bool:
        """Whether the gateway says the same of this peer as when the conversation began."""
        identity = session.identity
        is_known = isinstance(identity, Principal) and not is_stranger(identity)
        return is_known == (session.peer in self.topic.authenticated)

    def _is_ours(self, asked: TopicRequest, *, is_request: bool) -> bool:
        if asked.envelope.to:
            return self.topic.me in asked.envelope.to
        return not is_request or asked.kind.method in ANSWERED_BY_ALL

    def _refuse(self, spoofed: SpoofedMessage) -> None:
        """Tell a sender why its request was refused, but only a few times."""
        envelope, peer = spoofed.envelope, spoofed.envelope.sender
        id = envelope.body.get("id")
        if spoofed.kind.base != REQUEST_KIND or self.topic.me not in envelope.to or not isinstance(id, int | str):
            return
        if self.topic.misbehaviour.get(peer, MAX_REPORTS + 1) <= MAX_REPORTS:
            error = {"code": INVALID_REQUEST, "message": f"Invalid request: {spoofed.reason}"}
            payload = {"jsonrpc": "2.0", "id": id, "error": error}
            try:
                kind = str(spoofed.kind._replace(base=RESPONSE_KIND))
                self.participant.post(kind, payload, to=(peer,), about=envelope.id)
            except (NotCapable, NotWelcome):
                pass  # the welcome does not allow it

    def _spawn(self, handler: Callable[[Participant, Any], Awaitable[None]] | None, heard: Chat | Proposal) -> None:
        if handler is not None and self._engine is not None:
            self._engine.spawn(_quietly(handler(self.participant, heard)))

    # -- out ---------------------------------------------------------------------------------------------

    def wrap(self, data: bytes, peer: str, answers: object | None) -> bytes:
        """The envelope of a reply or of a message of ours; empty if we may not send it."""
        if isinstance(answers, ReceivedRequest):
            envelope = self._envelope(answers.kind, EncodedJson(data), answers.to, answers.id)
            return envelope.encode() if envelope is not None else b""
        message: dict[str, Any] = from_json(data)
        method = message.get("method")
        if not isinstance(method, str):
            return b""
        kind = make_message_kind(REQUEST_KIND, method, message.get("params") or {})
        envelope = self._envelope(kind, EncodedJson(data), (peer,), None)
        if "id" in message:
            self._expect(peer, message["id"], kind, envelope)
        return envelope.encode() if envelope is not None else b""

    def _expect(self, peer: str, id: Any, kind: str, envelope: Envelope | None) -> None:
        """The conversation with `peer` waits for an answer to this. It fails at once if we may not send it."""

        def reply(found: Payload | PeerError) -> None:
            if (session := self._sessions.get(peer)) is None:
                return
            if isinstance(found, PeerError):
                session.feed_message(
                    Reply(id, None, {"code": found.code, "message": found.message, "data": found.data})
                )
            else:
                session.feed_bytes(encode(found))

        if envelope is None:
            reply(PeerError(f"no capability for {kind!r}"))
        else:
            self.topic.unconfirmed.add(envelope.id, kind)
            self.participant.expect_response(envelope.id, peer, kind, id, reply)

    def _envelope(
        self, kind: str, payload: Payload | EncodedJson, to: tuple[str, ...], about: str | None
    ) -> Envelope | None:
        if not self.participant.may(kind):
            return None
        return Envelope(kind, self.topic.me, payload, to=to, correlation_id=about)


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:
        log.exception("a handler of the topic failed")
