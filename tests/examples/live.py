"""A host as the MCPL document has it (§5.2), and exchanges with it message by message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]

HOST: Json = {
    "experimental": {
        "mcpl": {
            "version": "0.4",
            "pushEvents": True,
            "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
            "inferenceRequest": {"streaming": True},
            "featureSets": True,
        }
    }
}


class Answering:
    """Answers one method of the server's, and keeps what it was asked: `methods={"push/event": Answering(…)}`."""

    def __init__(self, answer: Mapping[str, Any] | Callable[[Json], Any]) -> None:
        self.answer, self.asked, self._news = answer, list[Json](), asyncio.Event()

    def __call__(self, params: Json) -> Any:
        self.asked.append(params)
        self._news.set()
        return self.answer(params) if callable(self.answer) else dict(self.answer)

    async def first(self) -> Json:
        """The params of the first request, once it has come."""
        async with asyncio.timeout(10):
            await self._news.wait()
        return self.asked[0]


def body(result: Json) -> Json:
    """A result without what an era adds to every one."""
    return {name: value for name, value in result.items() if name not in ("_meta", "resultType")}
