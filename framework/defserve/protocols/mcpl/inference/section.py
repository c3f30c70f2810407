"""MCPL §11–12: inference and model information, asked of the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError, UsageError
from defserve.protocols.mcpl import peers
from defserve.protocols.mcpl.current import is_in_hook
from defserve.protocols.mcpl.inference.streams import InferenceChunks, InferenceStream, OpenStreams
from defserve.protocols.mcpl.inference.values import METHOD, Inference, InferenceParams
from defserve.protocols.mcpl.section import Section
from defserve.protocols.mcpl.turns import ModelInfo
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Id, Params

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.protocols.mcpl.feature import Feature


MODEL_INFO = "model/info"
STREAMING = "inferenceRequest.streaming"


class InferenceSection(Section):
    """Asks hosts for inference. In a call of the stateless era it asks for sampling, by an input-required result."""

    async def infer(self, feature_set: Feature, request: InferenceParams, to: peers.To) -> Inference:
        await peers.find(self.server, to)
        peer = self._peer(feature_set, to)
        if peer.call is not None and not peer.calls_back:
            return await _sampled(peer.call, feature_set, request)
        asking = _ask(peer, feature_set, request.wire(feature_set.name, stream=False), request.timeout)
        return await peers.on_its_loop(peer.session, asking)

    def stream(self, feature_set: Feature, request: InferenceParams, to: peers.To) -> InferenceStream:
        _refuse_in_hook()
        return InferenceStream(lambda: self._streamed(feature_set, request, to))

    def can(self, peer: peers.Peer) -> bool:
        """Whether some set can infer with this peer."""
        if is_in_hook():
            return False
        if peer.call is not None and not peer.calls_back:
            from defserve.protocols.mcp.asking import client_requests

            return client_requests.can(peer.call, "sampling")
        return any(_obstacle(peer, one) is None for one in self.server.sets if _declares(one))

    def chunk(self, session: Session, params: Params) -> bool:
        """`inference/chunk` (§11.4). False for one that belongs to no open request of this process."""
        streams, id = session.peek(OpenStreams), params.get("requestId")
        index, delta = params.get("index"), params.get("delta")
        known = streams.by_id.get(id) if streams is not None and isinstance(id, int | str) else None
        if known is not None and type(index) is int and isinstance(delta, str):
            known.add(index, delta)
        return known is not None

    def _peer(self, feature_set: Feature, to: peers.To) -> peers.Peer:
        _refuse_in_hook()
        if not _declares(feature_set):
            peers.check_declared(feature_set, "infer", "inferenceRequest")
        if to is peers.everyone:
            raise UsageError("infer: to=everyone has no single answer", fix="say which: to=session or to=principal")
        here = peers.current() if to is None else None
        if here is not None and not here.calls_back:
            return here
        return peers.addressed(self.server, "infer", to, lambda peer: _obstacle(peer, feature_set))[0]

    async def _streamed(
        self, feature_set: Feature, request: InferenceParams, to: peers.To
    ) -> AsyncGenerator[str | Inference, None]:
        await peers.find(self.server, to)
        peer = self._peer(feature_set, to)
        if peer.call is not None and not peer.calls_back:
            whole = await _sampled(peer.call, feature_set, request)
            yield whole.content
            yield whole
            return
        if not peer.session.engine.on_loop():
            raise UsageError("infer: a stream is read on the event loop of its session", fix="use infer() here")
        chunks = InferenceChunks(peer.session.composition.limits.response)
        streams, ids = peer.session.local(OpenStreams), list[Id]()

        def numbered(id: Id) -> None:
            ids.append(id)
            streams.by_id[id] = chunks

        params = request.wire(feature_set.name, stream=_sends_chunks(peer, feature_set))
        asking: Coroutine[Any, Any, Inference] = _ask(peer, feature_set, params, request.timeout, numbered)
        answer = asyncio.get_running_loop().create_task(asking)
        answer.add_done_callback(chunks.wake)
        received = False
        try:
            async for delta in chunks.until(answer):
                received = True
                yield delta
            whole = await answer
            if not received and whole.content:
                yield whole.content  # from a host that answers in one piece
            yield whole
        finally:
            answer.cancel()
            for id in ids:
                streams.by_id.pop(id, None)


async def model_info(call: Call, timeout: float) -> ModelInfo:
    """`model/info` (§12). Hosts of the 0.4 draft need not offer it, and may leave it unanswered: PeerTimeout."""
    peer = peers.Peer(call.session, call)
    if not can_model_info(peer):
        raise NoBackChannel("model_info: this host cannot be asked for its model")
    answer = await peer.request(MODEL_INFO, {}, timeout=timeout)
    if not is_object(answer) or not isinstance(answer.get("id"), str):
        raise PeerError(f"the host's answer to {MODEL_INFO} has the wrong shape")
    return ModelInfo.read(answer)


def can_model_info(peer: peers.Peer) -> bool:
    """Whether the host can be asked. It may still leave the question unanswered."""
    if peer.live is None or not peer.calls_back:
        return False
    by_grant = peer.live.vocabulary.by_grant
    return peer.policy.grants("modelInfo") if by_grant else peer.live.offered.get("modelInfo") is not False


async def _ask(
    peer: peers.Peer,
    feature_set: Feature,
    params: Params,
    timeout: float | None,
    numbered: Callable[[Id], None] | None = None,
) -> Inference:
    if (problem := _obstacle(peer, feature_set)) is not None:
        raise problem
    return Inference.read(
        await peer.try_request("inferenceRequest", METHOD, params, timeout=timeout, numbered=numbered)
    )


async def _sampled(call: Call, feature_set: Feature, request: InferenceParams) -> Inference:
    from defserve.protocols.mcp.asking import client_requests
    from defserve.protocols.mcp.asking.sampling import SampleOptions

    feature_set.require(call)
    options = SampleOptions(
        request.message_list, max_tokens=request.max_tokens or 1024, temperature=request.temperature
    )
    return Inference.of_sample(await client_requests.sample(call, options))


def _declares(feature_set: Feature) -> bool:
    return not {"inferenceRequest", STREAMING}.isdisjoint(feature_set.uses)


def _obstacle(peer: peers.Peer, feature_set: Feature) -> Exception | None:
    return peers.obstacle(peer, feature_set, "infer", "inferenceRequest")


def _sends_chunks(peer: peers.Peer, feature_set: Feature) -> bool:
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
