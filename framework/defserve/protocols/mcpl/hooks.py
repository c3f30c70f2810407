"""MCPL §10: context hooks. What feature sets add before inference, and what they make of the answer.

A hook runs only while its feature set is enabled, within a time limit, and in a call of its own. If a blocking hook
fails, the host is told and decides; other failures are logged and contribute nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.extension import Handler, Listener
from defserve.core.json_values import as_list, is_array, is_mapping
from defserve.core.messages import Params, encode
from defserve.core.peer import mask_unexpected_error
from defserve.core.session import Session
from defserve.errors import InvalidParams, TimedOut, UsageError
from defserve.protocols.mcp.function import FindProvider, Function
from defserve.protocols.mcpl.content import (
    INJECTION_POSITION_ALIASES,
    FinishedTurn,
    InferenceEnd,
    Injection,
    Rewrite,
    Turn,
)
from defserve.protocols.mcpl.peers import CURRENT_CALL, make_notification_call, mark_running_hook
from defserve.protocols.mcpl.policies import get_mcpl_terms
from defserve.protocols.mcpl.section import McplSection, McplServerState, make_registering_decorator
from defserve.protocols.mcpl.vocabulary import AFTER_INFERENCE_USE as AFTER_USE
from defserve.protocols.mcpl.vocabulary import INJECT_USES, OBSERVE_USE, USES_DENIED_BY_DEFAULT, HookFailed

if TYPE_CHECKING:
    from defserve.protocols.mcpl.section import FeatureSetBase


AFTER_INFERENCE_METHOD = "context/afterInference"
LIFECYCLE = "inference/lifecycle"

# What a hook asks hosts of 0.5 for if it declares no positions.
DEFAULT_POSITIONS = tuple(position for position, path in INJECT_USES.items() if path not in USES_DENIED_BY_DEFAULT)


class Observers:
    """How many observations of finished turns run for a session, in the background."""

    count = 0


class HookSection(McplSection):
    """The hooks of a server, in order of declaration."""

    def __init__(self, server: McplServerState) -> None:
        super().__init__(server)
        self._hooks: dict[HookMoment, tuple[Hook, ...]] = {"before": (), "after": (), "ended": ()}

    # -- declaring ---------------------------------------------------------------------------------------

    def declare_before_hook(
        self, feature_set: FeatureSetBase, function: Callable[..., Any] | None, options: FeatureHookOptions
    ) -> Any:
        """Add a hook that injects, also while serving. Raises UsageError for a function that could not be one."""
        named = options.positions
        if unknown := [name for name in named or () if name not in INJECTION_POSITION_ALIASES]:
            raise UsageError(f"positions={unknown} are not known", fix="use some of system, before_user, after_user")
        positions = (
            tuple(dict.fromkeys(INJECTION_POSITION_ALIASES[name] for name in named)) if named is not None else None
        )

        def register(function: Callable[..., Any]) -> None:
            self._add_hook(feature_set, function, "before", replace(options, positions=positions))
            uses = positions if positions is not None else DEFAULT_POSITIONS
            feature_set.record_declaration(
                *([OBSERVE_USE] if options.observe else []), *(INJECT_USES[position] for position in uses)
            )

        return make_registering_decorator(function, register)

    def declare_after_hook(
        self,
        feature_set: FeatureSetBase,
        function: Callable[..., Any] | None,
        options: FeatureHookOptions,
        *,
        required: bool,
    ) -> Any:
        """Add a hook that sees answers. `required`: a host that cannot run it is refused."""
        if options.fail_open and not options.blocking:
            raise UsageError("fail_open is for blocking hooks", fix="say blocking=True, or leave fail_open out")

        def register(function: Callable[..., Any]) -> None:
            self._add_hook(feature_set, function, "after", options)
            feature_set.required |= required
            feature_set.record_declaration(AFTER_USE)

        return make_registering_decorator(function, register)

    def declare_ended_hook(
        self, feature_set: FeatureSetBase, function: Callable[..., Any] | None, timeout: float | None
    ) -> Any:
        """Add a hook that is told when an inference has ended."""

        def register(function: Callable[..., Any]) -> None:
            self._add_hook(feature_set, function, "ended", FeatureHookOptions(timeout=timeout))
            feature_set.record_declaration("inferenceLifecycle")

        return make_registering_decorator(function, register)

    def _add_hook(
        self, feature_set: FeatureSetBase, function: Callable[..., Any], moment: HookMoment, options: FeatureHookOptions
    ) -> None:
        hook = Hook(feature_set, function, self.server.find_provider, moment, options)
        self._hooks[moment] = (*self._hooks[moment], hook)

    def on_feature_set_removed(self, feature_set: FeatureSetBase) -> None:
        for moment, hooks in self._hooks.items():
            self._hooks[moment] = tuple(hook for hook in hooks if hook.feature_set is not feature_set)

    @property
    def hooks_before_inference(self) -> tuple[Hook, ...]:
        """The hooks that run before inference."""
        return self._hooks["before"]

    def capability(self) -> Params:
        """What is advertised to hosts of 0.4; empty if there are no hooks."""
        hooks = self._hooks
        before: Params = {"beforeInference": True} if hooks["before"] else {}
        blocking = any(hook.blocking for hook in hooks["after"])
        return before | ({"afterInference": {"blocking": blocking}} if hooks["after"] or hooks["ended"] else {})

    def methods(self) -> Mapping[str, Handler]:
        return {"context/beforeInference": self.run_before_hooks, AFTER_INFERENCE_METHOD: self.run_after_hooks}

    def notifications(self) -> Mapping[str, Listener]:
        return {AFTER_INFERENCE_METHOD: self.on_after_inference, LIFECYCLE: self.on_inference_lifecycle}

    # -- before ------------------------------------------------------------------------------------------

    async def run_before_hooks(self, call: Call, params: Params) -> Params:
        """`context/beforeInference`: what all enabled hooks inject. They run at once, each in a call of its own."""

        turn, hooks = Turn.from_wire(params), _select_enabled(call, self._hooks["before"])
        found = await asyncio.gather(*[_injections(hook, call, turn) for hook in hooks])
        # A set that was disabled in the meantime contributes nothing.
        ran = [
            (hook, injections)
            for hook, injections in zip(hooks, found, strict=True)
            if hook.feature_set.is_enabled(call)
        ]
        told = [(hook.feature_set, one) for hook, injections in ran for one in injections]
        if len({feature_set.name for feature_set, _ in told}) > 1:
            for feature_set, injection in told:
                injection["metadata"] = {**injection.get("metadata", {}), "featureSet": feature_set.name}
        tag = _tag([feature_set for feature_set, _ in told], [hook for hook, _ in ran])
        return {**tag, "contextInjections": [injection for _, injection in told]}

    # -- after -------------------------------------------------------------------------------------------

    async def run_after_hooks(self, call: Call, params: Params) -> Params:
        """`context/afterInference` as a request: what the blocking hooks made of the answer."""
        turn, hooks = FinishedTurn.from_wire(params), _select_enabled(call, self._hooks["after"])
        left, rewrites = await _rewritten(call, turn, hooks)
        if not all(hook.blocking for hook in hooks):
            call.engine.spawn(_run_if_room(call.session, _observe(call, left, hooks)))
        if self._hooks["ended"]:
            call.engine.spawn(self._end(call, params))
        metadata = _merge_metadata(rewrites)
        result = _tag([hook.feature_set for hook, _ in rewrites], _select_enabled(call, hooks))
        if left.assistant_message != turn.assistant_message:
            result["modifiedResponse"] = left.assistant_message
        if metadata:
            result["metadata"] = metadata
        return result

    async def on_after_inference(self, session: Session, params: Params) -> None:
        """The same as a notification: nothing is answered, and blocking hooks only watch."""
        if (call := make_notification_call(session, AFTER_INFERENCE_METHOD, params)) is None:
            return
        try:
            turn, hooks = FinishedTurn.from_wire(params), _select_enabled(call, self._hooks["after"])
        except InvalidParams:
            return  # a broken notification is never answered
        if self._hooks["ended"]:
            call.engine.spawn(self._end(call, params))
        await _run_if_room(session, _watch(call, turn, hooks))

    # -- ended -------------------------------------------------------------------------------------------

    async def on_inference_lifecycle(self, session: Session, params: Params) -> None:
        """`inference/lifecycle` (0.5 §10): how an inference goes, without its text."""
        if (call := make_notification_call(session, LIFECYCLE, params)) is None:
            return
        if params.get("phase") != "started":
            await self._end(call, params)
        elif isinstance(id := params.get("inferenceId"), str):
            session.local(SeenInferences).record_start(id)

    async def _end(self, call: Call, params: Params) -> None:
        """Run the hooks for the end of an inference, the first time that it is told."""
        if not (hooks := _select_enabled(call, self._hooks["ended"])):
            return
        try:
            end = InferenceEnd.from_wire(params)
        except InvalidParams as error:
            get_logger().warning("%s: %s", call.method, error.message)
            return
        if call.session.local(SeenInferences).record_end(end.inference_id):
            await _run_if_room(call.session, _show(call, end, hooks))


# -- running ---------------------------------------------------------------------------------------------
async def _injections(hook: Hook, call: Call, turn: Turn) -> list[Params]:
    turn = turn if hook.observe else replace(turn, user_message=None)
    own, limits = hook.call(call, turn), call.session.composition.limits
    try:
        items = [item for item in as_list(await hook.run(own, limits.hook)) if item is not None and item != ""]
        namespace = hook.feature_set.name.partition(".")[0]
        allowed = _find_allowed_positions(hook, call)
        found = [
            (one if isinstance(one, Injection) else Injection(one)).to_wire(namespace, allowed[0] if allowed else "")
            for one in items
        ]
        encode([one.get("metadata") for one in found])  # what has no JSON form fails this hook, and not all of them
    except Exception as error:
        log_failure(own, error)
        return []
    for injection in found:
        _cap(injection["content"], limits.injection)
    if undeclared := [one["position"] for one in found if one["position"] not in allowed]:
        # The host was told that this hook does not use the position.
        get_logger().warning("%s: left out, because the hook does not declare positions=%s", own.title, undeclared)
    return [one for one in found if one["position"] in allowed]


def _find_allowed_positions(hook: Hook, call: Call) -> tuple[str, ...]:
    """Where a hook may inject; first the place of what names none."""
    if hook.positions is not None:
        return hook.positions
    live = get_mcpl_terms(call.terms)
    return DEFAULT_POSITIONS if live is not None and live.vocabulary.by_grant else tuple(INJECT_USES)


async def _rewritten(
    call: Call, turn: FinishedTurn, hooks: Sequence[Hook]
) -> tuple[FinishedTurn, list[tuple[Hook, Rewrite]]]:
    """The turn as the chain of blocking hooks leaves it. Raises HookFailed, after all of them have run."""
    limits, failed = call.session.composition.limits, list[HookFailed]()
    rewrites: list[tuple[Hook, Rewrite]] = []
    for hook in hooks:
        if not (hook.blocking and hook.feature_set.is_enabled(call)):
            continue
        own = hook.call(call, turn)
        try:
            rewrite = _as_rewrite(await hook.run(own, limits.blocking_hook))
        except Exception as error:
            reason = log_failure(own, error)
            if not hook.fail_open and hook.feature_set.is_enabled(call):
                failed.append(HookFailed(reason, hook.feature_set.name))
            continue
        if rewrite is not None and hook.feature_set.is_enabled(call):
            rewrites.append((hook, rewrite))
            turn = replace(turn, assistant_message=rewrite.text)
    if failed:
        raise failed[0]
    return turn, rewrites


async def _watch(call: Call, turn: FinishedTurn, hooks: Sequence[Hook]) -> None:
    try:
        left, _ = await _rewritten(call, turn, hooks)
    except HookFailed:
        return  # the failure is in the log; an unchecked answer is not shown to other hooks
    await _observe(call, left, hooks)


async def _observe(call: Call, turn: FinishedTurn, hooks: Sequence[Hook]) -> None:
    """Show the turn to the hooks that do not block."""
    await _show(call, turn, [hook for hook in hooks if not hook.blocking])


async def _show(call: Call, turn: FinishedTurn | InferenceEnd, hooks: Sequence[Hook]) -> None:

    async def show(hook: Hook) -> None:
        own = hook.call(call, turn)
        try:
            await hook.run(own, call.session.composition.limits.tool)
        except Exception as error:
            log_failure(own, error)

    await asyncio.gather(*[show(hook) for hook in hooks if hook.feature_set.is_enabled(call)])


async def _run_if_room(session: Session, work: Coroutine[Any, Any, None]) -> None:
    """Run work in the background, unless too much of it runs already."""
    observers = session.local(Observers)
    if observers.count >= session.composition.limits.in_flight:
        work.close()
        get_logger().warning("%s: skipped, because hooks still look at earlier turns", AFTER_INFERENCE_METHOD)
        return
    observers.count += 1
    try:
        await work
    finally:
        observers.count -= 1


def _select_enabled(call: Call, hooks: Sequence[Hook]) -> list[Hook]:
    return [hook for hook in hooks if hook.feature_set.is_enabled(call)]


# -- results ---------------------------------------------------------------------------------------------
def _tag(contributors: Sequence[FeatureSetBase], ran: Sequence[Hook]) -> Params:
    """The set that is named: the first that contributed, otherwise the first that ran."""
    named = [*contributors, *(hook.feature_set for hook in ran)]
    return {"featureSet": named[0].name} if named else {}


def _cap(content: list[Params], limit: int) -> None:
    """Cut texts, so that together they have at most `limit` bytes."""
    left = limit
    for block in content:
        if block["type"] == "text":
            text = block["text"].encode(errors="ignore")
            if len(text) > left:
                block["text"] = f"{text[:left].decode(errors='ignore')}\n[cut: longer than {limit} bytes]"
            left = max(left - len(text), 0)


def _as_rewrite(given: Any) -> Rewrite | None:
    """Raises UsageError for what is no text to send, and ValueError for metadata without a JSON form."""
    if given is None:
        return None
    text: Any = given
    metadata: Any = None
    if isinstance(given, Rewrite):
        text, metadata = given.text, given.metadata
    if not isinstance(text, str) or not (metadata is None or is_mapping(metadata)):
        raise UsageError(f"a blocking hook gave {given!r:.80}", fix="return str, Rewrite(text, metadata=…) or None")
    encode(dict(metadata or {}))  # what has no JSON form fails this hook, and not the answer of all
    return Rewrite(text, metadata)


def _merge_metadata(rewrites: Sequence[tuple[Hook, Rewrite]]) -> Params:
    """The metadata of all rewrites. Lists of one name are joined; of other values the last counts."""
    merged: Params = {}
    for _, rewrite in rewrites:
        for name, value in (rewrite.metadata or {}).items():
            present = merged.get(name)
            merged[name] = [*present, *value] if is_array(present) and is_array(value) else value
    names = list(dict.fromkeys(hook.feature_set.name for hook, _ in rewrites))
    return merged | {"featureSets": names} if len(names) > 1 else merged


# -- MCPL §10: one context hook, and how it is run.


class HookTurn:
    """The turn that a hook's own call is about."""

    turn: Turn | InferenceEnd | None = None


HookMoment = Literal["before", "after", "ended"]

# When a hook runs → the types that its turn may have in its signature; the first is recommended.
TAKES: Final[Mapping[HookMoment, tuple[type, ...]]] = {
    "before": (Turn,),
    "after": (FinishedTurn, Turn),
    "ended": (InferenceEnd,),
}


@dataclass(frozen=True, slots=True)
class FeatureHookOptions:
    """How a hook takes part; see `FeatureSet.before_inference` and `FeatureSet.after_inference`.

    `positions` are those of the wire; None if the author names none. `observe`: it reads what the user wrote.
    """

    blocking: bool = False
    fail_open: bool = False
    timeout: float | None = None
    positions: tuple[str, ...] | None = None
    observe: bool = True


class Hook:
    """An author's function that takes part in inference. Raises UsageError if the function cannot be a hook."""

    __slots__ = ("feature_set", "function", "owner", "blocking", "fail_open", "timeout", "positions", "observe")

    def __init__(
        self,
        feature_set: FeatureSetBase,
        function: Callable[..., Any],
        find_provider: FindProvider,
        moment: HookMoment,
        options: FeatureHookOptions,
    ) -> None:
        kinds = TAKES[moment]
        self.function = Function(
            function, lambda kind: (lambda call: call.local(HookTurn).turn) if kind in kinds else find_provider(kind)
        )
        self.feature_set, self.owner = feature_set, feature_set.owner
        self.blocking, self.fail_open, self.timeout = options.blocking, options.fail_open, options.timeout
        self.positions, self.observe = options.positions, options.observe
        signature = self.function.signature
        if self.function.streams:
            raise UsageError(f"{signature.name}: a hook yields nothing", where=signature.where, fix="return a list")
        if signature.parameters:
            raise UsageError(
                f"{signature.name}: a hook has no value for the parameter {signature.parameters[0].name!r}",
                where=signature.where,
                fix=f"take (turn: {kinds[0].__name__}), Context and dependencies",
            )

    @property
    def name(self) -> str:
        return self.function.signature.name

    def call(self, call: Call, turn: Turn | InferenceEnd) -> Call:
        """A call of its own, so that the hooks of one request do not affect each other."""
        own = Call(call.session, call.id, call.method, call.params, call.raw, call.terms)
        own.envelope, own.subject, own.identity = call.envelope, self, call.identity
        own.local(HookTurn).turn = turn
        return own

    async def run(self, own: Call, default: float) -> Any:
        """What the hook returns. Raises what it raised, and TimedOut, even if the hook ignores cancellation.

        `default` is the limit in seconds for a hook that has none of its own.
        """
        seconds, outcome = self.timeout or default, own.engine.create_future()

        async def work() -> None:
            CURRENT_CALL.set(own)
            found: Any = None
            error: BaseException | None = None
            try:
                with mark_running_hook():
                    # The limit is kept here, not by the call, whose timeout pauses while the hook waits for answers.
                    found = await self.function.run(own, {}, seconds * 2)
            except BaseException as raised:
                error = raised if isinstance(raised, Exception) else RuntimeError(f"ended by {type(raised).__name__}")
            if not outcome.done():
                outcome.set_result((found, error))

        own.task = task = own.engine.spawn(work())
        try:
            found, error = await own.engine.wait_for(outcome, seconds)
        except TimeoutError:
            raise TimedOut(f"timed out after {seconds:g} s") from None
        finally:
            own.cancelled = own.settled = True
            task.cancel()
        if error is not None:
            raise error
        return found


def log_failure(own: Call, error: Exception) -> str:
    """Log why a hook failed; returns what the host may know of it."""
    if not isinstance(error, TimedOut):
        return mask_unexpected_error(own, error)
    get_logger().warning("%s %s", own.title, error.message)
    return error.message


# -- MCPL 0.5 §10: which inferences of a session have begun and ended. An end counts once.


REMEMBERED: Final = 1_000
MAX_INFERENCE_ID_LENGTH: Final = 256


class SeenInferences(OrderedDict[str, bool]):
    """The latest inferences of one session: True once they have ended."""

    def record_start(self, id: str) -> None:
        self._note(id, self.get(id[:MAX_INFERENCE_ID_LENGTH], False))

    def record_end(self, id: str) -> bool:
        """Whether this is the first end of an inference. Its beginning may have been missed."""
        is_first = not self.get(id[:MAX_INFERENCE_ID_LENGTH], False)
        self._note(id, True)
        return is_first

    def _note(self, id: str, ended: bool) -> None:
        self[id[:MAX_INFERENCE_ID_LENGTH]] = ended
        self.move_to_end(id[:MAX_INFERENCE_ID_LENGTH])
        if len(self) > REMEMBERED:
            self.popitem(last=False)
