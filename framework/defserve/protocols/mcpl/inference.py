"""MCPL §11–12: the host's model, asked to write, whole or as a stream, and asked what it is.

Inference is refused inside a context hook, where the host would wait for itself. In the stateless era a call asks for
sampling instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.binding.content import Text
from defserve.core.json_values import is_array, is_mapping, is_object
from defserve.core.messages import Params, RequestId
from defserve.core.session import Session
from defserve.core.shapes import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    TEXT,
    MemberKind,
    WireShape,
    nested_shape,
    read_member,
    wire_member,
    wire_shape,
)
from defserve.errors import InvalidParams, NoBackChannel, PeerError, UsageError
from defserve.protocols.mcp.asking.client_features import Message, Sample
from defserve.protocols.mcpl import content, peers
from defserve.protocols.mcpl.content import ModelInfo, Usage
from defserve.protocols.mcpl.peers import is_in_hook
from defserve.protocols.mcpl.section import McplSection

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.protocols.mcpl.section import FeatureSetBase


MODEL_INFO = "model/info"
STREAMING = "inferenceRequest.streaming"


class InferenceSection(McplSection):
    """Asks hosts for inference. In a call of the stateless era it asks for sampling, by an input-required result."""

    async def infer(self, feature_set: FeatureSetBase, request: InferenceParams, to: peers.To) -> Inference:
        await peers.load_sessions_elsewhere(self.server, to)
        peer = self._peer(feature_set, to)
        if peer.call is not None and not peer.calls_back:
            return await _sample_inference(peer.call, feature_set, request)
        asking = _ask(peer, feature_set, request.to_wire(feature_set.name, stream=False), request.timeout)
        return await peers.run_on_session_loop(peer.session, asking)

    def stream(self, feature_set: FeatureSetBase, request: InferenceParams, to: peers.To) -> InferenceStream:
        _refuse_in_hook()
        return InferenceStream(lambda: self._iter_inference(feature_set, request, to))

    def can_infer(self, peer: peers.Peer) -> bool:
        """Whether some set can infer with this peer."""
        if is_in_hook():
            return False
        if peer.call is not None and not peer.calls_back:
            from defserve.protocols.mcp.asking import client_requests

            return client_requests.can_ask_client(peer.call, "sampling")
        return any(_obstacle(peer, one) is None for one in self.server.sets if _declares(one))

    def on_chunk(self, session: Session, params: Params) -> bool:
        """`inference/chunk` (§11.4). False for one that belongs to no open request of this process."""
        streams, id = session.peek(OpenStreams), params.get("requestId")
        index, delta = params.get("index"), params.get("delta")
        known = streams.get(id) if streams is not None and isinstance(id, int | str) else None
        if known is not None and type(index) is int and isinstance(delta, str):
            known.add(index, delta)
        return known is not None

    def _peer(self, feature_set: FeatureSetBase, to: peers.To) -> peers.Peer:
        _refuse_in_hook()
        if not _declares(feature_set):
            peers.check_use_declared(feature_set, "infer", "inferenceRequest")
        if to is peers.everyone:
            raise UsageError("infer: to=everyone has no single answer", fix="say which: to=session or to=principal")
        here = peers.get_current_peer() if to is None else None
        if here is not None and not here.calls_back:
            return here
        return peers.select_peers(self.server, "infer", to, lambda peer: _obstacle(peer, feature_set))[0]

    async def _iter_inference(
        self, feature_set: FeatureSetBase, request: InferenceParams, to: peers.To
    ) -> AsyncGenerator[str | Inference, None]:
        await peers.load_sessions_elsewhere(self.server, to)
        peer = self._peer(feature_set, to)
        if peer.call is not None and not peer.calls_back:
            whole = await _sample_inference(peer.call, feature_set, request)
            yield whole.content
            yield whole
            return
        if not peer.session.engine.is_on_loop():
            raise UsageError("infer: a stream is read on the event loop of its session", fix="use infer() here")
        chunks = InferenceChunks(peer.session.composition.limits.response)
        streams, ids = peer.session.local(OpenStreams), list[RequestId]()

        def register_stream(id: RequestId) -> None:
            ids.append(id)
            streams[id] = chunks

        params = request.to_wire(feature_set.name, stream=_sends_chunks(peer, feature_set))
        asking: Coroutine[Any, Any, Inference] = _ask(peer, feature_set, params, request.timeout, register_stream)
        answer = asyncio.get_running_loop().create_task(asking)
        answer.add_done_callback(chunks.wake)
        received = False
        try:
            async for delta in chunks.iterate_until(answer):
                received = True
                yield delta
            whole = await answer
            if not received and whole.content:
                yield whole.content  # from a host that answers in one piece
            yield whole
        finally:
            answer.cancel()
            for id in ids:
                streams.pop(id, None)


async def request_model_info(call: Call, timeout: float) -> ModelInfo:
    """`model/info` (§12). Hosts of the 0.4 draft need not offer it, and may leave it unanswered: PeerTimeout."""
    peer = peers.Peer(call.session, call)
    if not can_request_model_info(peer):
        raise NoBackChannel("model_info: this host cannot be asked for its model")
    answer = await peer.request(MODEL_INFO, {}, timeout=timeout)
    if not is_object(answer) or not isinstance(answer.get("id"), str):
        raise PeerError(f"the host's answer to {MODEL_INFO} has the wrong shape")
    return ModelInfo.from_wire(answer)


def can_request_model_info(peer: peers.Peer) -> bool:
    """Whether the host can be asked. It may still leave the question unanswered."""
    if peer.live is None or not peer.calls_back:
        return False
    by_grant = peer.live.vocabulary.by_grant
    return peer.policy.grants("modelInfo") if by_grant else peer.live.offered.get("modelInfo") is not False


async def _ask(
    peer: peers.Peer,
    feature_set: FeatureSetBase,
    params: Params,
    timeout: float | None,
    numbered: Callable[[RequestId], None] | None = None,
) -> Inference:
    if (problem := _obstacle(peer, feature_set)) is not None:
        raise problem
    return Inference.from_answer(
        await peer.request_or_raise_unsupported(
            "inferenceRequest", INFERENCE_METHOD, params, timeout=timeout, numbered=numbered
        )
    )


async def _sample_inference(call: Call, feature_set: FeatureSetBase, request: InferenceParams) -> Inference:
    from defserve.protocols.mcp.asking import client_requests
    from defserve.protocols.mcp.asking.client_features import SampleOptions

    feature_set.require_enabled(call)
    options = SampleOptions(
        request.message_list, max_tokens=request.max_tokens or 1024, temperature=request.temperature
    )
    return Inference.of_sample(await client_requests.request_sampling(call, options))


def _declares(feature_set: FeatureSetBase) -> bool:
    return not {"inferenceRequest", STREAMING}.isdisjoint(feature_set.uses)


def _obstacle(peer: peers.Peer, feature_set: FeatureSetBase) -> Exception | None:
    return peers.find_send_obstacle(peer, feature_set, "infer", "inferenceRequest")


def _sends_chunks(peer: peers.Peer, feature_set: FeatureSetBase) -> bool:
    """Whether the host sends chunks: it offers `inferenceRequest: {"streaming": true}`, or just true.

    A host of 0.5 sends them if it grants that, and the set says that it uses it.
    """
    if peer.live is None or peer.live.vocabulary.by_grant:
        return STREAMING in feature_set.uses and peer.policy.grants(STREAMING)
    offered = peer.live.offered.get("inferenceRequest")
    return offered.get("streaming") is not False if is_object(offered) else offered is True


def _refuse_in_hook() -> None:
    if is_in_hook():
        raise UsageError(
            "infer inside a context hook: the host would wait for itself (MCPL §10.7)",
            fix="infer in a task of its own, after the hook has answered",
        )


# -- MCPL §11.2–11.3: what a host is asked to infer, and what it answers.


INFERENCE_METHOD = "inference/request"

InferenceMessages: TypeAlias = str | Sequence[Message | str | Mapping[str, Any]]

# Why a sampled model stopped, in the words of §11.3.
STOP_REASONS = {"endTurn": "end_turn", "maxTokens": "max_tokens", "stopSequence": "stop_sequence"}

# The words of hosts that use others.
HOST_REASONS = {**STOP_REASONS, "stop": "end_turn", "length": "max_tokens"}


def _read_written(value: Any) -> str:
    if is_array(value):  # some hosts answer in blocks
        return "".join(TEXT.read(block.get("text", "")) for block in value if is_object(block))
    return TEXT.read(value)


def _read_messages(value: Any) -> Sequence[Params]:
    if not is_array(value) or not value:
        raise ValueError
    for message in value:
        if not is_object(message) or message.get("role") not in ROLES:
            raise InvalidParams(f"Invalid params: a message must be an object with a role of {', '.join(ROLES)}")
        content.read_mcpl_content(message.get("content"))  # only to check it
    return value


WRITTEN = MemberKind("text, or blocks of text", _read_written)
REASON: MemberKind[str] = MemberKind("a string", lambda value: HOST_REASONS.get(reason := TEXT.read(value), reason))
ROLES = ("user", "assistant", "system")
MESSAGES = MemberKind("a list that is not empty", _read_messages, lambda messages: [_message(one) for one in messages])


@wire_shape
class Inference(WireShape):
    """What the host's model wrote. `finish_reason` is `end_turn`, `max_tokens`, `stop_sequence`, or the host's own
    word."""

    content: str = wire_member("content", WRITTEN)
    model: str = wire_member("model", TEXT, default="", lenient=True, omit=False)
    finish_reason: str | None = wire_member("finishReason", REASON, default=None, lenient=True)
    usage: Usage | None = wire_member("usage", nested_shape(Usage), default=None, lenient=True)

    def __str__(self) -> str:
        return self.content

    @classmethod
    def from_answer(cls, answer: Any) -> Inference:
        """A host's answer to `inference/request`. Raises PeerError for one without content."""
        try:
            return cls.from_wire(answer if is_object(answer) else {})
        except InvalidParams:
            raise PeerError(f"the host's answer to {INFERENCE_METHOD} has the wrong shape") from None

    @classmethod
    def of_sample(cls, sample: Sample) -> Inference:
        """What MCP's sampling gave instead."""
        reason = sample.stop_reason
        return cls(sample.text, sample.model, STOP_REASONS.get(reason, reason) if reason is not None else None)


@wire_shape(kw_only=True)
class InferenceRequest(WireShape):
    """What a server asks a model: the params of `inference/request` (§11.2).

    `preferences` are all of its hints, also those that this host does not know. `server_id` is the name by which the
    client knows the server, and `inference_id` the client's own.
    """

    feature_set: str = wire_member("featureSet", TEXT)
    conversation_id: str | None = wire_member("conversationId", TEXT, default=None)
    stream: bool = wire_member("stream", BOOLEAN, default=False, lenient=True, omit=False)
    messages: Sequence[Any] = wire_member("messages", MESSAGES)
    preferences: Mapping[str, Any] = wire_member("preferences", OBJECT, default_factory=dict)
    server_id: str = ""
    inference_id: str = ""

    @property
    def max_tokens(self) -> int | None:
        return read_member(self.preferences, "maxTokens", INTEGER, None, lenient=True)

    @property
    def temperature(self) -> float | None:
        found = read_member(self.preferences, "temperature", NUMBER, None, lenient=True)
        try:
            return None if found is None else float(found)
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True)
class InferenceParams:
    """What a host is asked for; see `FeatureSet.infer`."""

    messages: InferenceMessages
    max_tokens: int | None = None
    temperature: float | None = None
    conversation: str | None = None
    preferences: Mapping[str, Any] | None = None
    timeout: float | None = None

    @property
    def message_list(self) -> Sequence[Message | str | Mapping[str, Any]]:
        return [self.messages] if isinstance(self.messages, str) else self.messages

    def to_wire(self, name: str, *, stream: bool) -> Params:
        """The params of `inference/request` (§11.2), for a feature set's name."""
        known = {"maxTokens": self.max_tokens, "temperature": self.temperature}
        request = InferenceRequest(
            feature_set=name,
            conversation_id=self.conversation,
            stream=stream,
            messages=self.message_list,
            preferences={**(self.preferences or {}), **{k: v for k, v in known.items() if v is not None}},
        )
        return request.to_wire()


def _message(message: Message | str | Mapping[str, Any]) -> Params:
    if isinstance(message, str):
        return {"role": "user", "content": message}
    if is_mapping(message):
        return dict(message)
    assert isinstance(message, Message)
    part = message.content
    return {"role": message.role, "content": part.text if isinstance(part, Text) else content.encode_mcpl_content(part)}


# -- MCPL §11.4: an inference that is read as it is written. It ends with the whole answer.


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

    async def iterate_until(self, answer: asyncio.Task[Any]) -> AsyncGenerator[str, None]:
        """Every delta that comes before the answer."""
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            if answer.done():
                return
            await self._news.wait()
            self._news.clear()


class OpenStreams(dict[RequestId, InferenceChunks]):
    """The requests of one session whose answers come in chunks, by their ids."""


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
