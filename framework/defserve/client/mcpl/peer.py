"""One server as an MCPL host treats it: what was agreed, what the server asks the host, what the host asks the server.

A server that does not speak MCPL gets no MCPL messages and no answers to such messages (§3.3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from defserve.base.redaction import get_logger
from defserve.client.answers import SendRequest
from defserve.client.audit import McplAuditTrail
from defserve.client.conversation import ClientConversation
from defserve.client.eras import SessionTerms
from defserve.client.exchange import NotificationHandler, RequestHandler, RequestObserver
from defserve.client.extension import ClientExtension, RequestWrapper, SendParams
from defserve.client.mcpl import channels, inference
from defserve.client.mcpl.channels import (
    Acknowledgement,
    ChannelMessage,
    Delivery,
    LiveChannels,
    OutgoingChannelMessage,
)
from defserve.client.mcpl.feature_sets import (
    FEATURE_SETS_CHANGED,
    FEATURE_SETS_UPDATE,
    POLICY_META_KEY,
    collect_claimed_paths,
)
from defserve.client.mcpl.hooks import HookRunner, ReviewedAnswer, ServerHooks, ServerInjection
from defserve.client.mcpl.inference import InferenceService
from defserve.client.mcpl.options import SCOPE_ELEVATE, Mcpl, ScopeElevationApprover
from defserve.client.mcpl.push import PUSH_EVENT, Inbox, InboxPoller, PushedEvent, PushReceiver
from defserve.client.mcpl.state import STATE_GET, STATE_UPDATE, HostState, RolledBack, StateTracker
from defserve.client.replies import Json, filter_strings, object_or_empty, string_or_none
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Request, RequestId
from defserve.errors import InvalidParams, MethodNotFound, PeerError, PeerGone, ProtocolError
from defserve.protocols.mcpl.channels.messages import Channel
from defserve.protocols.mcpl.content import ContentInput, Turn, Usage
from defserve.protocols.mcpl.manifest import ManifestNotDigestible, compute_manifest_revision
from defserve.protocols.mcpl.scopes import Scope
from defserve.protocols.mcpl.vocabulary import (
    MCPL_04,
    CapabilityDenied,
    McplRefusal,
    McplVocabulary,
    find_mcpl_vocabulary,
)

if TYPE_CHECKING:
    from defserve.client.client import Client

log = get_logger("client")


class McplPeer(ClientExtension):
    """`client.mcpl`. `version` is None until the conversation is open, and with a server that does not speak MCPL.

    `receipt` is the latest answer of a server of 0.5 to the policy; None if it gave none.
    """

    name = "mcpl"

    def __init__(self, options: Mcpl, conversation: ClientConversation, client: Client) -> None:
        self.version: str | None = None
        self.rules: McplVocabulary = MCPL_04
        self.receipt: PolicyReceipt | None = None
        self.server_id = ""
        self.feature_sets = options.make_feature_sets()
        self._options, self._conversation, self._client = options, conversation, client
        self._agreement: SessionTerms | None = None
        sets, seen = self.feature_sets, options.get_answer_window()
        self._audit = audit = McplAuditTrail(options.sinks)
        self._events = PushReceiver(options.on_event, seen, sets, audit)
        self._scopes = ScopeElevationApprover(options.approve, client.answers, sets, audit)
        self._inference = InferenceService(options.router, options.model_info, sets, audit, self._notify)
        self.hooks = ServerHooks(options.hooks, sets, audit, self._request, self._notify)
        self.channels = LiveChannels(options.on_message, seen, sets, audit, self._request, self._notify)
        self._poller = InboxPoller(client, sets, self._events.receive_event, self.channels)
        self._states = StateTracker(
            options.state, sets, audit, client.find_tool, self._request, client.timeout, options.on_state
        )
        self._manifests = ManifestFollower(self._request, self._replace_manifest, audit)
        self._settled = asyncio.Event()
        # Request of the server → the capability it belongs to, what a server of 0.5 must be granted, who answers it.
        self._answerers: Mapping[str, tuple[str, str | None, Callable[[Json], Awaitable[Json]] | None]] = {
            PUSH_EVENT: ("pushEvents", "pushEvents", self._events.receive_event),
            SCOPE_ELEVATE: ("featureSets", None, self._scopes.elevate),
            inference.INFERENCE_REQUEST: ("inferenceRequest", "inferenceRequest", None),
            inference.MODEL_INFO: ("modelInfo", "modelInfo", self._inference.model_info),
            channels.CHANNELS_REGISTER: ("channels", "channels.register", self.channels.register),
            channels.CHANNELS_CHANGED: ("channels", "channels.register", self.channels.apply_changes),
            channels.CHANNELS_LIST: ("channels", "channels.register", self.channels.list_channels),
            channels.CHANNELS_INCOMING: ("channels", "channels.incoming", self.channels.incoming),
            STATE_UPDATE: ("stateUpdate", None, self._states.apply_update),
            STATE_GET: ("stateUpdate", None, self._states.answer_state_get),
        }

    # -- the conversation begins and ends ----------------------------------------------------------------

    def offer(self, era: str) -> Json:
        return {"experimental": {"mcpl": self._options.capability_block}}

    async def on_agreed(self, terms: SessionTerms) -> None:
        """Read what the server says about MCPL."""
        block = object_or_empty(object_or_empty(terms.capabilities.get("experimental")).get("mcpl"))
        version = block.get("version", MCPL_04.version) if block else None
        self.server_id = self._audit.server_id = terms.server_name
        rules = find_mcpl_vocabulary(version) if isinstance(version, str) else None
        if rules is None or not isinstance(version, str):
            return
        self.version, self._agreement, self.rules = version, terms, rules
        await self._read_server_block(block, terms)
        self._carry()

    async def _read_server_block(self, block: Json, terms: SessionTerms) -> None:
        if self.rules.by_grant:
            self.feature_sets.grants.replace_claims(collect_claimed_paths(block, terms.capabilities))
        self.feature_sets.advertised = block
        self.hooks.read_capability(block.get("contextHooks"))
        self.channels.read_capability(block.get("channels"))
        await self.feature_sets.declare(block.get("featureSets"))

    async def on_opened(self) -> None:
        """Tell the server what it may do (§5.3). A server of 0.5 may do nothing before it has answered."""
        try:
            if self.version is not None:
                await self._send_policy(self.feature_sets.to_wire())
        finally:
            self._settled.set()

    def on_closed(self, gone: PeerGone | None) -> None:
        """Let readers of events and messages finish. `gone` tells them why the server left."""
        for inbox in (self._events.inbox, self.channels.inbox):
            inbox.end(gone)

    # -- what the server asks and tells ------------------------------------------------------------------

    def requests(self) -> Mapping[str, RequestHandler]:
        return dict.fromkeys(self._answerers, self._answer_request)

    async def _answer_request(self, request: Request) -> Json:
        if not self._is_agreed(request.method):
            raise MethodNotFound(f"this client does not answer {request.method}")
        return await self._answer(request.method, request.params, request.id)

    def _is_agreed(self, method: str) -> bool:
        """Whether this request of MCPL was offered to this server."""
        is_offered = self._answerers[method][0] in self._options.capability_block
        return self.version is not None and is_offered and not (self.rules.by_grant and method == SCOPE_ELEVATE)

    async def _answer(self, method: str, params: Json, id: RequestId) -> Json:
        """Raises ProtocolError with the codes of appendix A."""
        await self._settled.wait()  # a server may ask before it has answered our policy
        try:
            _, path, answerer = self._answerers[method]
            if path is not None and not self.feature_sets.grants.permits(path):
                self._audit.report(method, "refused", reason=f"{path} is not granted")
                raise CapabilityDenied(path)
            # The chunks of an inference name the request that they belong to.
            return await (answerer(params) if answerer is not None else self._inference.infer(params, id))
        except McplRefusal as refusal:
            kept = {name: value for name, value in refusal.data.items() if self.rules.can_enable or name != "canEnable"}
            raise ProtocolError(refusal.message, code=refusal.code, data=kept) from refusal

    def notifications(self) -> Mapping[str, NotificationHandler]:
        return {
            FEATURE_SETS_CHANGED: self._on_sets_changed,
            "mcpl/manifestChanged": self._on_manifest_changed,
            channels.CHANNELS_CHANGED: self._on_notified_request,
            channels.CHANNELS_INCOMING: self._on_notified_request,
        }

    def _on_sets_changed(self, method: str, params: Json) -> None:
        if self.version is not None and not self.rules.manifest:
            self._conversation.start_answer_task(self._apply_set_changes(params), params)

    def _on_manifest_changed(self, method: str, params: Json) -> None:
        if self.version is not None and self.rules.manifest:
            self._conversation.start_answer_task(self._manifests.refetch_manifest(), params, is_own_work=False)

    def _on_notified_request(self, method: str, params: Json) -> None:
        if self._is_agreed(method):
            self._conversation.start_answer_task(self._handle_notified_request(method, params), params)

    async def _handle_notified_request(self, method: str, params: Json) -> None:
        """A request that came as a notification."""
        try:
            await self._answer(method, params, "")
        except (InvalidParams, ProtocolError) as error:
            log.info("%s: %s", method, error)  # the audit log has it; a notification has no answer

    async def _replace_manifest(self, manifest: Json) -> None:
        """Another manifest has taken the place of the one before. What it adds waits for the server's receipt."""
        if not (is_object(manifest.get("featureSets")) or is_array(manifest.get("featureSets"))):
            raise PeerError("the manifest has no feature sets")
        before = self._list_enabled_sets()
        self.feature_sets.withdraw([one.name for one in self.feature_sets])
        await self._read_server_block(manifest, self._opened)
        self.feature_sets.mark_pending(before)
        await self._send_policy({})

    async def _apply_set_changes(self, params: Json) -> None:
        self.feature_sets.withdraw(params.get("removed"))
        added = await self.feature_sets.declare(params.get("added"))
        try:
            if added:
                await self._send_policy(self.feature_sets.to_wire(added))
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
        before = self._list_enabled_sets()
        change = self.feature_sets.update(enabled, disabled, scopes or {})
        self.feature_sets.mark_pending(before)
        self._scopes.approved.clear_answers()
        if self.version is not None:
            await self._send_policy(change)

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

    async def before_inference(self, turn: Turn) -> list[ServerInjection]:
        """What this server adds to a turn, position by position; nothing if it fails or takes too long."""
        return await HookRunner([self.hooks]).before_inference(turn)

    async def after_inference(self, turn: Turn, assistant_message: str, usage: Usage | None = None) -> ReviewedAnswer:
        """Show the server an answer; returns the one to show the user. Raises HookFailed if the host fails closed."""
        return await HookRunner([self.hooks]).after_inference(turn, assistant_message, usage)

    async def inference_ended(self, turn: Turn, phase: Literal["aborted", "failed"]) -> None:
        """Tell a server of 0.5 that an inference has ended without an answer."""
        await HookRunner([self.hooks]).inference_ended(turn, phase)

    async def call(self, tool: str, scope: Scope | str, /, **arguments: Any) -> Any:
        """Call a scoped tool, and say where it may act (§7.7). Raises ScopeDenied if that is forbidden."""
        where = Scope(scope) if isinstance(scope, str) else scope
        feature_set = object_or_empty((await self._client.find_tool(tool)).get("_meta")).get("featureSet")
        if isinstance(feature_set, str):
            self._scopes.require(feature_set, where)
        fields = {"scope": where.to_wire()} if self.version is not None else None
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
        self,
        id: str,
        content: ContentInput,
        *,
        ack: bool = True,
        conversation_id: str | None = None,
        stream: bool = False,
    ) -> Delivery | None:
        """Publish content to a channel. Without `ack` there is no answer, and the result is None."""
        return await self.channels.publish(id, content, ack=ack, conversation_id=conversation_id, stream=stream)

    async def acknowledge(self, id: str, message_id: str, intent: str, value: Any = None) -> Acknowledgement:
        """Mark a message of a channel, such as with a reaction."""
        return await self.channels.acknowledge(id, message_id, intent, value)

    async def typing(self, id: str, *, active: bool = True, metadata: Mapping[str, Any] | None = None) -> None:
        """Show in a channel that the model writes, or has stopped."""
        await self.channels.typing(id, active=active, metadata=metadata)

    def outgoing(self, id: str, *, inference_id: str, conversation_id: str) -> OutgoingChannelMessage:
        """Show observers of a channel what is sent there: `async with …outgoing(…) as out: await out.chunk("Hi")`."""
        return self.channels.outgoing(id, inference_id=inference_id, conversation_id=conversation_id)

    # -- on the wire -------------------------------------------------------------------------------------

    def around(self) -> Mapping[str, RequestWrapper]:
        return {"tools/call": self._send_with_state}

    async def _send_with_state(
        self, method: str, send: SendParams, observer: RequestObserver | None, params: Mapping[str, Any]
    ) -> Json:
        return await (self._states.call_with_state(params, send) if self.version is not None else send(params))

    async def _send_policy(self, change: Json) -> None:
        """Tell a server its policy: a server of 0.5 the whole of it, others the change.

        In the stateless era each request carries the policy, so nothing is sent.
        """
        self._carry()
        grants = self.feature_sets.grants
        told = self.feature_sets.policy() if grants.by_grant else change
        with self._audit.record_outcome(FEATURE_SETS_UPDATE, **told):
            if self._opened.stateless:
                self.feature_sets.apply_receipt(True)
            elif grants.by_grant:
                await self._ask_receipt(told)
            else:
                await self._notify(FEATURE_SETS_UPDATE, change)

    def _list_enabled_sets(self) -> list[str]:
        return [one.name for one in self.feature_sets if self.feature_sets.is_enabled(one.name)]

    async def _ask_receipt(self, policy: Json) -> None:
        """Send the policy. It counts if the server accepts it; an error or silence leaves nothing granted."""
        grants = self.feature_sets.grants
        grants.replace_claims(grants.claimed)  # what is taken back does not wait
        self.receipt = None
        try:
            async with asyncio.timeout(self._options.policy_seconds):
                self.receipt = PolicyReceipt.from_answer(await self._request(FEATURE_SETS_UPDATE, policy))
        except (TimeoutError, PeerError) as error:
            if isinstance(error, PeerGone):
                raise
            reason = str(error) or "no answer in time"
        else:
            reason = self.receipt.reason or "the server does not accept it"
        is_accepted = self.receipt is not None and self.receipt.accepted
        self.feature_sets.apply_receipt(is_accepted)
        if not is_accepted:
            log.warning("%s: only MCP is left, because the policy is not in force: %s", self.server_id, reason)
        elif self.receipt is not None and self.receipt.unavailable:
            log.warning("%s: not available: %s", self.server_id, ", ".join(self.receipt.unavailable))

    def _carry(self) -> None:
        if self._opened.stateless:
            by_grant = self.feature_sets.grants.by_grant
            self._opened.envelope[POLICY_META_KEY] = (
                self.feature_sets.policy() if by_grant else self.feature_sets.to_wire()
            )

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


# -- MCPL 0.5 §8: a server says that its manifest has changed, and this host fetches it, at most once in two seconds.


MANIFEST_METHOD: Final = "mcpl/manifest"


class ManifestFollower:
    """Fetches changed manifests, and hands each to `take`. One that cannot be read changes nothing."""

    pause = 2.0

    def __init__(self, request: SendRequest, take: Callable[[Json], Awaitable[None]], audit: McplAuditTrail) -> None:
        self._request, self._take, self._audit = request, take, audit
        self._is_fetching = self._is_stale = False

    async def refetch_manifest(self) -> None:
        """Fetch the manifest. Notices that come meanwhile lead to one more fetch, after a pause."""
        self._is_stale = True
        if self._is_fetching:
            return
        self._is_fetching = True
        try:
            while self._is_stale:
                self._is_stale = False
                await self._fetch()
                await asyncio.sleep(self.pause)
        finally:
            self._is_fetching = False

    async def _fetch(self) -> None:
        try:
            with self._audit.record_outcome(MANIFEST_METHOD):
                manifest = await self._request(MANIFEST_METHOD, {})
                try:
                    fits = "revision" not in manifest or compute_manifest_revision(manifest) == manifest["revision"]
                except ManifestNotDigestible:
                    fits = False
                if not fits:
                    # A defect of the server. What counts is the content.
                    log.warning("%s: the revision of its manifest does not fit its content", self._audit.server_id)
                await self._take(manifest)
        except PeerError as error:
            log.warning("%s: the manifest stays as it was: %s", self._audit.server_id, error)


# -- MCPL 0.5 §6: what a server answers to a policy.


@dataclass(frozen=True, slots=True)
class PolicyReceipt:
    """Whether a server accepts a policy. A receipt never widens what was granted.

    unavailable  set → what it lacks, for the sets that do not work, or not wholly
    notes        what else the server says
    fallback     without acceptance: "mcp-only", or "close" if the server wants to be left
    reason       why it does not accept
    """

    accepted: bool
    unavailable: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    fallback: str | None = None
    reason: str | None = None

    @classmethod
    def from_answer(cls, answer: Any) -> PolicyReceipt:
        """A server's answer. One without a word about acceptance has not accepted."""
        told = object_or_empty(answer)
        features = told.get("unavailableFeatures")
        unavailable = {
            name: tuple(filter_strings(one.get("missingCapabilities")))
            for one in (features if is_array(features) else ())
            if is_object(one) and isinstance(name := one.get("featureSet"), str)
        }
        return cls(
            told.get("accepted") is True,
            unavailable,
            tuple(filter_strings(told.get("notes"))),
            string_or_none(told.get("fallback")),
            string_or_none(told.get("reason")),
        )
