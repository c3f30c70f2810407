"""A model for tests: it gives prepared answers in order, and keeps the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias

from defserve.errors import UsageError
from defserve.host.mcpl.inference.routing import InferenceRequest, Written
from defserve.protocols.mcpl.inference.values import Inference
from defserve.protocols.mcpl.turns import ModelInfo, Usage

Line: TypeAlias = str | Inference | Exception | Sequence[str] | Callable[[InferenceRequest], Any]
"""A text, a whole inference, the chunks of a text, an exception to raise, or a function of the request."""

INFO = ModelInfo("scripted-model", "defserve", 200_000, ("tools",))


class ScriptedModel:
    """`ScriptedModel("Hello", ["in ", "chunks"])`. It repeats the last line for ever, unless `loop` is False."""

    def __init__(self, *lines: Line, info: ModelInfo = INFO, loop: bool = True) -> None:
        self.info, self.requests = info, list[InferenceRequest]()
        self._lines, self._loop = deque(lines), loop

    async def __call__(self, request: InferenceRequest) -> AsyncIterator[Written]:
        self.requests.append(request)
        line = self._next(request)
        if isinstance(line, Exception):
            raise line
        if isinstance(line, Inference):
            yield line
            return
        bits: list[str] = [line] if isinstance(line, str) else list(line)
        for bit in bits:
            yield bit
        asked = sum(len(str(message.get("content")).split()) for message in request.messages)
        whole = "".join(bits)
        yield Inference(whole, self.info.id, "end_turn", Usage(asked, len(whole.split())))

    def _next(self, request: InferenceRequest) -> Any:
        if not self._lines:
            raise UsageError("the scripted model has no lines left", fix="give ScriptedModel(…) more lines")
        line: Any = self._lines[0] if self._loop and len(self._lines) == 1 else self._lines.popleft()
        return line(request) if callable(line) else line
