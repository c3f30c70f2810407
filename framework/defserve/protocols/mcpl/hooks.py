"""MCPL §10: context hooks. What a feature set adds before inference, and what it makes of the answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.core.call import Call
from defserve.core.profile import mask
from defserve.core.session import Session
from defserve.errors import InvalidParams, TimedOut, UsageError
from defserve.protocols.mcp.function import Function
from defserve.protocols.mcpl.errors import HookFailed
from defserve.protocols.mcpl.extension import CURRENT, in_hook
from defserve.protocols.mcpl.feature_sets import FeatureSet
from defserve.protocols.mcpl.policies import is_enabled
from defserve.protocols.mcpl.section import Section
from defserve.protocols.mcpl.turns import FinishedTurn, Injection, Rewrite, Turn
from defserve.wire.jsonvalue import as_list, is_array
from defserve.wire.messages import Notification, Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.extension import MCPL

F = TypeVar("F", bound=Callable[..., Any])

AFTER = "context/afterInference"


class Given:
    """The turn a hook's own call is about."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn: Turn | None = None


class Observing:
    """How many finished turns a session's hooks still look at, which nobody waits for."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Hook:
    """A function of the author's that takes part in inference."""

    __slots__ = ("feature_set", "function", "owner", "blocking", "fail_open", "timeout")

    def __init__(
        self, feature_set: FeatureSet, function: Function, owner: Any, blocking: bool, fail_open: bool, timeout: float
    ) -> None:
        self.feature_set, self.function, self.owner = feature_set, function, owner
        self.blocking, self.fail_open, self.timeout = blocking, fail_open, timeout

    @property
    def name(self) -> str:
        return self.function.signature.name

    def call(self, call: Call, turn: Turn) -> Call:
        """A call of its own: what one hook does with it must not become of the others."""
        own = Call(call.session, call.id, call.method, call.params, call.raw, call.terms)
        own.envelope, own.subject = call.envelope, self
        own.local(Given).turn = turn
        return own


class Hooks(Section):
    """The hooks of a server, in order of declaration."""

    def __init__(self, mcpl: MCPL) -> None:
        super().__init__(mcpl)
        self._before: tuple[Hook, ...] = ()
        self._after: tuple[Hook, ...] = ()

    # -- declaring ---------------------------------------------------------------------------------------

    def declare(
        self,
        feature_set: FeatureSet,
        function: Callable[..., Any] | None,
        *,
        before: bool = False,
        blocking: bool = False,
        fail_open: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Add a hook, also while serving. Raises UsageError for a function that could not be one."""
        if fail_open and not blocking:
            raise UsageError("fail_open is for blocking hooks", fix="say blocking=True, or leave fail_open out")

        def declare(function: F) -> F:
            kinds = (Turn,) if before else (FinishedTurn, Turn)
            bound = Function(function, lambda kind: _turn_of if kind in kinds else self.mcpl.find_provider(kind))
            _refuse_strangers(bound, kinds[0])
            hook = Hook(feature_set, bound, self.mcpl.owner, blocking, fail_open, timeout or 0.0)
            if before:
                self._before = (*self._before, hook)
            else:
                self._after = (*self._after, hook)
            feature_set.use("contextHooks.beforeInference" if before else "contextHooks.afterInference")
            return function

        return declare(function) if function is not None else declare

    def removed(self, feature_set: FeatureSet) -> None:
        self._before = tuple(hook for hook in self._before if hook.feature_set is not feature_set)
        self._after = tuple(hook for hook in self._after if hook.feature_set is not feature_set)

    def capability(self) -> Params:
        """What is advertised; empty where nothing is declared."""
        offered: Params = {}
        if self._before:
            offered["beforeInference"] = True
        if self._after:
            offered["afterInference"] = {"blocking": any(hook.blocking for hook in self._after)}
        return offered

    # -- before ------------------------------------------------------------------------------------------

    async def before(self, call: Call, params: Params) -> Params:
        """`context/beforeInference`: what all enabled hooks inject, run at once, each on its own account."""
        import asyncio

        turn = Turn.read(params)
        hooks = _enabled(call, self._before)
        found = await asyncio.gather(*[self._injections(hook, call, turn) for hook in hooks])
        # Whoever was switched off meanwhile says nothing any more.
        spoken = [(hook, injections) for hook, injections in zip(hooks, found, strict=True) if _may(call, hook)]
        told = [(hook.feature_set, injection) for hook, injections in spoken for injection in injections]
        if len({feature_set.name for feature_set, _ in told}) > 1:
            for feature_set, injection in told:
                injection["metadata"] = {**injection.get("metadata", {}), "featureSet": feature_set.name}
        tag = _tag([feature_set for feature_set, _ in told], [hook for hook, _ in spoken])
        return {**tag, "contextInjections": [injection for _, injection in told]}

    async def _injections(self, hook: Hook, call: Call, turn: Turn) -> list[Params]:
        own, limits = hook.call(call, turn), call.session.composition.limits
        try:
            given = await _run(own, hook, hook.timeout or limits.hook)
            items = [item for item in as_list(given) if item is not None and item != ""]
            namespace = hook.feature_set.name.partition(".")[0]
            found = [(one if isinstance(one, Injection) else Injection(one)).wire(namespace) for one in items]
        except Exception as error:
            _log_failure(own, error)
            return []
        for injection in found:
            injection["content"] = _capped(injection["content"], limits.injection)
        return found

    # -- after -------------------------------------------------------------------------------------------

    async def after(self, call: Call, params: Params) -> Params:
        """`context/afterInference` as a request: what the blocking hooks made of the answer."""
        turn, hooks = FinishedTurn.read(params), _enabled(call, self._after)
        left, rewrites = await self._rewritten(call, turn, hooks)
        self._observe(call, left, hooks)
        metadata = _merged(rewrites)
        result = _tag([hook.feature_set for hook, _ in rewrites], [hook for hook in hooks if _may(call, hook)])
        if left.assistant_message != turn.assistant_message:
            result["modifiedResponse"] = left.assistant_message
        if metadata:
            result["metadata"] = metadata
        return result

    async def ended(self, session: Session, params: Params) -> None:
        """The same as a notification: nobody is told, and blocking hooks only look."""
        composition = session.composition
        offer = composition.offer_in(Notification(AFTER, params, {}))
        terms = composition.agree(offer) if offer is not None else session.terms
        if terms is None or self.mcpl.name not in terms.states:
            return
        call = Call(session, "", AFTER, params, {}, terms)
        try:
            turn, hooks = FinishedTurn.read(params), _enabled(call, self._after)
        except InvalidParams:
            return  # a broken notification is never answered
        await _counted(session, self._look(call, turn, hooks))

    async def _look(self, call: Call, turn: FinishedTurn, hooks: Sequence[Hook]) -> None:
        try:
            left, _ = await self._rewritten(call, turn, hooks)
        except HookFailed:
            return  # it is in the log; what was not checked is shown to nobody
        await self._observed(call, left, hooks)

    async def _rewritten(
        self, call: Call, turn: FinishedTurn, hooks: Sequence[Hook]
    ) -> tuple[FinishedTurn, list[tuple[Hook, Rewrite]]]:
        """The turn as the chain of blocking hooks leaves it. Raises HookFailed, once all of them have run."""
        limits, failed = call.session.composition.limits, list[HookFailed]()
        rewrites: list[tuple[Hook, Rewrite]] = []
        for hook in hooks:
            if not (hook.blocking and _may(call, hook)):
                continue
            own = hook.call(call, turn)
            try:
                rewrite = _as_rewrite(await _run(own, hook, hook.timeout or limits.blocking_hook))
            except Exception as error:
                told = _log_failure(own, error)
                if not hook.fail_open and _may(call, hook):
                    failed.append(HookFailed(told, hook.feature_set.name))
                continue
            if rewrite is not None and _may(call, hook):
                rewrites.append((hook, rewrite))
                turn = replace(turn, assistant_message=rewrite.text)
        if failed:
            raise failed[0]
        return turn, rewrites

    def _observe(self, call: Call, turn: FinishedTurn, hooks: Sequence[Hook]) -> None:
        if not all(hook.blocking for hook in hooks):
            call.engine.spawn(_counted(call.session, self._observed(call, turn, hooks)))

    async def _observed(self, call: Call, turn: FinishedTurn, hooks: Sequence[Hook]) -> None:
        import asyncio

        async def look(hook: Hook) -> None:
            own = hook.call(call, turn)
            try:
                await _run(own, hook, hook.timeout or call.session.composition.limits.tool)
            except Exception as error:
                _log_failure(own, error)

        await asyncio.gather(*[look(hook) for hook in hooks if not hook.blocking and _may(call, hook)])


# -- running ---------------------------------------------------------------------------------------------


async def _run(own: Call, hook: Hook, seconds: float) -> Any:
    """What a hook gives back. Raises what it raised, and TimedOut, also where it will not be cancelled."""
    outcome = own.engine.pending()

    async def work() -> None:
        CURRENT.set(own)
        found: Any = None
        error: BaseException | None = None
        try:
            with in_hook():
                # Its time is kept here, not by the call: the host waits for the hook, whatever that waits for.
                found = await hook.function.run(own, {}, seconds * 2)
        except BaseException as raised:
            error = raised if isinstance(raised, Exception) else RuntimeError(f"it ended by {type(raised).__name__}")
        if not outcome.done():
            outcome.set_result((found, error))

    own.task = task = own.engine.spawn(work())
    try:
        found, error = await own.engine.wait(outcome, seconds)
    except TimeoutError:
        raise TimedOut(f"timed out after {seconds:g} s") from None
    finally:
        own.cancelled = own.settled = True
        task.cancel()
    if error is not None:
        raise error
    return found


async def _counted(session: Session, work: Coroutine[Any, Any, None]) -> None:
    """Run what nobody waits for, unless too much of it runs already."""
    observing = session.local(Observing)
    if observing.count >= session.composition.limits.in_flight:
        import logging

        work.close()
        logging.getLogger("defserve").warning("%s: left out, for hooks still look at earlier turns", AFTER)
        return
    observing.count += 1
    try:
        await work
    finally:
        observing.count -= 1


def _log_failure(own: Call, error: Exception) -> str:
    """What the host may know of it; the rest is in the log."""
    if not isinstance(error, TimedOut):
        return mask(own, error)
    import logging

    logging.getLogger("defserve").warning("%s %s", own.title, error.message)
    return error.message


def _enabled(call: Call, hooks: Sequence[Hook]) -> list[Hook]:
    return [hook for hook in hooks if _may(call, hook)]


def _may(call: Call, hook: Hook) -> bool:
    return is_enabled(call, hook.feature_set)


def _turn_of(call: Call) -> Turn | None:
    given = call.peek(Given)
    return given.turn if given is not None else None


# -- what they give --------------------------------------------------------------------------------------


def _tag(contributors: Sequence[FeatureSet], ran: Sequence[Hook]) -> Params:
    """The set that is named: the first that contributed, else the first that was asked."""
    named = [*contributors, *(hook.feature_set for hook in ran)]
    return {"featureSet": named[0].name} if named else {}


def _capped(content: list[Params], limit: int) -> list[Params]:
    left = limit
    for block in content:
        if block["type"] == "text":
            text = block["text"].encode(errors="ignore")
            if len(text) > left:
                block["text"] = f"{text[:left].decode(errors='ignore')}\n[cut: longer than {limit} bytes]"
            left = max(left - len(text), 0)
    return content


def _as_rewrite(given: Any) -> Rewrite | None:
    if given is None or isinstance(given, Rewrite):
        return given
    if isinstance(given, str):
        return Rewrite(given)
    raise UsageError(f"a blocking hook gave {given!r:.80}", fix="return str, Rewrite(text, metadata=…) or None")


def _merged(rewrites: Sequence[tuple[Hook, Rewrite]]) -> Params:
    """Everybody's metadata: lists of one name are joined, of other values the last counts."""
    merged: Params = {}
    for _, rewrite in rewrites:
        for name, value in (rewrite.metadata or {}).items():
            present = merged.get(name)
            merged[name] = [*present, *value] if is_array(present) and is_array(value) else value
    names = list(dict.fromkeys(hook.feature_set.name for hook, _ in rewrites))
    return merged | {"featureSets": names} if len(names) > 1 else merged


def _refuse_strangers(function: Function, kind: type[Turn]) -> None:
    signature = function.signature
    if function.streams:
        raise UsageError(f"{signature.name}: a hook yields nothing", where=signature.where, fix="return a list")
    for parameter in signature.parameters:
        raise UsageError(
            f"{signature.name}: nobody gives {parameter.name!r} to a hook",
            where=signature.where,
            fix=f"take (turn: {kind.__name__}), Context and dependencies",
        )
