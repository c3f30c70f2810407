"""An author's function inside a call, alike for tools, resources, prompts and completion: injected, run, timed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from defserve.binding.inject import Injection
from defserve.binding.schema import Arguments
from defserve.binding.signature import Signature, read

if TYPE_CHECKING:
    from defserve.binding.explicit import ExplicitArguments
    from defserve.core.call import Call

FindProvider = Callable[[Any], Callable[[Any], Any] | None]


def nothing_injectable(annotation: Any) -> None:
    """For a function read without a server: every parameter is an argument."""
    return None


class Emitted:
    """What a function has yielded and, as `Aside`, emitted so far: all of it is part of the result."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[Any] = []


class Function:
    """What was read at registration, ready to run. `inline` runs a quick sync function on the loop."""

    __slots__ = ("signature", "arguments", "injection", "inline", "_begin")

    def __init__(
        self,
        function: Callable[..., Any],
        find_provider: FindProvider,
        *,
        inline: bool = False,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        self.signature: Signature = read(function, find_provider, explicit=schema is not None)
        self.arguments = Arguments.of(self.signature) if schema is None else _explicit(self.signature, schema)
        self.injection = Injection.of(self.signature)
        self.inline = inline
        flow = self.signature.flow
        self._begin = _inline if inline and flow == "sync" else _FLOWS[flow]

    @property
    def streams(self) -> bool:
        return self.signature.flow in ("generator", "async_generator")

    def run(self, call: Call, kwargs: dict[str, Any], seconds: float) -> Awaitable[Any]:
        """Call the function with its arguments; raises TimedOut after `seconds`, whatever the function does."""
        injection = self.injection
        if injection is None:
            return call.engine.within(call, seconds, self._begin(call, self.signature.function, kwargs))
        for name, provider in injection.direct:
            kwargs[name] = provider(call)
        if not injection.has_dependencies:
            return call.engine.within(call, seconds, self._begin(call, self.signature.function, kwargs))
        return call.engine.within(call, seconds, self._with_dependencies(call, kwargs))

    async def _with_dependencies(self, call: Call, kwargs: dict[str, Any]) -> Any:
        from contextlib import AsyncExitStack

        assert self.injection is not None
        async with AsyncExitStack() as stack:
            await self.injection.resolve(call, stack, kwargs)
            return await self._begin(call, self.signature.function, kwargs)


def _explicit(signature: Signature, schema: Mapping[str, Any]) -> ExplicitArguments:
    from defserve.binding.explicit import ExplicitArguments

    return ExplicitArguments.of(signature, dict(schema))


def _async(call: Call, function: Callable[..., Any], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
    return function(**kwargs)


async def _inline(call: Call, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return function(**kwargs)


async def _threaded(call: Call, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return await call.engine.in_thread(partial(function, **kwargs))


async def _async_generator(call: Call, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    parts = call.local(Emitted).parts
    generator = function(**kwargs)
    try:
        async for part in generator:
            parts.append(part)
    finally:
        await generator.aclose()


async def _threaded_generator(call: Call, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    parts = call.local(Emitted).parts

    def run() -> None:
        for part in function(**kwargs):
            if call.stopped:
                return
            parts.append(part)

    await call.engine.in_thread(run)


_FLOWS: dict[str, Callable[[Any, Callable[..., Any], dict[str, Any]], Coroutine[Any, Any, Any]]] = {
    "async": _async,
    "sync": _threaded,
    "generator": _threaded_generator,
    "async_generator": _async_generator,
}
