"""A state held for one call: a value of its own, kept when the call succeeds and let go otherwise. For every peer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from pydantic_core import from_json

from defserve.core.call import Call
from defserve.errors import LimitExceeded
from defserve.protocols.mcpl.errors import CheckpointNotFound, StateRefused
from defserve.protocols.mcpl.feature_sets import live
from defserve.protocols.mcpl.state_binding import Working
from defserve.protocols.mcpl.state_owner import Unowned, owner_of
from defserve.protocols.mcpl.state_wire import given, refuse_content, start
from defserve.stores.checkpoint_store import Commit, Held
from defserve.stores.checkpoints import Gone, TreeKey

if TYPE_CHECKING:
    from defserve.protocols.mcpl.state import States


class StateBusy(LimitExceeded):
    """Another call holds the same state for too long."""

    error_type = "state_busy"

    def __init__(self) -> None:
        super().__init__("Another call works on this state; try again later", data={"retry_after_ms": 1000})


class Locks:
    """One call at a time on each tree, within one event loop; forgotten when nobody waits."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[int, TreeKey], asyncio.Lock] = WeakValueDictionary()

    async def acquire(self, key: TreeKey, seconds: float) -> asyncio.Lock:
        """The lock of a tree, to be released. Raises StateBusy."""
        place = id(asyncio.get_running_loop()), key
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError:
            raise StateBusy from None
        return lock


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

    __slots__ = ("_states", "_call", "_lock", "_held", "_branches", "_before", "_value")

    def __init__(self, states: States[Any], call: Call) -> None:
        self._states, self._call = states, call
        self._lock: asyncio.Lock | None = None
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
        self._branches = brought.names or not owner.has_head or states.concurrency == "branch"
        if states.concurrency == "serial":
            self._lock = await states.locks.acquire(key, call.session.composition.limits.tool)
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
            self._release()
            raise CheckpointNotFound(gone.data["checkpoint"]) from None
        except BaseException:
            self._release()
            raise
        working = call.local(Working)
        working.states, working.value = states, self._value

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            over = kind is not None or self._call.stopped or self._call.settled
            content = None if over else self._content()
        except BaseException:
            self._release()
            raise
        if content is None:
            self._release()
        else:
            await uninterrupted(self._call, self._commit(content))

    def _content(self) -> bytes | None:
        """What there is to keep. The first checkpoint is made for a host to come back to, whatever the call did."""
        assert self._held is not None
        content = self._states.checked(self._value)
        begins = self._held.parent is None and self._held.before is None and live(self._call) is not None
        return content if begins or content != self._before else None

    async def _commit(self, content: bytes) -> None:
        """Keep it, and only then let the next one in."""
        assert self._held is not None
        try:
            trees = await self._states.trees()
            commit = await trees.commit(self._held, from_json(content), branch=self._branches)
        finally:
            self._release()
        made = self._call.local(Made)
        made.states, made.commit = self._states, commit

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
