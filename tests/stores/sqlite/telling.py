"""Run by tests as a process of its own: counts up in a store with others, and sees that it reads nothing out of date.

python telling.py <folder> <place> <numbers>

In `told` each process has a place for the highest number that it was told, or that it read: nobody may read a lower one
after that. Prints each number that it made, and "stale" for each that it should not have been given. Ends when the
count is higher by `numbers` than at its start, whoever raised it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import sys
from pathlib import Path

from defserve.stores.sqlite import SqliteStore
from defserve.stores.store import StoreChange

PLACES = 8
SPACE, NAME = "s", "count"


class Told:
    """What everybody was told."""

    def __init__(self, path: Path, place: int) -> None:
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 8 * PLACES)).cast("Q")
        self._place = place

    def most(self) -> int:
        return max(self._numbers.tolist())

    def add(self, number: int) -> None:
        self._numbers[self._place] = max(number, self._numbers[self._place])


async def read(store: SqliteStore, told: Told) -> int:
    before = told.most()
    number = int((await store.get(SPACE, [NAME]))[NAME])
    if number < before:
        print("stale", number, before, flush=True)
    told.add(number)
    return number


async def watch(store: SqliteStore, told: Told, goal: int) -> None:
    while told.most() < goal:
        await read(store, told)
        await asyncio.sleep(0.0005)  # without a pause, four processes leave each other no processor time


async def count(store: SqliteStore, told: Told, goal: int) -> None:
    while told.most() < goal:
        number = await read(store, told)
        put = {NAME: b"%d" % (number + 1), f"pad{number % 50}": b"x" * 700}
        if await store.change(StoreChange(SPACE, put=put, expect={NAME: b"%d" % number})):
            told.add(number + 1)
            print("made", number + 1, flush=True)
        await asyncio.sleep(0.001)  # SQLite's lock is not fair: let the others have it too


async def main(folder: Path, place: int, numbers: int) -> None:
    store, told = SqliteStore(folder / "store.db", busy=300), Told(folder / "told", place)
    goal = told.most() + numbers
    await asyncio.gather(*(each(store, told, goal) for each in (watch, count, watch)))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    os._exit(0)
