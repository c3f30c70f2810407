"""States that a server changes by itself, and telling hosts: `state/update` and `state/get`.

The methods are those of an older draft of 0.5. A host that takes them offers `stateUpdate`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from defserve.errors import NoBackChannel, PeerError
from defserve.protocols.mcpl.errors import StateRefused
from defserve.protocols.mcpl.peers import Peer, on_its_loop
from defserve.protocols.mcpl.state.owner import EVERYONE
from defserve.protocols.mcpl.state.proof import may_move_shared, with_proof_of
from defserve.protocols.mcpl.state.sent import LONGEST_ID, SentCheckpoints
from defserve.stores.checkpoints.store import Commit
from defserve.stores.checkpoints.tree import TreeKey
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import Session
    from defserve.protocols.mcpl.state.states import States

M = TypeVar("M")

UPDATE: Final = "state/update"
GET: Final = "state/get"
OFFER: Final = "stateUpdate"
LOCK_SECONDS: Final = 30.0
UNPROVED_UPDATE: Final = (
    "All callers share this state, and this call has seen a state that is not proved: a caller brought it, or a part "
    "of it. So nothing was changed.\n  fix: start from a checkpoint that is proved, and read only such ones"
)


class HostCheckpoint(NamedTuple, Generic[M]):
    """Where a host is in a state, and the content that it keeps; None for what it does not have."""

    checkpoint: str | None
    value: M | None


async def changed(states: States[M], key: TreeKey, change: Callable[[M], Any], call: Call | None) -> Commit | None:
    """Change a state that no call holds. Returns what was committed; None if `change` changed nothing.

    `call` is the one that runs, if any: a dangerous one is not given an unproved state, and one that has seen an
    unproved state does not change what all callers share.
    """
    trees = await states.trees()
    lock = await states.locks.acquire(key, LOCK_SECONDS) if states.concurrency == "serial" else None
    try:
        held = await trees.hold(key)
        states.require_proof(call, held)
        with states.fitting():
            value, before = states.values.take(held.before)
        outcome = change(value)
        if isinstance(outcome, Awaitable):
            await outcome
        text = states.values.dump(value)
        states.refuse_integers(text)
        draft = trees.draft(held, text)
        if text == before or draft.is_same:
            return None
        with states.fitting():
            states.values.read(draft.content)
        if key.owner == EVERYONE and not may_move_shared(call, held):
            raise StateRefused(UNPROVED_UPDATE, data={"featureSet": states.name})
        return await trees.commit(with_proof_of(call, held), draft)
    finally:
        if lock is not None:
            await lock.release()


async def tell_hosts(states: States[Any], made: Commit, sessions: Iterable[Session]) -> None:
    """Tell the hosts of these sessions that take it. One that refuses it stays where it was, and branches off."""
    for session in sessions:
        if can_tell(states, session):
            await on_its_loop(session, _tell(states, made, session))


def can_tell(states: States[Any], session: Session) -> bool:
    """Whether a host takes states of its own accord, and has enabled the set."""
    peer = Peer(session)
    offers = peer.live is not None and peer.live.offered.get(OFFER) is True
    return offers and peer.calls_back and session.ready and peer.policy.allows(states.feature_set)


async def _tell(states: States[Any], made: Commit, session: Session) -> None:
    at, sent = made.checkpoint, session.local(SentCheckpoints)
    state: Params = {"featureSet": states.name, "checkpoint": at.id, "parent": at.parent}
    if states.mode != "opaque":
        patch = made.patch() if states.mode == "patch" and sent.knows(at.parent) else None
        state |= {"data": made.content} if patch is None else {"patch": patch}
    try:
        answer = await session.request(UPDATE, state, timeout=session.composition.limits.callback)
        reason = None if is_object(answer) and answer.get("accepted") is True else "the host refuses it"
    except PeerError as error:
        reason = str(error)
    if reason is None:
        if states.mode != "opaque" and made.made is not None:
            sent.add(at.id, states.name, made.made.content.encoded)
        return
    import logging

    logging.getLogger("defserve").warning("%s of %s: %s", UPDATE, states.name, reason)


async def host_checkpoint(states: States[M], session: Session) -> HostCheckpoint[M]:
    """Where a host is. Raises NoBackChannel, and PeerError (-32006 if the host keeps no state of this set)."""
    if not can_tell(states, session):
        raise NoBackChannel(f"{GET}: the host does not keep states", needs={"experimental": {"mcpl": {OFFER: True}}})
    asking = session.request(GET, {"featureSet": states.name}, timeout=session.composition.limits.callback)
    answer = await on_its_loop(session, asking)
    checkpoint = answer.get("checkpoint") if is_object(answer) else None
    if not is_object(answer) or not (checkpoint is None or _is_id(checkpoint)):
        raise PeerError(f"the host's answer to {GET} has the wrong shape", code=0)
    data = answer.get("data")
    try:
        return HostCheckpoint(checkpoint, states.values.of_json(data) if data is not None else None)
    except ValueError:
        raise StateRefused("The host's state does not fit its model", data={"featureSet": states.name}) from None


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_ID
