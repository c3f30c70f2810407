"""A tree of checkpoints: how each is kept, how its content is rebuilt, which may be pruned. No I/O, no clock.

A checkpoint is kept as its whole content (a snapshot), or as a patch on its parent if the content is large, or as a
name only (opaque). A patch names the chain it is based on, from a snapshot to its parent. A chain has at most
SNAPSHOT_EVERY checkpoints, so rebuilding a content costs the same at any depth.

    a ── b ── c ── d          a: snapshot   b: patch on (a)   c: patch on (a, b)   d: patch on (a, b, c)
         └─── e               e: patch on (a, b); made after a rollback to b, and the head since
"""

from __future__ import annotations

import hmac
import json
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from json import encoder
from math import isfinite
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json, to_json

from defserve.core.json_values import is_array, is_object
from defserve.errors import Refused, UsageError
from defserve.stores.checkpoints.json_patches import (
    MAX_PATCH_OPERATIONS,
    BadPatch,
    PatchOperation,
    apply_trusted_patch_in_place,
    diff_json_values,
    may_have_booleans,
    reuse_unchanged_parts,
)
from defserve.stores.store import CHECKPOINT_SPACES, Space, StoreCorrupt

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
    def from_space(cls, space: str) -> TreeKey:
        """Raises StoreCorrupt."""
        try:
            feature_set, owner = from_json(space.removeprefix(CHECKPOINT_SPACES))
            return cls(f"{feature_set}", f"{owner}")
        except (ValueError, TypeError):
            raise StoreCorrupt(f"the store has a state under {space[:80]!a}, which is no name of one") from None


@lru_cache(maxsize=4096)
def _space(key: TreeKey) -> Space:
    return CHECKPOINT_SPACES.make_space(to_json([key.feature_set, key.owner]).decode())


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

    def is_later_version_of(self, earlier: CheckpointTree) -> bool:
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
            return cls(_optional_id(said["head"]), int(said["last"]), int(said["count"]), int(said["epoch"]))
        except (ValueError, TypeError, KeyError, OverflowError):
            raise StoreCorrupt("a tree in the store cannot be read") from None


class LinePosition(NamedTuple):
    """Where an undo or redo leads: the content is that of `at`, or the initial one if `at` is None.

    `tip` is the last change that was undone: a redo leads towards it.
    """

    at: str | None
    tip: str | None


class CheckpointRecord(NamedTuple):
    """A checkpoint as it is stored: a line of JSON about it, then its content or patch."""

    checkpoint: Checkpoint
    form: Form
    chain: tuple[str, ...] = ()
    body: bytes = b""
    position: LinePosition | None = None
    """For a checkpoint that an undo or redo has made."""

    @property
    def id(self) -> str:
        return self.checkpoint.id

    def as_snapshot(self, content: bytes) -> CheckpointRecord:
        """The same checkpoint with its whole content, so that it needs no other record."""
        return self._replace(form="snapshot", chain=(), body=content)

    def encode(self) -> bytes:
        _, parent, depth, number, time, _, proved = self.checkpoint
        head: dict[str, Any] = {"parent": parent, "depth": depth, "number": number, "time": time, "form": self.form}
        if self.chain:
            head["chain"] = self.chain
        if proved:  # what says nothing is not proved, as everything that 0.1.0 kept
            head["proved"] = True
        if self.position is not None:
            head["position"] = self.position
        return b"%b\n%b" % (to_json(head), self.body)

    @classmethod
    def decode(cls, id: str, data: bytes) -> CheckpointRecord:
        """Raises StoreCorrupt."""
        head, _, body = data.partition(b"\n")
        try:
            said = from_json(head)
            form: Form = said["form"]
            at = Checkpoint(
                id, _optional_id(said["parent"]), int(said["depth"]), int(said["number"]), float(said["time"]),
                form == "opaque", said.get("proved") is True,
            )  # fmt: skip
            position = LinePosition(*said["position"]) if "position" in said else None
            return cls(at, form, tuple(map(str, said.get("chain", ()))), body, position)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise StoreCorrupt(f"the checkpoint {id} in the store cannot be read") from None


def _optional_id(value: Any) -> str | None:
    """Raises TypeError for what is neither an id nor null."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError("no id of a checkpoint")


def make_checkpoint_record(
    at: Checkpoint, made: CheckpointDraft | None, parent: CheckpointRecord | None
) -> CheckpointRecord:
    """How to store a new checkpoint whose content is `made`. Its parent need not be stored itself."""
    if made is None:
        return CheckpointRecord(at, "opaque")
    text = made.content.encoded
    if len(text) > WHOLE and parent is not None and len(parent.chain) < SNAPSHOT_EVERY:
        ops = made.ops
        if ops is not None and len(ops) <= MAX_PATCH_OPERATIONS and len(body := to_json(ops)) < len(text):
            return CheckpointRecord(at, "patch", (*parent.chain, parent.id), body)
    return CheckpointRecord(at, "snapshot", (), text)


def restore_content(record: CheckpointRecord, records: Mapping[str, CheckpointRecord]) -> Any:
    """The content of a checkpoint, from the records of its chain; None if it has none. Raises StoreCorrupt."""
    if record.form == "opaque":
        return None
    try:
        value: Any = None
        for step in (*(records[id] for id in record.chain), record):
            said = from_json(step.body)
            value = apply_trusted_patch_in_place(value, said) if step.form == "patch" else said
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

    def is_retained(self, at: Checkpoint, tree: CheckpointTree, now: float) -> bool:
        """Whether callers can still get it. A checkpoint that they cannot get may still be in the store."""
        return at.id == tree.head or (
            (self.keep is None or at.number > tree.last - self.keep) and (self.ttl is None or at.time >= now - self.ttl)
        )

    def is_due(self, tree: CheckpointTree) -> bool:
        """Whether it is time to prune. That is rare, so pruning costs little per commit."""
        is_crowded = self.keep is not None and tree.kept > self.keep + max(64, self.keep // 4)
        return is_crowded or (self.ttl is not None and tree.last % 256 == 0)


class PruningPlan(NamedTuple):
    """Ids to drop, and records to rewrite because their chain is dropped."""

    drop: tuple[str, ...]
    rewrite: tuple[CheckpointRecord, ...]


def plan_pruning(
    records: Mapping[str, CheckpointRecord], tree: CheckpointTree, retention: Retention, now: float
) -> PruningPlan:
    """What to do so that only the retained checkpoints are kept. Raises StoreCorrupt."""
    kept = {id: record for id, record in records.items() if retention.is_retained(record.checkpoint, tree, now)}
    rewritten: dict[str, CheckpointRecord] = {}
    if len(kept) == len(records):
        return PruningPlan((), ())
    # A parent is always older than its children, so its own chain is settled before theirs.
    for record in sorted(kept.values(), key=lambda record: record.checkpoint.number):
        if record.form != "patch":
            continue
        parent_id = record.chain[-1]
        if parent_id not in kept:
            rewritten[record.id] = record.as_snapshot(encode_canonical(restore_content(record, records)))
            continue
        chain = (*rewritten.get(parent_id, kept[parent_id]).chain, parent_id)
        if chain != record.chain:
            rewritten[record.id] = record._replace(chain=chain)
    return PruningPlan(tuple(records.keys() - kept.keys()), tuple(rewritten.values()))


def list_ancestors(checkpoints: Iterable[Checkpoint], id: str) -> list[Checkpoint]:
    """A checkpoint, then its ancestors as far as they are kept."""
    by_id = {at.id: at for at in checkpoints}
    path: list[Checkpoint] = []
    at = by_id.get(id)
    while at is not None:
        path.append(at)
        at = by_id.get(at.parent) if at.parent is not None else None
    return path


def list_branches(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints without children, the oldest first."""
    parents = {at.parent for at in checkpoints}
    return sorted((at for at in checkpoints if at.id not in parents), key=lambda at: at.number)


def find_tree_problems(records: Mapping[str, CheckpointRecord], tree: CheckpointTree) -> list[str]:
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
        restore_content(record, records)
    except StoreCorrupt as corrupt:
        return (corrupt.message,)
    return ()


# -- The content of a checkpoint, in canonical form. A long content shares the unchanged parts of the one before it.
#
# So a small change to a large content costs little more than encoding it.


SHORT: Final = 4_096
"""Encoding a text of up to this many bytes is faster than comparing it with another."""

_UNREAD: Final = object()
_PLAIN: Final = frozenset({str, int, bool, type(None)})


class ContentTooDeep(ValueError):
    """Arrays and objects are nested more deeply than allowed."""


class CheckpointContent:
    """A JSON value as canonical text. The value is decoded when it is first asked for, and must not be changed."""

    __slots__ = ("encoded", "_value", "_has_booleans", "__weakref__")

    def __init__(self, encoded: bytes, value: Any = _UNREAD, may_have_booleans: bool | None = None) -> None:
        self.encoded, self._value, self._has_booleans = encoded, value, may_have_booleans

    @classmethod
    def from_value(cls, value: Any) -> CheckpointContent:
        """Raises ValueError if it is not a JSON value."""
        return cls(encode_canonical(value))

    @property
    def value(self) -> Any:
        if self._value is _UNREAD:
            self._value = from_json(self.encoded)
        return self._value

    @property
    def may_have_booleans(self) -> bool:
        if self._has_booleans is None:
            self._has_booleans = may_have_booleans(self.encoded)
        return self._has_booleans

    def copy(self) -> Any:
        return from_json(self.encoded)


class CheckpointDraft:
    """A new content, and the one before it. If there was none before, there is no patch."""

    __slots__ = ("content", "_before", "_ops")

    def __init__(
        self, content: CheckpointContent, before: CheckpointContent | None, ops: list[PatchOperation] | None = None
    ) -> None:
        self.content, self._before, self._ops = content, before, ops

    @property
    def is_same(self) -> bool:
        """Whether nothing has changed."""
        return self.content is self._before

    @property
    def ops(self) -> list[PatchOperation] | None:
        if self._ops is None and self._before is not None:
            before, after = self._before, self.content
            has_booleans = before.may_have_booleans or after.may_have_booleans
            self._ops = diff_json_values(before.value, after.value, has_booleans=has_booleans)
        return self._ops


def make_checkpoint_draft(made: Any, before: CheckpointContent | None, depth: int) -> CheckpointDraft:
    """`made` is a JSON value or, in bytes, the text of one. It is not changed and not kept.

    Raises ValueError if it is not a JSON value, and ContentTooDeep if more than `depth` containers are nested.
    """
    if isinstance(made, bytes):
        if before is None or len(before.encoded) <= SHORT:
            return _draft_anew(from_json(made), before, depth)
        return _draft_by_merging(from_json(made), may_have_booleans(made), before, depth)
    if before is None:
        return _draft_anew(made, None, depth)
    return _draft_by_merging(made, may_have_booleans(to_json(made)), before, depth)


def _draft_anew(value: Any, before: CheckpointContent | None, depth: int) -> CheckpointDraft:
    """For a short content, or the first one."""
    encoded = encode_canonical(value)
    if encoded.count(b"{") + encoded.count(b"[") > depth:
        _check_depth(value, depth)
    if before is not None and encoded == before.encoded:
        return CheckpointDraft(before, before, [])
    return CheckpointDraft(CheckpointContent(encoded), before)


def _draft_by_merging(value: Any, has_booleans: bool, before: CheckpointContent, depth: int) -> CheckpointDraft:
    """For a long content: it shares all unchanged parts with the one before it."""
    try:
        value, ops = reuse_unchanged_parts(
            before.value,
            value,
            lambda new, level: _fresh(new, depth - level),
            has_booleans=before.may_have_booleans or has_booleans,
        )
    except (TypeError, AttributeError) as error:  # a name that is not text
        raise ValueError(f"not a JSON value: {error}") from None
    return (
        CheckpointDraft(CheckpointContent(_text(value), value, has_booleans), before, ops)
        if ops
        else CheckpointDraft(before, before, ops)
    )


def _fresh(value: Any, depth: int) -> Any:
    """A copy of a value, in canonical form."""
    if type(value) in _PLAIN:
        return value
    if type(value) is float and isfinite(value):
        return int(value) if value.is_integer() else value
    return from_json(encode_canonical(_check_depth(value, depth)))


def _check_depth(value: Any, depth: int) -> Any:
    level: list[Any] = [value] if _holds(value) else []
    for _ in range(depth):
        if not level:
            return value
        level = [item for held in level for item in (held.values() if is_object(held) else held) if _holds(item)]
    if level:
        raise ContentTooDeep
    return value


def _holds(value: Any) -> bool:
    """Whether it is encoded as an object or an array."""
    return isinstance(value, dict | list | tuple)


def _text(value: Any) -> bytes:
    """The canonical text of a value in canonical form."""
    text = to_json(value)
    # Libraries write tiny numbers in different ways. Searching for one character is fastest, so it comes first.
    has_tiny = (b"-" in text and b"e-" in text) or (b"." in text and b"0.0000" in text)
    return encode_canonical(value) if has_tiny else text


# -- The id of a checkpoint: unguessable, and bound by a MAC to its owner, its feature set, its content and its proof.
#
# So a client that returns a content with its id cannot have changed it, and an id is useless to another owner. The MAC
# is over the content in canonical JSON: sorted names, no spaces, whole numbers without a point. That is necessary
# because JSON libraries write the same value in different ways.
#
# A checkpoint is *proved* if the server made its whole line, from the first checkpoint on. The MAC of a proved one has
# a label of its own. All ids of 0.1.0 have the other label: it signed what callers brought like its own, so they prove
# nothing.


PREFIX: Final = "chk_"
MIN_KEY: Final = 16
RANDOM: Final = 15
"""Bytes; with those of the MAC a multiple of 3, so that every id has exactly one text."""
_DRAWN: Final = 256
_MAC: Final = 18
_ID: Final = re.compile(r"chk_[A-Za-z0-9_-]{44}")
_LABELS: Final = {False: b"defserve checkpoint v1", True: b"defserve checkpoint v2 proved"}
"""Is it proved → what the MAC begins with."""

DIGEST_PREFIX: Final = "dig_"

_MAYBE_WHOLE: Final = re.compile(r"[0-9]\.0(?![0-9])|[0-9]e\+")


def _encoder() -> Callable[[Any], str]:
    """The encoder of `json`, made once: `json` makes one for every text, and that takes longer than a short text."""
    json_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    make: Any = getattr(encoder, "c_make_encoder", None)
    write_text: Any = getattr(encoder, "encode_basestring", None)
    if make is None or write_text is None:
        return json_encoder.encode
    write = make(None, json_encoder.default, write_text, None, ":", ",", True, False, False)
    return lambda value: "".join(write(value, 0))


_encode: Final = _encoder()


def encode_canonical(value: Any) -> bytes:
    """The canonical text of a JSON value. Raises ValueError for what JSON cannot hold: infinities, lone surrogates."""
    try:
        text = _encode(value)
        # Searching the text is cheaper than walking through the value, which hardly any value needs.
        if (".0" in text or "e+" in text) and _MAYBE_WHOLE.search(text):
            text = _encode(_with_whole_numbers(value))
        return text.encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a JSON value: {error}") from None


def make_checkpoint_id(
    key: bytes, principal: str, feature_set: str, content: bytes, random: bytes, *, is_proved: bool = False
) -> str:
    """The id of a new checkpoint. `content` is its canonical JSON, or empty if it has none; `random` is fresh."""
    if len(key) < MIN_KEY or len(random) != RANDOM:
        raise UsageError(f"a checkpoint id needs a key of at least {MIN_KEY} bytes and {RANDOM} random bytes")
    return PREFIX + urlsafe_b64encode(random + _mac(key, random, principal, feature_set, content, is_proved)).decode()


class RandomBytesPool:
    """The random bytes of ids, drawn many at a time.

    Asking the system lets another thread run. If that is a store's writer, it starts with the first of many commits
    that are about to come, and they share no fsync.
    """

    __slots__ = ("_parts", "_pid")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._pid = 0

    def take_bytes(self) -> bytes:
        """Bytes that nobody else gets, in any thread or forked process."""
        if self._pid != (pid := os.getpid()):
            self._parts, self._pid = [], pid
        try:
            return self._parts.pop()
        except IndexError:
            drawn = os.urandom(RANDOM * _DRAWN)
            self._parts += (drawn[at : at + RANDOM] for at in range(RANDOM, len(drawn), RANDOM))
            return drawn[:RANDOM]


def is_checkpoint_id(text: str) -> bool:
    """Whether this could be a checkpoint's id."""
    return _ID.fullmatch(text) is not None


def make_digest_name(content: bytes) -> str:
    """The name under which a tree keeps the id of its latest proved checkpoint with this content. No id of its own."""
    # 15 bytes are short in the store and unique enough: who finds a checkpoint by it compares the contents.
    return DIGEST_PREFIX + urlsafe_b64encode(sha256(content).digest()[:15]).decode()


def verify_checkpoint_id(
    key: bytes, id: str, principal: str, feature_set: str, content: bytes, *, is_proved: bool = False
) -> bool:
    """Whether this id was made with this key for exactly this owner, feature set, content and proof."""
    if not is_checkpoint_id(id):
        return False
    raw = urlsafe_b64decode(id.removeprefix(PREFIX))
    return hmac.compare_digest(raw[RANDOM:], _mac(key, raw[:RANDOM], principal, feature_set, content, is_proved))


def _mac(key: bytes, random: bytes, principal: str, feature_set: str, content: bytes, is_proved: bool) -> bytes:
    # Each part has its length before it, so that no two lists of parts have the same bytes.
    said = b"".join(
        (
            _frame_part(_LABELS[is_proved]),
            _frame_part(random),
            _owner_bytes(principal, feature_set),
            _frame_part(content),
        )
    )
    # `hmac.digest` takes three times as long, and lets another thread run: see `RandomBytesPool`.
    return hmac.new(key, said, "sha256").digest()[:_MAC]


def _frame_part(part: bytes) -> bytes:
    return len(part).to_bytes(8) + part


@lru_cache(maxsize=1024)
def _owner_bytes(principal: str, feature_set: str) -> bytes:
    return _frame_part(principal.encode()) + _frame_part(feature_set.encode())


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if is_object(value):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    if is_array(value):
        return [_with_whole_numbers(item) for item in value]
    return value
