"""MCPL §5–6: feature sets as authors use them. A host switches each one on and off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

from defserve.errors import UsageError, explain_call_arguments
from defserve.protocols.mcpl.section import DeclareTool, FeatureBinding, FeatureSetBase, make_registering_decorator

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Unpack

    from defserve.core.session import Session
    from defserve.protocols.mcpl.content import InjectionPosition, Receipt
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.inference import Inference, InferenceMessages, InferenceStream
    from defserve.protocols.mcpl.peers import Everyone, To
    from defserve.protocols.mcpl.scopes import ToolScopeCheck
    from defserve.protocols.mcpl.state.ownership import StateOwnerKind
    from defserve.protocols.mcpl.state.states import BigIntegerPolicy, StateConcurrency, StateMode, States
    from defserve.stores.store import Store

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M")


class FeatureSet(FeatureSetBase):
    """One behaviour of a server, and the verbs it has; made by `server.feature_set`."""

    def __init__(
        self,
        mcpl: MCPL,
        declare_tool: DeclareTool,
        name: str,
        description: str,
        owner: object,
        *,
        inbox: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name, description, owner, **options)
        self._mcpl, self._declare_tool = mcpl, declare_tool
        if self.tag_ontology is not None:
            _check_ontology(name, self.tag_ontology)
        if inbox:
            from defserve.protocols.mcpl.push import EventInbox

            self.inbox = EventInbox(name, description)

    # -- verbs -------------------------------------------------------------------------------------------

    # used bare: @notes.tool
    @overload
    def tool(self, function: F, /) -> F: ...
    # used with options: @files.tool(scope=lambda path: path)
    @overload
    def tool(self, /, *, scope: Callable[..., Any] | None = None, **options: Any) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, *, scope: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Like `@server.tool`, for a tool that is switched on and off with this set.

        `scope` returns the label that a call needs, from the call's arguments.
        """
        if scope is not None and not self.scoped:
            raise UsageError(
                f"feature set {self.name!r} is not scoped, so its tools need no scope",
                fix=f'server.feature_set("{self.name}", …, scoped=True)',
            )
        self.record_declaration("tools")
        return make_registering_decorator(
            function, lambda made: self._declare_tool(made, FeatureBinding(self, self._scope_check(scope)), options)
        )

    def _scope_check(self, scope: Callable[..., Any] | None) -> ToolScopeCheck | None:
        if scope is None:
            return None
        from defserve.protocols.mcpl.scopes import ToolScopeCheck

        return ToolScopeCheck(self, scope)

    @explain_call_arguments("state")
    def state(
        self,
        model: type[M],
        /,
        *,
        keep: int | None = 1000,
        ttl: float | None = None,
        mode: StateMode = "patch",
        per: StateOwnerKind = "principal",
        concurrency: StateConcurrency = "serial",
        store: str | Store | None = None,
        big_integers: BigIntegerPolicy | None = None,
    ) -> States[M]:
        """Keep a model for each caller of this set's tools, which take it as `State[Model]`; see `StateOptions`.

        Every call that changes the model makes a checkpoint. Hosts can roll back to a checkpoint (§8).
        """
        from defserve.protocols.mcpl.state.states import StateOptions

        options = StateOptions(keep, ttl, mode, per, concurrency, store, big_integers)
        return self._mcpl.state.declare(self, model, options)

    def on_rollback(self, function: F, /) -> F:
        """Undo the outside effects of what came after a checkpoint: `(to: Checkpoint)`. Returns the function.

        It runs before the state itself is rolled back. If it raises `CannotUndo("reason")`, nothing changes.
        """
        self._mcpl.state.on_rollback(self, function)
        return function

    @overload
    async def push(self, content: Any, *, to: Everyone, **about: Unpack[EventOptions]) -> list[Receipt]: ...
    @overload
    async def push(
        self, content: Any, *, to: Session | str | None = None, **about: Unpack[EventOptions]
    ) -> Receipt: ...
    async def push(self, content: Any, *, to: To = None, **about: Unpack[EventOptions]) -> Receipt | list[Receipt]:
        """Tell a host that something happened; the host may run its model. Returns a `Receipt`.

        Inside a call or hook, the event goes to that session. Elsewhere, `to` names a session, a principal, or
        `everyone`, which returns a list of receipts, one per session. If you give an `id`, a repeated push counts once.
        Raises FeatureDisabled, AmbiguousPeer, PeerError, and NoBackChannel if the host cannot be called and the set
        has no `inbox`.
        """
        from defserve.protocols.mcpl.content import Event

        return await self._mcpl.push.push(self, Event(content, **about), to)

    # used bare: @reminders.events
    @overload
    def events(self, function: F, /) -> F: ...
    # used with options: @reminders.events(per="server")
    @overload
    def events(self, /, *, per: Literal["session", "server"] = "session") -> Callable[[F], F]: ...
    def events(self, function: Any = None, /, *, per: str = "session") -> Any:
        """Push what an async generator function yields: text, content or `Event`s. Returns the function.

        It runs once for each session whose host has this set enabled, and may take the session as its argument. With
        `per="server"` it runs once for everyone. If it fails, it is started again after a while.
        """
        self.record_declaration("pushEvents")
        return make_registering_decorator(function, lambda made: self._mcpl.push.declare_source(self, made, per))

    async def infer(
        self, messages: InferenceMessages, *, to: To = None, **options: Unpack[InferenceOptions]
    ) -> Inference:
        """Let the host's model write, without asking a person. Not inside a context hook.

        Raises what `push` raises, PeerTimeout, and UsageError inside a hook.
        """
        from defserve.protocols.mcpl.inference import InferenceParams

        return await self._mcpl.inference.infer(self, InferenceParams(messages, **options), to)

    def infer_stream(
        self, messages: InferenceMessages, *, to: To = None, **options: Unpack[InferenceOptions]
    ) -> InferenceStream:
        """Like `infer`, but read as it is written: `async for delta in stream`, then `stream.result`."""
        from defserve.protocols.mcpl.inference import InferenceParams

        return self._mcpl.inference.stream(self, InferenceParams(messages, **options), to)

    # used bare: @memory.before_inference
    @overload
    def before_inference(self, function: F, /) -> F: ...
    # used with options: @memory.before_inference(timeout=2)
    @overload
    def before_inference(
        self,
        /,
        *,
        timeout: float | None = None,
        positions: Sequence[InjectionPosition] | None = None,
        observe: bool = True,
    ) -> Callable[[F], F]: ...
    def before_inference(
        self,
        function: Any = None,
        /,
        *,
        timeout: float | None = None,
        positions: Sequence[InjectionPosition] | None = None,
        observe: bool = True,
    ) -> Any:
        """Add text for the model to read before it answers: `(turn: Turn)` returns text, `Injection`s or None.

        A hook that fails, or takes longer than `timeout` seconds (`Limits.hook`), adds nothing. `positions` are those
        that the hook uses; what names no position goes to the first. Without them a hook asks for what hosts of 0.5
        usually grant, beside the user's message; hosts of 0.4 take every position, and a text goes to `system`. With
        `observe=False` the hook does not read what the user wrote. A host of 0.5 that does not grant what the hook
        needs switches the set off. Returns the function.
        """
        from defserve.protocols.mcpl.hooks import FeatureHookOptions

        options = FeatureHookOptions(
            timeout=timeout, positions=tuple(positions) if positions is not None else None, observe=observe
        )
        return self._mcpl.hooks.declare_before_hook(self, function, options)

    # used bare: @memory.after_inference
    @overload
    def after_inference(self, function: F, /) -> F: ...
    # used with options: @redaction.after_inference(blocking=True)
    @overload
    def after_inference(
        self,
        /,
        *,
        blocking: bool = False,
        fail_open: bool = False,
        timeout: float | None = None,
        required: bool = False,
    ) -> Callable[[F], F]: ...
    def after_inference(
        self,
        function: Any = None,
        /,
        *,
        blocking: bool = False,
        fail_open: bool = False,
        timeout: float | None = None,
        required: bool = False,
    ) -> Any:
        """See what the model answered: `(turn: FinishedTurn)`. A `blocking` hook may return another text for it.

        Blocking hooks run in the order of declaration, each on the text of the one before; the others then see the
        result. If a blocking hook fails, the host is told and decides what is shown; with `fail_open` the answer passes
        unchanged. Hosts of 0.5 show no answers to servers: they are told that the hook is unavailable, and with
        `required` they are refused. Returns the function.
        """
        from defserve.protocols.mcpl.hooks import FeatureHookOptions

        options = FeatureHookOptions(blocking, fail_open, timeout)
        return self._mcpl.hooks.declare_after_hook(self, function, options, required=required)

    # used bare: @memory.inference_ended
    @overload
    def inference_ended(self, function: F, /) -> F: ...
    # used with options: @memory.inference_ended(timeout=2)
    @overload
    def inference_ended(self, /, *, timeout: float | None = None) -> Callable[[F], F]: ...
    def inference_ended(self, function: Any = None, /, *, timeout: float | None = None) -> Any:
        """Be told that an inference has ended: `(end: InferenceEnd)`, with its ids, phase and usage, and no text.

        It works with hosts of every version. Nobody waits for it. Returns the function.
        """
        return self._mcpl.hooks.declare_ended_hook(self, function, timeout)


def _check_ontology(name: str, ontology: Mapping[str, Any]) -> None:
    """Raises UsageError for an ontology that has no digest, so that hosts could not tell when it changes."""
    from defserve.protocols.mcpl.manifest import ManifestNotDigestible, compute_manifest_revision

    try:
        compute_manifest_revision({"featureSets": {name: {"tagOntology": dict(ontology)}}})
    except ManifestNotDigestible as error:
        raise UsageError(
            f"feature set {name!r}: tag_ontology: {error}",
            fix="names have letters, digits and ._:*- only",
        ) from None


class EventOptions(TypedDict, total=False):
    """About an event: a stable `id`, where it comes from (`origin`), when it happened, if not now, and its `tags`."""

    id: str | None
    origin: Mapping[str, Any] | None
    timestamp: datetime | str | None
    tags: Sequence[str]


class InferenceOptions(TypedDict, total=False):
    """How to infer. `conversation` names the conversation; `preferences` are more hints that a host may know."""

    max_tokens: int | None
    temperature: float | None
    conversation: str | None
    preferences: Mapping[str, Any] | None
    timeout: float | None
