"""`State[Model]` as a parameter: found by its model, or by the state itself in `Annotated[Model, notebooks]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

from defserve.binding.injection import Dependency
from defserve.binding.signature import format_annotation, split_annotated
from defserve.errors import UsageError
from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.binding.signature import Signature
    from defserve.core.call import Call
    from defserve.core.extension import Extension
    from defserve.protocols.mcp.function import FindProvider
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.state.section import StateHold
    from defserve.protocols.mcpl.state.states import States
    from defserve.stores.identity import ServerIdentity, ServerStore


T = TypeVar("T")


class _Mark:
    def __repr__(self) -> str:
        return "state"

    def find_provider(self, annotation: Any, extensions: Sequence[Extension]) -> StateProvider | None:
        """The provider of a parameter that this marks, among the extensions of its server. Raises UsageError."""
        mcpl: Any = next((extension for extension in extensions if extension.name == "mcpl"), None)
        return provider(mcpl, annotation)


class WorkingState:
    """The value that a call works on, while it holds the state."""

    states: States[Any] | None = None
    value: Any = None
    hold: StateHold | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StateProvider:
    """Gives a function the value that its call holds."""

    states: States[Any]

    def __call__(self, call: Call) -> Any:
        working = call.peek(WorkingState)
        if working is None or working.states is not self.states:
            raise UsageError(f"only the tools of its set can take {self.states!r}", fix="await its .at() here")
        return working.value


def provider(mcpl: MCPL | None, annotation: Any) -> StateProvider | None:
    """The provider of a parameter; None if its annotation has nothing to do with state. Raises UsageError."""
    model, beside = split_annotated(annotation)
    for item in beside:
        if item is not MARK and (find := getattr(item, "find_provider", None)) is not None:
            return find(annotation, ())
    if not any(item is MARK for item in beside):
        return None
    found = [states for states in mcpl.list_states() if states.model is model] if mcpl is not None else []
    if len(found) == 1:
        return StateProvider(found[0])
    name = format_annotation(model)
    if not found:
        raise UsageError(f"the server keeps no {name}", fix=f"declare it first: server.state({name})")
    sets = " and ".join(states.name for states in found)
    raise UsageError(f"State[{name}] is kept by {sets}", fix=f"say which: Annotated[{name}, the_state]")


MARK: Final = _Mark()

State = Annotated[T, MARK]
"""`book: State[Notebook]` is a `Notebook` for this call alone. It is kept if the call succeeds."""


def find_injected_states(signature: Signature) -> set[States[Any]]:
    """The states that a function takes, itself or through its dependencies."""
    return {states for injected in signature.injected for states in _states(injected.provider)}


def _states(provider: object) -> Iterator[States[Any]]:
    if isinstance(provider, StateProvider):
        yield provider.states
    elif isinstance(provider, Dependency):
        for _, each in (*provider.direct, *provider.needs):
            yield from _states(each)


def wrap_to_refuse_state_injection(find_provider: FindProvider) -> FindProvider:
    """For functions whose calls hold no state: those of hooks, channels and sources."""

    def find(annotation: Any) -> Any:
        found = find_provider(annotation)
        if isinstance(found, StateProvider):
            raise UsageError("only the tools of its set can take a state", fix="await its .at() here")
        return found

    return find


# -- What MCPL keeps state with: the server's store, its secret and its limits.


class StateStorage(NamedTuple):
    """`store` None means the memory of this process. If `secret` returns None, a secret is kept in the store.

    `identity` says which server's state it is.
    """

    store: ServerStore | None
    secret: Callable[[], bytes | None]
    limits: Limits
    identity: Callable[[], ServerIdentity]
