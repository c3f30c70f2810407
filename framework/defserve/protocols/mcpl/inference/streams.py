"""MCPL §11.4: an inference that is read as it is written. It ends with the whole answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from defserve.errors import UsageError
from defserve.protocols.mcpl.inference.values import Inference
from defserve.wire.messages import Id


class InferenceChunks:
    """The chunks of one request as they come. Drops late and repeated ones, and what exceeds the limit in `room`."""

    __slots__ = ("_next", "_room", "_arrived", "_news")

    def __init__(self, room: int) -> None:
        self._next, self._room = 0, room
        self._arrived: deque[str] = deque()
        self._news = asyncio.Event()

    def add(self, index: int, delta: str) -> None:
        if index >= self._next and len(delta) <= self._room:
            self._next, self._room = index + 1, self._room - len(delta)
            self._arrived.append(delta)
            self._news.set()

    def wake(self, _: object = None) -> None:
        self._news.set()

    async def until(self, answer: asyncio.Task[Any]) -> AsyncGenerator[str, None]:
        """Every delta that comes before the answer."""
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            if answer.done():
                return
            await self._news.wait()
            self._news.clear()


class OpenStreams:
    """The requests of one session whose answers come in chunks, by their ids."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[Id, InferenceChunks] = {}


class InferenceStream:
    """`async for delta in stream`; after that, `stream.result` is the whole answer."""

    def __init__(self, begin: Callable[[], AsyncGenerator[str | Inference, None]]) -> None:
        self._begin = begin
        self._result: Inference | None = None

    @property
    def result(self) -> Inference:
        """The whole answer, once the stream has ended."""
        if self._result is None:
            raise UsageError("the inference has not ended", fix="read its result after the `async for`")
        return self._result

    async def __aiter__(self) -> AsyncIterator[str]:
        parts = self._begin()
        try:
            async for part in parts:
                if isinstance(part, Inference):
                    self._result = part
                else:
                    yield part
        finally:
            await parts.aclose()
