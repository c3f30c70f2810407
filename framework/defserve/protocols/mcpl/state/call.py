"""A state held for one call, with or without MCPL: the call's value is kept if the call succeeds, dropped otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from defserve.core.call import Call
from defserve.protocols.mcpl.errors import CheckpointNotFound, StateRefused
from defserve.protocols.mcpl.state.binding import WorkingState
from defserve.protocols.mcpl.state.locks import TreeLock
from defserve.protocols.mcpl.state.owner import StateUnowned, branches_of, owner_of
from defserve.protocols.mcpl.state.proof import may_move_shared, with_proof_of
from defserve.protocols.mcpl.state.wire import start, start_shared, state_params
from defserve.stores.checkpoints.contents import CheckpointDraft
from defserve.stores.checkpoints.store import CheckpointStore, Commit, HeldCheckpoint
from defserve.stores.checkpoints.tree import CheckpointGone, TreeKey

if TYPE_CHECKING:
    from defserve.protocols.mcpl.state.states import States


async def uninterrupted(call: Call, work: Coroutine[Any, Any, Any]) -> None:
    """Do something to its end, even if the call is cancelled. The cancellation takes effect afterwards."""
    task = cast("asyncio.Task[Any]", call.engine.spawn(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise


class NewCheckpoint:
    """The checkpoint that a call has made, if it made one."""

    made: tuple[States[Any], Commit] | None = None


class StateHold:
    """The hold stage of one call."""

    __slots__ = (
        "_states", "_call", "_lock", "_trees", "_held", "_own", "_branches", "_moves_head", "_before", "_value",
    )  # fmt: skip

    def __init__(self, states: States[Any], call: Call) -> None:
        self._states, self._call = states, call
        self._lock: TreeLock | None = None
        self._trees: CheckpointStore | None = None
        self._held: HeldCheckpoint | None = None
        self._own: TreeKey | None = None  # of the caller's branches, if all callers share the state
        self._branches, self._moves_head = False, True
        self._before, self._value = b"", None

    async def __aenter__(self) -> None:
        call, states = self._call, self._states
        brought, owner = state_params(call), owner_of(call, states.per)
        if brought.has_content and states.mode == "opaque":  # hosts never see its content
            raise StateRefused(
                "This state is kept by the server; send its checkpoint instead", data={"featureSet": states.name}
            )
        if not (owner.has_head or brought.names):
            raise StateUnowned
        key = TreeKey(states.name, owner.id)
        if states.concurrency == "serial":
            self._lock = await states.locks.acquire(key, call.session.composition.limits.lock)
        try:
            self._trees = trees = await states.trees()
            is_elsewhere = brought.starts_elsewhere
            if owner.is_shared:
                branches = branches_of(call)
                self._held = held = await start_shared(trees, key, branches, brought, call)
                self._own = TreeKey(states.name, branches.id)
                is_elsewhere = is_elsewhere and not (held.key == key and held.is_head)
                self._moves_head = not is_elsewhere
            else:
                self._held = held = await start(trees, key, brought, call, has_head=owner.has_head)
            self._branches = is_elsewhere or not owner.has_head or states.concurrency == "branch"
            states.require_proof(call, held)
            with states.fitting():
                self._value, self._before = states.values.take(held.before)
        except CheckpointGone as gone:
            await self._release()
            raise CheckpointNotFound(gone.data["checkpoint"]) from None
        except BaseException:
            await self._release()
            raise
        working = call.local(WorkingState)
        working.states, working.value = states, self._value

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            over = kind is not None or self._call.stopped or self._call.settled
            made = None if over else self._made()
        except BaseException:
            await self._release()
            raise
        if made is None:
            await self._release()
        else:
            await uninterrupted(self._call, self._commit(*made))

    def _made(self) -> tuple[CheckpointDraft, Any] | None:
        """What to keep, and a value of it for the next call; None if nothing has changed.

        Raises TypeError for a value that could not be read again.
        """
        states, held, trees = self._states, self._held, self._trees
        assert held is not None and trees is not None
        text = states.values.dump(self._value)
        if text == self._before:
            return None
        states.refuse_integers(text)
        draft = trees.draft(held, text)
        if draft.is_same:
            return None  # the same content in another order
        try:
            return draft, states.values.read(draft.content)
        except ValueError as error:
            raise TypeError(f"a tool left {states!r} in a form that its model refuses: {error}") from None

    async def _commit(self, draft: CheckpointDraft, value: Any) -> None:
        """Keep the change, and only then let the next call in."""
        assert self._held is not None and self._trees is not None
        held = with_proof_of(self._call, self._held)
        if self._own is not None and not may_move_shared(self._call, held):
            self._branches, self._moves_head = True, False
        try:
            if self._own is not None and not self._moves_head and held.key != self._own:
                held = await self._trees.hold_for(self._own, held)
            commit = await self._trees.commit(held, draft, branch=self._branches, moves_head=self._moves_head)
            self._states.values.give(draft.content, value)
        finally:
            await self._release()
        self._call.local(NewCheckpoint).made = self._states, commit

    async def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            await lock.release()
