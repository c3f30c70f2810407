"""How much work something is: processor time, which a busy machine does not lengthen; and how hard Hypothesis tries."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import settings

EXAMPLES = 25
"""What a property test tries by default; `make fuzz` tries 20,000."""


def cpu_within(seconds: float, work: Callable[[], object]) -> bool:
    """Whether this thread can do it in so much processor time; in one of three tries, as the collector may join in."""
    return any(_cpu_seconds(work) < seconds for _ in range(3))


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def examples(few: int) -> int:
    """How many examples a costly property test tries: `few`, and in `make fuzz` as many times more as all others."""
    wanted = settings.default
    assert wanted is not None
    return max(1, few * wanted.max_examples // EXAMPLES)
