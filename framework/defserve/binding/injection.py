"""Values that a function gets besides its arguments, by a plan made at registration.

A provider is a plain function of the call. A dependency is an author's function, called once in each call. Its
code after `yield` is teardown: it runs on success, failure and cancellation, and sees the exception.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from defserve.binding.signature import Signature

T = TypeVar("T")

Provider = Callable[[Any], Any]
Flow = Literal["sync", "async", "generator", "async_generator"]


class ThreadRunner(Protocol):
    """What resolving needs from a call."""

    async def in_thread(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Run blocking code in a worker thread."""
        ...


class Depends:
    """`Annotated[Db, Depends(open_db)]`: the parameter is what `open_db` returns or yields.

    Without a function the annotated class itself is called. A function is called once per call, even if
    several parameters need it; `use_cache=False` calls it again for this parameter.
    """

    __slots__ = ("function", "use_cache")

    def __init__(self, function: Callable[..., Any] | None = None, *, use_cache: bool = True) -> None:
        self.function, self.use_cache = function, use_cache

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", self.function)
        return f"Depends({name}{'' if self.use_cache else ', use_cache=False'})"


class Dependency:
    """One function of the plan with everything it needs."""

    __slots__ = ("function", "flow", "use_cache", "direct", "needs")

    def __init__(
        self,
        function: Callable[..., Any],
        flow: Flow,
        use_cache: bool,
        direct: tuple[tuple[str, Provider], ...],
        needs: tuple[tuple[str, Dependency], ...],
    ) -> None:
        self.function, self.use_cache = function, use_cache
        self.flow: Flow = flow
        self.direct, self.needs = direct, needs

    async def provide(self, call: ThreadRunner, stack: AsyncExitStack, known: dict[Any, Any]) -> Any:
        """The value for this call. Its teardown is put on the stack."""
        if self.use_cache and self.function in known:
            return known[self.function]
        kwargs = {name: provider(call) for name, provider in self.direct}
        for name, dependency in self.needs:
            kwargs[name] = await dependency.provide(call, stack, known)
        value = await _OPENERS[self.flow](call, stack, partial(self.function, **kwargs))
        if self.use_cache:
            known[self.function] = value
        return value


class InjectionPlan:
    """The plan for one function. The caller calls the `direct` providers itself: they need no await."""

    __slots__ = ("direct", "dependencies")

    def __init__(
        self, direct: tuple[tuple[str, Provider], ...], dependencies: tuple[tuple[str, Dependency], ...]
    ) -> None:
        self.direct, self.dependencies = direct, dependencies

    @classmethod
    def of(cls, signature: Signature) -> InjectionPlan | None:
        """The plan for a signature; None when nothing is injected."""
        if not signature.injected:
            return None
        providers = [(injected.name, injected.provider) for injected in signature.injected]
        return cls(
            tuple((name, provider) for name, provider in providers if not isinstance(provider, Dependency)),
            tuple((name, provider) for name, provider in providers if isinstance(provider, Dependency)),
        )

    @property
    def has_dependencies(self) -> bool:
        return bool(self.dependencies)

    async def resolve(self, call: ThreadRunner, stack: AsyncExitStack, kwargs: dict[str, Any]) -> None:
        """Add the dependencies' values to `kwargs`; closing the stack runs their teardown."""
        known: dict[Any, Any] = {}
        for name, dependency in self.dependencies:
            kwargs[name] = await dependency.provide(call, stack, known)


async def _call(call: ThreadRunner, stack: AsyncExitStack, function: partial[Any]) -> Any:
    return await call.in_thread(function)


async def _await(call: ThreadRunner, stack: AsyncExitStack, function: partial[Any]) -> Any:
    return await function()


async def _enter_in_thread(call: ThreadRunner, stack: AsyncExitStack, function: partial[Any]) -> Any:
    from contextlib import contextmanager
    from threading import Lock

    manager = contextmanager(function)()
    # The thread of a cancelled call may still be inside the generator: the teardown waits for it.
    lock = Lock()

    def enter() -> Any:
        with lock:
            return manager.__enter__()

    def leave(*exception: Any) -> None:
        with lock:
            manager.__exit__(*exception)

    async def close(*exception: Any) -> bool:
        await call.in_thread(leave, *exception)
        return False

    # Pushed first, so that a cancellation while entering still tears down.
    stack.push_async_exit(close)
    return await call.in_thread(enter)


async def _enter(call: ThreadRunner, stack: AsyncExitStack, function: partial[Any]) -> Any:
    from contextlib import asynccontextmanager

    manager = asynccontextmanager(function)()

    async def close(*exception: Any) -> bool:
        await manager.__aexit__(*exception)
        # A dependency that swallows the exception does not make the call a success: there is no result.
        return False

    value = await manager.__aenter__()
    stack.push_async_exit(close)
    return value


_OPENERS: dict[Flow, Callable[[ThreadRunner, Any, partial[Any]], Any]] = {
    "sync": _call,
    "async": _await,
    "generator": _enter_in_thread,
    "async_generator": _enter,
}
