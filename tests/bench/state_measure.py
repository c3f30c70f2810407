"""What checkpoints cost: durable commits against raw SQLite, and reading and going back however deep a tree is.

In this process; nobody else has these to compare. Two programs written by hand stand beside commits, as durable, in
batches of the same sizes and a table of the same form: `sqlite` keeps the same states, each time the whole as JSON;
`replay` writes the very bytes that defserve wrote and does nothing to find out what they are. Writes are the same
states kept whole in the store alone: what is left of a commit without its tree, its copies and its proof of origin.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import count, product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from pydantic_core import to_json

from defserve.stores.checkpoints.checkpoint_store import TREE, CheckpointStore
from defserve.stores.checkpoints.checkpoint_tree import (
    RANDOM,
    Checkpoint,
    CheckpointContent,
    CheckpointRecord,
    CheckpointTree,
    TreeKey,
    make_checkpoint_draft,
    make_checkpoint_id,
    make_checkpoint_record,
)
from defserve.stores.checkpoints.json_patches import MAX_PATCHED_DEPTH
from defserve.stores.sqlite import SqliteStore
from defserve.stores.store import StoreChange

from .measure import Run
from .targets import SUBJECT

RAW = "sqlite"
REPLAY = "replay"
SECRET = b"s" * 32
SIZES = {"1 kB": 1_000, "100 kB": 100_000}
CALLERS = (1, 64)
DEPTHS = (10, 1_000, 100_000)
TRIES = 32
GROWING = 2_000

Batches = list[list[StoreChange]]
Row = tuple[str, str, bytes]


def measure_commits(run: Run) -> None:
    """Commits per second, each caller on a tree of its own; then by hand."""
    for measure, size, callers, folder in _cases(run, "state-commits"):
        rate, batches = asyncio.run(_commit(folder / "ours.db", size, callers, run.plan.commits))
        run.results.add(measure, SUBJECT, rate)
        run.results.add(measure, RAW, _raw_rate(folder / "raw.db", batches, size))
        replay = _write_raw(folder / "replay.db", map(_rows, batches))
        run.results.add(measure, REPLAY, sum(map(len, batches)) / replay)


def measure_writes(run: Run) -> None:
    """States per second that the store alone keeps, each caller's in a space of its own; then by hand."""
    for measure, size, callers, folder in _cases(run, "state-writes"):
        rate, batches = asyncio.run(_write(folder / "ours.db", size, callers, run.plan.commits))
        run.results.add(measure, SUBJECT, rate)
        run.results.add(measure, RAW, _raw_rate(folder / "raw.db", batches, size))


def measure_depth(run: Run) -> None:
    """Microseconds to read a checkpoint that nothing is known of, and to go back to it, at the end of a long tree."""
    with tempfile.TemporaryDirectory(prefix="bench-state-") as folder:
        for depth in DEPTHS:
            run.say(f"state, depth {depth:,}")
            path = Path(folder) / f"{depth}.db"
            for _ in range(run.plan.state_rounds):
                read, back = asyncio.run(_visit(path, depth))
                run.results.add(f"state-read/depth {depth:,}", SUBJECT, read * 1e6)
                run.results.add(f"state-rollback/depth {depth:,}", SUBJECT, back * 1e6)


def measure_patch(run: Run) -> None:
    """The bytes on the wire of one change to a state of 100 kB."""
    with tempfile.TemporaryDirectory(prefix="bench-state-") as folder:
        patch, data = asyncio.run(_change_one(Path(folder) / "patch.db"))
    run.results.add("state-bytes/patch", SUBJECT, patch)
    run.results.add("state-bytes/data", SUBJECT, data)


STATE: dict[str, Callable[[Run], None]] = {
    "state-commits": measure_commits,
    "state-writes": measure_writes,
    "state-depth": measure_depth,
    "state-patch": measure_patch,
}


def _cases(run: Run, what: str) -> Iterator[tuple[str, int, int, Path]]:
    """Each size of state and number of callers, in every round, with a folder to keep them in."""
    for turn in range(run.plan.state_rounds):
        for (name, size), callers in product(SIZES.items(), CALLERS):
            run.say(f"{what} {name}, {callers} callers {turn + 1}/{run.plan.state_rounds}")
            with tempfile.TemporaryDirectory(prefix="bench-state-") as folder:
                yield f"{what}/{name}, {callers} callers", size, callers, Path(folder)


def _content(size: int) -> dict[str, Any]:
    """Notes of 100 bytes or so."""
    return {"notes": [{"id": n, "text": f"{n:05} " + "x" * 70} for n in range(size // 100)], "title": "Notes"}


def _edit(content: dict[str, Any], number: int) -> None:
    content["notes"][number % len(content["notes"])]["text"] = f"changed {number}"


async def _commit(path: Path, size: int, callers: int, commits: int) -> tuple[float, Batches]:
    store, batches = SqliteStore(path), Batches()
    trees = CheckpointStore(store, secret=SECRET)
    keys = [TreeKey("notes.edit", f"caller {n}") for n in range(callers)]
    for key in keys:
        await trees.commit(await trees.load_checkpoint(key), _content(size))
    _record(store, batches)

    async def call(caller: int, times: int) -> None:
        for number in range(times):
            key = keys[caller]
            held = await trees.load_checkpoint(key)
            content = held.content()
            _edit(content, number)
            await trees.commit(held, to_json(content))

    rate = await _rate(call, callers, commits)
    await store.close()
    return rate, batches


async def _write(path: Path, size: int, callers: int, commits: int) -> tuple[float, Batches]:
    store, batches = SqliteStore(path), Batches()
    await store.open()
    _record(store, batches)

    async def call(caller: int, times: int) -> None:
        content = _content(size)
        for number in range(times):
            _edit(content, number)
            await store.change(StoreChange(f"caller {caller}", put={str(number): to_json(content)}))

    rate = await _rate(call, callers, commits)
    await store.close()
    return rate, batches


async def _rate(call: Callable[[int, int], Awaitable[None]], callers: int, commits: int) -> float:
    """What all callers together do in a second."""
    times, began = max(1, commits // callers), perf_counter()
    await asyncio.gather(*(call(caller, times) for caller in range(callers)))
    return times * callers / (perf_counter() - began)


def _record(store: SqliteStore, batches: Batches) -> None:
    """Have a store note what it writes together."""
    lane = store._writer  # pyright: ignore[reportPrivateUsage]
    work = lane._work  # pyright: ignore[reportPrivateUsage]

    def recording(changes: Sequence[StoreChange]) -> Any:
        batches.append(list(changes))
        return work(changes)

    lane._work = recording  # pyright: ignore[reportPrivateUsage]


def _rows(batch: list[StoreChange]) -> list[Row]:
    return [(change.space, name, value) for change in batch for name, value in change.put.items()]


def _serialised(batches: Batches, size: int) -> Iterator[list[Row]]:
    """What a program keeps that has each caller's state in memory, edits it in place and writes it down whole."""
    states: dict[str, tuple[Any, Iterator[int]]] = {}
    for batch in batches:
        rows: list[Row] = []
        for change in batch:
            content, numbers = states.setdefault(change.space, (_content(size), count()))
            number = next(numbers)
            _edit(content, number)
            rows.append((change.space, str(number), to_json(content)))
        yield rows


def _raw_rate(path: Path, batches: Batches, size: int) -> float:
    """The same states per second, by hand."""
    return sum(map(len, batches)) / _write_raw(path, _serialised(batches, size))


def _write_raw(path: Path, batches: Iterable[list[Row]]) -> float:
    """The seconds it takes."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE entries (space TEXT, name TEXT, value BLOB, PRIMARY KEY (space, name))")
    began = perf_counter()
    for rows in batches:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT OR REPLACE INTO entries (space, name, value) VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
    took = perf_counter() - began
    connection.close()
    return took


async def _visit(path: Path, depth: int) -> tuple[float, float]:
    """The medians for the last checkpoints."""
    store, key = SqliteStore(path), TreeKey("notes.edit", "alice")
    ids = await _grown(store, key, depth)
    reads: list[float] = []
    rollbacks: list[float] = []
    for at in range(TRIES):
        # One that knows nothing yet, as after a restart.
        trees, id = CheckpointStore(store, secret=SECRET), ids[-1 - at % min(len(ids), TRIES)]
        began = perf_counter()
        await trees.load_content(key, id)
        between = perf_counter()
        await CheckpointStore(store, secret=SECRET).rollback(key, id)
        reads.append(between - began)
        rollbacks.append(perf_counter() - between)
    await store.close()
    return median(reads), median(rollbacks)


async def _grown(store: SqliteStore, key: TreeKey, depth: int) -> list[str]:
    """The last ids of a tree of this depth, which is made, many checkpoints at a time, if it is not there."""
    if (await CheckpointStore(store, secret=SECRET).load_tree(key)).head is None:
        await _grow(store, key, depth)
    return [id async for id in _last(store, key, depth)]


async def _grow(store: SqliteStore, key: TreeKey, depth: int) -> None:
    value = _content(1_000)
    parent: CheckpointRecord | None = None
    before: CheckpointContent | None = None
    put: dict[str, bytes] = {}
    for number in range(1, depth + 1):
        value = {**value, "title": f"Notes {number}"}
        made = make_checkpoint_draft(value, before, MAX_PATCHED_DEPTH)
        id = make_checkpoint_id(SECRET, key.owner, key.feature_set, made.content.encoded, os.urandom(RANDOM))
        at = Checkpoint(id, parent.id if parent is not None else None, number - 1, number, 0.0)
        parent, before = make_checkpoint_record(at, made, parent), made.content
        put[id] = parent.encode()
        if len(put) == GROWING or number == depth:
            await store.change(StoreChange(key.space, put={**put, TREE: CheckpointTree(id, number, number).encode()}))
            put = {}


async def _last(store: SqliteStore, key: TreeKey, depth: int) -> AsyncIterator[str]:
    id = (await CheckpointStore(store, secret=SECRET).load_tree(key)).head
    for _ in range(min(depth, TRIES)):
        if id is None:
            return
        yield id
        id = CheckpointRecord.decode(id, (await store.get(key.space, [id]))[id]).checkpoint.parent


async def _change_one(path: Path) -> tuple[int, int]:
    store, key = SqliteStore(path), TreeKey("notes.edit", "alice")
    trees = CheckpointStore(store, secret=SECRET)
    await trees.commit(await trees.load_checkpoint(key), _content(SIZES["100 kB"]))
    held = await trees.load_checkpoint(key)
    content = held.content()
    content["notes"].append({"id": len(content["notes"]), "text": "x" * 70})
    made = await trees.commit(held, content)
    await store.close()
    return len(json.dumps(made.patch())), len(json.dumps(content))
