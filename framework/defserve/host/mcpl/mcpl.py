"""MCPL for a client, as one object: `Client(link, mcpl=Mcpl(feature_sets=["memory.*"], on_event=…, model=…))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from defserve.errors import UsageError
from defserve.host.mcpl.events import OnEvent
from defserve.host.mcpl.feature_sets import FeatureSets, Wish
from defserve.host.mcpl.hooks import AFTER_SECONDS, BEFORE_SECONDS, HookOptions
from defserve.host.mcpl.messages import OnMessage
from defserve.host.mcpl.once import WINDOW, Once
from defserve.host.mcpl.routing import Model, Router
from defserve.host.mcpl.scopes import Approve
from defserve.host.mcpl.state import SENDING, Sending
from defserve.protocols.mcpl.extension import VERSION
from defserve.protocols.mcpl.turns import ModelInfo
from defserve.protocols.mgp.audit.sinks import AuditLogger, AuditSink, AuditSinks, sinks_of

if TYPE_CHECKING:
    from defserve.host.client import Client
    from defserve.host.conversation import Conversation
    from defserve.host.mcpl.peer import McplPeer

CHANNELS: Final = ("register", "publish", "observe", "lifecycle", "streaming")
OFFERS: Final = ("pushEvents", "contextHooks", "inferenceRequest", "modelInfo", "featureSets", "channels")


class Mcpl:
    """How a host takes part. Holds no connection: one will do for many clients. Every callable may be sync or async.

    feature_sets  the sets that are enabled: patterns ("memory.*"), {"enabled": …, "disabled": …}, or a function of
                  each; None enables all that a server declares
    scopes        set, or pattern of sets, to {"whitelist": globs, "blacklist": globs} (§7.2)
    approve       what no list covers: an `Elevation` to True, False or a payload (§7.5); without it the client's
                  `answers` are asked
    on_event      takes pushed events (§9): True or None, False, the id of an inference, or an EventAnswer; without it
                  they wait in `client.mcpl.events()`
    on_message    takes messages of channels (§14): True or None, False, the id of a conversation, or a MessageAnswer;
                  without it they wait in `client.mcpl.messages()`
    model         answers servers' inference requests (§11): a function of an InferenceRequest, or a Router
    model_info    what servers and hooks are told of the model; the model's own `info` unless it is given
    state         what calls of a set that keeps state bring along (§8.4): "host" the content and its checkpoint, where
                  the server tells it; "checkpoint" only the latter; None neither, and the server goes on where it was
    window        how many events and messages are remembered, so that each counts once; or a `Once` that outlives
                  connections
    before_seconds, after_seconds  how long a server may take over a hook (§10.6)
    fail_closed   an answer that a blocking server failed to review is an error, not shown (§13.3)
    audit         sinks or file names of the audit log (§13.2); the logger `defserve.audit` unless something is given
    without       capabilities that are not offered, though they could be: "pushEvents", "channels", …

    A server that speaks no MCPL is sent nothing of it.
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
        window: int | Once = WINDOW,
        before_seconds: float = BEFORE_SECONDS,
        after_seconds: float = AFTER_SECONDS,
        fail_closed: bool = False,
        audit: AuditSinks | None = None,
        without: Sequence[str] = (),
    ) -> None:
        if unknown := sorted(set(without) - set(OFFERS)):
            raise UsageError(f"without={unknown}", fix=f"use some of {', '.join(OFFERS)}")
        if state not in SENDING:
            raise UsageError(f"state={state!r}", fix='use "host", "checkpoint" or None')
        self.state: Sending = state
        self.scopes = dict(scopes or {})
        self.feature_sets = feature_sets
        self.sets()  # for its complaints
        self.approve, self.on_event, self.on_message = approve, on_event, on_message
        self.router = model if isinstance(model, Router) else Router(model)
        self.model_info = model_info or self.router.info
        self.window = window
        self.hooks = HookOptions(before_seconds, after_seconds, fail_closed, self.model_info)
        self._without, self._audit = frozenset(without), audit

    @cached_property
    def sinks(self) -> tuple[AuditSink, ...]:
        """Where the audit log goes; files are opened with the first connection."""
        return sinks_of(self._audit if self._audit is not None else AuditLogger())

    def sets(self) -> FeatureSets:
        """The policy, for one server."""
        return FeatureSets(self.feature_sets, self.scopes)

    def seen(self) -> Once:
        """The window as a `Once`: the one that was given, or a new one."""
        return self.window if isinstance(self.window, Once) else Once(self.window)

    def peer(self, conversation: Conversation, client: Client) -> McplPeer:
        """The same, applied to one conversation."""
        from defserve.host.mcpl.peer import McplPeer

        return McplPeer(self, conversation, client)

    @cached_property
    def block(self) -> dict[str, Any]:
        """`experimental.mcpl` (§5.2)."""
        offered: dict[str, Any] = {
            "pushEvents": True,
            "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
            "inferenceRequest": {"streaming": True} if self.router else None,
            "modelInfo": True if self.model_info is not None else None,
            "featureSets": True,
            "channels": dict.fromkeys(CHANNELS, True),
        }
        given = {name: offer for name, offer in offered.items() if offer is not None and name not in self._without}
        return {"version": VERSION, **given}

    def capabilities(self) -> dict[str, dict[str, Any]]:
        """Era → the client capabilities that make the offer."""
        offer = {"experimental": {"mcpl": self.block}}
        return {"handshake": offer, "stateless": offer}
