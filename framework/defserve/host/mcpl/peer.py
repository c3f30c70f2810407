"""One server as an MCPL host treats it: what was agreed, what the server asks the host, what the host asks the server.

A server that does not speak MCPL gets no MCPL messages and no answers to such messages (§3.3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from defserve.errors import InvalidParams, MethodNotFound, PeerError, PeerGone, ProtocolError
from defserve.host.caller import Caller, SendParams
from defserve.host.conversation import ClientConversation
from defserve.host.eras import SessionTerms
from defserve.host.fields import Json, object_of
from defserve.host.mcpl.audit import McplAuditTrail
from defserve.host.mcpl.channels import channels
from defserve.host.mcpl.channels.channels import LiveChannels
from defserve.host.mcpl.channels.messages import Acknowledgement, ChannelMessage, Delivery, Outgoing
from defserve.host.mcpl.feature_sets import CHANGED, POLICY_KEY, UPDATE
from defserve.host.mcpl.grants import claims
from defserve.host.mcpl.hooks import HookRunner, Injected, Reviewed, ServerHooks
from defserve.host.mcpl.inbox import Inbox
from defserve.host.mcpl.inference import inference
from defserve.host.mcpl.inference.inference import InferenceService
from defserve.host.mcpl.manifest import CHANGED as MANIFEST_CHANGED
from defserve.host.mcpl.manifest import ManifestFollower
from defserve.host.mcpl.mcpl import Mcpl
from defserve.host.mcpl.push.polling import InboxPoller
from defserve.host.mcpl.push.receiver import PUSH, PushedEvent, PushReceiver
from defserve.host.mcpl.receipts import PolicyReceipt
from defserve.host.mcpl.scopes import ELEVATE, ScopeApproval
from defserve.host.mcpl.state import STATE_GET, STATE_UPDATE, HostState, RolledBack, StateTracker
from defserve.protocols.mcpl.channels.values import Channel
from defserve.protocols.mcpl.content import Sendable
from defserve.protocols.mcpl.errors import CapabilityDenied, LiveRefusal
from defserve.protocols.mcpl.scopes.values import Scope
from defserve.protocols.mcpl.turns import Turn, Usage
from defserve.protocols.mcpl.vocabulary import V04, Vocabulary, vocabulary_of
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Id

Answerer: TypeAlias = Callable[[Json], Awaitable[Json]]

log = logging.getLogger("defserve.host")


class McplPeer:
    """`client.mcpl`. `version` is None until the conversation is open, and with a server that does not speak MCPL.

    `receipt` is the latest answer of a server of 0.5 to the policy; None if it gave none.
    """

    def __init__(self, options: Mcpl, conversation: ClientConversation, client: Caller) -> None:
        self.version: str | None = None
        self.rules: Vocabulary = V04
        self.receipt: PolicyReceipt | None = None
        self.server_id = ""
        self.feature_sets = options.sets()
        self._options, self._conversation, self._client = options, conversation, client
        self._agreement: SessionTerms | None = None
        sets, seen = self.feature_sets, options.seen()
        self._audit = audit = McplAuditTrail(options.sinks)
        self._events = PushReceiver(options.on_event, seen, sets, audit)
        self._scopes = ScopeApproval(options.approve, client.answers, sets, audit)
        self._inference = InferenceService(options.router, options.model_info, sets, audit, self._notify)
        self.hooks = ServerHooks(options.hooks, sets, audit, self._request, self._notify)
        self.channels = LiveChannels(options.on_message, seen, sets, audit, self._request, self._notify)
        self._poller = InboxPoller(client, sets, self._events.pushed, self.channels.fetched)
        self._states = StateTracker(
            options.state, sets, audit, client.listed, self._request, client.timeout, options.on_state
        )
        self._manifests = ManifestFollower(self._request, self._renewed, audit)
        self._settled = asyncio.Event()
        # Request of the server → the capability it belongs to, what a server of 0.5 must be granted, who answers it.
        self._answerers: Mapping[str, tuple[str, str | None, Answerer | None]] = {
            PUSH: ("pushEvents", "pushEvents", self._events.pushed),
            ELEVATE: ("featureSets", None, self._scopes.elevate),
            inference.REQUEST: ("inferenceRequest", "inferenceRequest", None),
            inference.MODEL_INFO: ("modelInfo", "modelInfo", self._inference.model_info),
            channels.REGISTER: ("channels", "channels.register", self.channels.register),
            channels.CHANGED: ("channels", "channels.register", self.channels.changed),
            channels.LIST: ("channels", "channels.register", self.channels.listed),
            channels.INCOMING: ("channels", "channels.incoming", self.channels.incoming),
            STATE_UPDATE: ("stateUpdate", None, self._states.updated),
            STATE_GET: ("stateUpdate", None, self._states.given),
        }

    # -- the conversation begins and ends ----------------------------------------------------------------

    async def prepare(self, agreement: SessionTerms) -> None:
        """Read what the server says about MCPL."""
        block = object_of(object_of(agreement.capabilities.get("experimental")).get("mcpl"))
        version = block.get("version", V04.version) if block else None
        self.server_id = self._audit.server_id = str(agreement.server_info.get("name", "unknown"))
        rules = vocabulary_of(version) if isinstance(version, str) else None
        if rules is None or not isinstance(version, str):
            return
        self.version, self._agreement, self.rules = version, agreement, rules
        await self._read(block, agreement)
        self._carry()

    async def _read(self, block: Json, agreement: SessionTerms) -> None:
        if self.rules.by_grant:
            self.feature_sets.grants.claim(claims(block, agreement.capabilities))
        self.feature_sets.advertised = block
        self.hooks.read(block.get("contextHooks"))
        self.channels.read(block.get("channels"))
        await self.feature_sets.declare(block.get("featureSets"))

    async def opened(self) -> None:
        """Tell the server what it may do (§5.3). A server of 0.5 may do nothing before it has answered."""
        try:
            if self.version is not None:
                await self._tell(self.feature_sets.wire())
        finally:
            self._settled.set()

    def closed(self, gone: PeerGone | None = None) -> None:
        """Let readers of events and messages finish. `gone` tells them why the server left."""
        for inbox in (self._events.inbox, self.channels.inbox):
            inbox.end(gone)

    # -- what the server asks and tells ------------------------------------------------------------------

    def answers(self, method: str) -> bool:
        """Whether this is a request of MCPL that was offered to this server."""
        found = self._answerers.get(method)
        is_offered = found is not None and found[0] in self._options.block
        return self.version is not None and is_offered and not (self.rules.by_grant and method == ELEVATE)

    async def answer(self, method: str, params: Json, id: Id) -> Json:
        """Raises ProtocolError with the codes of appendix A."""
        await self._settled.wait()  # a server may ask before it has answered our policy
        try:
            _, path, answerer = self._answerers[method]
            if path is not None:
                self._require(method, path)
            # The chunks of an inference name the request that they belong to.
            return await (answerer(params) if answerer is not None else self._inference.infer(params, id))
        except LiveRefusal as refusal:
            kept = {name: value for name, value in refusal.data.items() if self.rules.can_enable or name != "canEnable"}
            raise ProtocolError(refusal.message, code=refusal.code, data=kept) from refusal

    def _require(self, method: str, path: str) -> None:
        """Raises CapabilityDenied."""
        if not self.feature_sets.grants.permits(path):
            self._audit.report(method, "refused", reason=f"{path} is not granted")
            raise CapabilityDenied(path)

    def heard(self, method: str, params: Json) -> None:
        """Take a notification of the server."""
        if self.version is None:
            return
        if method == CHANGED and not self.rules.manifest:
            self._conversation.start_answer(self._changed(params))
        elif method == MANIFEST_CHANGED and self.rules.manifest:
            self._conversation.start_answer(self._manifests.changed())
        elif method in (channels.CHANGED, channels.INCOMING) and self.answers(method):
            self._conversation.start_answer(self._unanswered(method, params))

    async def _unanswered(self, method: str, params: Json) -> None:
        """A request that came as a notification."""
        try:
            await self.answer(method, params, "")
        except (InvalidParams, ProtocolError) as error:
            log.info("%s: %s", method, error)  # the audit log has it; a notification has no answer

    async def _renewed(self, manifest: Json) -> None:
        """Another manifest has taken the place of the one before. What it adds waits for the server's receipt."""
        if not (is_object(manifest.get("featureSets")) or is_array(manifest.get("featureSets"))):
            raise PeerError("the manifest has no feature sets")
        before = self._enabled()
        self.feature_sets.withdraw([one.name for one in self.feature_sets])
        await self._read(manifest, self._opened)
        self.feature_sets.pending(before)
        await self._tell({})

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
        """Enable and disable feature sets, by name or pattern, and set scopes. It takes effect at once (§6.7)."""
        before = self._enabled()
        change = self.feature_sets.update(enabled, disabled, scopes or {})
        self.feature_sets.pending(before)
        self._scopes.forget()
        if self.version is not None:
            await self._tell(change)

    def events(self) -> Inbox[PushedEvent]:
        """Events that the server pushed, if there is no `on_event`: `async for event in …`."""
        return self._events.inbox

    def messages(self) -> Inbox[ChannelMessage]:
        """Messages of channels, if there is no `on_message`."""
        return self.channels.inbox

    async def collect(self) -> int:
        """Fetch events and messages from a server that cannot push them (2026-07-28) but keeps them in an inbox.

        Returns how many there were. Each is treated as if it had been pushed.
        """
        return await self._poller.collect() if self.version is not None else 0

    async def before_inference(self, turn: Turn) -> list[Injected]:
        """What this server adds to a turn, position by position; nothing if it fails or takes too long."""
        return await HookRunner([self.hooks]).before_inference(turn)

    async def after_inference(self, turn: Turn, assistant_message: str, usage: Usage | None = None) -> Reviewed:
        """Show the server an answer; returns the one to show the user. Raises HookFailed if the host fails closed."""
        return await HookRunner([self.hooks]).after_inference(turn, assistant_message, usage)

    async def inference_ended(self, turn: Turn, phase: Literal["aborted", "failed"]) -> None:
        """Tell a server of 0.5 that an inference has ended without an answer."""
        await HookRunner([self.hooks]).inference_ended(turn, phase)

    async def call(self, tool: str, scope: Scope | str, /, **arguments: Any) -> Any:
        """Call a scoped tool, and say where it may act (§7.7). Raises ScopeDenied if that is forbidden."""
        where = Scope(scope) if isinstance(scope, str) else scope
        feature_set = object_of((await self._client.listed(tool)).get("_meta")).get("featureSet")
        if isinstance(feature_set, str):
            self._scopes.require(feature_set, where)
        fields = {"scope": where.wire()} if self.version is not None else None
        return await self._client.value(tool, await self._client.call_raw(tool, arguments, fields=fields))

    def state(self, feature_set: str) -> HostState:
        """This host's position in the checkpoints of a set, and their contents (§8). Raises UnknownFeatureSet."""
        return self._states.state(feature_set)

    async def rollback(self, feature_set: str, checkpoint: str) -> RolledBack:
        """Have the server undo everything after a checkpoint (§8.5). Calls continue from there.

        Raises UnknownFeatureSet, and PeerError: −32005 for a checkpoint that the server no longer keeps.
        """
        return await self._states.rollback(feature_set, checkpoint)

    def branch(self, feature_set: str, checkpoint: str | None, content: Any = None) -> None:
        """Continue from a checkpoint without undoing anything. The next call tells the server.

        None continues from the server's own position; for callers that it cannot tell apart, it starts anew. A host
        that kept the content of the checkpoint may give it as `content`. Raises UnknownFeatureSet.
        """
        self._states.branch(feature_set, checkpoint, content)

    async def open(
        self, type: str | None, address: Any = None, metadata: Mapping[str, Any] | None = None, **more: Any
    ) -> Channel:
        """Have the server open a channel; see `LiveChannels.open` for `id` and `history`."""
        return await self.channels.open(type, address, metadata, **more)

    async def close(self, id: str) -> bool:
        """Have the server close a channel. Whether it did."""
        return await self.channels.close(id)

    async def publish(
        self, id: str, content: Sendable, *, ack: bool = True, conversation_id: str | None = None, stream: bool = False
    ) -> Delivery | None:
        """Publish content to a channel. Without `ack` there is no answer, and the result is None."""
        return await self.channels.publish(id, content, ack=ack, conversation_id=conversation_id, stream=stream)

    async def acknowledge(self, id: str, message_id: str, intent: str, value: Any = None) -> Acknowledgement:
        """Mark a message of a channel, such as with a reaction."""
        return await self.channels.acknowledge(id, message_id, intent, value)

    async def typing(self, id: str, *, active: bool = True, metadata: Mapping[str, Any] | None = None) -> None:
        """Show in a channel that the model writes, or has stopped."""
        await self.channels.typing(id, active=active, metadata=metadata)

    def outgoing(self, id: str, *, inference_id: str, conversation_id: str) -> Outgoing:
        """Show observers of a channel what is sent there: `async with …outgoing(…) as out: await out.chunk("Hi")`."""
        return self.channels.outgoing(id, inference_id=inference_id, conversation_id=conversation_id)

    # -- on the wire -------------------------------------------------------------------------------------

    async def around(self, params: Mapping[str, Any], send: SendParams) -> Json:
        """Send a `tools/call` with the state that belongs to it."""
        return await (self._states.around(params, send) if self.version is not None else send(params))

    async def _tell(self, change: Json) -> None:
        """Tell a server its policy: a server of 0.5 the whole of it, others the change.

        In the stateless era each request carries the policy, so nothing is sent.
        """
        self._carry()
        grants = self.feature_sets.grants
        told = self.feature_sets.policy() if grants.by_grant else change
        with self._audit.watching(UPDATE, **told):
            if self._opened.stateless:
                self.feature_sets.settle(True)
            elif grants.by_grant:
                await self._ask_receipt(told)
            else:
                await self._notify(UPDATE, change)

    def _enabled(self) -> list[str]:
        return [one.name for one in self.feature_sets if self.feature_sets.enabled(one.name)]

    async def _ask_receipt(self, policy: Json) -> None:
        """Send the policy. It counts if the server accepts it; an error or silence leaves nothing granted."""
        grants = self.feature_sets.grants
        grants.claim(grants.claimed)  # what is taken back does not wait
        self.receipt = None
        try:
            async with asyncio.timeout(self._options.policy_seconds):
                self.receipt = PolicyReceipt.read(await self._request(UPDATE, policy))
        except (TimeoutError, PeerError) as error:
            if isinstance(error, PeerGone):
                raise
            reason = str(error) or "no answer in time"
        else:
            reason = self.receipt.reason or "the server does not accept it"
        is_accepted = self.receipt is not None and self.receipt.accepted
        self.feature_sets.settle(is_accepted)
        if not is_accepted:
            log.warning("%s: only MCP is left, because the policy is not in force: %s", self.server_id, reason)
        elif self.receipt is not None and self.receipt.unavailable:
            log.warning("%s: not available: %s", self.server_id, ", ".join(self.receipt.unavailable))

    def _carry(self) -> None:
        if self._opened.stateless:
            by_grant = self.feature_sets.grants.by_grant
            self._opened.envelope[POLICY_KEY] = self.feature_sets.policy() if by_grant else self.feature_sets.wire()

    async def _request(self, method: str, params: Mapping[str, Any]) -> Json:
        if self.version is None:
            raise _plain()
        return await self._client.request(method, params)

    async def _notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self._conversation.notify(method, self._opened.with_envelope(params, None))

    @property
    def _opened(self) -> SessionTerms:
        if self._agreement is None:
            raise _plain()
        return self._agreement


def _plain() -> PeerError:
    return PeerError("this server does not speak MCPL", code=MethodNotFound.code)
