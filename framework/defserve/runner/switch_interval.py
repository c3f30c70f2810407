"""How long a thread that computes keeps the interpreter to itself: short enough that the event loop gets its turn.

With 32 such threads and Python's own 5 ms, a ping that needs the interpreter a few times was answered after seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

ROUND = 0.016
SHORTEST = 0.0001


@contextmanager
def lowered_switch_interval(threads: int) -> Generator[None]:
    """For a process that is ours: the turns of all worker threads together take `ROUND` seconds at most."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, max(ROUND / threads, SHORTEST)))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
