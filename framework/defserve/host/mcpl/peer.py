"""One server as an MCPL host deals with it: what was agreed, what it asks of the host, and what the host asks of it.

With a server that speaks no MCPL nothing of it is sent, and nothing answered (§3.3).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.errors import InvalidParams, MethodNotFound, PeerError, PeerGone, ProtocolError
from defserve.host.conversation import Conversation, object_of
from defserve.host.mcpl import channels as live_channels
from defserve.host.mcpl import events as live_events
from defserve.host.mcpl import inference
from defserve.host.mcpl import scopes as live_scopes
from defserve.host.mcpl.audit import LiveAudit
from defserve.host.mcpl.channels import LiveChannels
from defserve.host.mcpl.events import LiveEvents, PushedEvent
from defserve.host.mcpl.feature_sets import CHANGED, POLICY_KEY, UPDATE
from defserve.host.mcpl.hooks import HookRunner, Injected, LiveHooks, Reviewed
from defserve.host.mcpl.inbox import Inbox
from defserve.host.mcpl.inbox_feed import LiveInbox
from defserve.host.mcpl.inference import LiveInference
from defserve.host.mcpl.messages import ChannelMessage, Delivery, Outgoing
from defserve.host.mcpl.scopes import LiveScopes
from defserve.host.mcpl.state import HostState, LiveState, RolledBack, Send
from defserve.protocols.mcpl.channels.values import Channel
from defserve.protocols.mcpl.content import Sendable
from defserve.protocols.mcpl.errors import LiveRefusal
from defserve.protocols.mcpl.extension import VERSION
from defserve.protocols.mcpl.scopes.values import Scope
from defserve.protocols.mcpl.turns import Turn, Usage
from defserve.wire.messages import Id

if TYPE_CHECKING:
    from defserve.host.client import Client
    from defserve.host.eras import Opening
    from defserve.host.mcpl.mcpl import Mcpl

Json: TypeAlias = dict[str, Any]
Answerer: TypeAlias = Callable[[Json], Awaitable[Json]]

log = logging.getLogger("defserve.host")


class McplPeer:
    """`client.mcpl`. Until the conversation is open, and with a server that speaks no MCPL, `version` is None."""

    def __init__(self, options: Mcpl, conversation: Conversation, client: Client) -> None:
        self.version: str | None = None
        self.server_id = ""
        self.feature_sets = options.sets()
        self._options, self._conversation, self._client = options, conversation, client
        self._opening: Opening | None = None
        sets, seen = self.feature_sets, options.seen()
        self._audit = audit = LiveAudit(options.sinks)
        self._events = LiveEvents(options.on_event, seen, sets, audit)
        self._scopes = LiveScopes(options.approve, client.answers, sets, audit)
        self._inference = LiveInference(options.router, options.model_info, sets, audit, self._notify)
        self.hooks = LiveHooks(options.hooks, sets, audit, self._request, self._notify)
        self.channels = LiveChannels(options.on_message, seen, sets, audit, self._request, self._notify)
        self._inbox = LiveInbox(client, sets, self._events.pushed, self.channels.fetched)
        self._states = LiveState(options.state, sets, audit, client.listed, self._request, client.timeout)
        # Request of the server's → the capability it comes with, and who answers.
        self._answerers: Mapping[str, tuple[str, Answerer | None]] = {
            live_events.PUSH: ("pushEvents", self._events.pushed),
            live_scopes.ELEVATE: ("featureSets", self._scopes.elevate),
            inference.REQUEST: ("inferenceRequest", None),
            inference.MODEL_INFO: ("modelInfo", self._inference.model_info),
            live_channels.REGISTER: ("channels", self.channels.register),
            live_channels.LIST: ("channels", self.channels.listed),
            live_channels.INCOMING: ("channels", self.channels.incoming),
        }

    # -- the conversation begins and ends ----------------------------------------------------------------

    async def prepare(self, opening: Opening) -> None:
        """Read what the server said of MCPL."""
        block = object_of(object_of(opening.capabilities.get("experimental")).get("mcpl"))
        version = block.get("version", VERSION) if block else None
        self.server_id = self._audit.server_id = str(opening.server_info.get("name", "unknown"))
        if not isinstance(version, str) or not version.startswith("0."):
            return
        self.version, self._opening = version, opening
        self.hooks.read(block.get("contextHooks"))
        self.channels.read(block.get("channels"))
        await self.feature_sets.declare(block.get("featureSets"))
        self._carry()

    async def opened(self) -> None:
        """Tell the server what is enabled (§5.3)."""
        if self.version is not None:
            await self._tell(self.feature_sets.wire())

    def closed(self, gone: PeerGone | None = None) -> None:
        """Let readers of events and messages finish; they are told why the server left."""
        for inbox in (self._events.inbox, self.channels.inbox):
            inbox.end(gone)

    # -- what the server asks and says -------------------------------------------------------------------

    def answers(self, method: str) -> bool:
        """Whether this is a request of MCPL's that was offered to this server."""
        found = self._answerers.get(method)
        return self.version is not None and found is not None and found[0] in self._options.block

    async def answer(self, method: str, params: Json, id: Id) -> Json:
        """Raises ProtocolError with the codes of appendix A."""
        try:
            answerer = self._answerers[method][1]
            # Chunks of an inference name the request that they answer.
            return await (answerer(params) if answerer is not None else self._inference.infer(params, id))
        except LiveRefusal as refusal:
            raise ProtocolError(refusal.message, code=refusal.code, data=refusal.data) from refusal

    def heard(self, method: str, params: Json) -> None:
        """Take a notification of the server's. What is wrong with it is only audited: there is nobody to tell."""
        if self.version is None:
            return
        if method == CHANGED:
            self._conversation.occupy(self._changed(params))
        elif method == live_channels.CHANGED and "channels" in self._options.block:
            try:
                self.channels.changed(params)
            except (InvalidParams, LiveRefusal):
                pass  # it is in the audit log, and there is nobody to tell

    async def _changed(self, params: Json) -> None:
        self.feature_sets.withdraw(params.get("removed"))
        added = await self.feature_sets.declare(params.get("added"))
        try:
            if added:
                await self._tell(self.feature_sets.wire(added))
        except PeerError as error:
            log.info("the server could not be told about %s: %s", added, error)

    # -- the host's verbs --------------------------------------------------------------------------------

    async def update(
        self,
        enabled: Sequence[str] = (),
        disabled: Sequence[str] = (),
        scopes: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    ) -> None:
        """Enable and disable feature sets, by name or pattern, and set scopes; in force at once (§6.7)."""
        change = self.feature_sets.update(enabled, disabled, scopes or {})
        self._scopes.forget()
        if self.version is not None:
            await self._tell(change)

    def events(self) -> Inbox[PushedEvent]:
        """Events that the server pushes, where `on_event` does not take them: `async for event in …`."""
        return self._events.inbox

    def messages(self) -> Inbox[ChannelMessage]:
        """Messages of channels, where `on_message` does not take them."""
        return self.channels.inbox

    async def collect(self) -> int:
        """Fetch events and messages from a server that cannot push them (2026-07-28) but keeps them in an inbox.

        Gives their number; each is taken as if it had been pushed.
        """
        return await self._inbox.collect() if self.version is not None else 0

    async def before_inference(self, turn: Turn) -> list[Injected]:
        """What this server adds to a turn, position by position; nothing where it fails or takes too long."""
        return await HookRunner([self.hooks]).before_inference(turn)

    async def after_inference(self, turn: Turn, assistant_message: str, usage: Usage | None = None) -> Reviewed:
        """Show the server an answer; what may be shown to the user. Raises HookFailed where it fails closed."""
        return await HookRunner([self.hooks]).after_inference(turn, assistant_message, usage)

    async def call(self, tool: str, scope: Scope | str, /, **arguments: Any) -> Any:
        """Call a scoped tool, saying where it is to act (§7.7). Raises ScopeDenied where that is forbidden."""
        where = Scope(scope) if isinstance(scope, str) else scope
        tied = object_of((await self._client.listed(tool)).get("_meta")).get("featureSet")
        if isinstance(tied, str):
            self._scopes.require(tied, where)
        fields = {"scope": where.wire()} if self.version is not None else None
        return await self._client.value(tool, await self._client.call_raw(tool, arguments, fields=fields))

    def state(self, feature_set: str) -> HostState:
        """Where this host is in a set's checkpoints, and what it holds of them (§8). Raises UnknownFeatureSet."""
        return self._states.state(feature_set)

    async def rollback(self, feature_set: str, checkpoint: str) -> RolledBack:
        """Have the server undo what came after a checkpoint (§8.5); calls go on from there.

        Raises PeerError, with −32005 for a checkpoint that the server no longer keeps, and UnknownFeatureSet.
        """
        return await self._states.rollback(feature_set, checkpoint)

    def branch(self, feature_set: str, checkpoint: str | None, content: Any = None) -> None:
        """Go on from a checkpoint without undoing anything; the server hears of it with the next call.

        None is where the server itself is; it begins anew with callers that it cannot tell apart. `content` is that of
        the checkpoint, for a host that kept it itself. Raises UnknownFeatureSet.
        """
        self._states.branch(feature_set, checkpoint, content)

    async def open(self, type: str, address: Any = None, metadata: Mapping[str, Any] | None = None) -> Channel:
        """Have the server open a channel. Raises PeerError (-32024) where it cannot, ChannelNotPermitted."""
        return await self.channels.open(type, address, metadata)

    async def close(self, id: str) -> bool:
        """Have the server close a channel; whether it did."""
        return await self.channels.close(id)

    async def publish(
        self, id: str, content: Sendable, *, ack: bool = True, conversation_id: str | None = None, stream: bool = False
    ) -> Delivery | None:
        """Have content delivered to a channel; without `ack` nobody hears what became of it."""
        return await self.channels.publish(id, content, ack=ack, conversation_id=conversation_id, stream=stream)

    def outgoing(self, id: str, *, inference_id: str, conversation_id: str) -> Outgoing:
        """Tell observers of a channel what goes there: `async with …outgoing(…) as out: await out.chunk("Hi")`."""
        return self.channels.outgoing(id, inference_id=inference_id, conversation_id=conversation_id)

    # -- on the wire -------------------------------------------------------------------------------------

    async def around(self, params: Mapping[str, Any], send: Send) -> Json:
        """A `tools/call`, and the state that goes with it."""
        return await (self._states.around(params, send) if self.version is not None else send(params))

    async def _tell(self, change: Json) -> None:
        """Where requests stand alone each of them brings the policy along, and there is nothing to tell."""
        self._carry()
        with self._audit.watching(UPDATE, **change):
            if not self._opened.stateless:
                await self._notify(UPDATE, change)

    def _carry(self) -> None:
        if self._opened.stateless:
            self._opened.envelope[POLICY_KEY] = self.feature_sets.wire()

    async def _request(self, method: str, params: Mapping[str, Any]) -> Json:
        if self.version is None:
            raise _plain()
        return await self._client.request(method, params)

    async def _notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self._conversation.notify(method, self._opened.dress(params, None))

    @property
    def _opened(self) -> Opening:
        if self._opening is None:
            raise _plain()
        return self._opening


def _plain() -> PeerError:
    return PeerError("this server does not speak MCPL", code=MethodNotFound.code)
