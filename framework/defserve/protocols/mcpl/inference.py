"""MCPL §11–12: inference and model information, asked of the host. Whole, or as a stream that ends with the whole."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.binding.content import Part, Text
from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError, UsageError
from defserve.protocols.mcp.asking.sampling import Message
from defserve.protocols.mcpl import content, peers
from defserve.protocols.mcpl.extension import IN_HOOK
from defserve.protocols.mcpl.peers import Peer, To, everyone
from defserve.protocols.mcpl.policies import require
from defserve.protocols.mcpl.section import Section
from defserve.protocols.mcpl.turns import ModelInfo, Usage
from defserve.wire.jsonvalue import is_array, is_mapping, is_object
from defserve.wire.messages import Id, Params

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.protocols.mcp.asking.sampling import Sample
    from defserve.protocols.mcpl.feature_sets import FeatureSet

METHOD, MODEL_INFO = "inference/request", "model/info"

Messages: TypeAlias = str | Sequence[Message | str | Mapping[str, Any]]

# Why a sampled model stopped, in the words of §11.3.
STOP_REASONS = {"endTurn": "end_turn", "maxTokens": "max_tokens", "stopSequence": "stop_sequence"}


@dataclass(frozen=True, slots=True)
class Inference:
    """What the host's model wrote. `finish_reason` is `end_turn`, `max_tokens`, `stop_sequence`, or a word of the
    host's own."""

    content: str
    model: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None

    def __str__(self) -> str:
        return self.content


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for; see `FeatureSet.infer`."""

    messages: Messages
    max_tokens: int | None = None
    temperature: float | None = None
    conversation: str | None = None
    preferences: Mapping[str, Any] | None = None
    timeout: float | None = None

    def wire(self, feature_set: FeatureSet, *, stream: bool) -> Params:
        """The params of `inference/request` (§11.2)."""
        params: Params = {"featureSet": feature_set.name}
        if self.conversation is not None:
            params["conversationId"] = self.conversation
        params["stream"] = stream
        params["messages"] = [_message(message) for message in _listed(self.messages)]
        known = {"maxTokens": self.max_tokens, "temperature": self.temperature}
        preferences = {**(self.preferences or {}), **{k: v for k, v in known.items() if v is not None}}
        if preferences:
            params["preferences"] = preferences
        return params


class Deltas:
    """The chunks of one request as they come. Those that come late or twice are left out, and what is too much."""

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

    def rouse(self, _: object = None) -> None:
        self._news.set()

    async def until(self, whole: asyncio.Task[Any]) -> AsyncGenerator[str, None]:
        """Every delta up to the answer."""
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            if whole.done():
                return
            await self._news.wait()
            self._news.clear()


class Streams:
    """The requests of one session whose answers come in chunks, by their ids."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: dict[Id, Deltas] = {}


class InferenceStream:
    """`async for delta in stream`; then `stream.result` is the whole."""

    def __init__(self, begin: Callable[[], AsyncGenerator[str | Inference, None]]) -> None:
        self._begin = begin
        self._result: Inference | None = None

    @property
    def result(self) -> Inference:
        """The whole, once the stream has ended."""
        if self._result is None:
            raise UsageError("the inference has not ended", fix="read its result behind the `async for`")
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


class Inferring(Section):
    """Asks hosts for inference; within a call of the stateless era, for sampling by an input-required result."""

    async def infer(self, feature_set: FeatureSet, wish: Wish, to: To) -> Inference:
        peer = self._peer(feature_set, to)
        if peer.call is not None and not peer.calls_back:
            return await self._sampled(peer.call, feature_set, wish)
        asking = self._ask(peer, feature_set, wish.wire(feature_set, stream=False), wish.timeout)
        return await peers.on_its_loop(peer.session, asking)

    def stream(self, feature_set: FeatureSet, wish: Wish, to: To) -> InferenceStream:
        _not_in_a_hook()
        return InferenceStream(lambda: self._streamed(feature_set, wish, to))

    def can(self, peer: Peer) -> bool:
        """Whether some set could infer with this peer."""
        if _in_a_hook():
            return False
        if peer.call is not None and not peer.calls_back:
            from defserve.protocols.mcp.asking import client_requests

            return client_requests.can(peer.call, "sampling")
        return any(_obstacle(peer, one) is None for one in self.mcpl.sets if "inferenceRequest" in one.uses)

    # -- asking ------------------------------------------------------------------------------------------

    def _peer(self, feature_set: FeatureSet, to: To) -> Peer:
        _not_in_a_hook()
        peers.declared(feature_set, "infer", "inferenceRequest")
        if to is everyone:
            raise UsageError("infer: to=everyone has no single answer", fix="say which: to=session or to=principal")
        here = peers.current() if to is None else None
        if here is not None and not here.calls_back:
            return here
        return peers.addressed(self.mcpl, "infer", to, lambda peer: _obstacle(peer, feature_set))[0]

    async def _ask(
        self,
        peer: Peer,
        feature_set: FeatureSet,
        params: Params,
        timeout: float | None,
        numbered: Callable[[Id], None] | None = None,
    ) -> Inference:
        problem = _obstacle(peer, feature_set)
        if problem is not None:
            raise problem
        return _inference(await peer.request(METHOD, params, timeout=timeout, numbered=numbered))

    async def _sampled(self, call: Call, feature_set: FeatureSet, wish: Wish) -> Inference:
        from defserve.protocols.mcp.asking import client_requests
        from defserve.protocols.mcp.asking.sampling import SampleOptions

        require(call, feature_set)
        options = SampleOptions(
            _listed(wish.messages), max_tokens=wish.max_tokens or 1024, temperature=wish.temperature
        )
        return _from_sample(await client_requests.sample(call, options))

    async def _streamed(self, feature_set: FeatureSet, wish: Wish, to: To) -> AsyncGenerator[str | Inference, None]:
        peer = self._peer(feature_set, to)
        if peer.call is not None and not peer.calls_back:
            whole = await self._sampled(peer.call, feature_set, wish)
            yield whole.content
            yield whole
            return
        if not peer.session.engine.on_loop():
            raise UsageError("infer: a stream is read on the event loop of its session", fix="use infer() here")
        deltas, streams, ids = Deltas(self._room(peer)), peer.session.local(Streams), list[Id]()

        def numbered(id: Id) -> None:
            ids.append(id)
            streams.open[id] = deltas

        params = wish.wire(feature_set, stream=_streams(peer))
        asking: Coroutine[Any, Any, Inference] = self._ask(peer, feature_set, params, wish.timeout, numbered)
        answer = asyncio.get_running_loop().create_task(asking)
        answer.add_done_callback(deltas.rouse)
        heard = False
        try:
            async for delta in deltas.until(answer):
                heard = True
                yield delta
            whole = await answer
            if not heard and whole.content:
                yield whole.content  # from a host that answers in one piece
            yield whole
        finally:
            answer.cancel()
            for id in ids:
                streams.open.pop(id, None)

    def _room(self, peer: Peer) -> int:
        return peer.session.composition.limits.response

    def chunk(self, session: Session, params: Params) -> None:
        """`inference/chunk` (§11.4); one that belongs to nothing we asked for is ignored."""
        streams, id = session.peek(Streams), params.get("requestId")
        index, delta = params.get("index"), params.get("delta")
        known = streams.open.get(id) if streams is not None and isinstance(id, int | str) else None
        if known is not None and type(index) is int and isinstance(delta, str):
            known.add(index, delta)


async def model_info(call: Call, timeout: float) -> ModelInfo:
    """`model/info` (§12). Hosts of the 0.4 draft need not offer it, and may leave it unanswered: PeerTimeout."""
    peer = Peer(call.session, call)
    agreed = peer.live
    if agreed is None or not peer.calls_back or agreed.offered.get("modelInfo") is False:
        raise NoBackChannel("model_info: this host cannot be asked for its model")
    answer = await peer.request(MODEL_INFO, {}, timeout=timeout)
    if not is_object(answer) or not isinstance(answer.get("id"), str):
        raise PeerError(f"the host's answer to {MODEL_INFO} has the wrong shape")
    return ModelInfo.read(answer)


def can_model_info(call: Call) -> bool:
    """Whether it is worth asking."""
    peer = Peer(call.session, call)
    return peer.live is not None and peer.calls_back and peer.live.offered.get("modelInfo") is not False


def _obstacle(peer: Peer, feature_set: FeatureSet) -> Exception | None:
    return peers.obstacle(peer, feature_set, "infer", "inferenceRequest")


def _streams(peer: Peer) -> bool:
    """Whether the host sends chunks: `inferenceRequest: {"streaming": true}`, or just true."""
    offered = peer.live.offered.get("inferenceRequest") if peer.live is not None else None
    return offered.get("streaming") is not False if is_object(offered) else offered is True


def _in_a_hook() -> bool:
    run = IN_HOOK.get()
    return run is not None and run.running


def _not_in_a_hook() -> None:
    if _in_a_hook():
        raise UsageError(
            "infer inside a context hook: the host would wait for itself (MCPL §10.7)",
            fix="infer in a task of its own, when the hook has answered",
        )


# -- shapes ----------------------------------------------------------------------------------------------


def _listed(messages: Messages) -> Sequence[Message | str | Mapping[str, Any]]:
    return [messages] if isinstance(messages, str) else messages


def _message(message: Message | str | Mapping[str, Any]) -> Params:
    if isinstance(message, str):
        return {"role": "user", "content": message}
    if is_mapping(message):
        return dict(message)
    assert isinstance(message, Message)
    return {"role": message.role, "content": _content(message.content)}


def _content(part: Part) -> str | list[Params]:
    return part.text if isinstance(part, Text) else content.blocks(part)


def _inference(answer: Any) -> Inference:
    written = answer.get("content") if is_object(answer) else None
    if is_array(written):  # some hosts answer in blocks
        written = "".join(block.get("text", "") for block in written if is_object(block))
    if not isinstance(written, str):
        raise PeerError(f"the host's answer to {METHOD} has the wrong shape")
    usage = answer.get("usage")
    counted = Usage.read(usage) if is_object(usage) else None
    return Inference(written, _text(answer, "model") or "", _text(answer, "finishReason"), counted)


def _from_sample(sample: Sample) -> Inference:
    reason = sample.stop_reason
    return Inference(sample.text, sample.model, STOP_REASONS.get(reason, reason) if reason is not None else None)


def _text(answer: Params, member: str) -> str | None:
    found = answer.get(member)
    return found if isinstance(found, str) else None
