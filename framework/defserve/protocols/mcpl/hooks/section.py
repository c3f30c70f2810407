"""MCPL §10: context hooks. What feature sets add before inference, and what they make of the answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.session import Session
from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcpl.current import call_of_notification
from defserve.protocols.mcpl.errors import HookFailed
from defserve.protocols.mcpl.feature import decorator
from defserve.protocols.mcpl.hooks.hook import Hook, log_failure
from defserve.protocols.mcpl.section import LiveServer, Section
from defserve.protocols.mcpl.turns import FinishedTurn, Injection, Rewrite, Turn
from defserve.wire.jsonvalue import as_list, is_array
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.feature import Feature

AFTER = "context/afterInference"


class Observers:
    """How many observations of finished turns run for a session, in the background."""

    count = 0


class HookSection(Section):
    """The hooks of a server, in order of declaration."""

    def __init__(self, server: LiveServer) -> None:
        super().__init__(server)
        self._before: tuple[Hook, ...] = ()
        self._after: tuple[Hook, ...] = ()

    # -- declaring ---------------------------------------------------------------------------------------

    def declare(
        self,
        feature_set: Feature,
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

        def register(function: Callable[..., Any]) -> None:
            hook = Hook(
                feature_set,
                function,
                self.server.find_provider,
                before=before,
                blocking=blocking,
                fail_open=fail_open,
                timeout=timeout,
            )
            if before:
                self._before = (*self._before, hook)
            else:
                self._after = (*self._after, hook)
            feature_set.use("contextHooks.beforeInference" if before else "contextHooks.afterInference")

        return decorator(function, register)

    def removed(self, feature_set: Feature) -> None:
        self._before = tuple(hook for hook in self._before if hook.feature_set is not feature_set)
        self._after = tuple(hook for hook in self._after if hook.feature_set is not feature_set)

    def capability(self) -> Params:
        """What is advertised; empty if there are no hooks."""
        before: Params = {"beforeInference": True} if self._before else {}
        after = {"afterInference": {"blocking": any(hook.blocking for hook in self._after)}} if self._after else {}
        return before | after

    # -- before ------------------------------------------------------------------------------------------

    async def before(self, call: Call, params: Params) -> Params:
        """`context/beforeInference`: what all enabled hooks inject. They run at once, each in a call of its own."""
        import asyncio

        turn = Turn.read(params)
        hooks = _enabled(call, self._before)
        found = await asyncio.gather(*[_injections(hook, call, turn) for hook in hooks])
        # A set that was disabled in the meantime contributes nothing.
        ran = [(hook, injections) for hook, injections in zip(hooks, found, strict=True) if hook.may_run(call)]
        told = [(hook.feature_set, injection) for hook, injections in ran for injection in injections]
        if len({feature_set.name for feature_set, _ in told}) > 1:
            for feature_set, injection in told:
                injection["metadata"] = {**injection.get("metadata", {}), "featureSet": feature_set.name}
        tag = _tag([feature_set for feature_set, _ in told], [hook for hook, _ in ran])
        return {**tag, "contextInjections": [injection for _, injection in told]}

    # -- after -------------------------------------------------------------------------------------------

    async def after(self, call: Call, params: Params) -> Params:
        """`context/afterInference` as a request: what the blocking hooks made of the answer."""
        turn, hooks = FinishedTurn.read(params), _enabled(call, self._after)
        left, rewrites = await _rewritten(call, turn, hooks)
        if not all(hook.blocking for hook in hooks):
            call.engine.spawn(_counted(call.session, _observe(call, left, hooks)))
        metadata = _merged(rewrites)
        result = _tag([hook.feature_set for hook, _ in rewrites], _enabled(call, hooks))
        if left.assistant_message != turn.assistant_message:
            result["modifiedResponse"] = left.assistant_message
        if metadata:
            result["metadata"] = metadata
        return result

    async def ended(self, session: Session, params: Params) -> None:
        """The same as a notification: nothing is answered, and blocking hooks only watch."""
        if (call := call_of_notification(session, AFTER, params)) is None:
            return
        try:
            turn, hooks = FinishedTurn.read(params), _enabled(call, self._after)
        except InvalidParams:
            return  # a broken notification is never answered
        await _counted(session, _watch(call, turn, hooks))


# -- running ---------------------------------------------------------------------------------------------


async def _injections(hook: Hook, call: Call, turn: Turn) -> list[Params]:
    own, limits = hook.call(call, turn), call.session.composition.limits
    try:
        items = [item for item in as_list(await hook.run(own, limits.hook)) if item is not None and item != ""]
        namespace = hook.feature_set.name.partition(".")[0]
        found = [(one if isinstance(one, Injection) else Injection(one)).wire(namespace) for one in items]
    except Exception as error:
        log_failure(own, error)
        return []
    for injection in found:
        _cap(injection["content"], limits.injection)
    return found


async def _rewritten(
    call: Call, turn: FinishedTurn, hooks: Sequence[Hook]
) -> tuple[FinishedTurn, list[tuple[Hook, Rewrite]]]:
    """The turn as the chain of blocking hooks leaves it. Raises HookFailed, after all of them have run."""
    limits, failed = call.session.composition.limits, list[HookFailed]()
    rewrites: list[tuple[Hook, Rewrite]] = []
    for hook in hooks:
        if not (hook.blocking and hook.may_run(call)):
            continue
        own = hook.call(call, turn)
        try:
            rewrite = _as_rewrite(await hook.run(own, limits.blocking_hook))
        except Exception as error:
            reason = log_failure(own, error)
            if not hook.fail_open and hook.may_run(call):
                failed.append(HookFailed(reason, hook.feature_set.name))
            continue
        if rewrite is not None and hook.may_run(call):
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
    import asyncio

    async def show(hook: Hook) -> None:
        own = hook.call(call, turn)
        try:
            await hook.run(own, call.session.composition.limits.tool)
        except Exception as error:
            log_failure(own, error)

    await asyncio.gather(*[show(hook) for hook in hooks if not hook.blocking and hook.may_run(call)])


async def _counted(session: Session, work: Coroutine[Any, Any, None]) -> None:
    """Run work in the background, unless too much of it runs already."""
    observers = session.local(Observers)
    if observers.count >= session.composition.limits.in_flight:
        import logging

        work.close()
        logging.getLogger("defserve").warning("%s: skipped, because hooks still look at earlier turns", AFTER)
        return
    observers.count += 1
    try:
        await work
    finally:
        observers.count -= 1


def _enabled(call: Call, hooks: Sequence[Hook]) -> list[Hook]:
    return [hook for hook in hooks if hook.may_run(call)]


# -- results ---------------------------------------------------------------------------------------------


def _tag(contributors: Sequence[Feature], ran: Sequence[Hook]) -> Params:
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
    if given is None or isinstance(given, Rewrite):
        return given
    if isinstance(given, str):
        return Rewrite(given)
    raise UsageError(f"a blocking hook gave {given!r:.80}", fix="return str, Rewrite(text, metadata=…) or None")


def _merged(rewrites: Sequence[tuple[Hook, Rewrite]]) -> Params:
    """The metadata of all rewrites. Lists of one name are joined; of other values the last counts."""
    merged: Params = {}
    for _, rewrite in rewrites:
        for name, value in (rewrite.metadata or {}).items():
            present = merged.get(name)
            merged[name] = [*present, *value] if is_array(present) and is_array(value) else value
    names = list(dict.fromkeys(hook.feature_set.name for hook, _ in rewrites))
    return merged | {"featureSets": names} if len(names) > 1 else merged
