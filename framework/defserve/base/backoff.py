"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

# They lead from any wait to any other. A float would overflow at 2¹⁰²⁴.
MAX_DOUBLINGS: Final = 100


def compute_backoff(failures: int, first: float, longest: float) -> float:
    """The wait after so many failures before this one: `first`, doubled for each, up to `longest`."""
    return min(first * 2.0 ** min(failures, MAX_DOUBLINGS), longest)


def parse_retry_after(headers: Mapping[str, str]) -> float:
    """The seconds for which an HTTP server wants to be left alone; 0 if it does not say. Names are in lower case."""
    seconds = headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() and len(seconds) < 10 else 0.0


class Backoff:
    """The waits of one loop: twice as long each time, up to `longest`.

    Each is multiplied by a random number of the range `jitter`, so that many who failed at once do not all come back
    at once.
    """

    def __init__(self, first: float, longest: float, *, jitter: tuple[float, float] = (1.0, 1.0)) -> None:
        self.first, self.longest, self.jitter = first, longest, jitter
        self._next = first

    @property
    def is_reset(self) -> bool:
        """Whether nothing has failed since the last success."""
        return self._next == self.first

    def reset(self) -> None:
        """It went well: the next wait is the shortest."""
        self._next = self.first

    def next_wait(self) -> float:
        """The seconds to wait after another failure."""
        seconds, self._next = self._next, min(self._next * 2, self.longest)
        return seconds * random.uniform(*self.jitter)
