"""The checkpoints that the inspector knows of: those its own calls made, and those in a store that it can read.

A tree from the wire holds what the server told this inspector. A tree from a store holds every checkpoint of an owner.
Both are read in the same way. Nothing here changes a tree: rolling back is a request to the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from defserve.auth.principals import ANONYMOUS_PREFIX
from defserve.client.mcpl.state import MAX_STATE_CHECKPOINT_ID_LENGTH, StateChange, StateContentCache
from defserve.errors import UsageError
from defserve.inspector.differences import make_json_patch, summarize_patch
from defserve.protocols.mcpl.state.section import StateSection
from defserve.stores.checkpoints.checkpoint_store import CheckpointStore
from defserve.stores.checkpoints.checkpoint_tree import Checkpoint, CheckpointGone, CheckpointTree, TreeKey
from defserve.stores.identity import NO_SERVER_IDENTITY, ServerStore, choose_server_identity, open_store
from defserve.stores.store import Store

MAX_BYTES: Final = 32 * 1024 * 1024
MAX_TREES: Final = 200
AT_ONCE: Final = 2_000
"""Checkpoints in one part, so that a part stays well below the size of a frame."""
PAUSE: Final = 0.1
POLL: Final = 1.0

NO_PARENT: Final = -1
NOT_KEPT: Final = -2


class StateTrees:
    """`stored` finds what is in a store; without it, all that is known is what was watched. `saved` are of a file."""

    def __init__(self, stored: FindStoredState | None = None, saved: Iterable[SavedTree] = ()) -> None:
        self._stored = stored
        self._saved = {(tree.era, tree.feature_set, tree.owner): tree for tree in saved}
        self._watched: dict[tuple[str, str], WatchedTree] = {}
        self._read: dict[TreeKey, StoredTree] = {}
        self._contents = StateContentCache(MAX_BYTES)
        self._news = asyncio.Event()

    def record_change(self, era: str, change: StateChange) -> None:
        """A checkpoint was made, or gone back to."""
        self._of(era, change.feature_set).add(change)
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def list_trees(self, era: str, feature_set: str) -> list[Json]:
        """The trees of a feature set, the inspector's own first: `owner`, `kept`, `head`, and whether it is `own`.

        One without an owner is that which was watched, shown if no store has it.
        """
        if saved := [tree for (of, name, _), tree in self._saved.items() if (of, name) == (era, feature_set)]:
            return [
                {"owner": tree.owner, "kept": await tree.count_checkpoints(), "own": tree is saved[0]} for tree in saved
            ]
        watched, found = self._of(era, feature_set), list[Json]()
        head = await watched.get_head_id()
        state = self._stored(feature_set) if self._stored is not None else None
        for owner in (await state.list_owners(feature_set))[:MAX_TREES] if state is not None else ():
            tree = self._tree(feature_set, owner)
            is_own = head is not None and await tree.has_checkpoint(head)
            found.append({"owner": owner, "kept": await tree.count_checkpoints(), "own": is_own})
        if not any(tree["own"] for tree in found) and (head is not None or not found):
            found.append({"owner": None, "kept": await watched.count_checkpoints(), "own": True})
        return sorted(found, key=lambda tree: not tree["own"])

    def open_tree(self, era: str, feature_set: str, owner: str | None) -> CheckpointTreeView:
        """Raises UsageError for an owner in a store that cannot be read."""
        if (saved := self._saved.get((era, feature_set, owner))) is not None:
            return saved
        return self._of(era, feature_set) if owner is None else self._tree(feature_set, owner)

    def find_tree(self, era: str, checkpoint: str) -> tuple[str, CheckpointTreeView] | None:
        """The feature set and the tree of a checkpoint that a call of this session made; None if it is not known."""
        saved = ((tree.feature_set, tree) for tree in self._saved.values() if tree.era == era)
        watched = ((name, tree) for (of, name), tree in self._watched.items() if of == era)
        return next(((name, tree) for name, tree in (*saved, *watched) if tree.get(checkpoint) is not None), None)

    async def follow_tree(self, view: CheckpointTreeView) -> AsyncGenerator[Json]:
        """The tree in parts, then whatever is new in it, without an end.

        A part has `checkpoints`, each as (id, place of its parent, number, time, call, change, who), the oldest
        first, `from` the place of the first one, and `more` if the next part follows at once; the last of them has
        the `head` too. A place counts from the oldest that is kept; below 0 it is NO_PARENT or NOT_KEPT.
        """
        sent, last, told = 0, None, _UNTOLD
        places: dict[str, int] = {}
        while True:
            news = self._news
            known, head = await view.list_checkpoints(), await view.get_head_id()
            if sent and (len(known) < sent or known[sent - 1].id != last):
                sent, told = 0, _UNTOLD
                places.clear()
            while len(known) - sent > AT_ONCE:
                yield {"from": sent, "checkpoints": _rows(known[sent : sent + AT_ONCE], places), "more": True}
                sent += AT_ONCE
            if told != (head, len(known)):
                yield {"from": sent, "checkpoints": _rows(known[sent:], places), "head": head}
                sent, told = len(known), (head, len(known))
                last = known[-1].id if known else None
                await asyncio.sleep(PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL if view.is_shared else None):
                    await news.wait()

    async def describe_changes(self, view: CheckpointTreeView, ids: Iterable[str]) -> dict[str, str]:
        """What these checkpoints changed, in words; without those that nobody can say."""
        wanted, found = set(ids), dict[str, str]()
        for each in await view.list_checkpoints():
            if each.id not in wanted:
                continue
            if each.change is None:
                each.change = await self._describe_change(view, each)
            found[each.id] = each.change
        return found

    async def _describe_change(self, view: CheckpointTreeView, at: KnownCheckpoint) -> str:
        try:
            after = await view.get_content(at.id)
            before = await view.get_content(at.parent) if at.parent is not None else None
        except CheckpointGone:
            return ""
        return (
            ""
            if after is MISSING_CONTENT or before is MISSING_CONTENT
            else summarize_patch(make_json_patch(before, after))
        )

    def _of(self, era: str, feature_set: str) -> WatchedTree:
        if (found := self._watched.get((era, feature_set))) is None:
            found = self._watched[era, feature_set] = WatchedTree(f"{era} {feature_set}", self._contents)
        return found

    def _tree(self, feature_set: str, owner: str) -> StoredTree:
        key = TreeKey(feature_set, owner)
        if (found := self._read.get(key)) is not None:
            return found
        state = self._stored(feature_set) if self._stored is not None else None
        if state is None:
            raise UsageError(
                f"the inspector cannot read the store of {feature_set!r}",
                fix="start the inspector with the file of the server: then it can read the store",
            )
        if len(self._read) >= MAX_TREES:
            del self._read[next(iter(self._read))]
        found = self._read[key] = StoredTree(state, key, self._seen)
        return found

    def _seen(self, id: str) -> KnownCheckpoint | None:
        return next((found for tree in self._watched.values() if (found := tree.get(id)) is not None), None)


_UNTOLD: Final[Any] = object()


def _rows(checkpoints: Iterable[KnownCheckpoint], places: dict[str, int]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for each in checkpoints:
        parent = NO_PARENT if each.parent is None else places.get(each.parent, NOT_KEPT)
        places[each.id] = len(places)
        rows.append([each.id, parent, each.number, each.time, each.call, each.change, each.who])
    return rows


# -- A checkpoint as the page shows it, and a tree of them as the panel reads it.


@dataclass(slots=True)
class KnownCheckpoint:
    """A checkpoint, with what is known of how it came to be.

    number  counts the checkpoints of a tree
    call    the tool whose call made it
    change  what it changed from its parent, in words; None if that is not known yet
    who     who made it
    """

    id: str
    parent: str | None
    number: int
    time: float
    call: str | None = None
    change: str | None = None
    who: str | None = None


Find: TypeAlias = Callable[[str], KnownCheckpoint | None]
"""What this inspector saw itself of a checkpoint."""


# -- Trees in a store that the inspector can read: that of a server in its own process, or one that it was given.


MAX_STEPS: Final = 256
"""How many new checkpoints are fetched one by one. Beyond that the whole tree is read again."""


class ReadableTrees(Protocol):
    """What the inspector reads of a `CheckpointStore`, wherever that is."""

    async def list_trees(self) -> list[TreeKey]: ...
    async def load_tree(self, key: TreeKey) -> CheckpointTree: ...
    async def get_checkpoint(self, key: TreeKey, id: str) -> Checkpoint: ...
    async def list_checkpoints(self, key: TreeKey) -> list[Checkpoint]: ...
    async def load_content(self, key: TreeKey, id: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state of a feature set in a store.

    facts  what is known of it: `store` (its address), `keep`, `undoes` (whether it has an `on_rollback`), `opaque`
    """

    trees: Callable[[], Awaitable[ReadableTrees]]
    facts: Json

    async def list_owners(self, feature_set: str) -> list[str]:
        """Whose trees there are."""
        return [key.owner for key in await (await self.trees()).list_trees() if key.feature_set == feature_set]


FindStoredState: TypeAlias = Callable[[str], StoredState | None]
"""Feature set to its state in a store; None if it has none there, or the store cannot be read."""


def make_state_finder(section: StateSection) -> FindStoredState:
    """The states of a server in this process. Their stores are open while it serves."""

    def find(feature_set: str) -> StoredState | None:
        states = next((each for each in section if each.name == feature_set), None)
        if states is None:
            return None
        facts: Json = {
            "store": _address(states.store),
            "keep": states.retention.keep,
            "undoes": section.has_rollback_handler(feature_set),
        }
        return StoredState(states.trees, {**facts, "opaque": states.mode == "opaque"})

    return find


@asynccontextmanager
async def open_states_at(address: str) -> AsyncGenerator[FindStoredState]:
    """The states in the store at an address. It is only read. Raises UsageError for an address that is none."""
    store = open_store(address)

    found: list[CheckpointStore] = []

    async def open_trees() -> CheckpointStore:
        if found:
            return found[0]
        identity = await choose_server_identity(store, None, is_reading=True)
        trees = CheckpointStore(ServerStore(store, identity), secret=bytes(32))  # ids are neither made nor verified
        if identity != NO_SERVER_IDENTITY:  # until then, the server has stored nothing
            found.append(trees)
        return trees

    try:
        await store.open()
        yield lambda feature_set: StoredState(open_trees, {"store": address})
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

    is_shared: Final = True
    """Others can change it, and this inspector is not told."""

    async def get_head_id(self) -> str | None:
        return (await self._load()).head

    async def count_checkpoints(self) -> int:
        return (await self._load()).kept

    async def has_checkpoint(self, id: str) -> bool:
        try:
            await (await self._state.trees()).get_checkpoint(self._key, id)
        except CheckpointGone:
            return False
        return True

    async def _load(self) -> CheckpointTree:
        return await (await self._state.trees()).load_tree(self._key)

    async def list_checkpoints(self) -> Sequence[KnownCheckpoint]:
        """All that are kept, the oldest first."""
        # Several pages may follow one tree.
        async with self._reading:
            trees = await self._state.trees()
            now = await trees.load_tree(self._key)
            new = await self._new(trees, now)
            if new is None:
                new = await trees.list_checkpoints(self._key)
                self._read, self._places = [], {}
            for each in new:
                self._places[each.id] = len(self._read)
                self._read.append(self._make_known_checkpoint(each))
            self._at = now
            return self._read

    async def get_content(self, id: str) -> Any:
        """The content of a checkpoint, or MISSING. Raises CheckpointGone."""
        if self._state.facts.get("opaque"):
            return MISSING_CONTENT
        trees = await self._state.trees()
        checkpoint = await trees.get_checkpoint(self._key, id)
        return MISSING_CONTENT if checkpoint.opaque else await trees.load_content(self._key, id)

    def describe_tree(self) -> Json:
        """What is known of the tree: some of `owner`, `store`, `keep`, `undoes`, `opaque`."""
        return {**self._state.facts, "owner": self._key.owner}

    async def _new(self, trees: ReadableTrees, now: CheckpointTree) -> list[Checkpoint] | None:
        """The checkpoints since the last time, the oldest first; None if the whole tree has to be read."""
        missing = now.last - self._at.last
        if not self._read or now.epoch != self._at.epoch or missing > MAX_STEPS:
            return None
        found: list[Checkpoint] = []
        id = now.head
        while id is not None and id not in self._places and len(found) < missing:
            found.append(await trees.get_checkpoint(self._key, id))
            id = found[-1].parent
        return found[::-1] if len(found) == missing else None

    def _make_known_checkpoint(self, at: Checkpoint) -> KnownCheckpoint:
        seen = self._find(at.id)
        owner = self._key.owner
        # The calls of somebody who signed in are all that somebody's own.
        who = None if owner.startswith(ANONYMOUS_PREFIX) else owner
        made = KnownCheckpoint(at.id, at.parent, at.number, at.time, who=who)
        if seen is not None:
            made.call, made.change, made.who = seen.call, seen.change, seen.who
        return made


# -- A tree of the checkpoints that this inspector has seen being made, in one conversation after another.


MAX_CHECKPOINTS: Final = 20_000
DROPPED_AT_ONCE: Final = 1_000


class WatchedTree:
    """`key` names it among the contents, which several trees share. At most `most` checkpoints are kept."""

    def __init__(
        self, key: str, contents: StateContentCache, most: int = MAX_CHECKPOINTS, clock: Callable[[], float] = time.time
    ) -> None:
        self._key, self._contents, self._most, self._clock = key, contents, most, clock
        self._known: dict[str, KnownCheckpoint] = {}
        self._head: str | None = None
        self._last = 0
        self._has_contents = True

    def add(self, change: StateChange) -> None:
        """Take a checkpoint that was made, or gone back to. An id that nobody could mean is left out."""
        if (
            len(change.checkpoint) > MAX_STATE_CHECKPOINT_ID_LENGTH
            or len(change.parent or "") > MAX_STATE_CHECKPOINT_ID_LENGTH
        ):
            return
        self._head = change.checkpoint
        if change.by_rollback or change.checkpoint in self._known:
            return
        self._last += 1
        self._has_contents = change.content is not None
        said = None
        if change.content is not None:
            before = self._contents.get_content(self._key, change.parent)
            if before is not None or change.parent is None:
                said = summarize_patch(make_json_patch(before, change.content))
            self._contents.store_content(self._key, change.checkpoint, change.content)
        self._known[change.checkpoint] = KnownCheckpoint(
            change.checkpoint,
            change.parent,
            self._last,
            self._clock(),
            change.tool,
            said,
            "inspector" if change.tool is not None else "server",
        )
        if len(self._known) > self._most:
            for old in list(self._known)[:DROPPED_AT_ONCE]:
                del self._known[old]

    def get(self, id: str) -> KnownCheckpoint | None:
        return self._known.get(id)

    is_shared: Final = False

    async def count_checkpoints(self) -> int:
        return len(self._known)

    async def get_head_id(self) -> str | None:
        return self._head

    async def list_checkpoints(self) -> Sequence[KnownCheckpoint]:
        return list(self._known.values())

    async def get_content(self, id: str) -> Any:
        found = self._contents.get_content(self._key, id)
        return MISSING_CONTENT if found is None else found

    def describe_tree(self) -> Json:
        return {} if self._has_contents else {"opaque": True}


class SavedTree:
    """A tree of a session file: it stays as it is. Contents are kept as JSON."""

    def __init__(self, era: str, feature_set: str, owner: str | None, head: str | None, facts: Json) -> None:
        self.era, self.feature_set, self.owner, self._head, self._facts = era, feature_set, owner, head, facts
        self._known: dict[str, KnownCheckpoint] = {}
        self._contents: dict[str, bytes] = {}

    is_shared: Final = False

    def add_checkpoint(self, checkpoint: KnownCheckpoint, content: bytes | None) -> bool:
        """Take the next checkpoint. False if there is one of its id."""
        if checkpoint.id in self._known:
            return False
        self._known[checkpoint.id] = checkpoint
        if content is not None:
            self._contents[checkpoint.id] = content
        return True

    def get(self, id: str) -> KnownCheckpoint | None:
        return self._known.get(id)

    def __len__(self) -> int:
        return len(self._known)

    async def count_checkpoints(self) -> int:
        return len(self)

    async def get_head_id(self) -> str | None:
        return self._head if self._head in self._known else None

    async def list_checkpoints(self) -> Sequence[KnownCheckpoint]:
        return list(self._known.values())

    async def get_content(self, id: str) -> Any:
        found = self._contents.get(id)
        return MISSING_CONTENT if found is None else json.loads(found)

    def describe_tree(self) -> Json:
        return self._facts


Json: TypeAlias = dict[str, Any]


MISSING_CONTENT: Final = object()
"""In place of a content that the server keeps for itself, or that nobody told."""

CheckpointTreeView: TypeAlias = StoredTree | WatchedTree | SavedTree
"""One tree, wherever it comes from."""
