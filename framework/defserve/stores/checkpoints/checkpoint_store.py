"""Checkpoint trees in a store. Every change is one atomic step, made only if the tree is as it was read.

So no tree forks and no commit is lost. A call holds a checkpoint, works on a copy of its content, and commits it:

    held = await trees.hold(key)
    content = held.content()
    …
    made = await trees.commit(held, content)
"""

from __future__ import annotations

import os
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from defserve.errors import LimitExceeded, Refused
from defserve.stores.checkpoints.checkpoint_tree import (
    DIGEST_PREFIX,
    Checkpoint,
    CheckpointContent,
    CheckpointDraft,
    CheckpointGone,
    CheckpointRecord,
    CheckpointTree,
    ContentTooDeep,
    LinePosition,
    RandomBytesPool,
    Retention,
    TreeKey,
    find_tree_problems,
    is_checkpoint_id,
    list_ancestors,
    list_branches,
    make_checkpoint_draft,
    make_checkpoint_id,
    make_checkpoint_record,
    make_digest_name,
    plan_pruning,
    restore_content,
    verify_checkpoint_id,
)
from defserve.stores.checkpoints.json_patches import (
    MAX_PATCHED_BYTES,
    MAX_PATCHED_DEPTH,
    PatchOperation,
    diff_json_values,
    is_patch_shorter,
)
from defserve.stores.identity import NO_SERVER_IDENTITY, ServerIdentity
from defserve.stores.store import (
    API_KEYS_SPACE,
    CHECKPOINT_SPACES,
    SECRETS_SPACE,
    Store,
    StoreBusy,
    StoreChange,
    StoreCorrupt,
)

TREE: Final = "tree"
"""The name of the tree itself in its space; no checkpoint's id."""
ATTEMPTS: Final = 64
CACHED: Final = 64 * 1024 * 1024


class HeadMoved(Refused):
    """Another call committed or rolled back meanwhile, so this one cannot commit."""

    error_type = "state_conflict"

    def __init__(self, head: str | None) -> None:
        super().__init__("The state was changed meanwhile; try again", data={"checkpoint": head})


class StateTampered(Refused):
    """A content that does not belong to its checkpoint."""

    error_type = "state_tampered"

    def __init__(self, id: str) -> None:
        super().__init__("The state does not belong to its checkpoint", data={"checkpoint": id})


class _Opaque:
    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE: Final = _Opaque()
"""Commits a checkpoint without a content: a name for a state that is kept elsewhere."""


class HeldCheckpoint(NamedTuple):
    """The checkpoint that a call starts from; empty in a tree that has none yet.

    `verified` is false if content that a caller brought is part of its line, or may be. Every checkpoint that is made
    below it inherits that.
    """

    key: TreeKey
    tree: CheckpointTree
    parent: str | None = None
    verified: bool = True
    before: CheckpointContent | None = None
    record: CheckpointRecord | None = None
    seen: bytes | None = None

    def __repr__(self) -> str:
        return f"Held({self.key!r}, {self.parent!r})"

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint in the tree; None if it is not kept there."""
        return self.record.checkpoint if self.record is not None else None

    @property
    def is_head(self) -> bool:
        """Whether a checkpoint is held that was the head when it was read."""
        return self.parent is not None and self.parent == self.tree.head

    def content(self) -> Any:
        """A copy of the content; None if there is none."""
        return self.before.copy() if self.before is not None else None


class CheckpointCommit(NamedTuple):
    """A checkpoint that was made, and its content."""

    checkpoint: Checkpoint
    made: CheckpointDraft | None = None

    def __repr__(self) -> str:
        return f"Commit({self.checkpoint!r})"

    @property
    def content(self) -> Any:
        """Its content, which must not be changed; None if it has none."""
        return self.made.content.value if self.made is not None else None

    def patch(self) -> list[PatchOperation] | None:
        """The patch from the parent's content; None if there is none, or if it is no shorter than the content."""
        ops = self.made.ops if self.made is not None else None
        return (
            ops
            if self.made is not None and ops is not None and is_patch_shorter(ops, self.made.content.encoded)
            else None
        )


class CheckpointStore:
    """The trees in a store. Ids are made with `secret`: give the same secret to all who share the store.

    `old_secret` is what 0.1.0 made ids with (`OLD_SECRET_NAME`). It recognizes ids that prove nothing.
    """

    def __init__(
        self,
        store: Store,
        *,
        secret: bytes,
        old_secret: bytes | None = None,
        retention: Retention | None = None,
        max_bytes: int = MAX_PATCHED_BYTES,
        max_depth: int = MAX_PATCHED_DEPTH,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._secret, self._old_secret, self._clock = store, secret, old_secret, clock
        self.retention = retention or Retention()
        self._max_bytes, self._max_depth = max_bytes, max_depth
        self._known, self._random = CheckpointCache(CACHED), RandomBytesPool()

    async def load_tree(self, key: TreeKey) -> CheckpointTree:
        """The tree as it is now; an empty one if nothing was ever committed."""
        return (await self._load(key))[1]

    async def load_checkpoint(self, key: TreeKey, at: str | None = None) -> HeldCheckpoint:
        """The head, or the checkpoint `at`, to start from. Raises CheckpointGone."""
        seen, tree = await self._load(key)
        id = tree.head if at is None else at
        if id is None:
            return HeldCheckpoint(key, tree, seen=seen)
        found = self._known.find(key, tree, id) if at is None else None
        record, before = found or await self._find(key, tree, id)
        return HeldCheckpoint(key, tree, id, record.checkpoint.proved, before=before, record=record, seen=seen)

    async def load_before_first_checkpoint(self, key: TreeKey) -> HeldCheckpoint:
        """The initial state, whether or not the tree has checkpoints."""
        seen, tree = await self._load(key)
        return HeldCheckpoint(key, tree, seen=seen)

    async def find_retained_record(self, key: TreeKey, id: str) -> CheckpointRecord | None:
        """A checkpoint that is retained, without its content."""
        tree = await self.load_tree(key)
        known = self._known.find(key, tree, id)
        record = known[0] if known is not None else await self._record(key, id)
        return (
            record
            if record is not None and self.retention.is_retained(record.checkpoint, tree, self._clock())
            else None
        )

    async def find_proved_checkpoint(self, key: TreeKey, content: bytes) -> HeldCheckpoint | None:
        """The latest proved checkpoint of a tree with this content in canonical form, if it is retained."""
        name = make_digest_name(content)
        if (id := (await self._store.get(key.space, [name])).get(name)) is None:
            return None
        try:
            held = await self.load_checkpoint(key, id.decode())
        except CheckpointGone:
            return None
        return held if held.verified and held.before is not None and held.before.encoded == content else None

    async def adopt_content(self, key: TreeKey, content: Any, *, checkpoint: str | None = None) -> HeldCheckpoint:
        """Start from a content that comes from elsewhere, and the checkpoint that it claims to be.

        The checkpoint may have been pruned: its id says whether it is proved. Raises StateTampered if the two do not
        belong together for this owner, and LimitExceeded. Without a checkpoint it is not `verified` and has no parent.
        """
        seen, tree = await self._load(key)
        known = self._known.find(key, tree, checkpoint) if checkpoint is not None else None
        before = self._draft(content, known[1] if known is not None else None).content
        if checkpoint is None:
            return HeldCheckpoint(key, tree, verified=False, before=before, seen=seen)
        proved = self._is_made(key, checkpoint, before.encoded, is_proved=True)
        if not (proved or self._is_made(key, checkpoint, before.encoded, is_proved=False)):
            raise StateTampered(checkpoint)
        record = await self._record(key, checkpoint)
        return HeldCheckpoint(key, tree, checkpoint, proved, before=before, record=record, seen=seen)

    def draft_commit(self, held: HeldCheckpoint, content: Any) -> CheckpointDraft:
        """What a commit would store for a JSON value, or for the text of one in bytes. No I/O.

        Raises LimitExceeded or ValueError for a content that cannot be kept.
        """
        return self._draft(content, held.before)

    async def commit(
        self,
        held: HeldCheckpoint,
        content: Any = OPAQUE,
        *,
        branch: bool = False,
        moves_head: bool = True,
        position: LinePosition | None = None,
    ) -> CheckpointCommit:
        """Make a new checkpoint of `content` below the one that is held, and make it the head if it `moves_head`.

        It is proved if what is held is verified. `position` says what it undoes or redoes.
        The content is a draft, a JSON value, or the text of one in bytes; it is not changed. Returns when it is stored.
        Raises HeadMoved if the held checkpoint is not the head, unless it may `branch` off, and LimitExceeded or
        ValueError for a content that cannot be stored. A commit that raises leaves nothing behind, with one exception:
        if the store was lost during the commit, the checkpoint may still appear as the head.
        """
        made = (
            content
            if isinstance(content, CheckpointDraft)
            else None
            if content is OPAQUE
            else self.draft_commit(held, content)
        )
        key, encoded = held.key, made.content.encoded if made is not None else b""
        proved, random = held.verified, self._random.take_bytes()
        id = make_checkpoint_id(self._secret, key.owner, key.feature_set, encoded, random, is_proved=proved)
        found_by = {make_digest_name(encoded): id.encode()} if proved and made is not None else {}
        for _ in range(ATTEMPTS):
            if not branch and held.parent != held.tree.head:
                raise HeadMoved(held.tree.head)
            record, tree = self._next(held, id, made)
            record = record._replace(position=position) if position is not None else record
            if not moves_head:
                tree = tree._replace(head=held.tree.head)
            put = {TREE: tree.encode(), id: record.encode(), **found_by}
            change = StoreChange(key.space, put=put, expect={TREE: held.seen})
            # A store that lost its connection may repeat a change, and then find its own first attempt.
            if await self._store.change(change) or await self._record(key, id) is not None:
                self._known.move(key, tree, record, made.content if made is not None else None)
                if self.retention.is_due(tree):
                    # The commit is stored and must be acknowledged. Pruning is due again with the next one.
                    with suppress(Refused):
                        await self.prune(key)
                return CheckpointCommit(record.checkpoint, made)
            held = await self._again(held)
        raise _make_contention_error()

    async def rebase_held_checkpoint(self, key: TreeKey, held: HeldCheckpoint) -> HeldCheckpoint:
        """What is held in one tree, to commit below it in another, which has no head of its own. No I/O in the first.

        Nothing in the other tree depends on the first: it keeps the whole content.
        """
        seen, tree = await self._load(key)
        return held._replace(key=key, tree=tree, seen=seen, record=None)

    async def rollback(self, key: TreeKey, to: str) -> Checkpoint:
        """Make a checkpoint the head. Raises CheckpointGone."""
        held = await self.load_checkpoint(key, to)
        return held.checkpoint if held.checkpoint and held.tree.head == to else await self.restore_as_head(held)

    async def restore_as_head(self, held: HeldCheckpoint) -> Checkpoint:
        """Make the checkpoint that is held the head, even if it is no longer retained, or was pruned since.

        Raises CheckpointGone if the whole tree was forgotten.
        """
        record, key, seen, tree = held.record, held.key, held.seen, held.tree
        if record is None:
            raise CheckpointGone(held.parent or "")
        lost: dict[str, bytes] = {}
        for _ in range(ATTEMPTS):
            moved = tree._replace(head=record.id, kept=tree.kept + len(lost))
            change = StoreChange(key.space, put={TREE: moved.encode(), **lost}, expect={TREE: seen})
            if await self._store.change(change):
                return record.checkpoint
            seen, tree = await self._load(key)
            if tree.head == record.id:
                return record.checkpoint
            lost = {}
            if await self._record(key, record.id) is None:
                if seen is None or not tree.is_later_version_of(held.tree):
                    raise CheckpointGone(record.id)
                lost[record.id] = (
                    record.as_snapshot(held.before.encoded) if held.before is not None else record
                ).encode()
        raise _make_contention_error()

    async def get_checkpoint(self, key: TreeKey, id: str) -> Checkpoint:
        """Raises CheckpointGone."""
        return (await self._find(key, await self.load_tree(key), id))[0].checkpoint

    async def load_content(self, key: TreeKey, id: str) -> Any:
        """A copy of a checkpoint's content; None if it has none. Raises CheckpointGone."""
        return (await self.load_checkpoint(key, id)).content()

    async def diff(self, key: TreeKey, a: str, b: str) -> list[PatchOperation]:
        """The patch from one checkpoint's content to another's, anywhere in the tree. Raises CheckpointGone."""
        return diff_json_values(await self.load_content(key, a), await self.load_content(key, b))

    async def list_checkpoints(self, key: TreeKey) -> list[Checkpoint]:
        """All checkpoints that can be asked for, the oldest first. Reads the whole tree."""
        tree, records, _ = await self._scan(key)
        now = self._clock()
        found = (record.checkpoint for record in records.values())
        return sorted((at for at in found if self.retention.is_retained(at, tree, now)), key=lambda at: at.number)

    async def list_branches(self, key: TreeKey) -> list[Checkpoint]:
        """The checkpoints without children. Reads the whole tree."""
        return list_branches(await self.list_checkpoints(key))

    async def list_ancestors(self, key: TreeKey, id: str | None = None) -> list[Checkpoint]:
        """A checkpoint, or the head, and its ancestors up to the root. Reads the whole tree. Raises CheckpointGone."""
        start = await self.get_checkpoint(key, id) if id is not None else None
        end = start.id if start is not None else (await self.load_tree(key)).head
        return list_ancestors(await self.list_checkpoints(key), end) if end is not None else []

    async def prune(self, key: TreeKey, retention: Retention | None = None) -> int:
        """Drop the checkpoints that are not retained, and return their number. Nothing else changes for callers."""
        for _ in range(ATTEMPTS):
            seen, tree = await self._load(key)
            _, records, digests = await self._scan(key)
            todo = plan_pruning(records, tree, retention or self.retention, self._clock())
            if not todo.drop:
                return 0
            after = tree._replace(kept=tree.kept - len(todo.drop), epoch=tree.epoch + 1)
            put = {TREE: after.encode(), **{record.id: record.encode() for record in todo.rewrite}}
            dropped = frozenset(todo.drop)
            drop = [*todo.drop, *(name for name, id in digests.items() if id in dropped)]
            if await self._store.change(StoreChange(key.space, put=put, drop=drop, expect={TREE: seen})):
                return len(todo.drop)
        raise _make_contention_error()

    async def drop_tree(self, key: TreeKey) -> None:
        """Drop a whole tree."""
        for _ in range(ATTEMPTS):
            seen, _ = await self._load(key)
            names = [name async for name, _ in self._store.scan(key.space)]
            if await self._store.change(StoreChange(key.space, drop=[*names, TREE], expect={TREE: seen})):
                return
        raise _make_contention_error()

    async def list_trees(self) -> list[TreeKey]:
        return sorted([TreeKey.from_space(space) async for space in self._store.spaces(CHECKPOINT_SPACES)])

    async def export(self, key: TreeKey) -> AsyncIterator[dict[str, Any]]:
        """Every checkpoint with its content, as JSON, the oldest first."""
        tree = await self.load_tree(key)
        for at in await self.list_checkpoints(key):
            yield {**at._asdict(), "head": at.id == tree.head, "content": await self.load_content(key, at.id)}

    async def verify(self, key: TreeKey) -> list[str]:
        """The problems of a tree, a line each: lost or unreadable checkpoints, contents that do not match their ids."""
        try:
            tree, records, _ = await self._scan(key)
        except StoreCorrupt as corrupt:
            return [corrupt.message]
        return find_tree_problems(records, tree) or [
            f"{id} was not made with this secret for this content"
            for id, record in records.items()
            if not self._is_made(key, id, _get_encoded_content(record, records), is_proved=record.checkpoint.proved)
        ]

    def _is_made(self, key: TreeKey, id: str, content: bytes, *, is_proved: bool) -> bool:
        # Anyone with the old secret could prove anything at every server that had it: it proves nothing.
        keys = (self._secret,) if is_proved or self._old_secret is None else (self._secret, self._old_secret)
        return any(
            verify_checkpoint_id(secret, id, key.owner, key.feature_set, content, is_proved=is_proved)
            for secret in keys
        )

    def _draft(self, content: Any, before: CheckpointContent | None) -> CheckpointDraft:
        try:
            made = make_checkpoint_draft(content, before, self._max_depth)
        except ContentTooDeep:
            raise _too_much("levels", self._max_depth) from None
        if len(made.content.encoded) > self._max_bytes:
            raise _too_much("bytes", self._max_bytes)
        return made

    def _next(
        self, held: HeldCheckpoint, id: str, made: CheckpointDraft | None
    ) -> tuple[CheckpointRecord, CheckpointTree]:
        tree, parent = held.tree, held.checkpoint
        depth = parent.depth + 1 if parent is not None else 0
        at = Checkpoint(id, held.parent, depth, tree.last + 1, self._clock(), made is None, held.verified)
        epoch = tree.epoch if held.seen is not None else int.from_bytes(os.urandom(4))
        return make_checkpoint_record(at, made, held.record), CheckpointTree(id, tree.last + 1, tree.kept + 1, epoch)

    async def _again(self, held: HeldCheckpoint) -> HeldCheckpoint:
        """The same checkpoint in the tree as it is now."""
        seen, tree = await self._load(held.key)
        record = held.record
        if record is not None and tree.epoch != held.tree.epoch:
            record = await self._record(held.key, record.id)
        return held._replace(tree=tree, seen=seen, record=record)

    async def _load(self, key: TreeKey) -> tuple[bytes | None, CheckpointTree]:
        seen = (await self._store.get(key.space, [TREE])).get(TREE)
        return seen, CheckpointTree.decode(seen) if seen is not None else CheckpointTree()

    async def _record(self, key: TreeKey, id: str) -> CheckpointRecord | None:
        found = (await self._store.get(key.space, [id])).get(id) if is_checkpoint_id(id) else None
        return CheckpointRecord.decode(id, found) if found is not None else None

    async def _find(
        self, key: TreeKey, tree: CheckpointTree, id: str
    ) -> tuple[CheckpointRecord, CheckpointContent | None]:
        """A checkpoint that is retained, and its content. Raises CheckpointGone."""
        known = self._known.find(key, tree, id)
        found = known or await self._read_checkpoint(key, id)
        if found is None or not self.retention.is_retained(found[0].checkpoint, tree, self._clock()):
            raise CheckpointGone(id)
        if known is None:
            self._known.store_checkpoint(key, tree, *found)
        return found

    async def _read_checkpoint(self, key: TreeKey, id: str) -> tuple[CheckpointRecord, CheckpointContent | None] | None:
        missing: list[str] = []
        for _ in range(ATTEMPTS):
            record = await self._record(key, id)
            if record is None:
                return None
            chain = await self._store.get(key.space, record.chain) if record.chain else {}
            lost = [name for name in record.chain if name not in chain]
            if not lost:
                return record, _content_of(
                    record, {name: CheckpointRecord.decode(name, it) for name, it in chain.items()}
                )
            if lost == missing:
                break
            # It was pruned between the two reads. Then the record itself was rewritten as well.
            missing = lost
        raise StoreCorrupt(f"the content of the checkpoint {id} cannot be found")

    async def _scan(self, key: TreeKey) -> tuple[CheckpointTree, dict[str, CheckpointRecord], dict[str, str]]:
        """A tree, its records by their ids, and the ids by the names of the digests that lead to them."""
        _, tree = await self._load(key)
        records, digests = dict[str, CheckpointRecord](), dict[str, str]()
        async for name, data in self._store.scan(key.space):
            if name.startswith(DIGEST_PREFIX):
                digests[name] = data.decode(errors="replace")
            elif name != TREE:
                records[name] = CheckpointRecord.decode(name, data)
        return tree, records, digests


def _content_of(record: CheckpointRecord, records: dict[str, CheckpointRecord]) -> CheckpointContent | None:
    if record.form == "opaque":
        return None
    value = restore_content(record, records)
    return CheckpointContent(record.body, value) if record.form == "snapshot" else CheckpointContent.from_value(value)


def _get_encoded_content(record: CheckpointRecord, records: dict[str, CheckpointRecord]) -> bytes:
    found = _content_of(record, records)
    return found.encoded if found is not None else b""


def _too_much(what: str, limit: int) -> LimitExceeded:
    return LimitExceeded(
        f"the state exceeds the limit of {limit} {what}", data={"limit": f"checkpoint_{what}", "max": limit}
    )


def _make_contention_error() -> StoreBusy:
    return StoreBusy("too many calls change this state at once", data={"retry_after_ms": 100})


# -- The checkpoints used last, in memory: a call on the head then reads nothing but the position of the head.


class CheckpointCache:
    """Records and contents by their ids, up to `limit` bytes. An entry is valid until its tree is rewritten."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._held: OrderedDict[tuple[TreeKey, str], tuple[int, CheckpointRecord, CheckpointContent | None, int]] = (
            OrderedDict()
        )

    def find(
        self, key: TreeKey, tree: CheckpointTree, id: str
    ) -> tuple[CheckpointRecord, CheckpointContent | None] | None:
        found = self._held.get((key, id))
        if found is None or found[0] != tree.epoch:
            return None
        self._held.move_to_end((key, id))
        return found[1], found[2]

    def store_checkpoint(
        self, key: TreeKey, tree: CheckpointTree, record: CheckpointRecord, content: CheckpointContent | None
    ) -> None:
        self._drop(key, record.id)
        # A decoded value takes several times the room of its text.
        weight = 1024 + len(record.body) + (8 * len(content.encoded) if content is not None else 0)
        self._held[key, record.id] = tree.epoch, record, content, weight
        self._bytes += weight
        while self._bytes > self._limit:
            self._bytes -= self._held.popitem(last=False)[1][3]

    def move(
        self, key: TreeKey, tree: CheckpointTree, record: CheckpointRecord, content: CheckpointContent | None
    ) -> None:
        """Keep a new checkpoint in place of its parent: most calls continue from there."""
        if record.checkpoint.parent is not None:
            self._drop(key, record.checkpoint.parent)
        self.store_checkpoint(key, tree, record, content)

    def _drop(self, key: TreeKey, id: str) -> None:
        if (dropped := self._held.pop((key, id), None)) is not None:
            self._bytes -= dropped[3]


# -- The secret for the ids of checkpoints: derived from the server's secret, or kept in the store.


KEY: Final = "checkpoints"
OLD_SECRET_NAME: Final = "checkpoints 0.1.0"
"""What 0.1.0 made ids with. It names no server, and a secret that is changed does not change it. So ids are recognized
with it that prove nothing, as all of 0.1.0 do, and none is made. `defserve state adopt` keeps it."""


async def read_checkpoint_secret(store: Store) -> bytes | None:
    """The secret for ids in the store, if there is one."""
    return (await store.get(SECRETS_SPACE, [KEY])).get(KEY)


async def find_old_secret(store: Store) -> bytes | None:
    """The secret that 0.1.0 made ids with, if the store has any of 0.1.0."""
    # 0.1.0 kept it among the API keys.
    return (await store.get(SECRETS_SPACE, [OLD_SECRET_NAME])).get(OLD_SECRET_NAME) or (
        await store.get(API_KEYS_SPACE, [KEY])
    ).get(KEY)


async def find_checkpoint_secret(store: Store, known: bytes | None, identity: ServerIdentity) -> bytes | None:
    """The secret for ids that a server uses with its part of a store; None if none was made yet."""
    return await read_checkpoint_secret(store) if known is None else identity.derive_key(known, "checkpoint ids")


async def load_checkpoint_secret(
    store: Store, known: bytes | None, identity: ServerIdentity = NO_SERVER_IDENTITY
) -> bytes:
    """The secret for ids to use with a store. If the server has no secret, one is made in the store at first use."""
    if (found := await find_checkpoint_secret(store, known, identity)) is not None:
        return found
    await store.change(StoreChange(SECRETS_SPACE, put={KEY: secrets.token_bytes(32)}, expect={KEY: None}))
    return (await store.get(SECRETS_SPACE, [KEY]))[KEY]
