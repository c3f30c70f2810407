"""Every space is in one table, and no two features can meet in one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

import defserve
from defserve.auth.api_keys import ApiKeys
from defserve.stores import store as spaces
from defserve.stores.checkpoints.checkpoint_store import (
    CheckpointStore,
    find_old_secret,
    load_checkpoint_secret,
    read_checkpoint_secret,
)
from defserve.stores.checkpoints.checkpoint_tree import TreeKey
from defserve.stores.store import Lease, MemoryStore, SharedNonceStore, StoreChange
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PACKAGE = Path(defserve.__file__).parent


def test_no_two_rows_of_the_table_can_name_the_same_space():
    for one, other in permutations(spaces.SPACE_DESCRIPTIONS, 2):
        assert not (one.endswith(":") and other.startswith(one)), f"{other} is one of {one}"
    assert len({name.rstrip(":") for name in spaces.SPACE_DESCRIPTIONS}) == len(spaces.SPACE_DESCRIPTIONS)


def test_every_space_that_is_declared_is_in_the_table():
    declared = [
        value for name, value in vars(spaces).items() if name.isupper() and name[0] != "_" and isinstance(value, str)
    ]
    assert sorted(declared) == sorted(spaces.SPACE_DESCRIPTIONS)
    assert all(isinstance(name, spaces.SpaceFamily) == name.endswith(":") for name in declared)


def _text_names(tree: ast.Module) -> set[str]:
    """Names of a module that are bound to a text."""
    found = set[str]()
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for name in targets if isinstance(name, ast.Name) and isinstance(node.value.value, str)}
    return found


def _is_text(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left, names)
    is_named = isinstance(node, ast.Name) and node.id in names
    return (
        is_named or isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    )


def strays(source: str) -> Iterator[str]:
    """Where a module makes a space of its own: it calls `Space`, or gives a store a text."""
    if not re.search(r"Space|StoreChange|store\b", source):
        return
    tree = ast.parse(source)
    names = _text_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        takes = called == "StoreChange" or (called in ("get", "scan", "spaces") and owner.endswith("store"))
        given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "space")]
        if called in ("Space", "SpaceFamily") or (takes and any(_is_text(each, names) for each in given)):
            yield ast.unparse(node)


@pytest.mark.slow
def test_no_module_makes_a_space_of_its_own():
    found = {
        f"{path.relative_to(PACKAGE)}: {stray}"
        for path in PACKAGE.rglob("*.py")
        # `identity` puts a server's name before the spaces that `store` declares.
        if path not in (PACKAGE / "stores" / "store.py", PACKAGE / "stores" / "identity.py")
        for stray in strays(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@for_each_row(
    "source",
    [
        'StoreChange("mine", put={})',
        'StoreChange(space="mine")',
        'SPACE = "mine"\nstore.get(SPACE, ["a"])',
        'SPACE: Final = "mine:"\nself._store.scan(SPACE + name)',
        'self._store.get(f"mine:{name}", [])',
        'Space("mine")',
    ],
)
def test_a_module_that_makes_a_space_of_its_own_is_noticed(source: str):
    assert len([*strays(source)]) == 1


class Watched(MemoryStore):
    """Remembers which spaces are used."""

    def __init__(self) -> None:
        super().__init__()
        self.used = set[str]()

    async def change(self, change: StoreChange) -> bool:
        self.used.add(change.space)
        return await super().change(change)


async def test_the_features_of_one_store_never_share_a_space():
    used: list[set[str]] = []

    async def keys(store: Watched) -> None:
        await ApiKeys(store, pepper="a pepper of sixteen bytes").create("ann")

    async def secret(store: Watched) -> None:
        await load_checkpoint_secret(store, None)

    async def checkpoints(store: Watched) -> None:
        trees = CheckpointStore(store, secret=b"s" * 32)
        await trees.commit(await trees.load_checkpoint(TreeKey("notes", "ann")), {"a": 1})

    async def nonces(store: Watched) -> None:
        assert await SharedNonceStore(store).spend("checkpoints", ttl=60)

    async def leases(store: Watched) -> None:
        lease = Lease(store, "checkpoints")
        await lease.acquire(1)
        await lease.release()

    for feature in (keys, secret, checkpoints, nonces, leases):
        store = Watched()
        await feature(store)
        used.append(store.used)
    assert all(used) and len(set.union(*used)) == sum(map(len, used))
    rows = tuple(spaces.SPACE_DESCRIPTIONS)
    assert all(
        any(name == row or (row.endswith(":") and name.startswith(row)) for row in rows) for name in set.union(*used)
    )


async def test_a_secret_that_0_1_0_kept_among_the_keys_is_found_and_no_new_id_is_made_with_it():
    store, old = MemoryStore(), b"o" * 32
    await store.change(StoreChange(spaces.API_KEYS_SPACE, put={"checkpoints": old}))
    assert await find_old_secret(store) == old
    assert await read_checkpoint_secret(store) is None
    made = await load_checkpoint_secret(store, None)
    assert made != old and await load_checkpoint_secret(store, None) == made


async def test_a_new_secret_is_not_kept_among_the_keys():
    store = MemoryStore()
    await load_checkpoint_secret(store, None)
    assert [entry async for entry in store.scan(spaces.API_KEYS_SPACE)] == []
