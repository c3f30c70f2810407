"""Checkpoint trees, pure and in every store."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from pydantic_core import to_json

from defserve.errors import LimitExceeded, UsageError
from defserve.stores.checkpoints import checkpoint_tree
from defserve.stores.checkpoints.checkpoint_store import (
    OPAQUE,
    TREE,
    CheckpointCommit,
    CheckpointStore,
    HeadMoved,
    StateTampered,
)
from defserve.stores.checkpoints.checkpoint_tree import (
    RANDOM,
    SNAPSHOT_EVERY,
    CheckpointGone,
    CheckpointRecord,
    RandomBytesPool,
    Retention,
    TreeKey,
    encode_canonical,
    is_checkpoint_id,
    make_checkpoint_id,
    verify_checkpoint_id,
)
from defserve.stores.checkpoints.json_patches import apply_patch_to_text
from defserve.stores.store import CHECKPOINT_SPACES, MemoryStore, Store, StoreChange, StoreCorrupt, StoreUnavailable
from tests.effort import examples
from tests.rows import for_each_row
from tests.stores.conftest import Run

pytestmark = pytest.mark.usefixtures("patched")

SECRET = b"s" * 32
KEY = TreeKey("notes.edit", "alice")
PAD = "x" * 300
"""Makes a content long enough for its changes to be kept as patches."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def trees_in(store: Store, **options: Any) -> CheckpointStore:
    return CheckpointStore(store, secret=SECRET, **options)


async def commit(
    trees: CheckpointStore, content: Any, key: TreeKey = KEY, *, on: str | None = None
) -> CheckpointCommit:
    return await trees.commit(await trees.load_checkpoint(key, on), content, branch=on is not None)


async def line(trees: CheckpointStore, length: int, key: TreeKey = KEY) -> list[str]:
    """The ids of so many commits, one on the other; the content says which it is."""
    return [(await commit(trees, {"pad": PAD, "n": n}, key)).checkpoint.id for n in range(length)]


# Ids


def test_an_id_belongs_to_its_owner_its_set_and_its_content_alone():
    content = encode_canonical({"a": 1})
    id = make_checkpoint_id(SECRET, "alice", "notes", content, b"r" * RANDOM)
    assert verify_checkpoint_id(SECRET, id, "alice", "notes", content)
    assert not verify_checkpoint_id(b"t" * 32, id, "alice", "notes", content)
    assert not verify_checkpoint_id(SECRET, id, "bob", "notes", content)
    assert not verify_checkpoint_id(SECRET, id, "alicen", "otes", content)
    assert not verify_checkpoint_id(SECRET, id, "alice", "notes", encode_canonical({"a": 2}))
    assert not verify_checkpoint_id(SECRET, id[:-1] + ("A" if id[-1] != "A" else "B"), "alice", "notes", content)


@for_each_row("id", ["", "chk_", "chk_abc", "tree", "chk_" + "\ud800" * 44, "chk_" + "é" * 44])
def test_what_is_no_id_is_verified_as_none(id: str):
    assert not verify_checkpoint_id(SECRET, id, "alice", "notes", b"")


def test_random_bytes_of_ids_are_never_given_twice(monkeypatch: pytest.MonkeyPatch):
    fresh = RandomBytesPool()
    taken = [fresh.take_bytes() for _ in range(1000)]
    # A forked process has the same object in its memory.
    forked = deepcopy(fresh)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    taken += [forked.take_bytes() for _ in range(1000)]
    monkeypatch.undo()
    taken += [fresh.take_bytes() for _ in range(1000)]
    assert len({*taken}) == 3000 and {*map(len, taken)} == {RANDOM}


def test_an_id_needs_a_key_and_randomness():
    with pytest.raises(UsageError):
        make_checkpoint_id(b"short", "a", "n", b"", b"r" * RANDOM)
    with pytest.raises(UsageError):
        make_checkpoint_id(SECRET, "a", "n", b"", b"")


@for_each_row(
    ("ours", "theirs"),
    [
        ('{"b":1,"a":2}', '{"a":2,"b":1}'),
        ("[1.0, -0.0, 1e16, 1e300]", f"[1, 0, 10000000000000000, {int(1e300)}]"),
        ("[0.1, 1.5e-7]", "[0.10, 0.00000015]"),
        ('["\\u00e9\\ud83d\\ude00"]', '["é😀"]'),
    ],
)
def test_two_texts_of_one_value_are_one_canonical_text(ours: str, theirs: str):
    assert encode_canonical(json.loads(ours)) == encode_canonical(json.loads(theirs))


@for_each_row("value", [float("nan"), float("inf"), "\ud800", {1, 2}])
def test_what_json_cannot_hold_has_no_canonical_text(value: Any):
    with pytest.raises(ValueError):
        encode_canonical(value)


# Trees


def test_rolling_back_and_committing_makes_a_branch(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        abc = (await commit(trees, {"v": "abc"})).checkpoint
        deft = (await commit(trees, {"v": "def"})).checkpoint
        assert (await trees.rollback(KEY, abc.id)) == abc
        xyz = (await commit(trees, {"v": "xyz"})).checkpoint
        assert (abc.parent, deft.parent, xyz.parent) == (None, abc.id, abc.id)
        assert await trees.list_branches(KEY) == [deft, xyz]
        assert await trees.list_ancestors(KEY) == [xyz, abc]
        assert await trees.list_ancestors(KEY, deft.id) == [deft, abc]
        assert await trees.load_content(KEY, deft.id) == {"v": "def"}
        assert await trees.diff(KEY, deft.id, xyz.id) == [{"op": "replace", "path": "/v", "value": "xyz"}]
        assert (await trees.load_tree(KEY)).head == xyz.id
        assert await trees.list_trees() == [KEY]
        assert await trees.verify(KEY) == []
        exported = [line async for line in trees.export(KEY)]
        assert [(it["id"], it["head"], it["content"]["v"]) for it in exported] == [
            (abc.id, False, "abc"),
            (deft.id, False, "def"),
            (xyz.id, True, "xyz"),
        ]

    run(story())


def test_a_commit_offers_its_patch_unless_the_content_is_no_longer(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        first = await commit(trees, {"pad": PAD, "notes": []})
        assert first.patch() is None
        for n in range(SNAPSHOT_EVERY + 2):
            before = await trees.load_content(KEY, (await trees.load_tree(KEY)).head or "")
            made = await commit(trees, {"pad": PAD, "notes": [*before["notes"], n]})
            patch = made.patch()
            assert patch is not None
            assert apply_patch_to_text(to_json(before), patch) == made.content
        small = await commit(trees, {})
        assert small.patch() is None

    run(story())


@pytest.mark.parametrize(("whole", "form"), [(4_096, "snapshot"), (0, "patch")])
def test_a_small_content_is_kept_whole_and_its_patch_is_offered_all_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch, whole: int, form: str
):
    monkeypatch.setattr(checkpoint_tree, "WHOLE", whole)
    store = MemoryStore()

    async def story() -> None:
        trees = trees_in(store)
        await commit(trees, {"pad": PAD, "n": 1})
        made = await commit(trees, {"pad": PAD, "n": 2})
        kept = CheckpointRecord.decode(
            made.checkpoint.id, (await store.get(KEY.space, [made.checkpoint.id]))[made.checkpoint.id]
        )
        assert (kept.form, made.patch()) == (form, [{"op": "replace", "path": "/n", "value": 2}])
        assert (await trees_in(store).load_content(KEY, made.checkpoint.id))["n"] == 2

    run(story())


def test_an_opaque_checkpoint_has_a_place_and_no_content(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        opaque = await trees.commit(await trees.load_checkpoint(KEY), OPAQUE)
        held = await trees.load_checkpoint(KEY)
        assert (held.checkpoint, held.content(), opaque.patch()) == (opaque.checkpoint, None, None)
        after = await commit(trees, {"a": 1})
        assert (after.checkpoint.parent, await trees.load_content(KEY, after.checkpoint.id)) == (held.parent, {"a": 1})
        assert await trees.verify(KEY) == []

    run(story())


def test_what_a_call_does_to_its_content_is_its_own_until_it_commits(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        await commit(trees, {"notes": []})
        held = await trees.load_checkpoint(KEY)
        held.content()["notes"].append("discarded")
        assert (await trees.load_checkpoint(KEY)).content() == held.content() == {"notes": []}

    run(story())


def test_of_two_calls_from_one_head_one_is_refused_and_may_branch(store: Store, run: Run):
    async def story() -> None:
        trees, others = trees_in(store), trees_in(store)
        await commit(trees, {"n": 0})
        ours, theirs = await trees.load_checkpoint(KEY), await others.load_checkpoint(KEY)
        done = await others.commit(theirs, {"n": "theirs"})
        with pytest.raises(HeadMoved):
            await trees.commit(ours, {"n": "ours"})
        assert (await trees.load_tree(KEY)).head == done.checkpoint.id
        branched = await trees.commit(ours, {"n": "ours"}, branch=True)
        assert branched.checkpoint.parent == ours.parent
        assert await trees.verify(KEY) == []

    run(story())


def test_twenty_calls_that_branch_at_once_all_find_their_place(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        root = await commit(trees, {"pad": PAD})
        held = await trees.load_checkpoint(KEY)
        await asyncio.gather(*(trees.commit(held, {"pad": PAD, "n": n}, branch=True) for n in range(20)))
        found = await trees.list_branches(KEY)
        assert {(await trees.load_content(KEY, at.id))["n"] for at in found} == set(range(20))
        assert {at.parent for at in found} == {root.checkpoint.id}
        assert await trees.verify(KEY) == []

    run(story())


def test_owners_and_sets_never_see_each_others_checkpoints(store: Store, run: Run):
    keys = [TreeKey(*key) for key in (("a", "b"), ("a", "b:"), ("a:", "b"), ('a","b', ""), ("", 'a","b'), ("*", "[b]"))]

    async def story() -> None:
        trees = trees_in(store)
        ids = {key: (await commit(trees, {"of": list(key)}, key)).checkpoint.id for key in keys}
        assert set(await trees.list_trees()) == set(keys)
        for key in keys:
            assert await trees.load_content(key, ids[key]) == {"of": list(key)}
            for other in keys:
                if other != key:
                    with pytest.raises(CheckpointGone):
                        await trees.load_checkpoint(key, ids[other])
                    with pytest.raises(CheckpointGone):
                        await trees.rollback(key, ids[other])

    run(story())


@pytest.mark.parametrize(
    "id", ["chk_old", "", TREE, "\ud800", make_checkpoint_id(SECRET, *reversed(KEY), b"", b"r" * RANDOM)]
)
def test_an_unknown_checkpoint_is_named_in_the_refusal(store: Store, run: Run, id: str):
    async def story() -> None:
        trees = trees_in(store)
        await commit(trees, {})
        with pytest.raises(CheckpointGone) as caught:
            await trees.rollback(KEY, id)
        assert caught.value.data == {"checkpoint": id}

    run(story())


def test_rollback_to_a_pruned_checkpoint_is_refused_before_and_after_it_is_dropped(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store, retention=Retention(keep=3))
        ids = await line(trees, 20)
        for is_dropped in (False, True):
            if is_dropped:
                assert await trees.prune(KEY) == 17
            with pytest.raises(CheckpointGone):
                await trees.rollback(KEY, ids[16])
            assert [at.id for at in await trees.list_checkpoints(KEY)] == ids[17:]
            assert [(await trees_in(store).load_content(KEY, id))["n"] for id in ids[17:]] == [17, 18, 19]
        assert await trees.verify(KEY) == []
        assert (await trees.load_tree(KEY)).kept == 3

    run(story())


def test_what_was_held_becomes_the_head_although_its_time_or_number_has_passed_since(store: Store, run: Run):
    clock = Clock()

    async def story() -> None:
        trees = trees_in(store, retention=Retention(keep=3, ttl=60), clock=clock)
        ids = await line(trees, 3)
        held = await trees.load_checkpoint(KEY, ids[1])
        clock.now += 61
        assert (await trees.restore_as_head(held)).id == ids[1]
        await line(trees, 3)
        assert (await trees.restore_as_head(held)).id == (await trees.load_tree(KEY)).head == ids[1]
        assert (await trees.load_checkpoint(KEY)).content() == {"pad": PAD, "n": 1}
        assert await trees.verify(KEY) == []

    run(story())


@pytest.mark.parametrize("content", [{"pad": PAD, "n": 7}, OPAQUE], ids=["content", "opaque"])
def test_what_was_held_comes_back_although_it_was_pruned_meanwhile(store: Store, run: Run, content: Any):
    async def story() -> None:
        trees, others = trees_in(store), trees_in(store)
        await line(trees, 3)
        at = (await commit(trees, content)).checkpoint
        held = await trees.load_checkpoint(KEY, at.id)
        await line(others, 3)
        assert await others.prune(KEY, Retention(keep=2)) == 5
        assert await trees.restore_as_head(held) == at
        for seen in (trees, trees_in(store)):
            assert (await seen.get_checkpoint(KEY, at.id), (await seen.load_tree(KEY)).head) == (at, at.id)
            assert (await seen.load_checkpoint(KEY)).content() == held.content()
        assert (await commit(others, {"pad": PAD, "n": 8})).checkpoint.parent == at.id
        assert await trees.verify(KEY) == []

    run(story())


def test_a_child_that_was_made_while_its_parent_was_away_is_no_problem_when_it_comes_back(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        ids = await line(trees, 3)
        held = await trees.load_checkpoint(KEY, ids[1])
        await trees.prune(KEY, Retention(keep=1))
        assert (await trees.commit(held, {}, branch=True)).checkpoint.parent == ids[1]
        await trees.restore_as_head(held)
        assert await trees.verify(KEY) == []

    run(story())


def test_what_was_held_does_not_come_back_into_a_tree_that_was_forgotten(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        await line(trees, 3)
        held = await trees.load_checkpoint(KEY, (await trees.load_tree(KEY)).head)
        await trees.drop_tree(KEY)
        for _ in range(2):
            with pytest.raises(CheckpointGone):
                await trees.restore_as_head(held)
            await line(trees, 5)

    run(story())


def test_an_old_head_outlives_its_time(run: Run):
    clock = Clock()

    async def story() -> None:
        trees = trees_in(MemoryStore(), retention=Retention(ttl=60), clock=clock)
        ids = await line(trees, 5)
        clock.now += 61
        assert await trees.prune(KEY) == 4
        assert (await trees.load_checkpoint(KEY)).content() == {"pad": PAD, "n": 4}
        with pytest.raises(CheckpointGone):
            await trees.load_checkpoint(KEY, ids[3])

    run(story())


def test_pruning_happens_by_itself_now_and_then(run: Run):
    async def story() -> None:
        trees = trees_in(MemoryStore(), retention=Retention(keep=10))
        await line(trees, 200)
        assert 10 <= (await trees.load_tree(KEY)).kept <= 74
        assert await trees.verify(KEY) == []

    run(story())


@for_each_row("retention", [{"keep": 0}, {"keep": -1}, {"ttl": 0}, {"ttl": float("nan")}])
def test_a_retention_that_keeps_nothing_is_refused(retention: dict[str, Any]):
    with pytest.raises(UsageError):
        Retention(**retention)


def test_a_commit_on_what_is_being_pruned_stands_on_what_is_left(store: Store, run: Run):
    async def story() -> None:
        trees, others = trees_in(store, retention=Retention(keep=50)), trees_in(store)
        await line(trees, 10)
        held = await trees.load_checkpoint(KEY)
        await others.prune(KEY, Retention(keep=1))
        await trees.commit(held, {"pad": PAD, "n": "last"})
        assert (await trees_in(store).load_checkpoint(KEY)).content() == {"pad": PAD, "n": "last"}
        assert await trees.verify(KEY) == []

    run(story())


def test_a_forgotten_tree_leaves_nothing(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        ids = await line(trees, 3)
        await trees.drop_tree(KEY)
        assert [entry async for entry in store.scan(KEY.space)] == []
        assert (await trees.load_checkpoint(KEY)).checkpoint is None
        await commit(trees, {})
        with pytest.raises(CheckpointGone):
            await trees.load_checkpoint(KEY, ids[0])

    run(story())


# Contents that come from elsewhere


def test_a_content_with_its_checkpoint_is_taken_even_when_that_is_pruned(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store, retention=Retention(keep=1))
        old = await commit(trees, {"n": 1.0})
        await commit(trees, {"n": 2})
        await trees.prune(KEY)
        held = await trees.adopt_content(KEY, {"n": 1}, checkpoint=old.checkpoint.id)
        assert (held.verified, held.checkpoint) == (True, None)
        made = await trees.commit(held, {"n": 3}, branch=True)
        assert made.checkpoint.parent == old.checkpoint.id
        assert await trees.verify(KEY) == []

    run(story())


def test_a_changed_content_or_anothers_is_refused(run: Run):
    async def story() -> None:
        trees = trees_in(MemoryStore())
        made = await commit(trees, {"n": 1})
        for key, content in ((KEY, {"n": 2}), (KEY, {"n": True}), (TreeKey("notes.edit", "bob"), {"n": 1})):
            with pytest.raises(StateTampered):
                await trees.adopt_content(key, content, checkpoint=made.checkpoint.id)

    run(story())


def test_a_content_without_a_checkpoint_is_not_verified(run: Run):
    async def story() -> None:
        trees = trees_in(MemoryStore())
        held = await trees.adopt_content(KEY, {"n": 1})
        assert (held.verified, held.parent, held.content()) == (False, None, {"n": 1})
        assert (await trees.commit(held, {"n": 2})).checkpoint.parent is None

    run(story())


@pytest.mark.parametrize("content", [{"a": "x" * 1_100_000}, json.loads("[" * 65 + "]" * 65)])
def test_a_content_too_large_or_too_deep_is_refused(run: Run, content: Any):
    async def story() -> None:
        trees = trees_in(MemoryStore())
        with pytest.raises(LimitExceeded):
            await commit(trees, content)
        assert await trees.list_trees() == []

    run(story())


# Cost and damage


class Counting:
    """A store that counts what is read."""

    def __init__(self, store: Store) -> None:
        self.store, self.gets, self.names = store, 0, 0

    async def get(self, space: str, names: Any) -> dict[str, bytes]:
        self.gets, self.names = self.gets + 1, self.names + len(names)
        return await self.store.get(space, names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.mark.slow
def test_reading_and_rolling_back_cost_the_same_at_every_depth(run: Run):
    async def story() -> None:
        store: Any = Counting(MemoryStore())
        ids = await line(trees_in(store), 10_000)
        for depth in (*range(20), *range(5_000, 5_020), *range(9_980, 10_000)):
            for work in ("load_checkpoint", "rollback"):
                store.gets = store.names = 0
                await getattr(trees_in(store), work)(KEY, ids[depth])
                assert store.gets <= 3
                assert store.names <= 2 + SNAPSHOT_EVERY
        depths = [len(record.chain) for record in (await records_in(store)).values()]
        assert max(depths) == SNAPSHOT_EVERY

    run(story())


async def records_in(store: Store) -> Mapping[str, CheckpointRecord]:
    return {
        name: CheckpointRecord.decode(name, data)
        async for name, data in store.scan(KEY.space)
        if is_checkpoint_id(name)
    }


def test_a_call_on_a_known_head_reads_only_where_the_head_is(run: Run):
    async def story() -> None:
        store: Any = Counting(MemoryStore())
        trees = trees_in(store)
        await line(trees, 5)
        store.gets = store.names = 0
        await commit(trees, {"pad": PAD, "n": "next"})
        assert (store.gets, store.names) == (1, 1)

    run(story())


@pytest.mark.parametrize(
    "damage",
    ["lost", "torn", "replaced", "no tree", "endless tree", "endless time", "odd head", "odd parent", "odd chain"],
)
def test_a_damaged_tree_is_found_by_verify_and_refused_by_reads(run: Run, damage: str):
    async def story() -> None:
        store = MemoryStore()
        ids = await line(trees_in(store), 4)
        record, last = [(await records_in(store))[ids[place]] for place in (1, 3)]
        changes = {
            "lost": StoreChange(KEY.space, drop=[ids[1]]),
            "torn": StoreChange(KEY.space, put={ids[1]: record.encode()[:20]}),
            "replaced": StoreChange(
                KEY.space, put={ids[1]: record._replace(body=b'[{"op":"remove","path":"/q"}]').encode()}
            ),
            "no tree": StoreChange(KEY.space, put={TREE: b"?"}),
            "odd head": StoreChange(KEY.space, put={TREE: b'{"head":[1],"last":1,"count":1,"epoch":0}'}),
            "odd parent": StoreChange(
                KEY.space, put={ids[1]: record.encode().replace(b'"parent":', b'"parent":[1],"was":')}
            ),
            "odd chain": StoreChange(KEY.space, put={ids[3]: last.encode().replace(b'"chain":[', b'"chain":[[1],')}),
            "endless tree": StoreChange(KEY.space, put={TREE: b'{"head":null,"last":1e400,"count":1,"epoch":0}'}),
            "endless time": StoreChange(
                KEY.space, put={ids[1]: record.encode().replace(b'"time":', b'"time":1%b,"was":' % (b"0" * 400))}
            ),
        }
        await store.change(changes[damage])
        assert await trees_in(store).verify(KEY) != []
        with pytest.raises(StoreCorrupt):
            await trees_in(store).load_checkpoint(KEY, ids[3])

    run(story())


@pytest.mark.parametrize("name", ["", "[1]", '{"a": 1}', "nothing"])
def test_a_space_that_names_no_tree_is_damage(run: Run, name: str):
    async def story() -> None:
        store = MemoryStore()
        await line(trees_in(store), 1)
        await store.change(StoreChange(CHECKPOINT_SPACES.make_space(name), put={TREE: b"?"}))
        with pytest.raises(StoreCorrupt, match="no name of one"):
            await trees_in(store).list_trees()

    run(story())


def test_a_content_that_is_not_the_one_of_its_id_is_found_by_verify(run: Run):
    async def story() -> None:
        store = MemoryStore()
        (id,) = await line(trees_in(store), 1)
        record = (await records_in(store))[id]
        await store.change(StoreChange(KEY.space, put={id: record._replace(body=b'{"n":9}').encode()}))
        assert await trees_in(store).verify(KEY) == [f"{id} was not made with this secret for this content"]

    run(story())


def test_a_proof_that_was_written_into_a_record_is_found_by_verify(run: Run):
    async def story() -> None:
        store = MemoryStore()
        trees = trees_in(store)
        made = (await trees.commit(await trees.adopt_content(KEY, {"n": 1}), {"n": 2}, branch=True)).checkpoint
        record = (await records_in(store))[made.id]
        assert not made.proved and await trees.verify(KEY) == []
        forged = record._replace(checkpoint=record.checkpoint._replace(proved=True))
        await store.change(StoreChange(KEY.space, put={made.id: forged.encode()}))
        assert await trees_in(store).verify(KEY) == [f"{made.id} was not made with this secret for this content"]

    run(story())


def test_an_id_says_whether_its_line_is_proved():
    content = encode_canonical({"a": 1})
    for is_proved in (False, True):
        id = make_checkpoint_id(SECRET, "alice", "notes", content, b"r" * RANDOM, is_proved=is_proved)
        assert verify_checkpoint_id(SECRET, id, "alice", "notes", content, is_proved=is_proved)
        assert not verify_checkpoint_id(SECRET, id, "alice", "notes", content, is_proved=not is_proved)


def test_a_content_leads_to_the_latest_proved_checkpoint_until_that_is_pruned(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        first = (await commit(trees, {"n": 1})).checkpoint
        await commit(trees, {"n": 2})
        again = (await commit(trees, {"n": 1})).checkpoint
        for content, id in (({"n": 1}, again.id), ({"n": 3}, None)):
            held = await trees.find_proved_checkpoint(KEY, encode_canonical(content))
            assert (held.parent if held is not None else None) == id
        brought = await trees.commit(await trees.adopt_content(KEY, {"n": 9}), {"n": 3}, branch=True)
        assert (
            not brought.checkpoint.proved
            and await trees.find_proved_checkpoint(KEY, encode_canonical({"n": 3})) is None
        )
        assert await trees.prune(KEY, Retention(keep=1)) == 3
        assert [name async for name, _ in store.scan(KEY.space) if not is_checkpoint_id(name)] == [TREE]
        assert await trees.find_proved_checkpoint(KEY, encode_canonical({"n": 1})) is None and first.proved

    run(story())


def test_a_branch_beside_the_head_leaves_the_head(store: Store, run: Run):
    async def story() -> None:
        trees = trees_in(store)
        aside = await trees.commit(await trees.adopt_content(KEY, {"n": 0}), {"n": 1}, branch=True, moves_head=False)
        assert (await trees.load_tree(KEY)).head is None and (await trees.load_checkpoint(KEY)).parent is None
        head = (await commit(trees, {"n": 2})).checkpoint
        await trees.commit(
            await trees.load_checkpoint(KEY, aside.checkpoint.id), {"n": 3}, branch=True, moves_head=False
        )
        assert (await trees.load_tree(KEY)).head == head.id and head.parent is None and head.proved
        assert await trees.verify(KEY) == []

    run(story())


class Forgetful(MemoryStore):
    """Makes a change and then, as a connection that breaks does, asks once more."""

    async def change(self, change: StoreChange) -> bool:
        await super().change(change)
        return await super().change(change)


def test_a_commit_whose_acknowledgement_was_lost_is_recognised(run: Run):
    async def story() -> None:
        trees = trees_in(Forgetful())
        ids = await line(trees, 3)
        await trees.rollback(KEY, ids[0])
        assert [at.id for at in await trees.list_checkpoints(KEY)] == ids
        assert (await trees.load_tree(KEY)).head == ids[0]

    run(story())


def test_a_commit_is_told_although_pruning_fails(run: Run, monkeypatch: pytest.MonkeyPatch):
    async def story() -> None:
        trees = trees_in(MemoryStore(), retention=Retention(keep=1))

        async def failing(*_: Any) -> int:
            raise StoreUnavailable("gone")

        monkeypatch.setattr(trees, "prune", failing)
        assert len(await line(trees, 70)) == 70

    run(story())


# Everything at random, against a dict


class Entry(NamedTuple):
    parent: str | None
    content: Any
    number: int
    time: float


class TreeMachine(RuleBasedStateMachine):
    """Calls, failures, rollbacks, branches and prunes of two workers, against a dict that keeps everything."""

    retention = Retention(keep=12, ttl=100.0)
    ids = Bundle("ids")
    held = Bundle("held")
    undone = Bundle("undone")
    contents = st.fixed_dictionaries(
        {"pad": st.sampled_from([PAD, ""]), "items": st.lists(st.integers(0, 3) | st.booleans(), max_size=5)}
    )
    workers = st.integers(0, 1)

    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self.run, self.clock = run, Clock()
        self.key = TreeKey("set", os.urandom(8).hex())
        self.trees = [trees_in(store, retention=self.retention, clock=self.clock) for _ in range(2)]
        self.model: dict[str, Entry] = {}
        self.head: str | None = None

    def is_kept(self, id: str) -> bool:
        at = self.model[id]
        is_recent = at.number > len(self.model) - 12 and at.time >= self.clock.now - 100
        return id == self.head or is_recent

    def added(self, made: CheckpointCommit, content: Any) -> str:
        id = made.checkpoint.id
        self.model[id] = Entry(made.checkpoint.parent, content, len(self.model) + 1, self.clock.now)
        self.head = id
        return id

    @rule(target=ids, worker=workers, content=contents)
    def call(self, worker: int, content: Any) -> str:
        held = self.run(self.trees[worker].load_checkpoint(self.key))
        assert held.parent == self.head
        assert held.content() == (self.model[self.head].content if self.head else None)
        made = self.run(self.trees[worker].commit(held, content))
        assert made.checkpoint.parent == held.parent
        return self.added(made, content)

    @rule(worker=workers)
    def failing_call(self, worker: int) -> None:
        content = self.run(self.trees[worker].load_checkpoint(self.key)).content()
        if content is not None:
            content["items"].append("never seen")

    @rule(target=held, worker=workers)
    def begin(self, worker: int) -> Any:
        return self.run(self.trees[worker].load_checkpoint(self.key))

    @rule(target=ids, worker=workers, held=consumes(held), content=contents, branch=st.booleans())
    def finish(self, worker: int, held: Any, content: Any, branch: bool) -> Any:
        try:
            made = self.run(self.trees[worker].commit(held, content, branch=branch))
        except HeadMoved:
            assert not branch
            assert held.parent != self.head
            return self.head or "chk_none"
        assert branch or held.parent == self.head
        return self.added(made, content)

    @rule(target=ids, worker=workers, at=ids, content=contents)
    def branch(self, worker: int, at: str, content: Any) -> str:
        if at not in self.model or not self.is_kept(at):
            with pytest.raises(CheckpointGone):
                self.run(self.trees[worker].load_checkpoint(self.key, at))
            return at
        held = self.run(self.trees[worker].load_checkpoint(self.key, at))
        made = self.run(self.trees[worker].commit(held, content, branch=True))
        assert made.checkpoint.parent == at
        return self.added(made, content)

    @rule(worker=workers, to=ids)
    def rollback(self, worker: int, to: str) -> None:
        if to not in self.model or not self.is_kept(to):
            with pytest.raises(CheckpointGone):
                self.run(self.trees[worker].rollback(self.key, to))
        else:
            assert self.run(self.trees[worker].rollback(self.key, to)).id == to
            self.head = to

    @rule(target=undone, worker=workers, to=ids)
    def begin_rollback(self, worker: int, to: str) -> Any:
        return (
            self.run(self.trees[worker].load_checkpoint(self.key, to))
            if to in self.model and self.is_kept(to)
            else None
        )

    @rule(worker=workers, held=consumes(undone))
    def finish_rollback(self, worker: int, held: Any) -> None:
        if held is not None:
            self.head = self.run(self.trees[worker].restore_as_head(held)).id

    @rule(worker=workers, a=ids, b=ids)
    def compare(self, worker: int, a: str, b: str) -> None:
        if all(id in self.model and self.is_kept(id) for id in (a, b)):
            ops = self.run(self.trees[worker].diff(self.key, a, b))
            assert apply_patch_to_text(to_json(self.model[a].content), ops) == self.model[b].content

    @rule(worker=workers)
    def prune(self, worker: int) -> None:
        self.run(self.trees[worker].prune(self.key))
        # What time and number let go of stays gone, wherever the head goes next.
        self.model = {id: at if self.is_kept(id) else at._replace(time=float("-inf")) for id, at in self.model.items()}
        assert self.run(self.trees[worker].load_tree(self.key)).kept == sum(map(self.is_kept, self.model))

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(worker=workers)
    def restart(self, worker: int) -> None:
        old = self.trees[worker]
        self.trees[worker] = trees_in(old._store, retention=self.retention, clock=self.clock)

    @invariant()
    def the_tree_is_as_the_model_says(self) -> None:
        trees = self.trees[0]
        assert self.run(trees.load_tree(self.key)).head == self.head
        found = self.run(trees.list_checkpoints(self.key))
        assert [(at.id, at.parent) for at in found] == [
            (id, at.parent) for id, at in self.model.items() if self.is_kept(id)
        ]
        assert len(checkpoint_tree.list_ancestors(found, self.head)) >= 1 if self.head else not found

    def teardown(self) -> None:
        assert self.run(self.trees[0].verify(self.key)) == []
        for id in filter(self.is_kept, self.model):
            assert self.run(self.trees[1].load_content(self.key, id)) == self.model[id].content


@pytest.mark.slow
@pytest.mark.hypothesis
def test_a_tree_is_at_all_times_what_a_plain_dict_says(store: Store, run: Run):
    few = 15 if isinstance(store, MemoryStore) else 5
    run_state_machine_as_test(
        lambda: TreeMachine(store, run),
        settings=settings(
            max_examples=examples(few), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
