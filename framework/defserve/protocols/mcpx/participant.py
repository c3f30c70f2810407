"""One participant of a topic: what it can do, and what it waits for. It sends only what the welcome allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from defserve.core.json_values import is_array, is_object
from defserve.core.messages import EncodedJson, RequestId
from defserve.core.peer import make_peer_error
from defserve.errors import PeerError, PeerGone, PeerTimeout, Refused, UsageError
from defserve.protocols.mcpx.envelope import (
    CHAT_FORMATS,
    CHAT_KIND,
    PROPOSAL_KIND,
    REJECT_KIND,
    REQUEST_KIND,
    RESPONSE_KIND,
    WITHDRAW_KIND,
    Envelope,
    TopicCapabilities,
    make_message_kind,
    parse_kind,
)
from defserve.protocols.mcpx.proposals import Clock, Proposal, build_fulfilment_params
from defserve.protocols.mcpx.topic import (
    GatewayRefusal,
    Presence,
    ProposalRejected,
    ProposalWithdrawn,
    SpoofedMessage,
    TopicEvent,
    TopicResponse,
    TopicView,
    Welcome,
)

ANSWER_SECONDS: Final = 60.0
MAX_PENDING_REQUESTS: Final = 10_000
MAX_PAGES: Final = 1_000
LISTING_SECONDS: Final = 5.0
ABSENT: Final = "not_present"
"""What a gateway calls a request to a participant that is not there."""


class Participant:
    """Speaks in a topic: chat, requests, proposals and their fulfilment.

    `receive_frame` takes frames of the gateway; `attach_gateway` sets how ours are sent. Every message is first checked
    against the capabilities of the welcome. If they do not allow it, NotCapable is raised.
    """

    def __init__(self, *, clock: Clock = time.time, misbehaved: Callable[[str, str], None] | None = None) -> None:
        self.topic = TopicView(clock=clock, misbehaved=misbehaved)
        self.present = asyncio.Event()
        self.has_replaced = False
        """Whether another connection with our token had to go when we joined."""
        self._send: Callable[[bytes], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asks: dict[str, PendingTopicRequest] = {}
        self._outcomes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        """Set when a proposal is over. Those who wait for the same one share it, and keep it alive."""
        self._last_id = 0

    @property
    def id(self) -> str:
        """What the gateway calls us; empty until its welcome."""
        return self.topic.me

    @property
    def capabilities(self) -> TopicCapabilities:
        """What it may send in the topic."""
        return self.topic.capabilities

    @property
    def participants(self) -> Mapping[str, TopicCapabilities]:
        """The others, and what each of them may send."""
        return self.topic.participants

    @property
    def proposals(self) -> list[Proposal]:
        """The pending proposals in this topic."""
        return self.topic.proposals.pending()

    # -- saying ------------------------------------------------------------------------------------------

    def may(self, kind: str) -> bool:
        """Whether the welcome lets us send this kind."""
        return self.topic.is_welcomed and self.capabilities.allows_kind(kind)

    def post(
        self,
        kind: str,
        payload: Payload | EncodedJson,
        *,
        to: str | tuple[str, ...] = (),
        about: str | None = None,
    ) -> Envelope:
        """Send an envelope of any kind, from any thread. Raises NotCapable, NotWelcome without a gateway."""
        if self._send is None or not self.topic.is_welcomed:
            raise NotWelcome("not in the topic: the gateway has not sent its welcome")
        if not self.capabilities.allows_kind(kind):
            raise NotCapable(kind, self.capabilities.patterns)
        recipients = (to,) if isinstance(to, str) else to
        envelope = Envelope(kind, self.id, payload, to=recipients, correlation_id=about)
        self.topic.unconfirmed.add(envelope.id, kind)
        self._deliver(envelope.encode())
        return envelope

    def _deliver(self, data: bytes) -> None:
        assert self._send is not None and self._loop is not None
        try:
            on_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            self._send(data)
        else:
            self._loop.call_soon_threadsafe(self._send, data)

    def chat(
        self, text: str, to: str | tuple[str, ...] | None = None, *, format: str = "plain", about: str | None = None
    ) -> Envelope:
        """Say something, to everyone or to some."""
        if format not in CHAT_FORMATS:
            raise UsageError(f"chat has no format {format!r}", fix=f"use one of {', '.join(CHAT_FORMATS)}")
        payload = {"text": text} if format == "plain" else {"text": text, "format": format}
        return self.post(CHAT_KIND, payload, to=to or (), about=about)

    def notify(self, to: str | tuple[str, ...], method: str, params: Payload | None = None) -> Envelope:
        """Send an MCP notification."""
        given = dict(params or {})
        return self.post(
            make_message_kind(REQUEST_KIND, method, given), {"jsonrpc": "2.0", "method": method, "params": given}, to=to
        )

    async def request(
        self,
        to: str,
        method: str,
        params: Payload | None = None,
        *,
        fulfils: Proposal | None = None,
        within: float = ANSWER_SECONDS,
    ) -> Any:
        """Ask a participant and wait for its result.

        Raises NotCapable before anything is sent. Raises PeerError if the participant answers with an error or the
        gateway refuses, PeerTimeout if no answer comes in time, PeerGone if the participant leaves first, and
        NotPresent if it is not in the topic.
        """
        future: asyncio.Future[Payload | PeerError] = asyncio.get_running_loop().create_future()
        self._last_id += 1
        given, id = dict(params or {}), self._last_id
        kind = make_message_kind(REQUEST_KIND, method, given)
        if self.may(kind):
            self._must_be_present(to)
        payload = {"jsonrpc": "2.0", "id": id, "method": method, "params": given}
        envelope = self.post(kind, payload, to=to, about=fulfils.id if fulfils is not None else None)
        self.expect_response(
            envelope.id, to, kind, id, lambda reply: None if future.done() else future.set_result(reply)
        )
        if fulfils is not None:
            self.topic.proposals.record_fulfilment(envelope)
        try:
            async with asyncio.timeout(within):
                return _result(await future)
        except TimeoutError:
            raise PeerTimeout(f"{method}: {to} did not answer within {within:g} s") from None
        finally:
            self._asks.pop(envelope.id, None)
            self.topic.unconfirmed.discard(envelope.id)

    def _must_be_present(self, name: str) -> None:
        if name != self.id and name not in self.participants:
            raise NotPresent(name, self.participants)

    async def call(self, to: str, tool: str, /, arguments: Payload | None = None, **more: Any) -> Any:
        """Call a tool of another participant; its whole result."""
        return await self.request(to, "tools/call", {"name": tool, "arguments": {**(arguments or {}), **more}})

    async def tools(self, of: str) -> list[dict[str, Any]]:
        """The tools of a participant, as it lists them now."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self.request(of, "tools/list", params)
            listed: Any = page.get("tools") if is_object(page) else None
            found += [tool for tool in listed if is_object(tool)] if is_array(listed) else []
            cursor = page.get("nextCursor") if is_object(page) else None
            if not isinstance(cursor, str):
                break
            params = {"cursor": cursor}
        return found

    async def tool(self, of: str, name: str) -> dict[str, Any] | None:
        """One tool as its participant lists it now; None if no tool has that name, or we may not ask."""
        if not self.may(f"{REQUEST_KIND}:tools/list"):
            return None
        return next((tool for tool in await self.tools(of) if tool.get("name") == name), None)

    # -- proposals ---------------------------------------------------------------------------------------

    def propose(self, to: str | tuple[str, ...], method: str, params: Payload | None = None) -> Proposal:
        """Propose an operation that we may not request ourselves. `outcome` waits for the result."""
        given = dict(params or {})
        envelope = self.post(
            make_message_kind(PROPOSAL_KIND, method, given), {"method": method, "params": given}, to=to
        )
        proposal = self.topic.proposals.add(envelope)
        assert proposal is not None
        return proposal

    async def outcome(self, proposal: Proposal, *, within: float | None = None) -> Any:
        """Wait for the result of a proposal.

        Raises PeerTimeout when it expires, and PeerError when it fails, is rejected or is withdrawn.
        """
        if proposal.status in ("pending", "fulfilled"):
            is_over = self._outcomes.setdefault(proposal.id, asyncio.Event())
            left = self.topic.proposals.get_remaining_seconds(proposal)
            try:
                async with asyncio.timeout(left if within is None else within):
                    await is_over.wait()
            except TimeoutError:
                raise _make_expiry_error(proposal) from None
        if proposal.status == "expired":
            raise _make_expiry_error(proposal)
        if proposal.status in ("declined", "withdrawn"):
            why = f": {proposal.reason}" if proposal.reason else ""
            raise PeerError(
                f"the proposal was {proposal.status}{why}",
                data={"status": proposal.status, "reason": proposal.reason, "rejections": dict(proposal.rejections)},
            )
        return _result({"error": proposal.error} if proposal.error is not None else {"result": proposal.result})

    async def perform(self, to: str, method: str, params: Payload | None = None) -> Any:
        """Request it if we may, otherwise propose it and wait for the outcome."""
        if self.may(make_message_kind(REQUEST_KIND, method, params or {})):
            return await self.request(to, method, params)
        if self.topic.is_welcomed:
            self._must_be_present(to)
        return await self.outcome(self.propose(to, method, params))

    async def fulfil(self, proposal: Proposal, *, to: str | None = None, within: float = ANSWER_SECONDS) -> Any:
        """Request what was proposed. The result reaches the proposer as well.

        Without `to`, a proposal that names no single target goes to the only participant that can do it (`candidates`).
        Its `_meta` is not sent, because the request is ours. Raises ProposalNotPending for a proposal that is over, and
        UsageError if nobody or several can do it, or if it has more than its method needs (`build_fulfilment_params`).
        """
        self.require_pending(proposal)
        params = build_fulfilment_params(proposal)
        target = to or proposal.target or await self._only_candidate(proposal)
        self.require_pending(proposal)
        return await self.request(target, proposal.method, params, fulfils=proposal, within=within)

    async def candidates(self, proposal: Proposal) -> list[str]:
        """Who could do what is proposed: those it names, or everyone here, we ourselves included.

        For a tool call, these are the ones that list the tool, if we may ask them.
        """
        everyone = sorted({*self.participants, self.id})
        named = [name for name in everyone if name in proposal.to] if proposal.to else everyone
        if proposal.method != "tools/call" or not self.may(f"{REQUEST_KIND}:tools/list"):
            return [name for name in named if proposal.to or name != self.id]
        found = await asyncio.gather(*(self._has_tool(name, proposal.context) for name in named))
        return [name for name, has in zip(named, found, strict=True) if has]

    async def _has_tool(self, participant: str, name: str) -> bool:
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                return await self.tool(participant, name) is not None
        except (PeerError, TimeoutError):
            return False

    async def _only_candidate(self, proposal: Proposal) -> str:
        found = await self.candidates(proposal)
        if len(found) == 1:
            return found[0]
        what = f"{proposal.method} {proposal.context}".rstrip()
        who = f"several can do {what}: {', '.join(found)}" if found else f"nobody here can do {what}"
        raise UsageError(f"the proposal names no single target, and {who}", fix="fulfil(proposal, to=…)")

    def decline(self, proposal: Proposal, reason: str = "") -> None:
        """Reject a proposal, and tell its proposer.

        That is an `mcp/reject`, or chat if only that is allowed. Raises ProposalNotPending for a proposal that is over.
        """
        self.require_pending(proposal)
        self.topic.proposals.reject(proposal, self.id, reason, is_approver=True)
        self._post_decision(REJECT_KIND, "declined", proposal, (proposal.proposer,))

    def withdraw(self, proposal: Proposal, reason: str = "no_longer_needed") -> None:
        """Take back a proposal of ours. Everyone is told, by `mcp/withdraw` or else by chat.

        Raises ProposalNotPending for a proposal that is over, and UsageError for somebody else's.
        """
        if proposal.proposer != self.id:
            raise UsageError(f"{proposal.proposer} made this proposal", fix="decline(proposal) rejects it")
        self.require_pending(proposal)
        self.topic.proposals.withdraw(proposal, reason)
        self._post_decision(WITHDRAW_KIND, "withdrawn", proposal, ())
        self._settle(proposal)

    def require_pending(self, proposal: Proposal) -> None:
        """Raises ProposalNotPending for a proposal that is over, or in whose place another one has its id."""
        if proposal.status == "pending" and self.topic.proposals.is_current(proposal):
            return
        status = (
            "forgotten, because its proposer has made too many" if proposal.status == "pending" else proposal.status
        )
        raise ProposalNotPending(f"the proposal is {status}", data={"status": proposal.status})

    def _post_decision(self, kind: str, word: str, proposal: Proposal, to: tuple[str, ...]) -> None:
        if self.may(kind):
            self.post(kind, {"reason": proposal.reason} if proposal.reason else {}, to=to, about=proposal.id)
        elif self.may(CHAT_KIND):
            self.chat(f"{word}: {proposal.reason}" if proposal.reason else word, to, about=proposal.id)

    # -- hearing -----------------------------------------------------------------------------------------

    def attach_gateway(self, send: Callable[[bytes], None]) -> None:
        """There is a gateway now; what it sends comes to `receive_frame`. On the loop that serves it."""
        self._send, self._loop = send, asyncio.get_running_loop()

    def detach_gateway(self) -> None:
        """The gateway is gone. Open requests fail."""
        self._send = None
        self.present.clear()
        self.topic.reset()
        for id in list(self._asks):
            self._fail(id, PeerGone("the gateway is gone"))

    def receive_frame(self, frame: bytes) -> TopicEvent | None:
        """Read a frame, and settle the request that waited for it."""
        heard = self.topic.read_frame(frame)
        if isinstance(heard, Welcome):
            self.has_replaced = self.has_replaced or heard.replaced
            self.present.set()
        elif isinstance(heard, TopicResponse):
            self._handle_answer(heard)
            self._settle(heard.outcome)
        elif isinstance(heard, GatewayRefusal):
            self._handle_refusal(heard)
        elif isinstance(heard, ProposalRejected | ProposalWithdrawn):
            self._settle(heard.proposal)
        elif isinstance(heard, SpoofedMessage) and heard.kind.base == RESPONSE_KIND:
            self._handle_answer(heard)
        elif isinstance(heard, Presence) and not heard.joined:
            for id in [id for id, ask in self._asks.items() if ask.to == heard.participant]:
                self._fail(id, PeerGone(f"{heard.participant} has left"))
        return heard

    def expect_response(self, envelope: str, to: str, kind: str, id: RequestId, reply: OnReply) -> None:
        """A request went out in this envelope. `reply` is called with its response, or with the failure."""
        parts = parse_kind(kind)
        assert parts is not None
        if len(self._asks) >= MAX_PENDING_REQUESTS:
            self._fail(next(iter(self._asks)), PeerError("too many requests wait for an answer"))
        self._asks[envelope] = PendingTopicRequest(to, parts.method, id, reply)

    def _handle_answer(self, answer: TopicResponse | SpoofedMessage) -> None:
        about = answer.envelope.correlation_id or ""
        ask = self._asks.get(about)
        if ask is None:
            return
        if (problem := ask.find_mismatch(answer)) is not None:
            self.topic.count_ignored_message(answer.envelope.sender, problem)
            return
        del self._asks[about]
        self.topic.unconfirmed.discard(about)
        if isinstance(answer, SpoofedMessage):
            ask.reply(PeerError(f"{ask.to} gave an answer that cannot be read: {answer.reason}"))
        else:
            ask.reply({**answer.envelope.body, "id": ask.id})

    def _handle_refusal(self, problem: GatewayRefusal) -> None:
        """The gateway refused a request, a fulfilment or a proposal of ours: whoever waits for it learns it at once."""
        about, text = problem.about or "", problem.message or problem.error
        self.topic.proposals.undo_fulfilment(about)
        kind = PeerGone if problem.error == ABSENT else PeerError
        self._fail(about, kind(text, data=dict(problem.payload)))
        proposal = self.topic.proposals.get(about)
        if proposal is not None and proposal.proposer == self.id and proposal.status == "pending":
            proposal.status, proposal.error = "failed", {"message": text, "data": dict(problem.payload)}
            self._settle(proposal)

    def _settle(self, proposal: Proposal | None) -> None:
        """Wake whoever waits for the outcome, if there is one."""
        if proposal is not None and proposal.status != "pending" and (is_over := self._outcomes.get(proposal.id)):
            is_over.set()

    def _fail(self, envelope: str, error: PeerError) -> None:
        if (ask := self._asks.pop(envelope, None)) is not None:
            self.topic.unconfirmed.discard(envelope)
            ask.reply(error)


def _make_expiry_error(proposal: Proposal) -> PeerTimeout:
    return PeerTimeout(f"nobody has done what was proposed ({proposal.method} {proposal.context})")


def _result(reply: Payload | PeerError) -> Any:
    if isinstance(reply, PeerError):
        raise reply
    error: Any = reply.get("error")
    if error is None:
        return reply.get("result")
    raise make_peer_error(error if is_object(error) else {}, "the peer gave no reason")


# -- A request of ours that waits for its answer. The envelope decides what is the answer, not the JSON-RPC id in it.


Payload: TypeAlias = Mapping[str, Any]
OnReply: TypeAlias = Callable[[Payload | PeerError], None]


class PendingTopicRequest:
    """Its target, its method, and `reply`, which is called with the answer or the failure."""

    __slots__ = ("to", "method", "id", "reply")

    def __init__(self, to: str, method: str, id: RequestId, reply: OnReply) -> None:
        self.to, self.method, self.id, self.reply = to, method, id, reply

    def find_mismatch(self, answer: TopicResponse | SpoofedMessage) -> str | None:
        """Why a message that refers to this request is not its answer; None if it is."""
        if answer.envelope.sender != self.to:
            return "a response to a request that went to somebody else"
        return "a response about another method" if answer.kind.method != self.method else None


# -- Errors between participants, beyond those between any two peers.


MAX_LISTED_PARTICIPANTS: Final = 20


class NotCapable(Refused):
    """The welcome did not list a capability for this kind. `data` says what was attempted and what is allowed."""

    error_type = "capability_violation"

    def __init__(self, kind: str, capabilities: Iterable[str]) -> None:
        data = {"attempted_kind": kind, "your_capabilities": [*capabilities]}
        super().__init__(f"no capability for {kind!r}", data=data)


class ProposalNotPending(Refused):
    """A proposal that was fulfilled, declined, withdrawn or has expired."""

    error_type = "proposal_not_pending"


class NotPresent(PeerGone):
    """The participant is not in the topic. `data` says who is."""

    def __init__(self, participant: str, present: Iterable[str]) -> None:
        here = sorted(present)
        more = f" and {len(here) - MAX_LISTED_PARTICIPANTS} more" if len(here) > MAX_LISTED_PARTICIPANTS else ""
        who = f"here are: {', '.join(here[:MAX_LISTED_PARTICIPANTS])}{more}" if here else "nobody else is here"
        super().__init__(f"{participant!r} is not in the topic; {who}", data={"participants": here})


class NotWelcome(Refused):
    """A message was sent before the gateway's welcome, or while the gateway is away."""

    error_type = "not_in_topic"
