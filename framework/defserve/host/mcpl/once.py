"""Handles a repeated question only once: it gets the first answer, even if that is still being found."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeAlias

from defserve.errors import InvalidParams
from defserve.protocols.mcp.params import text

WINDOW: Final = 10_000
LONGEST_ID: Final = 1_024

Answer: TypeAlias = dict[str, Any]
Find: TypeAlias = Callable[[], Awaitable[tuple[Answer, bool]]]
"""Returns the answer, and whether to remember it."""


class Once:
    """The last `size` answers, by key. A failure is not remembered, so it may be tried again."""

    def __init__(self, size: int = WINDOW) -> None:
        self.size = size
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._under_way: dict[Hashable, asyncio.Future[None]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._answers

    async def answer(self, key: Hashable, find: Find) -> Answer:
        """The earlier answer, or else the one that `find` returns."""
        while (first := self._under_way.get(key)) is not None:
            await asyncio.wait((first,))
        if key in self._answers:
            return self._answers[key]
        done = self._under_way[key] = asyncio.get_running_loop().create_future()
        try:
            answer, remember = await find()
            if remember:
                self._answers[key] = answer
                if len(self._answers) > self.size:
                    self._answers.popitem(last=False)
            return answer
        finally:
            del self._under_way[key]
            done.set_result(None)

    def forget(self) -> None:
        """Forget every answer. Searches that are running continue."""
        self._answers.clear()


def checked_id(params: dict[str, Any], name: str) -> str:
    """An id that is short enough to remember. Raises InvalidParams."""
    found = text(params, name)
    if len(found) > LONGEST_ID:
        raise InvalidParams(f"Invalid params: {name} must have at most {LONGEST_ID} characters")
    return found
