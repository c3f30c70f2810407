"""MCPL §12: `model/info`, asked of the host of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.errors import NoBackChannel, PeerError
from defserve.protocols.mcpl.peers import Peer
from defserve.protocols.mcpl.turns import ModelInfo
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.core.call import Call

METHOD = "model/info"


async def model_info(call: Call, timeout: float) -> ModelInfo:
    """Ask for the model. Hosts of the 0.4 draft need not offer this, and may leave it unanswered: PeerTimeout."""
    peer = Peer(call.session, call)
    if not can_model_info(peer):
        raise NoBackChannel("model_info: this host cannot be asked for its model")
    answer = await peer.request(METHOD, {}, timeout=timeout)
    if not is_object(answer) or not isinstance(answer.get("id"), str):
        raise PeerError(f"the host's answer to {METHOD} has the wrong shape")
    return ModelInfo.read(answer)


def can_model_info(peer: Peer) -> bool:
    """Whether it is worth asking."""
    return peer.live is not None and peer.calls_back and peer.live.offered.get("modelInfo") is not False
