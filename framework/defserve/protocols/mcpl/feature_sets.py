"""MCPL §5–6: feature sets. What a server can do beyond tools, in pieces a host switches on and off."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

from defserve.core.call import Call
from defserve.errors import UsageError
from defserve.protocols.mcpl.policies import policy
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Unpack

    from defserve.core.session import Session
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.inference import Inference, InferenceStream, Messages
    from defserve.protocols.mcpl.peers import Everyone, To
    from defserve.protocols.mcpl.push.inbox import Inbox
    from defserve.protocols.mcpl.push.push import Receipt
    from defserve.protocols.mcpl.state.owner import Per
    from defserve.protocols.mcpl.state.states import Concurrency, Mode, States
    from defserve.stores.store import Store

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M")

NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
USES = (
    "pushEvents",
    "contextHooks.beforeInference",
    "contextHooks.afterInference",
    "inferenceRequest",
    "tools",
    "channels.publish",
    "channels.observe",
)
# What a set may do that nothing has to be declared for.
UNDECLARED = ("pushEvents", "inferenceRequest")


class FeatureSet:
    """One behaviour of a server, and the verbs it has; made by `server.feature_set`."""

    def __init__(
        self,
        mcpl: MCPL,
        name: str,
        description: str,
        *,
        scoped: bool = False,
        uses: Sequence[str] = (),
        model_info: bool = False,
        inbox: bool = False,
        claude_channel: bool = False,
    ) -> None:
        if not NAME.fullmatch(name):
            raise UsageError(f"feature set {name!r}", fix='use words with dots between them: "memory.retrieval"')
        if not description:
            raise UsageError(f"feature set {name!r} has no description", fix="say what it does, for people to decide")
        for use in uses:
            if use not in USES:
                raise UsageError(f"feature set {name!r}: uses={use!r}", fix=f"use some of {', '.join(USES)}")
        self.mcpl, self.name, self.description = mcpl, name, description
        self.scoped, self.model_info, self.rollback = scoped, model_info, False
        self.host_state = self.removed = False
        self.inbox = _inbox(self) if inbox else None
        self.claude_channel = claude_channel
        self._uses = dict.fromkeys(uses)

    def __repr__(self) -> str:
        return f"<feature set {self.name}>"

    @property
    def uses(self) -> list[str]:
        """What it was declared with; a set that declares nothing may push and infer."""
        return [use for use in USES if use in self._uses] or list(UNDECLARED)

    @property
    def declares(self) -> bool:
        """Whether it was said, by a verb or by `uses=`, what it is for."""
        return bool(self._uses) or self.model_info or self.inbox is not None or self.claude_channel

    def use(self, what: str) -> None:
        """Note that something was declared on this set."""
        self._uses[what] = None

    def wire(self) -> Params:
        """The declaration that hosts are shown."""
        described: Params = {"description": self.description, "uses": self.uses}
        if self.scoped:
            described["scoped"] = True
        if self.rollback:
            described["rollback"] = True
        if self.host_state:
            # Newer drafts: without it some hosts let go of the state they are sent.
            described["hostState"] = True
        return described

    # -- verbs -------------------------------------------------------------------------------------------

    # used bare: @notes.tool
    @overload
    def tool(self, function: F, /) -> F: ...
    # used with options: @files.tool(scope=lambda path: path)
    @overload
    def tool(self, /, *, scope: Callable[..., Any] | None = None, **options: Any) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, *, scope: Callable[..., Any] | None = None, **options: Any) -> Any:
        """As `@server.tool`, switched on and off with this set.

        `scope` gives the label a call needs, from its arguments.
        """
        if scope is not None and not self.scoped:
            raise UsageError(
                f"feature set {self.name!r} is not scoped, so its tools need no scope",
                fix=f'server.feature_set("{self.name}", …, scoped=True)',
            )
        self.use("tools")

        def declare(function: F) -> F:
            self.mcpl.declare_tool(function, Tie(self, scope), options)
            return function

        return declare(function) if function is not None else declare

    def state(
        self,
        model: type[M],
        /,
        *,
        keep: int | None = 1000,
        ttl: float | None = None,
        mode: Mode = "patch",
        per: Per = "principal",
        concurrency: Concurrency = "serial",
        store: str | Store | None = None,
    ) -> States[M]:
        """Keep a model for each caller of this set's tools, which take it as `State[Model]`; see `StateOptions`.

        Every call that changes it makes a checkpoint, and hosts may go back to those (§8).
        """
        from defserve.protocols.mcpl.state.states import StateOptions

        return self.mcpl.states.declare(self, model, StateOptions(keep, ttl, mode, per, concurrency, store))

    def on_rollback(self, function: F, /) -> F:
        """Undo, in the world, what came after a checkpoint: `(to: Checkpoint)`. Returns the function.

        It runs before the state itself goes back. One that raises `CannotUndo("reason")` leaves everything as it is.
        """
        self.mcpl.states.on_rollback(self, function)
        return function

    @overload
    async def push(self, content: Any, *, to: Everyone, **about: Unpack[AboutEvent]) -> list[Receipt]: ...
    @overload
    async def push(self, content: Any, *, to: Session | str | None = None, **about: Unpack[AboutEvent]) -> Receipt: ...
    async def push(self, content: Any, *, to: To = None, **about: Unpack[AboutEvent]) -> Receipt | list[Receipt]:
        """Tell a host that something happened; the model may be run for it. Gives a `Receipt`.

        Inside a call or hook the event is for that session. Elsewhere `to` says whose it is: a session, a principal, or
        `everyone`, which gives a list of receipts, one a session. An `id` of your own makes a repeated push count once.
        Raises FeatureDisabled, AmbiguousPeer, PeerError, and NoBackChannel where the host cannot be called and the set
        has no `inbox`.
        """
        from defserve.protocols.mcpl.push.push import Event

        return await self.mcpl.pushing.push(self, Event(content, **about), to)

    # used bare: @reminders.events
    @overload
    def events(self, function: F, /) -> F: ...
    # used with options: @reminders.events(per="server")
    @overload
    def events(self, /, *, per: Literal["session", "server"] = "session") -> Callable[[F], F]: ...
    def events(self, function: Any = None, /, *, per: str = "session") -> Any:
        """Push what an async generator function yields: text, content or `Event`s. Returns the function.

        It runs for each session whose host has this set enabled, and may take the session as its argument; or, with
        `per="server"`, once, for everyone. One that fails is started again after a while.
        """
        self.use("pushEvents")

        def declare(function: F) -> F:
            self.mcpl.pushing.events(self, function, per)
            return function

        return declare(function) if function is not None else declare

    async def infer(self, messages: Messages, *, to: To = None, **wishes: Unpack[Wishes]) -> Inference:
        """Let the host's model write, without a person in between. Never inside a context hook.

        Raises as `push` does, PeerTimeout, and UsageError inside a hook.
        """
        from defserve.protocols.mcpl.inference import Wish

        return await self.mcpl.inference.infer(self, Wish(messages, **wishes), to)

    def infer_stream(self, messages: Messages, *, to: To = None, **wishes: Unpack[Wishes]) -> InferenceStream:
        """As `infer`, to be read as it is written: `async for delta in stream`, then `stream.result`."""
        from defserve.protocols.mcpl.inference import Wish

        return self.mcpl.inference.stream(self, Wish(messages, **wishes), to)

    # used bare: @memory.before_inference
    @overload
    def before_inference(self, function: F, /) -> F: ...
    # used with options: @memory.before_inference(timeout=2)
    @overload
    def before_inference(self, /, *, timeout: float | None = None) -> Callable[[F], F]: ...
    def before_inference(self, function: Any = None, /, *, timeout: float | None = None) -> Any:
        """Give the model something to read before it answers: `(turn: Turn)` to text, `Injection`s or None.

        One that fails or takes longer than `timeout` seconds (`Limits.hook`) contributes nothing. Returns the function.
        """
        return self.mcpl.hooks.declare(self, function, before=True, timeout=timeout)

    # used bare: @memory.after_inference
    @overload
    def after_inference(self, function: F, /) -> F: ...
    # used with options: @redaction.after_inference(blocking=True)
    @overload
    def after_inference(
        self, /, *, blocking: bool = False, fail_open: bool = False, timeout: float | None = None
    ) -> Callable[[F], F]: ...
    def after_inference(
        self,
        function: Any = None,
        /,
        *,
        blocking: bool = False,
        fail_open: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """See what the model answered: `(turn: FinishedTurn)`. A `blocking` one may return other words for it.

        Blocking ones are chained as declared; the others then see what is left. When a blocking one fails, the host is
        told so and decides what is shown, unless `fail_open`: then the answer passes unchanged. Returns the function.
        """
        return self.mcpl.hooks.declare(self, function, blocking=blocking, fail_open=fail_open, timeout=timeout)


class AboutEvent(TypedDict, total=False):
    """What an event may say of itself: a stable `id`, where it comes from, and when it happened, if not now."""

    id: str | None
    origin: Mapping[str, Any] | None
    timestamp: datetime | str | None


class Wishes(TypedDict, total=False):
    """How to infer: `conversation` says for which one; more `preferences` are hints that a host may know."""

    max_tokens: int | None
    temperature: float | None
    conversation: str | None
    preferences: Mapping[str, Any] | None
    timeout: float | None


class Tie:
    """What binds a tool to its feature set; `scope` gives the label of a call, from the arguments it `takes`."""

    __slots__ = ("feature_set", "scope", "takes")

    def __init__(self, feature_set: FeatureSet, scope: Callable[..., Any] | None) -> None:
        self.feature_set, self.scope = feature_set, scope
        self.takes: Mapping[str, Any] = {}

    def shown(self, call: Call) -> bool:
        """Whether the peer of a call may see what is tied."""
        # Asked again at the call, where the stage says why.
        return call.method == "tools/call" or policy(call).enabled(self.feature_set.name)


def _inbox(feature_set: FeatureSet) -> Inbox:
    from defserve.protocols.mcpl.push.inbox import Inbox

    return Inbox(feature_set)
