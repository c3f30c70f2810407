"""Values that a function gets besides its arguments, by a plan made at registration.

A provider is a plain function of the call. A dependency is an author's function, called once in each call. Its
code after `yield` is teardown: it runs on success, failure and cancellation, and sees the exception. If teardown fails,
the answer stands and the error is logged. Only a ToolError replaces the answer: that is an author's word to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from defserve.errors import ToolError

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

T = TypeVar("T")

ParameterProvider = Callable[[Any], Any]
FunctionKind = Literal["sync", "async", "generator", "async_generator"]


class ThreadRunner(Protocol):
    """What resolving needs from a call."""

    async def in_thread(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Run blocking code in a worker thread."""
        ...

    async def clean_up_in_thread(self, fn: Callable[[], None], /) -> None:
        """Run blocking teardown in that thread, even if the call was cancelled."""
        ...


def Depends(function: Callable[..., Any] | None = None, *, use_cache: bool = True) -> Any:
    """`Annotated[Db, Depends(open_db)]` or `db: Db = Depends(open_db)`: the parameter is what `open_db` gives.

    That is what it returns or yields. Without a function the annotated class itself is called. A function is called
    once per call, even if several parameters need it; `use_cache=False` calls it again for this parameter.
    """
    return DependsMarker(function, use_cache)


class DependsMarker:
    """What `Depends(…)` leaves at a parameter."""

    __slots__ = ("function", "use_cache")

    def __init__(self, function: Callable[..., Any] | None, use_cache: bool) -> None:
        self.function, self.use_cache = function, use_cache

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", self.function)
        return f"Depends({name}{'' if self.use_cache else ', use_cache=False'})"


def can_be_hashed(function: Callable[..., Any]) -> bool:
    """Whether a call can remember what it gave, and a test replace it. A class may have a hash that fails."""
    try:
        hash(function)
    except TypeError:
        return False
    return True


class Dependency:
    """One function of the plan with everything it needs.

    `opened` is what a call calls: the function, or one that makes a context manager if there is teardown.
    """

    __slots__ = ("function", "opened", "flow", "use_cache", "direct", "needs")

    def __init__(
        self,
        function: Callable[..., Any],
        opened: Callable[..., Any],
        flow: FunctionKind,
        use_cache: bool,
        direct: tuple[tuple[str, ParameterProvider], ...],
        needs: tuple[tuple[str, Dependency], ...],
    ) -> None:
        self.function, self.opened, self.use_cache = function, opened, use_cache
        self.flow: FunctionKind = flow
        self.direct, self.needs = direct, needs

    async def resolve_value(self, call: ThreadRunner, stack: AsyncExitStack, known: dict[Any, Any]) -> Any:
        """The value for this call. Its teardown is put on the stack."""
        if self.use_cache and self.function in known:
            return known[self.function]
        kwargs: dict[str, Any] = dict(known[self]) if self.direct else {}
        for name, dependency in self.needs:
            kwargs[name] = await dependency.resolve_value(call, stack, known)
        value = await _OPENERS[self.flow](call, stack, partial(self.opened, **kwargs))
        if self.use_cache:
            known[self.function] = value
        return value

    @property
    def is_blocking(self) -> bool:
        """Whether it is called in a worker thread."""
        return self.flow in ("sync", "generator")

    def with_overrides(self, overrides: Mapping[Any, Dependency]) -> Dependency:
        """This dependency with the functions in `overrides` replaced. A replacement may need what it replaces."""
        # What cannot be hashed cannot be overridden.
        found = overrides.get(self.function) if can_be_hashed(self.function) else None
        if found is not None:
            overrides = {function: other for function, other in overrides.items() if function != self.function}
        one = found or self
        needs = tuple((name, dependency.with_overrides(overrides)) for name, dependency in one.needs)
        return Dependency(one.function, one.opened, one.flow, self.use_cache, one.direct, needs)

    def list_with_dependencies(self) -> Iterator[Dependency]:
        """This dependency and everything it needs."""
        yield self
        for _, dependency in self.needs:
            yield from dependency.list_with_dependencies()


class InjectedParameter:
    """A parameter that the call provides: by a provider (call -> value, no await), or by a dependency's plan."""

    __slots__ = ("name", "provider")

    def __init__(self, name: str, provider: ParameterProvider | Dependency) -> None:
        self.name, self.provider = name, provider


class InjectionPlan:
    """The plan for one function. The caller calls the `direct` providers itself: they need no await.

    `blocking` are the dependencies, nested ones included, that are called in a worker thread.
    """

    __slots__ = ("direct", "dependencies", "blocking", "_every")

    def __init__(
        self, direct: tuple[tuple[str, ParameterProvider], ...], dependencies: tuple[tuple[str, Dependency], ...]
    ) -> None:
        self.direct, self.dependencies = direct, dependencies
        self._every = tuple(one for _, dependency in dependencies for one in dependency.list_with_dependencies())
        self.blocking = tuple(one for one in self._every if one.is_blocking)

    @classmethod
    def from_parameters(cls, parameters: Sequence[InjectedParameter]) -> InjectionPlan | None:
        """The plan for these parameters of a function; None when nothing is injected."""
        if not parameters:
            return None
        providers = [(injected.name, injected.provider) for injected in parameters]
        return cls(
            tuple((name, provider) for name, provider in providers if not isinstance(provider, Dependency)),
            tuple((name, provider) for name, provider in providers if isinstance(provider, Dependency)),
        )

    def with_overrides(self, overrides: Mapping[Any, Dependency]) -> InjectionPlan:
        """The plan with the functions in `overrides` replaced."""
        return InjectionPlan(
            self.direct, tuple((name, dependency.with_overrides(overrides)) for name, dependency in self.dependencies)
        )

    def needs_one_thread(self, function_blocks: bool) -> bool:
        """Whether several pieces of a call are blocking code, which must run in the same thread."""
        pieces = len(self.blocking) + function_blocks
        return pieces > 1 or any(one.flow == "generator" for one in self.blocking)

    @property
    def is_all_blocking(self) -> bool:
        """Whether every dependency is blocking code."""
        return len(self.blocking) == len(self._every)

    def call_dependency_providers(self, call: ThreadRunner) -> dict[Any, Any]:
        """What providers give to the dependencies, for `resolve`. Providers are called on the loop, not in a thread."""
        return {one: {name: provider(call) for name, provider in one.direct} for one in self._every if one.direct}

    async def resolve(
        self, call: ThreadRunner, stack: AsyncExitStack, kwargs: dict[str, Any], known: dict[Any, Any]
    ) -> None:
        """Add the dependencies' values to `kwargs`; closing the stack runs their teardown.

        `known` is what `call_dependency_providers` gave. Every dependency's value is kept there.
        """
        for name, dependency in self.dependencies:
            kwargs[name] = await dependency.resolve_value(call, stack, known)


async def _enter_in_thread(call: ThreadRunner, stack: AsyncExitStack, function: partial[Any]) -> Any:
    manager = function()

    async def close(*exception: Any) -> None:
        try:
            await call.clean_up_in_thread(lambda: manager.__exit__(*exception))
        except Exception as error:
            _log_failed_teardown(function, error)

    # Pushed first, so that a cancellation while entering still tears down.
    stack.push_async_exit(close)
    return await call.in_thread(manager.__enter__)


async def _enter(call: ThreadRunner, stack: AsyncExitStack, function: partial[Any]) -> Any:
    manager = function()

    # Returns nothing: a dependency that swallows the exception does not make the call a success.
    async def close(*exception: Any) -> None:
        try:
            await manager.__aexit__(*exception)
        except Exception as error:
            _log_failed_teardown(function, error)

    value = await manager.__aenter__()
    stack.push_async_exit(close)
    return value


def _log_failed_teardown(function: partial[Any], error: Exception) -> None:
    """The answer stands, unless the author's own words are to replace it."""
    if isinstance(error, ToolError):
        raise error
    from defserve.base.redaction import get_logger

    name = getattr(function.func, "__qualname__", None) or type(function.func).__qualname__
    get_logger().error("the clean-up of %s failed; the answer stands", name, exc_info=error)


_OPENERS: dict[FunctionKind, Callable[[ThreadRunner, Any, partial[Any]], Any]] = {
    "sync": lambda call, stack, function: call.in_thread(function),
    "async": lambda call, stack, function: function(),
    "generator": _enter_in_thread,
    "async_generator": _enter,
}
