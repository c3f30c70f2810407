"""All trees that an inspector can show: what it watched in each era, and what a store has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import Any, Final

from defserve.errors import UsageError
from defserve.host.mcpl.state import KeptContents, StateChange
from defserve.inspector.states.changes import patch, words
from defserve.inspector.states.checkpoint import MISSING, CheckpointView, Json, KnownCheckpoint
from defserve.inspector.states.stored import Stored, StoredTree
from defserve.inspector.states.watched import WatchedTree
from defserve.stores.checkpoints.tree import CheckpointGone, TreeKey

MOST_BYTES: Final = 32 * 1024 * 1024
MOST_TREES: Final = 200
AT_ONCE: Final = 2_000
"""Checkpoints in one part, so that a part stays well below the size of a frame."""
PAUSE: Final = 0.1
POLL: Final = 1.0

NO_PARENT: Final = -1
NOT_KEPT: Final = -2


class StateTrees:
    """`stored` finds what is in a store; without it, all that is known is what was watched."""

    def __init__(self, stored: Stored | None = None) -> None:
        self._stored = stored
        self._watched: dict[tuple[str, str], WatchedTree] = {}
        self._read: dict[TreeKey, StoredTree] = {}
        self._contents = KeptContents(MOST_BYTES)
        self._news = asyncio.Event()

    def heard(self, era: str, change: StateChange) -> None:
        """A checkpoint was made, or gone back to."""
        self._of(era, change.feature_set).add(change)
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def trees(self, era: str, feature_set: str) -> list[Json]:
        """The trees of a feature set, the inspector's own first: `owner`, `kept`, `head`, and whether it is `own`.

        One without an owner is that which was watched, shown if no store has it.
        """
        watched, found = self._of(era, feature_set), list[Json]()
        head = await watched.head()
        state = self._stored(feature_set) if self._stored is not None else None
        for owner in (await state.owners(feature_set))[:MOST_TREES] if state is not None else ():
            tree = self._tree(feature_set, owner)
            is_own = head is not None and await tree.has(head)
            found.append({"owner": owner, "kept": await tree.count(), "own": is_own})
        if not any(tree["own"] for tree in found) and (head is not None or not found):
            found.append({"owner": None, "kept": await watched.count(), "own": True})
        return sorted(found, key=lambda tree: not tree["own"])

    def view(self, era: str, feature_set: str, owner: str | None) -> CheckpointView:
        """Raises UsageError for an owner in a store that cannot be read."""
        return self._of(era, feature_set) if owner is None else self._tree(feature_set, owner)

    async def follow(self, view: CheckpointView) -> AsyncGenerator[Json]:
        """The tree in parts, then whatever is new in it, without an end.

        A part has `checkpoints`, each as (id, place of its parent, number, time, call, change, who), the oldest
        first, `from` the place of the first one, and `more` if the next part follows at once; the last of them has
        the `head` too. A place counts from the oldest that is kept; below 0 it is NO_PARENT or NOT_KEPT.
        """
        sent, last, told = 0, None, _UNTOLD
        places: dict[str, int] = {}
        while True:
            news = self._news
            known, head = await view.checkpoints(), await view.head()
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

    async def changes(self, view: CheckpointView, ids: Iterable[str]) -> dict[str, str]:
        """What these checkpoints changed, in words; without those that nobody can say."""
        wanted, found = set(ids), dict[str, str]()
        for each in await view.checkpoints():
            if each.id not in wanted:
                continue
            if each.change is None:
                each.change = await self._said(view, each)
            found[each.id] = each.change
        return found

    async def _said(self, view: CheckpointView, at: KnownCheckpoint) -> str:
        try:
            after = await view.content(at.id)
            before = await view.content(at.parent) if at.parent is not None else None
        except CheckpointGone:
            return ""
        return "" if after is MISSING or before is MISSING else words(patch(before, after))

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
        if len(self._read) >= MOST_TREES:
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
