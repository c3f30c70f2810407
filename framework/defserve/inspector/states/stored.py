"""Trees in a store that the inspector can read: that of a server in its own process, or one that it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.auth.principals import ANONYMOUS_PREFIX
from defserve.inspector.states.checkpoint import MISSING, Json, KnownCheckpoint
from defserve.protocols.mcpl.state.section import StateSection
from defserve.stores.checkpoints.store import CheckpointStore
from defserve.stores.checkpoints.tree import Checkpoint, CheckpointGone, CheckpointTree, TreeKey
from defserve.stores.identity import NOBODY, ServerStore, choose_server
from defserve.stores.open import open_store
from defserve.stores.store import Store

MOST_STEPS: Final = 256
"""How many new checkpoints are fetched one by one. Beyond that the whole tree is read again."""

Find: TypeAlias = Callable[[str], KnownCheckpoint | None]
"""What this inspector saw itself of a checkpoint."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state of a feature set in a store.

    facts  what is known of it: `store` (its address), `keep`, `undoes` (whether it has an `on_rollback`), `opaque`
    """

    trees: Callable[[], Awaitable[CheckpointStore]]
    facts: Json

    async def owners(self, feature_set: str) -> list[str]:
        """Whose trees there are."""
        return [key.owner for key in await (await self.trees()).list_trees() if key.feature_set == feature_set]


Stored: TypeAlias = Callable[[str], StoredState | None]
"""Feature set to its state in a store; None if it has none there, or the store cannot be read."""


def stored_by(section: StateSection) -> Stored:
    """The states of a server in this process. Their stores are open while it serves."""

    def find(feature_set: str) -> StoredState | None:
        states = next((each for each in section if each.name == feature_set), None)
        if states is None:
            return None
        facts: Json = {
            "store": _address(states.store),
            "keep": states.retention.keep,
            "undoes": section.undoes(feature_set),
        }
        return StoredState(states.trees, {**facts, "opaque": states.mode == "opaque"})

    return find


@asynccontextmanager
async def stored_at(address: str) -> AsyncGenerator[Stored]:
    """The states in the store at an address. It is only read. Raises UsageError for an address that is none."""
    store = open_store(address)

    found: list[CheckpointStore] = []

    async def opened() -> CheckpointStore:
        if found:
            return found[0]
        identity = await choose_server(store, None, is_reading=True)
        trees = CheckpointStore(ServerStore(store, identity), secret=bytes(32))  # ids are neither made nor verified
        if identity != NOBODY:  # until then, the server has stored nothing
            found.append(trees)
        return trees

    try:
        await store.open()
        yield lambda feature_set: StoredState(opened, {"store": address})
    finally:
        await store.close()


def _address(store: Store) -> str:
    path, raw = getattr(store, "path", None), getattr(store, "raw", store)
    return f"sqlite:///{path}" if path is not None else type(raw).__name__.removesuffix("Store").lower()


class StoredTree:
    """A tree in a store. What was read is kept; only what is new is read again."""

    def __init__(self, state: StoredState, key: TreeKey, find: Find) -> None:
        self._state, self._key, self._find = state, key, find
        self._at: CheckpointTree = CheckpointTree()
        self._read: list[KnownCheckpoint] = []
        self._places: dict[str, int] = {}
        self._reading = asyncio.Lock()

    @property
    def is_shared(self) -> bool:
        return True

    async def head(self) -> str | None:
        return (await self._load()).head

    async def count(self) -> int:
        return (await self._load()).kept

    async def has(self, id: str) -> bool:
        try:
            await (await self._state.trees()).get(self._key, id)
        except CheckpointGone:
            return False
        return True

    async def _load(self) -> CheckpointTree:
        return await (await self._state.trees()).load(self._key)

    async def checkpoints(self) -> Sequence[KnownCheckpoint]:
        # Several pages may follow one tree.
        async with self._reading:
            trees = await self._state.trees()
            now = await trees.load(self._key)
            new = await self._new(trees, now)
            if new is None:
                new = await trees.checkpoints(self._key)
                self._read, self._places = [], {}
            for each in new:
                self._places[each.id] = len(self._read)
                self._read.append(self._known(each))
            self._at = now
            return self._read

    async def content(self, id: str) -> Any:
        if self._state.facts.get("opaque"):
            return MISSING
        trees = await self._state.trees()
        checkpoint = await trees.get(self._key, id)
        return MISSING if checkpoint.opaque else await trees.content(self._key, id)

    def facts(self) -> Json:
        return {**self._state.facts, "owner": self._key.owner}

    async def _new(self, trees: CheckpointStore, now: CheckpointTree) -> list[Checkpoint] | None:
        """The checkpoints since the last time, the oldest first; None if the whole tree has to be read."""
        missing = now.last - self._at.last
        if not self._read or now.epoch != self._at.epoch or missing > MOST_STEPS:
            return None
        found: list[Checkpoint] = []
        id = now.head
        while id is not None and id not in self._places and len(found) < missing:
            found.append(await trees.get(self._key, id))
            id = found[-1].parent
        return found[::-1] if len(found) == missing else None

    def _known(self, at: Checkpoint) -> KnownCheckpoint:
        seen = self._find(at.id)
        owner = self._key.owner
        # The calls of somebody who signed in are all that somebody's own.
        who = None if owner.startswith(ANONYMOUS_PREFIX) else owner
        made = KnownCheckpoint(at.id, at.parent, at.number, at.time, who=who)
        if seen is not None:
            made.call, made.change, made.who = seen.call, seen.change, seen.who
        return made
