"""MCPL §10: one context hook, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from defserve.core.call import Call
from defserve.core.profile import mask
from defserve.errors import TimedOut, UsageError
from defserve.protocols.mcp.function import FindProvider, Function
from defserve.protocols.mcpl.current import CURRENT, in_hook
from defserve.protocols.mcpl.turns import FinishedTurn, InferenceEnd, Turn

if TYPE_CHECKING:
    from defserve.protocols.mcpl.feature import Feature


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
class HookOptions:
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
        feature_set: Feature,
        function: Callable[..., Any],
        find_provider: FindProvider,
        moment: HookMoment,
        options: HookOptions,
    ) -> None:
        kinds = TAKES[moment]
        self.function = Function(function, lambda kind: _turn_of if kind in kinds else find_provider(kind))
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

    def may_run(self, call: Call) -> bool:
        return self.feature_set.is_enabled(call)

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
        seconds, outcome = self.timeout or default, own.engine.pending()

        async def work() -> None:
            CURRENT.set(own)
            found: Any = None
            error: BaseException | None = None
            try:
                with in_hook():
                    # The limit is kept here, not by the call, whose timeout pauses while the hook waits for answers.
                    found = await self.function.run(own, {}, seconds * 2)
            except BaseException as raised:
                error = raised if isinstance(raised, Exception) else RuntimeError(f"ended by {type(raised).__name__}")
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


def log_failure(own: Call, error: Exception) -> str:
    """Log why a hook failed; returns what the host may know of it."""
    if not isinstance(error, TimedOut):
        return mask(own, error)
    import logging

    logging.getLogger("defserve").warning("%s %s", own.title, error.message)
    return error.message


def _turn_of(call: Call) -> Turn | InferenceEnd | None:
    return call.local(HookTurn).turn
