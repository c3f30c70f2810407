"""A state held for one call: a value of its own, kept when the call succeeds and let go otherwise. For every peer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from defserve.core.call import Call
from defserve.protocols.mcpl.errors import CheckpointNotFound, StateRefused
from defserve.protocols.mcpl.policies import live
from defserve.protocols.mcpl.state_binding import Working
from defserve.protocols.mcpl.state_owner import Unowned, owner_of
from defserve.protocols.mcpl.state_turns import Turn
from defserve.protocols.mcpl.state_wire import given, refuse_content, start
from defserve.stores.checkpoint_store import Commit, Held
from defserve.stores.checkpoints import Gone, TreeKey

if TYPE_CHECKING:
    from defserve.protocols.mcpl.state import States


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

    __slots__ = ("_states", "_call", "_turn", "_held", "_branches", "_before", "_value")

    def __init__(self, states: States[Any], call: Call) -> None:
        self._states, self._call = states, call
        self._turn: Turn | None = None
        self._held: Held | None = None
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
            trees = await states.trees()
            self._held = held = await start(trees, key, brought, call, has_head=owner.has_head)
            if not held.verified and getattr(call.subject, "is_dangerous", False):
                raise StateRefused(
                    "A dangerous tool takes no state without the checkpoint that proves it", featureSet=states.name
                )
            self._value = states.read(held)
            self._before = states.dump(self._value)
        except Gone as gone:
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
            content = None if over else self._content()
        except BaseException:
            await self._release()
            raise
        if content is None:
            await self._release()
        else:
            await uninterrupted(self._call, self._commit(content))

    def _content(self) -> bytes | None:
        """What there is to keep. The first checkpoint is made for a host to come back to, whatever the call did."""
        assert self._held is not None
        content = self._states.dump(self._value)
        begins = self._held.parent is None and self._held.before is None and live(self._call) is not None
        if content == self._before and not begins:
            return None
        self._states.check(content)
        return content

    async def _commit(self, content: bytes) -> None:
        """Keep it, and only then let the next one in."""
        assert self._held is not None
        try:
            trees = await self._states.trees()
            commit = await trees.commit(self._held, from_json(content), branch=self._branches)
        finally:
            await self._release()
        made = self._call.local(Made)
        made.states, made.commit = self._states, commit

    async def _release(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            await turn.end()
