"""Asynchronous tests run on asyncio, the server's loop; the processes that run code are started once for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from defserve.code_mode import run
from defserve.sandbox.workers import MontyWorker, SandboxPool


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def stock() -> Iterator[SandboxPool]:
    """Processes that no server has. To start one takes longer than most tests."""
    stock = SandboxPool(kept=4)
    yield stock
    stock.close()


@pytest.fixture(autouse=True)
def borrowed_workers(stock: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers take their processes from the stock and give them back, rather than start and end them."""

    class BorrowedWorkers(SandboxPool):
        def _start(self) -> MontyWorker:
            return stock.acquire_worker()

        def close(self) -> None:
            with self._lock:
                idle, self._idle, self._closed = self._idle, [], True
            for worker in idle:
                stock.release_worker(worker)

    monkeypatch.setattr(run, "SandboxPool", BorrowedWorkers)


@pytest.fixture
def own_workers(borrowed_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how a server starts and ends its processes."""
    monkeypatch.setattr(run, "SandboxPool", SandboxPool)
