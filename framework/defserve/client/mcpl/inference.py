"""Inference for servers (MCPL §11, §12): which model answers, and how the answer is sent.

A request without a routed model is refused. `ScriptedModel` is a model for tests.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast
from uuid import uuid4

from defserve.client.answers import SendNotification, maybe_await
from defserve.client.audit import McplAuditTrail
from defserve.client.mcpl.feature_sets import FeatureSets
from defserve.client.replies import Json
from defserve.core.messages import RequestId
from defserve.errors import MethodNotFound, UsageError
from defserve.protocols.mcpl.content import ModelInfo, Usage
from defserve.protocols.mcpl.inference import Inference, InferenceRequest
from defserve.protocols.mcpl.policies import list_covering_patterns
from defserve.protocols.mcpl.vocabulary import FeatureDisabled

INFERENCE_REQUEST: Final = "inference/request"
CHUNK: Final = "inference/chunk"
MODEL_INFO: Final = "model/info"


class InferenceService:
    """Answers `inference/request` and `model/info`."""

    def __init__(
        self, router: Router, info: ModelInfo | None, sets: FeatureSets, audit: McplAuditTrail, notify: SendNotification
    ) -> None:
        self._router, self._info, self._sets, self._audit, self._notify = router, info, sets, audit, notify

    async def infer(self, params: Json, id: RequestId) -> Json:
        """Raises InvalidParams, UnknownFeatureSet, or FeatureDisabled (also if no model is routed to the set)."""
        name, inference_id = params.get("featureSet"), f"inf_{uuid4().hex}"
        with self._audit.record_outcome(INFERENCE_REQUEST, feature_set=name, inference_id=inference_id) as record:
            self._sets.require(name, "inferenceRequest")
            request = InferenceRequest.from_wire(params, server_id=self._audit.server_id, inference_id=inference_id)
            model = self._router.pick(request.server_id, request.feature_set, request.conversation_id)
            if model is None:
                raise FeatureDisabled(request.feature_set)
            chunks = ChunkSender(self._notify, id) if request.stream else None
            found, info = await _collect_answer(model(request), chunks), info_of(model)
            name = found.model or (info.id if info is not None else "unknown")
            result = replace(found, model=name, finish_reason=found.finish_reason or "end_turn").to_wire()
            record |= {"model": result["model"], "usage": result.get("usage")}
            return result

    async def model_info(self, params: Json) -> Json:
        with self._audit.record_outcome(MODEL_INFO):
            if self._info is None:
                raise MethodNotFound("this host does not tell which model it uses")
            return self._info.to_wire()


class ChunkSender:
    """Sends the chunks of one answer as they come (§11.4)."""

    def __init__(self, notify: SendNotification, id: RequestId) -> None:
        self._notify, self._id, self.count = notify, id, 0

    async def send(self, delta: str) -> None:
        await self._notify(CHUNK, {"requestId": self._id, "index": self.count, "delta": delta})
        self.count += 1


async def _collect_answer(answer: Any, chunks: ChunkSender | None) -> Inference:
    """The whole answer of a model, sent in `chunks` while the model writes."""
    given = await maybe_await(answer)
    written = cast("AsyncIterator[Any]", given) if isinstance(given, AsyncIterator) else _at_once(given)
    whole: Inference | None = None
    bits: list[str] = []
    async for bit in written:
        if isinstance(bit, Inference):
            whole = bit
        elif isinstance(bit, str):
            bits.append(bit)
            if chunks is not None and bit:
                await chunks.send(bit)
        else:
            raise UsageError(f"a model gave {bit!r:.80}", fix="return or yield str, or an Inference")
    if whole is None:
        return Inference("".join(bits))
    if chunks is not None and not chunks.count and whole.content:
        await chunks.send(whole.content)
    return whole


async def _at_once(given: Any) -> AsyncIterator[Any]:
    yield given


# -- MCPL §11.5: which model answers a server's inference request.


MAX_PINNED_CONVERSATIONS: Final = 1_000
MAX_ID_LENGTH: Final = 1_024


Written: TypeAlias = str | Inference
Model: TypeAlias = Callable[[InferenceRequest], Written | Awaitable[Written] | AsyncIterator[Written]]
"""A function of the request, or a callable object: it returns the whole answer, or yields it chunk by chunk.

An `Inference` that is yielded last is the whole answer with its details. An attribute `info` says which model it is.
"""


class Router:
    """Picks a model by the name of the feature set, exactly or by wildcard. The most specific route wins.

    default        answers requests that no route covers; without it they are refused
    routes         set or pattern to model; `(server id, pattern)` for the sets of one server, which comes first
    conversations  conversation to model, whatever the set
    pin            a conversation keeps the model it started with
    """

    def __init__(
        self,
        default: Model | None = None,
        routes: Mapping[str | tuple[str, str], Model] | None = None,
        *,
        conversations: Mapping[str, Model] | None = None,
        pin: bool = False,
    ) -> None:
        self.default, self.routes = default, dict(routes or {})
        self.conversations = dict(conversations or {})
        self._pins: OrderedDict[tuple[str, str], Model] | None = OrderedDict() if pin else None

    def __bool__(self) -> bool:
        """Whether there is any model."""
        return self.default is not None or bool(self.routes) or bool(self.conversations)

    @property
    def info(self) -> ModelInfo | None:
        """Which model the default is."""
        return info_of(self.default)

    def pick(self, server_id: str, feature_set: str, conversation_id: str | None = None) -> Model | None:
        """The model for a set: that of the conversation, or else the pinned, the routed or the default one, or None."""
        if conversation_id is None:
            return self._find_model(server_id, feature_set)
        if conversation_id in self.conversations:
            return self.conversations[conversation_id]
        pinned = self._pins.get((server_id, conversation_id)) if self._pins is not None else None
        model = pinned or self._find_model(server_id, feature_set)
        if self._pins is not None and model is not None and len(conversation_id) <= MAX_ID_LENGTH:
            self._pins[server_id, conversation_id] = model
            self._pins.move_to_end((server_id, conversation_id))
            if len(self._pins) > MAX_PINNED_CONVERSATIONS:
                self._pins.popitem(last=False)
        return model

    def _find_model(self, server_id: str, feature_set: str) -> Model | None:
        patterns = list(list_covering_patterns(feature_set))
        keys = [*((server_id, pattern) for pattern in patterns), *patterns]
        return next((self.routes[key] for key in keys if key in self.routes), self.default)


def info_of(model: Any) -> ModelInfo | None:
    found = getattr(model, "info", None)
    return found if isinstance(found, ModelInfo) else None


# -- A model for tests: it gives prepared answers in order, and keeps the requests.


Line: TypeAlias = str | Inference | Exception | Sequence[str] | Callable[[InferenceRequest], Any]
"""A text, a whole inference, the chunks of a text, an exception to raise, or a function of the request."""

SCRIPTED_INFO = ModelInfo("scripted-model", "defserve", 200_000, ("tools",))


class ScriptedModel:
    """`ScriptedModel("Hello", ["in ", "chunks"])`. It repeats the last line for ever, unless `loop` is False."""

    def __init__(self, *lines: Line, info: ModelInfo = SCRIPTED_INFO, loop: bool = True) -> None:
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
