"""Changes in a folder that only one process makes at a time."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from defserve.base import concurrency
from defserve.base.concurrency import lock_folder


def test_who_comes_second_waits(tmp_path: Path):
    order = list[str]()

    def second() -> None:
        with lock_folder(tmp_path):
            order.append("second")

    beside = Thread(target=second)
    with lock_folder(tmp_path):
        beside.start()
        beside.join(0.1)
        order.append("first")
    beside.join()
    assert order == ["first", "second"]


def test_a_folder_that_somebody_locks_for_ever_is_changed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(concurrency, "LOCK_TIMEOUT_SECONDS", 0.05)
    with lock_folder(tmp_path), lock_folder(tmp_path):
        assert tmp_path.exists()
