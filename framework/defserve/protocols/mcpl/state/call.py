"""A state held for one call: a value of its own, kept when the call succeeds and let go otherwise. For every peer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from defserve.core.call import Call
from defserve.protocols.mcpl.errors import CheckpointNotFound, StateRefused
from defserve.protocols.mcpl.policies import live
from defserve.protocols.mcpl.state.binding import Working
from defserve.protocols.mcpl.state.owner import Unowned, owner_of
from defserve.protocols.mcpl.state.turns import Turn
from defserve.protocols.mcpl.state.wire import given, refuse_content, start
from defserve.stores.checkpoints.contents import CheckpointDraft
from defserve.stores.checkpoints.store import CheckpointStore, Commit, HeldCheckpoint
from defserve.stores.checkpoints.tree import CheckpointGone, TreeKey

if TYPE_CHECKING:
    from defserve.protocols.mcpl.state.states import States


async def uninterrupted(call: Call, work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end, whoever stops the call meanwhile; then that takes effect."""
    task = cast("asyncio.Task[None]", call.engine.spawn(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise


class Made:
    """The checkpoint a call has made, if it has."""

    __slots__ = ("states", "commit")

    def __init__(self) -> None:
        self.states: States[Any] | None = None
        self.commit: Commit | None = None


class Holding:
    """The hold stage of one call."""

    __slots__ = ("_states", "_call", "_turn", "_trees", "_held", "_branches", "_before", "_value")

    def __init__(self, states: States[Any], call: Call) -> None:
        self._states, self._call = states, call
        self._turn: Turn | None = None
        self._trees: CheckpointStore | None = None
        self._held: HeldCheckpoint | None = None
        self._branches = False
        self._before, self._value = b"", None

    async def __aenter__(self) -> None:
        call, states = self._call, self._states
        brought, owner = given(call), owner_of(call, states.per)
        refuse_content(brought, states)
        if not (owner.has_head or brought.names):
            raise Unowned
        key = TreeKey(states.name, owner.id)
        self._branches = brought.starts_elsewhere or not owner.has_head or states.concurrency == "branch"
        if states.concurrency == "serial":
            self._turn = await states.turns.take(key, call.session.composition.limits.tool)
        try:
            self._trees = trees = await states.trees()
            self._held = held = await start(trees, key, brought, call, has_head=owner.has_head)
            if not held.verified and getattr(call.subject, "is_dangerous", False):
                raise StateRefused(
                    "A dangerous tool takes no state without the checkpoint that proves it", featureSet=states.name
                )
            with states.fitting():
                self._value, self._before = states.values.take(held.before)
        except CheckpointGone as gone:
            await self._release()
            raise CheckpointNotFound(gone.data["checkpoint"]) from None
        except BaseException:
            await self._release()
            raise
        working = call.local(Working)
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
        """What there is to keep, and a value of it for the next call.

        The first checkpoint is made for a host to come back to, whatever the call did. Raises TypeError for what could
        not be read again.
        """
        states, held, trees = self._states, self._held, self._trees
        assert held is not None and trees is not None
        text = states.values.dump(self._value)
        begins = held.parent is None and held.before is None and live(self._call) is not None
        if text == self._before and not begins:
            return None
        draft = trees.draft(held, text)
        if draft.is_same:
            return None  # the same, in another order
        try:
            return draft, states.values.read(draft.content)
        except ValueError as error:
            raise TypeError(f"a tool left {states!r} as its model refuses it: {error}") from None

    async def _commit(self, draft: CheckpointDraft, value: Any) -> None:
        """Keep it, and only then let the next one in."""
        assert self._held is not None and self._trees is not None
        try:
            commit = await self._trees.commit(self._held, draft, branch=self._branches)
            self._states.values.give(draft.content, value)
        finally:
            await self._release()
        made = self._call.local(Made)
        made.states, made.commit = self._states, commit

    async def _release(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            await turn.end()
