"""Run by tests as a process of its own: commits to one tree, and says each checkpoint after it is kept.

python committing.py <address> <calls> [<name>]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from defserve.stores.checkpoints.checkpoint_store import CheckpointStore, HeadMoved
from defserve.stores.checkpoints.checkpoint_tree import TreeKey
from defserve.stores.identity import open_store

SECRET = b"s" * 32
KEY = TreeKey("notes.edit", "alice")


async def main(address: str, calls: int, name: str) -> None:
    """Each call adds its mark to the head, again and again until it has its place; every tenth rolls back after it."""
    store = open_store(address)
    trees = CheckpointStore(store, secret=SECRET)
    for call in range(calls):
        while True:
            held = await trees.load_checkpoint(KEY)
            content = held.content() or {"pad": "x" * 200, "marks": []}
            content["marks"].append(f"{name}{call}")
            try:
                made = await trees.commit(held, content)
            except HeadMoved:
                continue
            print(made.checkpoint.id, f"{name}{call}", flush=True)
            break
        if name == "killed" and call % 10 == 9 and held.parent is not None:
            await trees.rollback(KEY, held.parent)
    await store.close()


def committing_to(address: str, calls: int, name: str) -> subprocess.Popen[str]:
    """Start this program."""
    return subprocess.Popen(
        [sys.executable, __file__, address, str(calls), name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


async def assert_one_line(trees: CheckpointStore, outputs: list[str]) -> None:
    """Every acknowledged commit is on the one branch there is, and in the head's content."""
    marks = {line.split()[1] for output in outputs for line in output.splitlines()}
    (end,) = await trees.list_branches(KEY)
    head = (await trees.load_checkpoint(KEY)).content()
    assert end.depth + 1 == len(head["marks"]) == len(marks) == 120
    assert set(head["marks"]) == marks
    assert await trees.verify(KEY) == []


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
