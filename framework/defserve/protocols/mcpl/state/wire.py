"""MCPL §8.2–8.4: state in requests and results. What a host sends is checked, never trusted.

If a request has both `checkpoint` and `state`, `state` is the content and `checkpoint` its parent (A18). Without a
handshake both travel in the params, or in `_meta` if a client cannot add params; the result has its state in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.core.call import Call
from defserve.errors import InvalidParams
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.params import meta, text
from defserve.protocols.mcpl.policies import agreed, is_stateless
from defserve.protocols.mcpl.state.sent import LONGEST_ID, SentCheckpoints
from defserve.stores.checkpoints.store import CheckpointStore, Commit, HeldCheckpoint, StateTampered
from defserve.stores.checkpoints.tree import CheckpointGone, TreeKey
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.state.owner import StateOwner
    from defserve.protocols.mcpl.state.states import States

STATE_KEY: Final = VENDOR + "state"


class StateParams(NamedTuple):
    """What a request says about state. `names`: it says where to start, perhaps with null."""

    checkpoint: str | None = None
    state: Any = None
    names: bool = False

    @property
    def has_content(self) -> bool:
        return self.state is not None

    @property
    def starts_elsewhere(self) -> bool:
        """Whether it may start elsewhere than at the head, so that its result is a branch."""
        return self.checkpoint is not None or self.has_content


def state_params(call: Call) -> StateParams:
    """What the request brings; nothing if the host does not speak MCPL. Raises InvalidParams."""
    source = state_fields(call)
    checkpoint = checkpoint_in(source) if source.get("checkpoint") is not None else None
    return StateParams(checkpoint, source.get("state"), "checkpoint" in source or "state" in source)


def state_fields(call: Call) -> Params:
    """The object that has the `checkpoint` and the `state` of a request, if it has them. They are not checked."""
    if agreed(call.terms) is None:
        return {}
    if is_stateless(call) and not ("state" in call.params or "checkpoint" in call.params):
        mirrored = meta(call.params).get(STATE_KEY)
        return mirrored if is_object(mirrored) else {}
    return call.params


def checkpoint_in(params: Params) -> str:
    """The checkpoint in params. Raises InvalidParams if it is not a text, or too long to repeat in an error."""
    found = text(params, "checkpoint")
    if len(found) > LONGEST_ID:
        raise InvalidParams(f"Invalid params: checkpoint has more than {LONGEST_ID} characters")
    return found


async def start(
    trees: CheckpointStore, key: TreeKey, params: StateParams, call: Call, *, has_head: bool
) -> HeldCheckpoint:
    """Where a call starts. Raises CheckpointGone, StateTampered and LimitExceeded."""
    if not params.has_content:
        if params.checkpoint is None and not has_head:
            return HeldCheckpoint(key, await trees.load(key))
        return await trees.hold(key, params.checkpoint)
    adopted = await trees.adopt(key, params.state, checkpoint=params.checkpoint)
    if params.checkpoint is not None or adopted.before is None:
        return adopted
    return await _recognised(trees, key, adopted.before.encoded, call, has_head=has_head) or adopted


async def start_shared(
    trees: CheckpointStore, key: TreeKey, branches: StateOwner, params: StateParams, call: Call
) -> HeldCheckpoint:
    """Where a call on everyone's state starts: there, or on a branch of its caller. Raises as `start`."""
    own = TreeKey(key.feature_set, branches.id)
    try:
        held = await start(trees, key, params, call, has_head=True)
    except (CheckpointGone, StateTampered):
        if params.checkpoint is None:
            raise
        return await start(trees, own, params, call, has_head=branches.has_head)
    if held.parent is not None or not params.has_content:
        return held
    branched = await start(trees, own, params, call, has_head=branches.has_head)
    return branched if branched.parent is not None else held


async def _recognised(
    trees: CheckpointStore, key: TreeKey, content: bytes, call: Call, *, has_head: bool
) -> HeldCheckpoint | None:
    """The checkpoint that a content without a checkpoint belongs to; None if there is none.

    It is one that the host was sent, the head, or any other of this caller that is proved. Proved ones come first.
    """
    sent = call.session.peek(SentCheckpoints)
    id = sent.find(key.feature_set, content) if sent is not None else None
    candidates = [*([id] if id is not None else ()), *([None] if has_head else ())]
    unproved: HeldCheckpoint | None = None
    for candidate in candidates:
        try:
            held = await trees.hold(key, candidate)
        except CheckpointGone:
            continue
        if held.before is None or held.before.encoded != content:
            continue
        if held.verified:
            return held
        unproved = unproved or held
    # Callers without a head cannot be told apart, so what was proved for one says nothing of another.
    return (await trees.find_proved(key, content) if has_head else None) or unproved


def tell(call: Call, states: States[Any], made: Commit, result: Params) -> None:
    """Add the new state to the result (§8.2, §8.3)."""
    at = made.checkpoint
    state: Params = {"checkpoint": at.id, "parent": at.parent, "featureSet": states.name}
    if states.mode != "opaque":
        patch = made.patch() if states.mode == "patch" and _has(call, at.parent) else None
        if patch is not None and len(patch) <= call.session.composition.limits.patch_operations:
            state["patch"] = patch
        else:
            state["data"] = made.content
    result["state"] = state
    if is_stateless(call):
        result["_meta"] = {**(result.get("_meta") or {}), STATE_KEY: state}
    elif states.mode != "opaque" and made.made is not None:
        call.session.local(SentCheckpoints).add(at.id, states.name, made.made.content.encoded)


def _has(call: Call, parent: str | None) -> bool:
    """Whether the host can apply a patch to this checkpoint: it named it, brought its content, or was sent it."""
    if parent is None:
        return False
    brought, sent = state_params(call), call.session.peek(SentCheckpoints)
    return brought.checkpoint == parent or brought.has_content or (sent is not None and sent.knows(parent))
