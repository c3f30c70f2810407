"""Asynchronous tests run on asyncio, the server's loop; the processes that run code are started once for all tests."""

from __future__ import annotations

import pytest

from defserve.code_mode import run
from defserve.sandbox.workers import SandboxPool


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def borrowing(borrowed_workers: None) -> None:
    """All of these tests borrow, and those of `own_workers` do not."""


@pytest.fixture
def own_workers(borrowed_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how a server starts and ends its processes."""
    monkeypatch.setattr(run, "SandboxPool", SandboxPool)
