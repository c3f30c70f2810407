"""An author's function inside a call: injected, run and timed. Tools, resources, prompts and completion share it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from defserve.binding.arguments import ArgumentsSchema
from defserve.binding.injection import InjectionPlan
from defserve.binding.results import estimate_min_result_bytes
from defserve.binding.signature import Signature, read_signature
from defserve.errors import LimitExceeded

if TYPE_CHECKING:
    from defserve.binding.explicit_schema import ExplicitArgumentsSchema
    from defserve.binding.injection import Dependency
    from defserve.core.call import Call
    from defserve.protocols.mgp.streaming import StreamChunks

FindProvider = Callable[[Any], Callable[[Any], Any] | None]


def find_no_provider(annotation: Any) -> None:
    """For a function read without a server: every parameter is an argument."""


class EmittedParts:
    """What a function has yielded so far: all of it is part of the result."""

    __slots__ = ("parts", "sink", "_size")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.sink: StreamChunks | None = None
        """Receives parts as they come. The result holds them all as well."""
        self._size = 0

    def add(self, call: Call, part: Any) -> None:
        """Add a part. Raises LimitExceeded when the result would be too large. From any thread."""
        self.parts.append(part)
        self._size += estimate_min_result_bytes(part)
        limit = call.session.composition.limits.response
        if self._size > limit:
            raise LimitExceeded(f"the result is larger than {limit} bytes", data={"limit": "response"})
        if self.sink is not None:
            self.sink.send_part(part)


class Function:
    """What was read at registration, ready to run. `inline` runs a quick sync function on the loop.

    A call's blocking code, which is its sync dependencies, their teardown and the sync function, runs in one thread.
    A function with sync dependencies is never inline.

    A `plain` function is given Python values by name, so its parameters need no JSON form and no types.
    A generator that `gathers` returns a list of what it yielded. Otherwise that is `EmittedParts` by the call.
    """

    __slots__ = (
        "signature",
        "arguments",
        "injection",
        "inline",
        "_begin",
        "_gathers",
        "_one_thread",
        "_wholly_blocking",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        find_provider: FindProvider,
        *,
        inline: bool = False,
        schema: Mapping[str, Any] | ExplicitArgumentsSchema | None = None,
        plain: bool = False,
        gathers: bool = False,
    ) -> None:
        self._gathers = gathers
        self.signature: Signature = read_signature(function, find_provider, explicit=plain or schema is not None)
        self.arguments = _arguments(self.signature, schema, plain)
        self._plan(InjectionPlan.from_parameters(self.signature.injected), inline)

    def _plan(self, injection: InjectionPlan | None, inline: bool) -> None:
        self.injection, flow = injection, self.signature.flow
        self.inline = inline and not (injection is not None and injection.blocking)
        self._begin = _inline if self.inline and flow == "sync" else _FLOWS[flow]
        if self._gathers and flow in _GATHERING:
            self._begin = _GATHERING[flow]
        blocks = flow in ("sync", "generator") and self._begin is not _inline
        self._one_thread = injection is not None and injection.needs_one_thread(blocks)
        self._wholly_blocking = blocks and injection is not None and injection.is_all_blocking

    @property
    def streams(self) -> bool:
        return self.signature.flow in ("generator", "async_generator")

    def run(self, call: Call, kwargs: dict[str, Any], seconds: float) -> Awaitable[Any]:
        """Call the function with its arguments. Raises TimedOut after `seconds`, even if the function does not stop."""
        injection, engine = self.injection, call.session.engine
        if injection is None:
            # The usual kind of function is called without a step between.
            function, begin = self.signature.function, self._begin
            work = function(**kwargs) if begin is _async else begin(call, function, kwargs)
            return engine.run_with_timeout(call, seconds, work)
        for name, provider in injection.direct:
            kwargs[name] = provider(call)
        if not injection.dependencies:
            return engine.run_with_timeout(call, seconds, self._begin(call, self.signature.function, kwargs))
        one = self if not (overrides := call.session.composition.overrides) else self._overridden(injection, overrides)
        work = one._with_dependencies(call, kwargs, (one.injection or injection).call_dependency_providers(call))
        if one._one_thread:
            work = engine.run_in_one_thread(work, wholly=one._wholly_blocking)
        return engine.run_with_timeout(call, seconds, work)

    def _overridden(self, injection: InjectionPlan, overrides: Mapping[Any, Dependency]) -> Function:
        """This function with other dependencies, as a test wants it."""
        from copy import copy

        one = copy(self)
        one._plan(injection.with_overrides(overrides), self.inline)
        return one

    async def _with_dependencies(self, call: Call, kwargs: dict[str, Any], known: dict[Any, Any]) -> Any:
        from contextlib import AsyncExitStack

        assert self.injection is not None
        async with AsyncExitStack() as stack:
            await self.injection.resolve(call, stack, kwargs, known)
            return await self._begin(call, self.signature.function, kwargs)


def _arguments(
    signature: Signature, schema: Mapping[str, Any] | ExplicitArgumentsSchema | None, plain: bool
) -> ArgumentsSchema | ExplicitArgumentsSchema:
    if plain:
        return ArgumentsSchema((), ())
    if schema is None:
        return ArgumentsSchema.from_signature(signature)
    from defserve.binding.explicit_schema import ExplicitArgumentsSchema

    return (
        schema
        if isinstance(schema, ExplicitArgumentsSchema)
        else ExplicitArgumentsSchema.from_signature(signature, dict(schema))
    )


def _async(call: Call, function: Callable[..., Any], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
    return function(**kwargs)


async def _inline(call: Call, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return function(**kwargs)


async def _run_in_thread(call: Call, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return await call.engine.in_thread(partial(function, **kwargs))


async def _async_generator(
    call: Call, function: Callable[..., Any], kwargs: dict[str, Any], *, gathers: bool = False
) -> list[Any]:
    # A tool may read a resource within its call, so what that yields is kept apart.
    emitted = EmittedParts() if gathers else call.local(EmittedParts)
    generator = function(**kwargs)
    try:
        async for part in generator:
            emitted.add(call, part)
            if emitted.sink is not None and emitted.sink.is_full:
                await emitted.sink.wait_for_room()
    finally:
        await generator.aclose()
    return emitted.parts


async def _run_generator_in_thread(
    call: Call, function: Callable[..., Any], kwargs: dict[str, Any], *, gathers: bool = False
) -> list[Any]:
    emitted = EmittedParts() if gathers else call.local(EmittedParts)

    def run() -> None:
        for part in function(**kwargs):
            if call.stopped:
                return
            emitted.add(call, part)

    await call.engine.in_thread(run)
    return emitted.parts


_Begin = Callable[[Any, Callable[..., Any], dict[str, Any]], Coroutine[Any, Any, Any]]

_FLOWS: dict[str, _Begin] = {
    "async": _async,
    "sync": _run_in_thread,
    "generator": _run_generator_in_thread,
    "async_generator": _async_generator,
}

_GATHERING: dict[str, _Begin] = {
    "generator": partial(_run_generator_in_thread, gathers=True),
    "async_generator": partial(_async_generator, gathers=True),
}
