"""MCPL for a client, as one object: `Client(link, mcpl=Mcpl(feature_sets=["memory.*"], on_event=…, model=…))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal

from defserve.errors import UsageError
from defserve.host.mcpl.channels.messages import OnMessage
from defserve.host.mcpl.feature_sets import FeatureSets, Wish
from defserve.host.mcpl.grants import TOOLS, HostGrants, claims
from defserve.host.mcpl.hooks import AFTER_SECONDS, BEFORE_SECONDS, HookOptions
from defserve.host.mcpl.inference.routing import Model, Router
from defserve.host.mcpl.once import WINDOW, Once
from defserve.host.mcpl.push.receiver import OnEvent
from defserve.host.mcpl.scopes import Approve
from defserve.host.mcpl.state import SENDING, OnState, Sending
from defserve.protocols.mcpl.manifest.advertisement import claimed
from defserve.protocols.mcpl.turns import ModelInfo
from defserve.protocols.mcpl.vocabulary import PATHS, V04, V05
from defserve.protocols.mgp.audit.sinks import AuditLogger, AuditSink, AuditSinks, sinks_of

CHANNELS: Final = ("register", "publish", "observe", "lifecycle", "streaming")
OFFERS: Final = (
    "pushEvents",
    "contextHooks",
    "inferenceRequest",
    "inferenceLifecycle",
    "modelInfo",
    "featureSets",
    "channels",
    "stateUpdate",
)
VERSIONS: Final = (V04.version, V05.version)
POLICY_SECONDS: Final = 15.0


class Mcpl:
    """How a host takes part in MCPL. It holds no connection: many clients may share one. Callables may be async.

    feature_sets  the sets to enable: patterns ("memory.*"), {"enabled": …, "disabled": …}, or a function of each set;
                  None enables every set that a server declares
    scopes        set, or pattern of sets, to {"whitelist": globs, "blacklist": globs} (§7.2)
    approve       decides about scopes that no list covers: an `Elevation` to True, False or a payload (§7.5); without
                  it the client's `answers` are asked
    on_event      takes pushed events (§9): True or None, False, the id of an inference, or an EventAnswer; without it
                  they wait in `client.mcpl.events()`
    on_message    takes messages of channels (§14): True or None, False, the id of a conversation, or a MessageAnswer;
                  without it they wait in `client.mcpl.messages()`
    model         answers inference requests of servers (§11): a function of an InferenceRequest, or a Router
    model_info    what servers and hooks are told about the model; the default is the model's own `info`
    state         what a call carries if its set keeps state (§8.4): "host" the content and its checkpoint, if the
                  server sends it; "checkpoint" only the checkpoint; None neither: the server continues where it was
    on_state      is told where this host is in a state, whenever that changes: a `StateChange`; it must not wait
    window        how many events and messages are remembered, so that each counts once; or a `Once` that several
                  connections share
    before_seconds, after_seconds  how long a server may take for a hook (§10.6)
    fail_closed   if a blocking server fails to review an answer, raise an error and do not show the answer (§13.3)
    audit         sinks or file names of the audit log (§13.2); the default is the logger `defserve.audit`
    without       capabilities not to offer: "pushEvents", "channels", …
    version       the version to offer. The rules follow the version that a server answers with: one below 0.5 is
                  treated as a server of 0.4, whatever was offered
    grants        what servers of 0.5 may do: paths or patterns of capabilities ("tools", "channels.*"); None grants
                  all that a server claims and this host can do
    policy_seconds  how long a server of 0.5 may take to answer a policy

    A server that does not speak MCPL gets no MCPL messages.
    """

    def __init__(
        self,
        feature_sets: Wish = None,
        *,
        scopes: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
        approve: Approve | None = None,
        on_event: OnEvent | None = None,
        on_message: OnMessage | None = None,
        model: Model | Router | None = None,
        model_info: ModelInfo | None = None,
        state: Sending = "host",
        on_state: OnState | None = None,
        window: int | Once = WINDOW,
        before_seconds: float = BEFORE_SECONDS,
        after_seconds: float = AFTER_SECONDS,
        fail_closed: bool = False,
        audit: AuditSinks | None = None,
        without: Sequence[str] = (),
        version: Literal["0.4", "0.5"] = "0.4",
        grants: Sequence[str] | None = None,
        policy_seconds: float = POLICY_SECONDS,
    ) -> None:
        if unknown := sorted(set(without) - set(OFFERS)):
            raise UsageError(f"without={unknown} is not possible", fix=f"use some of {', '.join(OFFERS)}")
        if state not in SENDING:
            raise UsageError(f"state={state!r} is not possible", fix='use "host", "checkpoint" or None')
        if version not in VERSIONS:
            raise UsageError(f"version={version!r} is not possible", fix=f"use one of {', '.join(map(repr, VERSIONS))}")
        self.state: Sending = state
        self.on_state = on_state
        self.version, self.grants, self.policy_seconds = version, grants, policy_seconds
        self._without, self._audit = frozenset(without), audit
        self.scopes, self.feature_sets = dict(scopes or {}), feature_sets
        self.approve, self.on_event, self.on_message = approve, on_event, on_message
        self.router = model if isinstance(model, Router) else Router(model)
        self.model_info, self.window = model_info or self.router.info, window
        self.hooks = HookOptions(before_seconds, after_seconds, fail_closed, self.model_info)
        self.sets()  # only to check the options

    @cached_property
    def sinks(self) -> tuple[AuditSink, ...]:
        """Where the audit log goes. Files are opened with the first connection."""
        return sinks_of(self._audit if self._audit is not None else AuditLogger())

    def sets(self) -> FeatureSets:
        """The policy, for one server."""
        able = claims(self._offered_05, {TOOLS: {}})
        return FeatureSets(self.feature_sets, self.scopes, HostGrants(self.grants, able))

    def seen(self) -> Once:
        """The window as a `Once`: the one that was given, or a new one."""
        return self.window if isinstance(self.window, Once) else Once(self.window)

    @cached_property
    def block(self) -> dict[str, Any]:
        """`experimental.mcpl` (§5.2)."""
        offered = self._offered_05 if self.version == V05.version else self._offered_04
        return {"version": self.version, **offered}

    @cached_property
    def _offered_04(self) -> dict[str, Any]:
        return self._given(
            {
                "pushEvents": True,
                "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
                "featureSets": True,
                "channels": dict.fromkeys(CHANNELS, True),
            }
        )

    @cached_property
    def _offered_05(self) -> dict[str, Any]:
        everything = claimed(PATHS)
        return self._given(
            {
                **{name: everything[name] for name in ("pushEvents", "contextHooks", "inferenceLifecycle", "channels")},
                "featureSets": True,
                "stateUpdate": True if self.state is not None else None,
            }
        )

    def _given(self, offered: dict[str, Any]) -> dict[str, Any]:
        """What is offered, in the order of `OFFERS`."""
        offered["inferenceRequest"] = {"streaming": True} if self.router else None
        offered["modelInfo"] = True if self.model_info is not None else None
        return {name: offered[name] for name in OFFERS if offered.get(name) is not None and name not in self._without}

    def capabilities(self) -> dict[str, dict[str, Any]]:
        """Era → the client capabilities that offer MCPL."""
        offer = {"experimental": {"mcpl": self.block}}
        return {"handshake": offer, "stateless": offer}
