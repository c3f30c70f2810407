"""A tree of checkpoints: how each is kept, how its content is rebuilt, which may be pruned. No I/O, no clock.

A checkpoint is kept as its whole content (a snapshot), or as a patch on its parent if the content is large, or as a
name only (opaque). A patch names the chain it is based on, from a snapshot to its parent. A chain has at most
SNAPSHOT_EVERY checkpoints, so rebuilding a content costs the same at any depth.

    a ── b ── c ── d          a: snapshot   b: patch on (a)   c: patch on (a, b)   d: patch on (a, b, c)
         └─── e               e: patch on (a, b); made after a rollback to b, and the head since
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json, to_json

from defserve.errors import Refused, UsageError
from defserve.stores.checkpoints.contents import CheckpointDraft
from defserve.stores.checkpoints.ids import canonical
from defserve.stores.checkpoints.patches import MAX_OPS, BadPatch, replay
from defserve.stores.spaces import CHECKPOINTS, Space
from defserve.stores.store import StoreCorrupt

SNAPSHOT_EVERY: Final = 16
WHOLE: Final = 4_096
"""A content of up to this many bytes, a page of most databases, is kept whole, so that reading it is one step."""

Form = Literal["snapshot", "patch", "opaque"]


class CheckpointGone(Refused):
    """There is no such checkpoint: it was pruned, never made, or belongs to another owner."""

    error_type = "checkpoint_not_found"

    def __init__(self, id: str) -> None:
        super().__init__("Checkpoint not found", data={"checkpoint": id})


class TreeKey(NamedTuple):
    """The name of a tree: the state of a feature set, for one owner."""

    feature_set: str
    owner: str

    @property
    def space(self) -> Space:
        return _space(self)

    @classmethod
    def of(cls, space: str) -> TreeKey:
        feature_set, owner = from_json(space.removeprefix(CHECKPOINTS))
        return cls(feature_set, owner)


@lru_cache(maxsize=4096)
def _space(key: TreeKey) -> Space:
    return CHECKPOINTS.of(to_json([key.feature_set, key.owner]).decode())


class Checkpoint(NamedTuple):
    """A state at some time. `number` counts the checkpoints of a tree, `depth` is the distance from the root.

    `parent` may have been pruned. `proved`: the server made the whole line that leads here, from its first checkpoint
    on; no content that a caller brought is part of it.
    """

    id: str
    parent: str | None
    depth: int
    number: int
    time: float
    opaque: bool = False
    proved: bool = False


class CheckpointTree(NamedTuple):
    """The changing part of a tree: its head, the number of the last checkpoint, how many are kept.

    `epoch` changes whenever records are rewritten. Records that were cached before are then no longer valid.
    """

    head: str | None = None
    last: int = 0
    kept: int = 0
    epoch: int = 0

    def follows(self, earlier: CheckpointTree) -> bool:
        """Whether it is that tree at a later time, and not one that was begun after that one was forgotten."""
        # Each pruning adds one to the epoch, and a new tree begins with a random one of 32 bits.
        return 0 <= self.epoch - earlier.epoch < 1 << 16

    def encode(self) -> bytes:
        return to_json({"head": self.head, "last": self.last, "count": self.kept, "epoch": self.epoch})

    @classmethod
    def decode(cls, data: bytes) -> CheckpointTree:
        """Raises StoreCorrupt."""
        try:
            said = from_json(data)
            return cls(said["head"], int(said["last"]), int(said["count"]), int(said["epoch"]))
        except (ValueError, TypeError, KeyError):
            raise StoreCorrupt("a tree in the store cannot be read") from None


class CheckpointRecord(NamedTuple):
    """A checkpoint as it is stored: a line of JSON about it, then its content or patch."""

    checkpoint: Checkpoint
    form: Form
    chain: tuple[str, ...] = ()
    body: bytes = b""

    @property
    def id(self) -> str:
        return self.checkpoint.id

    def alone(self, content: bytes) -> CheckpointRecord:
        """The same checkpoint with its whole content, so that it needs no other record."""
        return self._replace(form="snapshot", chain=(), body=content)

    def encode(self) -> bytes:
        _, parent, depth, number, time, _, proved = self.checkpoint
        head: dict[str, Any] = {"parent": parent, "depth": depth, "number": number, "time": time, "form": self.form}
        if self.chain:
            head["chain"] = self.chain
        if proved:  # what says nothing is not proved, as everything that 0.1.0 kept
            head["proved"] = True
        return b"%b\n%b" % (to_json(head), self.body)

    @classmethod
    def decode(cls, id: str, data: bytes) -> CheckpointRecord:
        """Raises StoreCorrupt."""
        head, _, body = data.partition(b"\n")
        try:
            said = from_json(head)
            form: Form = said["form"]
            at = Checkpoint(
                id, said["parent"], int(said["depth"]), int(said["number"]), float(said["time"]), form == "opaque",
                said.get("proved") is True,
            )  # fmt: skip
            return cls(at, form, tuple(said.get("chain", ())), body)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise StoreCorrupt(f"the checkpoint {id} in the store cannot be read") from None


def next_record(at: Checkpoint, made: CheckpointDraft | None, parent: CheckpointRecord | None) -> CheckpointRecord:
    """How to store a new checkpoint whose content is `made`. Its parent need not be stored itself."""
    if made is None:
        return CheckpointRecord(at, "opaque")
    text = made.content.encoded
    if len(text) > WHOLE and parent is not None and len(parent.chain) < SNAPSHOT_EVERY:
        ops = made.ops
        if ops is not None and len(ops) <= MAX_OPS and len(body := to_json(ops)) < len(text):
            return CheckpointRecord(at, "patch", (*parent.chain, parent.id), body)
    return CheckpointRecord(at, "snapshot", (), text)


def content(record: CheckpointRecord, records: Mapping[str, CheckpointRecord]) -> Any:
    """The content of a checkpoint, from the records of its chain; None if it has none. Raises StoreCorrupt."""
    if record.form == "opaque":
        return None
    try:
        value: Any = None
        for step in (*(records[id] for id in record.chain), record):
            said = from_json(step.body)
            value = replay(value, said) if step.form == "patch" else said
        return value
    except (KeyError, ValueError, BadPatch):
        raise StoreCorrupt(f"the content of the checkpoint {record.id} cannot be found") from None


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints of a tree are kept: the head, and the last `keep` unless they are older than `ttl` seconds."""

    keep: int | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        if (self.keep is not None and self.keep < 1) or (self.ttl is not None and not self.ttl > 0):
            raise UsageError(f"keep={self.keep}, ttl={self.ttl}: both must be positive", fix="leave out to keep all")

    def holds(self, at: Checkpoint, tree: CheckpointTree, now: float) -> bool:
        """Whether callers can still get it. A checkpoint that they cannot get may still be in the store."""
        return at.id == tree.head or (
            (self.keep is None or at.number > tree.last - self.keep) and (self.ttl is None or at.time >= now - self.ttl)
        )

    def is_due(self, tree: CheckpointTree) -> bool:
        """Whether it is time to prune. That is rare, so pruning costs little per commit."""
        if self.keep is not None and tree.kept > self.keep + max(64, self.keep // 4):
            return True
        return self.ttl is not None and tree.last % 256 == 0


class PruningPlan(NamedTuple):
    """Ids to drop, and records to rewrite because their chain is dropped."""

    drop: tuple[str, ...]
    rewrite: tuple[CheckpointRecord, ...]


def prune(
    records: Mapping[str, CheckpointRecord], tree: CheckpointTree, retention: Retention, now: float
) -> PruningPlan:
    """What to do so that only the retained checkpoints are kept. Raises StoreCorrupt."""
    kept = {id: record for id, record in records.items() if retention.holds(record.checkpoint, tree, now)}
    rewritten: dict[str, CheckpointRecord] = {}
    if len(kept) == len(records):
        return PruningPlan((), ())
    # A parent is always older than its children, so its own chain is settled before theirs.
    for record in sorted(kept.values(), key=lambda record: record.checkpoint.number):
        if record.form != "patch":
            continue
        parent_id = record.chain[-1]
        if parent_id not in kept:
            rewritten[record.id] = record.alone(canonical(content(record, records)))
            continue
        chain = (*rewritten.get(parent_id, kept[parent_id]).chain, parent_id)
        if chain != record.chain:
            rewritten[record.id] = record._replace(chain=chain)
    return PruningPlan(tuple(records.keys() - kept.keys()), tuple(rewritten.values()))


def history(checkpoints: Iterable[Checkpoint], id: str) -> list[Checkpoint]:
    """A checkpoint, then its ancestors as far as they are kept."""
    by_id = {at.id: at for at in checkpoints}
    path: list[Checkpoint] = []
    at = by_id.get(id)
    while at is not None:
        path.append(at)
        at = by_id.get(at.parent) if at.parent is not None else None
    return path


def branches(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints without children, the oldest first."""
    parents = {at.parent for at in checkpoints}
    return sorted((at for at in checkpoints if at.id not in parents), key=lambda at: at.number)


def problems(records: Mapping[str, CheckpointRecord], tree: CheckpointTree) -> list[str]:
    """The problems of a tree, a line each."""
    found = [line for record in records.values() for line in _problems_of(record, records)]
    if tree.head is not None and tree.head not in records:
        found.append(f"the head {tree.head} is missing")
    if tree.kept != len(records):
        found.append(f"the tree counts {tree.kept} checkpoints, but {len(records)} are stored")
    if any(record.checkpoint.number > tree.last for record in records.values()):
        found.append(f"a checkpoint has a number above the last one, {tree.last}")
    return found


def _problems_of(record: CheckpointRecord, records: Mapping[str, CheckpointRecord]) -> Sequence[str]:
    at = record.checkpoint
    parent = records.get(at.parent) if at.parent is not None else None
    # 0: when it was made, its parent was pruned. That may have come back.
    if parent is not None and at.depth not in (0, parent.checkpoint.depth + 1):
        return (f"{at.id} is at depth {at.depth}, its parent at {parent.checkpoint.depth}",)
    if record.form == "patch" and (parent is None or (*parent.chain, parent.id) != record.chain):
        return (f"{at.id} is not based on its parent",)
    try:
        content(record, records)
    except StoreCorrupt as corrupt:
        return (corrupt.message,)
    return ()
