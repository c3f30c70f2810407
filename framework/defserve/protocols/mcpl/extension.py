"""MCPL as an extension (§3–5): advertised to hosts that offer it, silent for everyone else.

Each section is made when it is first needed, so that a server loads only what it uses.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import Handler, Listener, Offer, Section, SectionedExtension, Stages, section
from defserve.core.messages import Params
from defserve.core.peer import CURRENT_SENDER, can_act_for, make_error_object
from defserve.core.registry import Registry
from defserve.core.session import Session
from defserve.errors import MethodNotFound, Refused
from defserve.protocols.mcp.errors import get_trace_id
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.function import FindProvider
from defserve.protocols.mcp.lifecycle import require_handshake
from defserve.protocols.mcpl import peers, policies
from defserve.protocols.mcpl.feature_sets import FeatureSet
from defserve.protocols.mcpl.manifest import build_manifest, notify_manifest_changed
from defserve.protocols.mcpl.peers import CURRENT_CALL, DangerousToolMarker, make_notification_call
from defserve.protocols.mcpl.policies import (
    McplTerms,
    can_receive_push,
    get_feature_policy,
    get_mcpl_terms,
    get_mcpl_vocabulary,
    is_stateless_call,
    negotiate_mcpl_terms,
)
from defserve.protocols.mcpl.section import DeclareTool, InboxBinding, McplServerState, get_feature_binding
from defserve.protocols.mcpl.state.binding import wrap_to_refuse_state_injection
from defserve.protocols.mcpl.vocabulary import MCPL_05, CapabilityDenied, McplRefusal

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.section import ChannelSection
    from defserve.protocols.mcpl.hooks import HookSection
    from defserve.protocols.mcpl.inference import InferenceSection
    from defserve.protocols.mcpl.push import PushSection
    from defserve.protocols.mcpl.section import FeatureSetBase
    from defserve.protocols.mcpl.state.binding import StateStorage
    from defserve.protocols.mcpl.state.section import StateSection
    from defserve.protocols.mcpl.state.states import States


# clientInfo.name of the hosts that want `featureSets` as an array. The others read the specification's object.
ARRAY_HOSTS = ("mcpl-harness",)


class MCPL(SectionedExtension):
    """MCPL on the server's side: feature sets, and the methods and notifications that hosts send."""

    name = "mcpl"

    def __init__(
        self,
        declare_tool: DeclareTool,
        find_provider: FindProvider,
        tools: Registry[Any],
        owner: object,
        storage: StateStorage,
        strict: bool = False,
    ) -> None:
        self.server = McplServerState(wrap_to_refuse_state_injection(find_provider), owner)
        self.sets = self.server.sets
        self._declare_tool, self._tools, self._storage, self._strict = declare_tool, tools, storage, strict
        self._server_set: FeatureSet | None = None

    # -- sections ----------------------------------------------------------------------------------------

    # The first, because its stores open before anything that may use them runs.
    @section(methods=("state/rollback",))
    def state(self) -> StateSection:
        from defserve.protocols.mcpl.state.section import StateSection

        return StateSection(self.server, self._storage)

    @section(
        methods=("context/beforeInference", "context/afterInference"),
        notifications=("context/afterInference", "inference/lifecycle"),
    )
    def hooks(self) -> HookSection:
        from defserve.protocols.mcpl.hooks import HookSection

        return HookSection(self.server)

    @section()
    def push(self) -> PushSection:
        from defserve.protocols.mcpl.push import PushSection

        return PushSection(self.server)

    @section()
    def inference(self) -> InferenceSection:
        from defserve.protocols.mcpl.inference import InferenceSection

        return InferenceSection(self.server)

    @section(
        methods=("channels/list", "channels/open", "channels/close", "channels/publish", "channels/acknowledge"),
        notifications=(
            "channels/publish",
            "channels/typing",
            "notifications/typing",  # an older name, which some hosts still use
            "channels/outgoing/chunk",
            "channels/outgoing/complete",
        ),
    )
    def channels(self) -> ChannelSection:
        from defserve.protocols.mcpl.channels.section import ChannelSection

        return ChannelSection(self.server)

    def check_method(self, section: Section[Any], call: Call) -> None:
        words = get_mcpl_vocabulary(call)
        # Until the section is made, perhaps while serving, the method is unknown.
        if section.get_existing_section(self) is None or call.method in words.removed:
            raise MethodNotFound(f"Method not found: {call.method}")
        if (gate := words.find_missing_grant(call.method, get_feature_policy(call).grants)) is not None:
            raise CapabilityDenied(gate)

    def is_notified(self, section: Section[Any], session: Session, method: str, params: Params) -> bool:
        """Whether a notification may be acted on. What is not granted is dropped, with a line in the log."""
        if (
            section.get_existing_section(self) is None
            or (call := make_notification_call(session, method, params)) is None
        ):
            return False
        if method in (words := get_mcpl_vocabulary(call)).removed:
            return False
        if (gate := words.find_missing_grant(method, get_feature_policy(call).grants)) is None:
            return True
        from defserve.base.redaction import get_logger

        get_logger().info("%s: dropped, because %s is not granted", method, gate)
        return False

    # -- feature sets ------------------------------------------------------------------------------------

    def feature_set(self, name: str, description: str, **options: Any) -> FeatureSet:
        """Declare a set. Hosts that are connected are told when the code that declares it is done."""
        made = FeatureSet(self, self._declare_tool, name, description, self.server.owner, **options)
        made.strict = self._strict
        made.whole = self.server.composition is None
        made.changed = partial(self._afterwards, partial(self._publish, made))
        self.sets.add(name, made)
        if self.server.composition is not None:
            _serve_inbox(made, self.server.composition)
        made.changed()
        return made

    def ensure_server_feature_set(self, server: str) -> FeatureSet:
        """The set that `server.state` stands for, named after the server. Made when it is first asked for."""
        if self._server_set is None:
            label = "-".join(re.findall(r"[A-Za-z0-9_-]+", server)) or "server"
            made = self.feature_set(f"{label}.state", "What this server keeps between calls", uses=["tools"])
            # Clients that know nothing of feature sets use its tools as well.
            made.is_of_server, made.strict = True, False
            self._server_set = made
        return self._server_set

    def remove(self, name: str) -> None:
        """Take a set back. Hosts are told; its tools, hooks and events stop at once."""
        removed = self.sets.remove(name)
        removed.removed = True
        if removed.inbox is not None and self.server.composition is not None:
            removed.inbox.unpublish_resources(_mcp(self.server.composition))
        for tool in [
            tool for tool in self._tools if (found := get_feature_binding(tool)) and found.feature_set is removed
        ]:
            self._tools.remove(tool.name)
        for each in self.sections():
            each.on_feature_set_removed(removed)
        if removed.whole:
            self._afterwards(partial(self._notify_hosts, {"removed": [name]}))

    def _publish(self, made: FeatureSetBase) -> None:
        """A set is declared whole: show it to hosts. Later they are told what has changed."""
        before, made.whole = made.told, True
        made.told = made.to_wire(), made.to_wire(MCPL_05)
        if not made.removed and before != made.told:
            is_news = before is None or before[0] != made.told[0]
            self._notify_hosts({"added": {made.name: made.told[0]}} if is_news else None)

    def _afterwards(self, action: Callable[[], None]) -> None:
        """Do something when the code that declares is done, so that nobody sees half of it. From any thread."""
        call, sessions = CURRENT_CALL.get(), self.server.sessions
        engines = [one.engine for one in ((call.session, *sessions) if call is not None else sessions)]
        ready = [engine for engine in engines if engine.ready]
        if self.server.composition is None:
            return
        if not ready:
            action()
            return
        next((engine for engine in ready if engine.is_on_loop()), ready[0]).call_after_current_step(action)

    def _notify_hosts(self, change: Params | None) -> None:
        """Tell every host, in the words of its version. None: it is news for those of 0.5 alone. From any thread."""

        def notify_host(session: Session) -> None:
            live = get_mcpl_terms(session.terms)
            if not session.ready or session.closed or live is None:
                return
            if live.vocabulary.manifest:
                # Several sets that are declared together are one change.
                session.engine.call_soon(partial(self._announce, session, live))
            elif change is not None:
                session.notify("featureSets/changed", change)

        self.server.for_each_session(notify_host)

    # -- negotiation -------------------------------------------------------------------------------------

    def negotiate(self, offer: Offer) -> McplTerms | None:
        live = negotiate_mcpl_terms(offer, self._strict)
        if live is not None and live.vocabulary.manifest and not offer.stateless:
            live.announced = self._manifest(offer, live)
        return live

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        found: Params = {}
        if any(one.claude_channel for one in self.sets) and peers.can_take_claude_channel(offer):
            found[peers.CLAUDE_CAPABILITY] = {}
        if (live := negotiate_mcpl_terms(offer, self._strict)) is not None:
            found["mcpl"] = self._manifest(offer, live)
        return {"experimental": found} if found else {}

    def _manifest(self, offer: Offer, live: McplTerms) -> Params:
        as_array = str(offer.info.get("name", "")).startswith(ARRAY_HOSTS)
        hooks, channels = MCPL.hooks.get_existing_section(self), MCPL.channels.get_existing_section(self)
        return build_manifest(self.sets, hooks, channels, live.vocabulary, as_array=as_array)

    def _announce(self, session: Session, live: McplTerms) -> None:
        offer = session.terms.offer if session.terms is not None else None
        if offer is not None and not session.closed:
            notify_manifest_changed(session, live, lambda: self._manifest(offer, live))

    def attach_composition(self, composition: Composition) -> None:
        """Take the composition whose sessions the sets speak to."""
        self.server.composition = composition
        for one in self.sets:
            one.told = one.to_wire(), one.to_wire(MCPL_05)
            _serve_inbox(one, composition)

    # -- the plug ----------------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        own = {policies.FEATURE_SETS_UPDATE_METHOD: self._update, "mcpl/manifest": self._handle_manifest}
        return {**own, **super().methods()}

    def notifications(self) -> Mapping[str, Listener]:
        return {
            policies.FEATURE_SETS_UPDATE_METHOD: self._on_update_notification,
            "notifications/initialized": self._ready,
            "inference/chunk": self._chunk,
            **super().notifications(),
        }

    async def _ready(self, session: Session, params: Params) -> None:
        # A coroutine, because the sections start tasks.
        if (live := get_mcpl_terms(session.terms)) is not None:
            self._announce(session, live)
        for each in self.sections():
            each.session_changed(session)

    def _chunk(self, session: Session, params: Params) -> None:
        live, inference = get_mcpl_terms(session.terms), MCPL.inference.get_existing_section(self)
        if live is None:
            return
        # Many of these come: no call is made for each.
        if live.vocabulary.find_missing_grant("inference/chunk", live.policy.grants) is not None:
            return
        if not (inference is not None and inference.on_chunk(session, params)) and session.sharer is not None:
            session.sharer.notify_elsewhere(
                params.get("requestId", ""), "inference/chunk", params, CURRENT_SENDER.get()
            )

    def export_state(self, session: Session) -> Mapping[str, Any]:
        live = get_mcpl_terms(session.terms)
        found: Params = {"policy": policy} if live is not None and (policy := live.export_state()) else {}
        return {**found, **super().export_state(session)}

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        if (live := get_mcpl_terms(session.terms)) is not None:
            live.import_state(kept.get("policy", {}))
            super().import_state(session, kept)

    async def deliver_published(self, verb: str, value: Any, only: Session | None = None) -> None:
        """Another process says something to everyone, by `SharedHosts.publish`. `only`: who has missed it."""
        if only is not None and get_mcpl_terms(only.terms) is None:
            return
        section = self.push if verb == "push" else MCPL.channels.get_existing_section(self)
        if section is not None:
            await section.deliver_published(value, only)

    def list_states(self) -> list[States[Any]]:
        return list(MCPL.state.get_existing_section(self) or ())

    def _handle_manifest(self, call: Call, params: Params) -> Params:
        """`mcpl/manifest` (0.5 §8): what was advertised, as it is now."""
        live, offer = get_mcpl_terms(call.terms), call.terms.offer
        if live is None or offer is None or call.method in live.vocabulary.removed:
            raise MethodNotFound(f"Method not found: {call.method}")
        if not offer.stateless and call.session.ready:
            self._announce(call.session, live)  # a host has no other manifest than it was told of
        return live.announced or self._manifest(offer, live)

    def _update(self, call: Call, params: Params) -> Params:
        require_handshake(call)  # without sessions, every request brings its policy
        if not can_act_for(call.identity, call.session.identity):
            raise Refused("this session was opened with more rights, so its policy is not yours to change")
        live: McplTerms = call.terms.states[self.name]
        try:
            return policies.handle_policy_request(live, params, call.session, [one for one in self.sets if one.whole])
        finally:
            call.session.mark_dirty()
            # The receipt leaves first, then what it permits. Without a loop nothing runs yet that could change.
            if call.session.engine.ready:
                call.session.engine.call_soon(partial(self._on_policy_changed, call.session))

    def _on_update_notification(self, session: Session, params: Params) -> None:
        if (live := get_mcpl_terms(session.terms)) is not None and can_act_for(CURRENT_SENDER.get(), session.identity):
            policies.handle_policy_notification(live, params, session)
            self._on_policy_changed(session)

    def _on_policy_changed(self, session: Session) -> None:
        """A host has switched sets on or off: start and stop what runs for them, and tell it that its tools changed."""
        if session.closed:
            return
        for each in self.sections():
            each.session_changed(session)
        if session.ready and any("tools" in one.uses for one in self.sets):
            session.notify("notifications/tools/list_changed", {})

    def stages(self) -> Stages:
        state = MCPL.state.get_existing_section(self)
        return Stages(admit=self._admit, judge=self._judge, hold=state.hold_state if state is not None else None)

    def _admit(self, call: Call, item: Any) -> None:
        CURRENT_CALL.set(call)
        if item.is_dangerous:
            call.local(DangerousToolMarker)
        if (binding := get_feature_binding(item)) is not None:
            binding.feature_set.require_enabled(call)

    def _judge(self, call: Call, item: Any, arguments: dict[str, Any]) -> Awaitable[None] | None:
        binding = get_feature_binding(item)
        return None if binding is None or binding.scope is None else binding.scope.require_scope(call, arguments)

    def on_item_declared(self, item: Any) -> None:
        binding = get_feature_binding(item)
        if binding is not None and binding.scope is not None:
            binding.scope.bind_tool(item)
        if (state := MCPL.state.get_existing_section(self)) is not None:
            state.bind_item_state(item, binding)

    def bind_request(self, call: Call) -> Any:
        return state.bind_request(call) if (state := MCPL.state.get_existing_section(self)) is not None else None

    def visible(self, call: Call, item: Any) -> bool:
        binding = get_feature_binding(item)
        return binding is None or binding.is_visible(call)

    def view(self, call: Call) -> object:
        enabled = tuple(one.name for one in self.sets if one.is_switched_on(call))
        return self.name in call.terms.states, enabled, can_receive_push(call)

    def describe(self, item: Any, view: Any) -> Mapping[str, Any]:
        binding = get_feature_binding(item)
        return {"_meta": {"featureSet": binding.feature_set.name}} if binding is not None and view[0] else {}

    def can_use(self, call: Call, feature: str) -> bool:
        """Whether a call's host can be asked to `push`, `infer` or `model_info`, or sent messages of `channels`."""
        from defserve.protocols.mcpl.inference import can_request_model_info
        from defserve.protocols.mcpl.peers import Peer

        peer = Peer(call.session, call)
        if feature == "model_info":
            return can_request_model_info(peer)
        if feature == "channels":
            return (channels := MCPL.channels.get_existing_section(self)) is not None and channels.can_deliver(peer)
        return self.push.can_push(peer) if feature == "push" else self.inference.can_infer(peer)

    def failure(self, call: Call, error: BaseException) -> Params | None:
        """The error with its code, in a session that negotiated MCPL (never in the stateless era, A2)."""
        if not isinstance(error, McplRefusal) or call.terms.offer is None or is_stateless_call(call):
            return None
        data: Params = {"error_type": error.error_type, "trace_id": get_trace_id(call), **error.data}
        if not get_mcpl_vocabulary(call).can_enable:
            data.pop("canEnable", None)
        return {"error": make_error_object(error.code, error.message, data)}


def _serve_inbox(feature_set: FeatureSetBase, composition: Composition) -> None:
    if feature_set.inbox is not None:
        feature_set.inbox.publish_as_resources(_mcp(composition), InboxBinding(feature_set))


def _mcp(composition: Composition) -> MCP:
    return next(extension for extension in composition.extensions if isinstance(extension, MCP))
