"""Trees from the wire and from stores."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from defserve.client.mcpl.state import StateChange, StateContentCache
from defserve.errors import UsageError
from defserve.inspector.state_trees import (
    AT_ONCE,
    MISSING_CONTENT,
    NO_PARENT,
    NOT_KEPT,
    StateTrees,
    StoredState,
    WatchedTree,
    open_states_at,
)
from defserve.stores.checkpoints.checkpoint_store import OPAQUE, CheckpointStore
from defserve.stores.checkpoints.checkpoint_tree import CheckpointGone, Retention, TreeKey
from defserve.stores.identity import ServerIdentity, make_server_store
from defserve.stores.store import MemoryStore

pytestmark = pytest.mark.anyio

SET = "notes.edit"
KEY = TreeKey(SET, "alice")


def change(
    id: str, parent: str | None, content: Any = None, tool: str | None = "add_note", by_rollback: bool = False
) -> StateChange:
    return StateChange(SET, id, parent, content, tool, by_rollback)


def stored(trees: CheckpointStore, **facts: Any) -> StateTrees:
    async def opened() -> CheckpointStore:
        return trees

    return StateTrees(lambda name: StoredState(opened, facts) if name == SET else None)


def trees_in_memory(**options: Any) -> CheckpointStore:
    return CheckpointStore(MemoryStore(), secret=b"s" * 32, **options)


async def commit(trees: CheckpointStore, content: Any, key: TreeKey = KEY, on: str | None = None) -> str:
    return (await trees.commit(await trees.load_checkpoint(key, on), content, branch=on is not None)).checkpoint.id


# -- what was watched ----------------------------------------------------------------------------------------


async def test_what_was_watched_has_its_call_its_change_and_its_maker():
    states = StateTrees()
    states.record_change("stateless", change("a", None, {"notes": []}))
    states.record_change("stateless", change("b", "a", {"notes": ["milk"]}))
    states.record_change("stateless", change("c", "b", {"notes": ["milk", "tea"]}, tool=None))
    view = states.open_tree("stateless", SET, None)
    assert [(at.id, at.parent, at.call, at.change, at.who) for at in await view.list_checkpoints()] == [
        ("a", None, "add_note", "begins", "inspector"),
        ("b", "a", "add_note", '+ notes/0 "milk"', "inspector"),
        ("c", "b", None, '+ notes/1 "tea"', "server"),
    ]
    assert await view.get_content("b") == {"notes": ["milk"]}
    states.record_change("stateless", change("a", None, {"notes": []}, by_rollback=True))
    assert (await view.get_head_id(), await view.count_checkpoints()) == ("a", 3)
    assert await states.list_trees("stateless", SET) == [{"owner": None, "kept": 3, "own": True}]
    assert await states.list_trees("handshake", SET) == [{"owner": None, "kept": 0, "own": True}]


async def test_a_state_that_the_server_keeps_for_itself_has_no_contents():
    states = StateTrees()
    states.record_change("stateless", change("a", None))
    view = states.open_tree("stateless", SET, None)
    assert await view.get_content("a") is MISSING_CONTENT
    assert view.describe_tree() == {"opaque": True}
    assert await states.describe_changes(view, ["a"]) == {"a": ""}


async def test_the_oldest_that_were_watched_are_forgotten():
    tree = WatchedTree("t", StateContentCache(10_000), most=1_500)
    for number in range(1_600):
        tree.add(change(str(number), str(number - 1) if number else None))
    known = await tree.list_checkpoints()
    assert len(known) <= 1_500
    assert (known[-1].id, known[-1].number) == ("1599", 1600)


async def test_ids_that_are_too_long_are_left_out():
    states = StateTrees()
    states.record_change("stateless", change("x" * 2_000, None))
    states.record_change("stateless", change("a", "x" * 2_000))
    states.record_change("stateless", change("b", None))
    assert [at.id for at in await states.open_tree("stateless", SET, None).list_checkpoints()] == ["b"]


# -- what a store has ----------------------------------------------------------------------------------------


async def test_a_tree_in_a_store_is_read_with_what_was_watched_of_it():
    trees = trees_in_memory()
    first = await commit(trees, {"n": 1})
    states = stored(trees, store="memory")
    second = await commit(trees, {"n": 2})
    states.record_change("stateless", change(second, first, {"n": 2}, tool="count"))
    await commit(trees, {"n": 9}, TreeKey(SET, "bob"))
    assert await states.list_trees("stateless", SET) == [
        {"owner": "alice", "kept": 2, "own": True},
        {"owner": "bob", "kept": 1, "own": False},
    ]
    view = states.open_tree("stateless", SET, "alice")
    assert [(at.id, at.call) for at in await view.list_checkpoints()] == [(first, None), (second, "count")]
    assert await states.describe_changes(view, [first, second, "nothing"]) == {first: "begins", second: "n: 1 → 2"}
    assert view.describe_tree() == {"store": "memory", "owner": "alice"}
    with pytest.raises(CheckpointGone):
        await view.get_content("chk_nothing")


async def test_only_what_is_new_in_a_store_is_read_again(monkeypatch: pytest.MonkeyPatch):
    trees = trees_in_memory()
    first = await commit(trees, {"n": 1})
    view = stored(trees).open_tree("stateless", SET, "alice")
    await view.list_checkpoints()
    scans: list[Any] = []
    scan = trees.list_checkpoints

    async def counted(key: TreeKey) -> Any:
        scans.append(key)
        return await scan(key)

    monkeypatch.setattr(trees, "list_checkpoints", counted)
    second = await commit(trees, {"n": 2})
    third = await commit(trees, {"n": 3})
    assert [at.id for at in await view.list_checkpoints()] == [first, second, third]
    assert scans == []
    # Two branches at once: the new head does not lead to the other.
    fourth, fifth = await commit(trees, {"n": 4}), await commit(trees, {"n": 5}, on=first)
    assert [at.id for at in await view.list_checkpoints()] == [first, second, third, fourth, fifth]
    assert len(scans) == 1


async def test_two_pages_that_read_at_once_see_each_checkpoint_once(monkeypatch: pytest.MonkeyPatch):
    trees = trees_in_memory()
    ids = [await commit(trees, {"n": 0})]
    view = stored(trees).open_tree("stateless", SET, "alice")
    await view.list_checkpoints()
    ids += [await commit(trees, {"n": number}) for number in (1, 2)]
    get = trees.get_checkpoint

    async def slow(key: TreeKey, id: str) -> Any:
        await asyncio.sleep(0)
        return await get(key, id)

    monkeypatch.setattr(trees, "get_checkpoint", slow)
    for found in await asyncio.gather(view.list_checkpoints(), view.list_checkpoints()):
        assert [at.id for at in found] == ids


async def test_contents_that_never_leave_the_server_are_not_shown():
    trees = trees_in_memory()
    first = await commit(trees, {"n": 1})
    assert await stored(trees, opaque=True).open_tree("stateless", SET, "alice").get_content(first) is MISSING_CONTENT
    second = (await trees.commit(await trees.load_checkpoint(KEY), OPAQUE)).checkpoint.id
    assert await stored(trees).open_tree("stateless", SET, "alice").get_content(second) is MISSING_CONTENT


async def test_a_store_at_an_address_is_read(tmp_path: Any):
    address = f"sqlite:///{tmp_path}/notes.db"
    async with open_states_at(address) as found:
        state = found(SET)
        assert state is not None
        assert await (await state.trees()).list_trees() == []
        store = make_server_store(address, ServerIdentity("name", "notes"))
        first = await commit(CheckpointStore(store, secret=bytes(32)), {"n": 1})
        await store.close()
        states = StateTrees(found)
        assert await states.list_trees("stateless", SET) == [{"owner": "alice", "kept": 1, "own": False}]
        assert await states.open_tree("stateless", SET, "alice").get_content(first) == {"n": 1}


def test_an_owner_without_a_store_is_an_error():
    with pytest.raises(UsageError, match="cannot read the store"):
        StateTrees().open_tree("stateless", SET, "alice")


# -- following -----------------------------------------------------------------------------------------------


async def test_following_gives_the_tree_in_parts_and_then_what_is_new():
    states = StateTrees()
    for number in range(AT_ONCE + 1):
        states.record_change("stateless", change(str(number), str(number - 1) if number else None))
    async with aclosing(states.follow_tree(states.open_tree("stateless", SET, None))) as parts:
        one, two = await anext(parts), await anext(parts)
        assert (one["from"], len(one["checkpoints"]), one["more"]) == (0, AT_ONCE, True)
        assert one["checkpoints"][0][:2] == ["0", NO_PARENT]
        assert one["checkpoints"][1][:2] == ["1", 0]
        last = str(AT_ONCE)
        assert (two["from"], two["head"], [row[0] for row in two["checkpoints"]]) == (AT_ONCE, last, [last])
        states.record_change("stateless", change("new", "1"))
        three = await anext(parts)
        assert (three["from"], three["head"]) == (AT_ONCE + 1, "new")
        assert three["checkpoints"][0][:2] == ["new", 1]
        states.record_change("stateless", change("3", "2", by_rollback=True))
        assert await anext(parts) == {"from": AT_ONCE + 2, "checkpoints": [], "head": "3"}


async def test_following_a_store_notices_what_others_do_and_what_was_pruned():
    trees = trees_in_memory()
    ids = [await commit(trees, {"n": number}) for number in range(5)]
    states = stored(trees)
    async with aclosing(states.follow_tree(states.open_tree("stateless", SET, "alice"))) as parts:
        assert len((await anext(parts))["checkpoints"]) == 5
        await trees.prune(KEY, Retention(keep=2))
        states.record_change("stateless", change("elsewhere", None))  # a poll would notice it too, later
        part = await anext(parts)
        assert (part["from"], [row[:2] for row in part["checkpoints"]]) == (0, [[ids[3], NOT_KEPT], [ids[4], 0]])
        await trees.rollback(KEY, ids[3])
        assert (await anext(parts))["head"] == ids[3]
