"""MCPL §8.5–8.7: state/rollback. The author's undo runs first. If it fails, nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from defserve.auth.authority import REMEDY, is_stranger
from defserve.auth.principals import Principal
from defserve.core.call import Call
from defserve.core.profile import mask
from defserve.errors import Refused, ToolError, UsageError
from defserve.protocols.mcp.function import FindProvider, Function
from defserve.protocols.mcpl.current import CURRENT
from defserve.protocols.mcpl.state.call import uninterrupted
from defserve.protocols.mcpl.state.owner import branches_of, owner_of
from defserve.protocols.mcpl.state.states import States, found
from defserve.stores.checkpoints.store import HeldCheckpoint
from defserve.stores.checkpoints.tree import Checkpoint, CheckpointGone, TreeKey
from defserve.wire.messages import Params

UNPROVED_SHARED: Final = (
    "All callers share this state, and a caller brought a part of that checkpoint, or version 0.1.0 kept it. An "
    "operator can roll back to it with defserve state rollback"
)

ON_A_BRANCH: Final = (
    "All callers share this state, and that checkpoint is on a branch of your own, which they do not see. Calls can "
    "start there. An operator can put its content into the shared state: defserve state branch STORE CHECKPOINT "
    "--content FILE"
)


class RollbackTarget:
    """The checkpoint that a rollback leads to."""

    checkpoint: Checkpoint | None = None


class RollbackHandler:
    """An author's function, `(to: Checkpoint)`. `owner` is its server. Raises UsageError if it could not be called."""

    __slots__ = ("function", "owner")

    def __init__(self, function: Callable[..., Any], find_provider: FindProvider, owner: object) -> None:
        self.function = Function(function, lambda kind: _target if kind is Checkpoint else find_provider(kind))
        self.owner = owner
        signature = self.function.signature
        if signature.parameters:
            raise UsageError(
                f"{self.name}: a rollback has no value for the parameter {signature.parameters[0].name!r}",
                where=signature.where,
                fix="annotate it: `to: Checkpoint`, or drop it",
            )

    @property
    def name(self) -> str:
        return self.function.signature.name

    async def run(self, call: Call, to: Checkpoint, seconds: float) -> str | None:
        """Why it could not be undone; None if it was."""
        call.local(RollbackTarget).checkpoint = to
        try:
            await self.function.run(call, {}, seconds)
        except (Refused, ToolError) as refused:
            return refused.message
        except Exception as error:
            return mask(call, error)
        return None


async def roll_back(call: Call, states: States[Any], id: str, undo: RollbackHandler | None) -> Params:
    """Undo what came after a checkpoint and make it the head. Raises CheckpointNotFound."""
    CURRENT.set(call)
    call.subject = undo
    owner = owner_of(call, states.per)
    key = TreeKey(states.name, owner.id)
    trees, limits = await states.trees(), call.session.composition.limits
    lock = await states.locks.acquire(key, limits.lock) if states.concurrency == "serial" else None
    try:
        with found():
            try:
                held = await trees.hold(key, id)
            except CheckpointGone:
                if not owner.is_shared:
                    raise
                await trees.hold(TreeKey(states.name, branches_of(call).id), id)
                return {"checkpoint": id, "success": False, "reason": ON_A_BRANCH}
            to = held.checkpoint
            if owner.is_shared and (refused := _refuse_shared(call, held)) is not None:
                return {"checkpoint": id, "success": False, "reason": refused}
            reason = await undo.run(call, to, limits.tool) if undo is not None and to is not None else None
            if reason is not None:
                return {"checkpoint": id, "success": False, "reason": reason}
            # The author's undo is done: the state must follow, even if the call is cancelled, or if the checkpoint is
            # no longer retained.
            await uninterrupted(call, trees.return_to(held))
    finally:
        if lock is not None:
            await lock.release()
    return {"checkpoint": id, "success": True}


def _refuse_shared(call: Call, held: HeldCheckpoint) -> str | None:
    """Why this caller may not make a checkpoint the head of everyone's state; None if it may."""
    if isinstance(call.identity, Principal) and is_stranger(call.identity):
        return f"All callers share this state, and a caller without a verified identity cannot undo it: {REMEDY}"
    return None if held.verified else UNPROVED_SHARED


def _target(call: Call) -> Checkpoint | None:
    return call.local(RollbackTarget).checkpoint
