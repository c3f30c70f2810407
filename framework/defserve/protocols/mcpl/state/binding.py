"""`State[Model]` as a parameter: found by its type, or by the state itself in `Annotated[Model, notebooks]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from defserve.binding.annotations import peel, spelled
from defserve.binding.injection import Dependency
from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.binding.signature import Signature
    from defserve.core.call import Call
    from defserve.core.extension import Extension
    from defserve.protocols.mcp.function import FindProvider
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.state.states import States

T = TypeVar("T")


class _Mark:
    def __repr__(self) -> str:
        return "state"

    def find_provider(self, annotation: Any, extensions: Sequence[Extension]) -> StateProvider | None:
        """The provider of a parameter that this marks, among the extensions of its server. Raises UsageError."""
        mcpl: Any = next((extension for extension in extensions if extension.name == "mcpl"), None)
        return provider(mcpl, annotation)


MARK: Final = _Mark()

State = Annotated[T, MARK]
"""`book: State[Notebook]` is a `Notebook` of this call alone, kept if the call succeeds."""


class Working:
    """What a call works on: the value of its state, while it is held."""

    __slots__ = ("states", "value")

    def __init__(self) -> None:
        self.states: States[Any] | None = None
        self.value: Any = None


class StateProvider:
    """Gives a function the value its call holds."""

    __slots__ = ("states",)

    def __init__(self, states: States[Any]) -> None:
        self.states = states

    def __call__(self, call: Call) -> Any:
        working = call.peek(Working)
        if working is None or working.states is not self.states:
            raise UsageError(f"{self.states!r} is held for its set's tools only", fix="await its .at() here")
        return working.value


def provider(mcpl: MCPL | None, annotation: Any) -> StateProvider | None:
    """The provider of a parameter; None if its annotation has nothing to do with state. Raises UsageError."""
    model, beside = peel(annotation)
    for item in beside:
        if item is not MARK and (find := getattr(item, "find_provider", None)) is not None:
            return find(annotation, ())
    if not any(item is MARK for item in beside):
        return None
    found = [states for states in mcpl.declared_states() if states.model is model] if mcpl is not None else []
    if len(found) == 1:
        return StateProvider(found[0])
    name = spelled(model)
    if not found:
        raise UsageError(f"no feature set keeps a {name}", fix=f"declare it before: notes = set.state({name})")
    sets = " and ".join(states.name for states in found)
    raise UsageError(f"State[{name}] could be that of {sets}", fix=f"say which: Annotated[{name}, the_state]")


def states_in(signature: Signature) -> set[States[Any]]:
    """The states a function is given, itself or through what it depends on."""
    return {states for injected in signature.injected for states in _states(injected.provider)}


def _states(provider: object) -> Iterator[States[Any]]:
    if isinstance(provider, StateProvider):
        yield provider.states
    elif isinstance(provider, Dependency):
        for _, each in (*provider.direct, *provider.needs):
            yield from _states(each)


def without_state(find_provider: FindProvider) -> FindProvider:
    """For functions that no call holds a state for: those of hooks, channels and sources."""

    def find(annotation: Any) -> Any:
        found = find_provider(annotation)
        if isinstance(found, StateProvider):
            raise UsageError("a state is held for its set's tools only", fix="await its .at() here")
        return found

    return find
