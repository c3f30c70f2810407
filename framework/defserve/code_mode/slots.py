"""The workers of code mode, shared by its callers."""

from __future__ import annotations

import asyncio


class WorkerSlots:
    """Who may use a worker now. One caller has at most half of them, so that it cannot keep out the others."""

    def __init__(self, most: int) -> None:
        self._all, self._each = asyncio.Semaphore(most), max(1, most // 2)
        self._callers: dict[str, tuple[asyncio.Semaphore, set[object]]] = {}

    async def take(self, caller: str, run: object) -> None:
        own, runs = self._callers.setdefault(caller, (asyncio.Semaphore(self._each), set()))
        runs.add(run)
        try:
            await own.acquire()
            try:
                await self._all.acquire()
            except BaseException:
                own.release()
                raise
        except BaseException:
            self._forget(caller, run)
            raise

    def give_back(self, caller: str, run: object) -> None:
        self._all.release()
        self._callers[caller][0].release()
        self._forget(caller, run)

    def _forget(self, caller: str, run: object) -> None:
        runs = self._callers[caller][1]
        runs.discard(run)
        if not runs:
            del self._callers[caller]
