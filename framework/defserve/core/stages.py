"""The steps between a call and the author's function, in one fixed order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.base.frozen import Frozen

if TYPE_CHECKING:
    from defserve.core.call import Call

Admit: TypeAlias = Callable[["Call", Any], Awaitable[None] | None]
Judge: TypeAlias = Callable[["Call", Any, dict[str, Any]], Awaitable[None] | None]
Hold: TypeAlias = Callable[["Call", Any, dict[str, Any]], AbstractAsyncContextManager[Any] | None]
Audit: TypeAlias = Callable[["Call", Any], AbstractAsyncContextManager[Any] | None]
Concerns: TypeAlias = Callable[[Any, frozenset[str]], bool]


class Stages(Frozen):
    """What one extension adds to the call of an item.

    `audit` is entered first and sees how everything else ended. `admit` decides before the arguments are read.
    `judge` sees the validated arguments. `hold` surrounds the function and sees whether it succeeded. `admit` and
    `judge` refuse by raising. `concerns(item, active)` says whether the stages apply to an item; `active` are the names
    of the extensions that are active for the peer. It is called once. An item without stages is called directly.
    """

    audit: Audit | None = None
    admit: Admit | None = None
    judge: Judge | None = None
    hold: Hold | None = None
    concerns: Concerns | None = None


class Pipeline:
    """The stages of all extensions, a tuple for each step; empty ones cost nothing."""

    __slots__ = ("audits", "admits", "judges", "holds", "empty")

    def __init__(self, stages: Sequence[Stages]) -> None:
        self.audits = tuple(s.audit for s in stages if s.audit)
        self.admits = tuple(s.admit for s in stages if s.admit)
        self.judges = tuple(s.judge for s in stages if s.judge)
        self.holds = tuple(s.hold for s in stages if s.hold)
        self.empty = not (self.audits or self.admits or self.judges or self.holds)

    async def admit(self, call: Call, item: Any) -> None:
        for step in self.admits:
            pending = step(call, item)
            if pending is not None:
                await pending

    async def judge(self, call: Call, item: Any, arguments: dict[str, Any]) -> None:
        for step in self.judges:
            pending = step(call, item, arguments)
            if pending is not None:
                await pending


async def surround(stack: AsyncExitStack, stages: Iterable[AbstractAsyncContextManager[Any] | None]) -> None:
    """Enter the context managers of `audit` or `hold`, in order. They cannot swallow an exception."""
    for stage in stages:
        if stage is not None:
            await stage.__aenter__()
            stack.push_async_exit(_exit_of(stage))


def _exit_of(stage: AbstractAsyncContextManager[Any]) -> Callable[..., Awaitable[bool]]:
    async def leave(*exception: Any) -> bool:
        await stage.__aexit__(*exception)
        return False

    return leave
