"""How much work something is: processor time, which a busy machine does not lengthen."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_within(seconds: float, work: Callable[[], object]) -> bool:
    """Whether this thread can do it in so much processor time; in one of three tries, as the collector may join in."""
    return any(_cpu_seconds(work) < seconds for _ in range(3))


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
