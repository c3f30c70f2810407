"""MCP multi round-trip requests (2026-07-28), `ctx.once`: an effect happens once, however often its function runs."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.errors import UsageError

if TYPE_CHECKING:
    import asyncio

# A question inside an effect must not wait for that effect. Not kept in the call, whose tasks run side by side.
_INSIDE: ContextVar[bool] = ContextVar("defserve_inside_effect", default=False)


class Effects:
    """`done` holds what each finished effect gave, as JSON, by key."""

    __slots__ = ("done", "_running")

    def __init__(self) -> None:
        self.done: dict[str, Any] = {}
        self._running: dict[str, asyncio.Event] = {}

    async def once(self, call: Call, key: str, effect: Callable[[], Any]) -> Any:
        """Run `effect` unless it is done. Two callers that want the same effect at once wait for each other."""
        while key not in self.done:
            if key in self._running:
                await self._running[key].wait()
            else:
                await self._run(call, key, effect)
        return self.done[key]

    async def finished(self) -> None:
        """Wait until no effect is running; at once when called from inside one."""
        while self._running and not _INSIDE.get():
            await next(iter(self._running.values())).wait()

    async def _run(self, call: Call, key: str, effect: Callable[[], Any]) -> None:
        import asyncio
        from inspect import isawaitable, iscoroutinefunction

        finished = self._running[key] = asyncio.Event()
        inside = _INSIDE.set(True)
        try:
            value = effect() if iscoroutinefunction(effect) else await call.in_thread(effect)
            self.done[key] = _as_json(key, await value if isawaitable(value) else value)
        finally:
            _INSIDE.reset(inside)
            del self._running[key]
            finished.set()


def _as_json(key: str, value: Any) -> Any:
    from pydantic_core import PydanticSerializationError, from_json, to_json

    try:
        return from_json(to_json(value))
    except PydanticSerializationError:
        raise UsageError(
            f"ctx.once({key!r}) gave a {type(value).__name__}, which is no JSON value and cannot be remembered",
            fix="return None, text, numbers, lists or dicts from the effect",
        ) from None
