"""MCPL §11–12: a server asks for inference, and gets the answer whole, or first in chunks and then whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, cast
from uuid import uuid4

from defserve.errors import InvalidParams, MethodNotFound, UsageError
from defserve.host.answers import settled
from defserve.host.caller import SendNotification
from defserve.host.fields import Json
from defserve.host.mcpl.audit import McplAuditTrail
from defserve.host.mcpl.feature_sets import FeatureSets
from defserve.host.mcpl.inference.routing import InferenceRequest, Model, Router, info_of
from defserve.host.mcpl.wire import model_wire, usage_wire
from defserve.protocols.mcp.params import optional_fields, text
from defserve.protocols.mcpl import content
from defserve.protocols.mcpl.errors import FeatureDisabled
from defserve.protocols.mcpl.inference.values import Inference
from defserve.protocols.mcpl.turns import ModelInfo
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Id

REQUEST: Final = "inference/request"
CHUNK: Final = "inference/chunk"
MODEL_INFO: Final = "model/info"
ROLES: Final = ("user", "assistant", "system")


class InferenceService:
    """Answers `inference/request` and `model/info`."""

    def __init__(
        self, router: Router, info: ModelInfo | None, sets: FeatureSets, audit: McplAuditTrail, notify: SendNotification
    ) -> None:
        self._router, self._info, self._sets, self._audit, self._notify = router, info, sets, audit, notify

    async def infer(self, params: Json, id: Id) -> Json:
        """Raises InvalidParams, UnknownFeatureSet, or FeatureDisabled (also if no model is routed to the set)."""
        name, inference_id = params.get("featureSet"), f"inf_{uuid4().hex}"
        with self._audit.watching(REQUEST, feature_set=name, inference_id=inference_id) as record:
            self._sets.require(name, "inferenceRequest")
            request = self._read(params, inference_id)
            model = self._router.pick(request.server_id, request.feature_set, request.conversation_id)
            if model is None:
                raise FeatureDisabled(request.feature_set)
            chunks = ChunkSender(self._notify, id) if request.stream else None
            result = _result(await _written(model(request), chunks), model)
            record |= {"model": result["model"], "usage": result.get("usage")}
            return result

    async def model_info(self, params: Json) -> Json:
        with self._audit.watching(MODEL_INFO):
            if self._info is None:
                raise MethodNotFound("this host does not tell which model it uses")
            return model_wire(self._info)

    def _read(self, params: Json, inference_id: str) -> InferenceRequest:
        messages, preferences = params.get("messages"), optional_fields(params, "preferences") or {}
        if not is_array(messages) or not messages:
            raise InvalidParams("Invalid params: messages must be a list that is not empty")
        max_tokens, temperature = preferences.get("maxTokens"), preferences.get("temperature")
        return InferenceRequest(
            server_id=self._audit.server_id,
            feature_set=params["featureSet"],
            inference_id=inference_id,
            messages=[_message(message) for message in messages],
            conversation_id=text(params, "conversationId") if params.get("conversationId") is not None else None,
            stream=params.get("stream") is True,
            max_tokens=max_tokens if isinstance(max_tokens, int) else None,
            temperature=float(temperature) if isinstance(temperature, int | float) else None,
            preferences=preferences,
        )


class ChunkSender:
    """Sends the chunks of one answer as they come (§11.4)."""

    def __init__(self, notify: SendNotification, id: Id) -> None:
        self._notify, self._id, self.count = notify, id, 0

    async def send(self, delta: str) -> None:
        await self._notify(CHUNK, {"requestId": self._id, "index": self.count, "delta": delta})
        self.count += 1


async def _written(answer: Any, chunks: ChunkSender | None) -> Inference:
    """The whole answer of a model, sent in `chunks` while the model writes."""
    given = await settled(answer)
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


def _message(found: Any) -> Json:
    if not is_object(found) or found.get("role") not in ROLES:
        raise InvalidParams(f"Invalid params: a message must be an object with a role of {', '.join(ROLES)}")
    content.read(found.get("content"))  # only to check it
    return found


def _result(found: Inference, model: Model) -> Json:
    """§11.3."""
    info = info_of(model)
    result: Json = {
        "content": found.content,
        "model": found.model or (info.id if info is not None else "unknown"),
        "finishReason": found.finish_reason or "end_turn",
    }
    return result if found.usage is None else {**result, "usage": usage_wire(found.usage)}
