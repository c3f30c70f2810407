"""MCPL for a client, as one object: `Client(link, mcpl=Mcpl(feature_sets=["memory.*"], on_event=…, model=…))`.

And the scopes that a server may act in (§7.4–7.7): forbidden, allowed, or decided by a person or a function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

from defserve.base.hidden_characters import is_printable_line
from defserve.base.peer_bounds import estimate_value_bytes
from defserve.base.redaction import escape_unprintable
from defserve.client.answers import Answers, ask_yes_or_no, maybe_await
from defserve.client.audit import McplAuditTrail
from defserve.client.mcpl.channels import OnMessage
from defserve.client.mcpl.feature_sets import (
    TOOLS_CAPABILITY_PATH,
    FeatureSets,
    FeatureSetSelection,
    HostGrants,
    collect_claimed_paths,
)
from defserve.client.mcpl.hooks import AFTER_INFERENCE_SECONDS, BEFORE_INFERENCE_SECONDS, HookOptions
from defserve.client.mcpl.inference import Model, Router
from defserve.client.mcpl.push import MAX_REMEMBERED_ANSWERS, AnswerWindow, OnEvent
from defserve.client.mcpl.state import STATE_SEND_MODES, OnState, StateSendMode
from defserve.client.replies import Json
from defserve.core.json_values import is_mapping
from defserve.core.messages import encode
from defserve.errors import InvalidParams, UsageError, explain_arguments
from defserve.protocols.mcp.errors import read_object_param, read_optional_object_param, read_text_param
from defserve.protocols.mcpl.content import ModelInfo
from defserve.protocols.mcpl.manifest import nest_capability_paths
from defserve.protocols.mcpl.scopes import MAX_LABEL_LENGTH, Scope, find_label_permission, normalize_label
from defserve.protocols.mcpl.vocabulary import CAPABILITY_PATHS, MCPL_04, MCPL_05, ScopeDenied
from defserve.protocols.mgp.audit import AuditLogger, AuditSink, AuditSinks, open_audit_sinks

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
VERSIONS: Final = (MCPL_04.version, MCPL_05.version)


@explain_arguments
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
    window        how many events and messages are remembered, so that each counts once; or an `AnswerWindow` that
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
        feature_sets: FeatureSetSelection = None,
        *,
        scopes: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
        approve: Approve | None = None,
        on_event: OnEvent | None = None,
        on_message: OnMessage | None = None,
        model: Model | Router | None = None,
        model_info: ModelInfo | None = None,
        state: StateSendMode = "host",
        on_state: OnState | None = None,
        window: int | AnswerWindow = MAX_REMEMBERED_ANSWERS,
        before_seconds: float = BEFORE_INFERENCE_SECONDS,
        after_seconds: float = AFTER_INFERENCE_SECONDS,
        fail_closed: bool = False,
        audit: AuditSinks | None = None,
        without: Sequence[str] = (),
        version: Literal["0.4", "0.5"] = "0.4",
        grants: Sequence[str] | None = None,
        policy_seconds: float = 15.0,
    ) -> None:
        if unknown := sorted(set(without) - set(OFFERS)):
            raise UsageError(f"without={unknown} is not possible", fix=f"use some of {', '.join(OFFERS)}")
        if state not in STATE_SEND_MODES:
            raise UsageError(f"state={state!r} is not possible", fix='use "host", "checkpoint" or None')
        if version not in VERSIONS:
            raise UsageError(f"version={version!r} is not possible", fix=f"use one of {', '.join(map(repr, VERSIONS))}")
        self.state: StateSendMode = state
        self.on_state = on_state
        self.version, self.grants, self.policy_seconds = version, grants, policy_seconds
        self._without, self._audit = frozenset(without), audit
        self.scopes, self.feature_sets = dict(scopes or {}), feature_sets
        self.approve, self.on_event, self.on_message = approve, on_event, on_message
        self.router = model if isinstance(model, Router) else Router(model)
        self.model_info, self.window = model_info or self.router.info, window
        self.hooks = HookOptions(before_seconds, after_seconds, fail_closed, self.model_info)
        self.make_feature_sets()  # only to check the options

    @cached_property
    def sinks(self) -> tuple[AuditSink, ...]:
        """Where the audit log goes. Files are opened with the first connection."""
        return open_audit_sinks(self._audit if self._audit is not None else AuditLogger())

    def make_feature_sets(self) -> FeatureSets:
        """The policy, for one server."""
        return FeatureSets(
            self.feature_sets,
            self.scopes,
            HostGrants(self.grants, collect_claimed_paths(self._offered_05, {TOOLS_CAPABILITY_PATH: {}})),
        )

    def get_answer_window(self) -> AnswerWindow:
        """The window as an `AnswerWindow`: the one that was given, or a new one."""
        return self.window if isinstance(self.window, AnswerWindow) else AnswerWindow(self.window)

    @cached_property
    def capability_block(self) -> dict[str, Any]:
        """`experimental.mcpl` (§5.2)."""
        offered = self._offered_05 if self.version == MCPL_05.version else self._offered_04
        return {"version": self.version, **offered}

    @cached_property
    def _offered_04(self) -> dict[str, Any]:
        return self._build_offer(
            {
                "pushEvents": True,
                "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
                "featureSets": True,
                "channels": dict.fromkeys(("register", "publish", "observe", "lifecycle", "streaming"), True),
            }
        )

    @cached_property
    def _offered_05(self) -> dict[str, Any]:
        everything = nest_capability_paths(CAPABILITY_PATHS)
        return self._build_offer(
            {
                **{name: everything[name] for name in ("pushEvents", "contextHooks", "inferenceLifecycle", "channels")},
                "featureSets": True,
                "stateUpdate": True if self.state is not None else None,
            }
        )

    def _build_offer(self, offered: dict[str, Any]) -> dict[str, Any]:
        """What is offered, in the order of `OFFERS`."""
        offered["inferenceRequest"] = {"streaming": True} if self.router else None
        offered["modelInfo"] = True if self.model_info is not None else None
        return {name: offered[name] for name in OFFERS if offered.get(name) is not None and name not in self._without}


# -- MCPL §7.4–7.7: which scopes a server may act in. A scope is forbidden, allowed, or a person or function decides.


SCOPE_ELEVATE: Final = "scope/elevate"
MAX_APPROVALS: Final = 1_000
MAX_APPROVED_PAYLOAD: Final = 16 * 1024
"""Of a larger payload the approval is not remembered: it is asked for each time."""


@dataclass(frozen=True, slots=True)
class Elevation:
    """A server asks to act in a scope. `label` is for people and patterns, `payload` is what the server works with."""

    server_id: str
    feature_set: str
    label: str
    payload: Mapping[str, Any]


Approved: TypeAlias = bool | Mapping[str, Any] | None
"""True approves, a mapping approves with that payload, False and None refuse."""
Approve: TypeAlias = Callable[[Elevation], Approved | Awaitable[Approved]]


class ScopeElevationApprover:
    """Answers `scope/elevate`. An approval is remembered, for the same payload."""

    def __init__(self, approve: Approve | None, answers: Answers, sets: FeatureSets, audit: McplAuditTrail) -> None:
        self._approve, self._answers, self._sets, self._audit = approve, answers, sets, audit
        self.approved = AnswerWindow(MAX_APPROVALS)

    async def elevate(self, params: Json) -> Json:
        """Raises InvalidParams, FeatureDisabled or UnknownFeatureSet."""
        scope = read_object_param(params, "scope")
        label, payload = read_text_param(scope, "label"), read_optional_object_param(scope, "payload") or {}
        with self._audit.record_outcome(SCOPE_ELEVATE, feature_set=params.get("featureSet"), label=label) as record:
            name = self._sets.require(params.get("featureSet")).name
            if not label or len(label) > MAX_LABEL_LENGTH or not is_printable_line(label):
                raise InvalidParams("Invalid params: scope.label must be one line of printable text")
            # What is remembered is the digest: the server chooses how large a payload is.
            key = (name, label, sha256(encode(payload)).digest())
            elevation = Elevation(self._audit.server_id, name, label, payload)
            answer = await self.approved.answer(key, lambda: self._judge(elevation))
            if not answer["approved"]:
                record |= {"outcome": "refused", "reason": answer["reason"]}
            return answer

    def require(self, feature_set: str, scope: Scope) -> None:
        """Raises ScopeDenied for a scope that is forbidden (§7.7)."""
        if find_label_permission(self._sets.get_scope_lists(feature_set), normalize_label(scope.label)) is False:
            raise ScopeDenied(feature_set, scope.label, "the host forbids it")

    async def _judge(self, elevation: Elevation) -> tuple[Json, bool]:
        allowed = self._check_scope_lists(elevation)
        if allowed is False:
            return _make_denial("the host forbids it"), False
        decision = True if allowed else await self._ask_approval(elevation)
        # Asking took time: the policy may have changed.
        self._sets.require(elevation.feature_set)
        if self._check_scope_lists(elevation) is False:
            return _make_denial("the host forbids it"), False
        if decision is True or is_mapping(decision):
            payload = elevation.payload if decision is True else decision
            is_short = estimate_value_bytes(payload) <= MAX_APPROVED_PAYLOAD
            return {"approved": True, "payload": dict(payload)}, allowed is None and is_short
        if decision is None or decision is False:
            return _make_denial("nobody approved it" if decision is None else "the user did not approve"), False
        raise UsageError(f"approve returned {decision!r:.80}", fix="return True, False, None, or a payload")

    def _check_scope_lists(self, elevation: Elevation) -> bool | None:
        # Normalized, because a label may name a place by a detour such as `a/../b`.
        return find_label_permission(
            self._sets.get_scope_lists(elevation.feature_set), normalize_label(elevation.label)
        )

    async def _ask_approval(self, elevation: Elevation) -> Any:
        if self._approve is not None:
            return await maybe_await(self._approve(elevation))
        server, name, label = (
            escape_unprintable(part) for part in (elevation.server_id, elevation.feature_set, elevation.label)
        )
        return await ask_yes_or_no(self._answers, f"Allow {server} ({name}) to act on {label}?", "approved")


def _make_denial(reason: str) -> Json:
    return {"approved": False, "reason": reason}
