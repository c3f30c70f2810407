"""Processes that run code, started once for all tests: a pytest plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from defserve.sandbox.workers import MontyWorker, SandboxPool


@pytest.fixture(scope="session")
def stock() -> Iterator[SandboxPool]:
    """Processes that no server has. To start one takes longer than most tests."""
    from defserve.sandbox.workers import SandboxPool

    stock = SandboxPool(kept=4)
    yield stock
    stock.close()


@pytest.fixture
def borrowed_workers(stock: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers take their processes from the stock and give them back, rather than start and end them."""
    from defserve.code_mode import run
    from defserve.sandbox.workers import SandboxPool

    class BorrowedWorkers(SandboxPool):
        def _start(self) -> MontyWorker:
            return stock.acquire_worker()

        def close(self) -> None:
            with self._lock:
                idle, self._idle, self._closed = self._idle, [], True
            for worker in idle:
                stock.release_worker(worker)

    monkeypatch.setattr(run, "SandboxPool", BorrowedWorkers)
