"""How long calls of tools took: the latest of each tool, as a histogram, and the calls of the last minute."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from defserve.host.fields import Json
from defserve.inspector.recording.recorder import RecordedMessage

EDGES: Final = tuple(digit * 10.0**power for power in range(-1, 5) for digit in (1, 2, 5))
"""Milliseconds where a bar of the histogram ends and the next begins: 0.1, 0.2, 0.5, 1, …, 50,000."""
MOST_TOOLS: Final = 500
MOST_CALLS: Final = 1_000
SLOWEST: Final = 8
SECONDS: Final = 60


class TimedCall(NamedTuple):
    """A call that has ended. `seq` is its answer in the timeline."""

    seq: int
    time: float
    ms: float
    failed: bool


class Latencies:
    """The latest calls of each tool in each era, measured here: from the request's bytes to those of the answer.

    Both are bounded: tools that were not called for the longest time are forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._calls: OrderedDict[tuple[str, str], deque[TimedCall]] = OrderedDict()
        self._recent: deque[tuple[str, float, bool]] = deque(maxlen=100_000)
        self.count = 0
        """How many calls have ended."""

    def add(self, entry: RecordedMessage) -> None:
        """Take a message of the timeline. Only answers to calls of ours count."""
        if entry.method != "tools/call" or entry.kind != "answer" or entry.ms is None or entry.direction == "sent":
            return
        key = entry.era, entry.about
        if (calls := self._calls.get(key)) is None:
            calls = self._calls[key] = deque(maxlen=MOST_CALLS)
            if len(self._calls) > MOST_TOOLS:
                self._calls.popitem(last=False)
        else:
            self._calls.move_to_end(key)
        failed = entry.error is not None
        calls.append(TimedCall(entry.seq, entry.time, entry.ms, failed))
        self._recent.append((entry.era, entry.time, failed))
        self.count += 1

    def told(self, era: str) -> Json:
        """For the page: `edges`, `tools` by name, and `seconds`: the calls and errors in each of the last minute.

        The last of `seconds` is the current one, so it is not over yet.
        """
        tools = sorted((tool, calls) for (of, tool), calls in self._calls.items() if of == era)
        return {"edges": EDGES, "tools": [_tool(*each) for each in tools], "seconds": self._seconds(era)}

    def _seconds(self, era: str) -> list[tuple[int, int]]:
        now = int(self._clock())
        calls, errors = [0] * SECONDS, [0] * SECONDS
        for of, moment, failed in reversed(self._recent):
            place = SECONDS - 1 - (now - int(moment))
            if place < 0:
                break
            if of == era and place < SECONDS:
                calls[place] += 1
                errors[place] += failed
        return list(zip(calls, errors, strict=True))


def _tool(tool: str, calls: Iterable[TimedCall]) -> Json:
    every = sorted(calls, key=lambda call: call.ms)
    bars, failed = [0] * (len(EDGES) + 1), [0] * (len(EDGES) + 1)
    for call in every:
        place = bisect_right(EDGES, call.ms)
        bars[place] += 1
        failed[place] += call.failed
    return {
        "tool": tool,
        "calls": len(every),
        "errors": sum(failed),
        "median": _share(every, 0.5),
        "p95": _share(every, 0.95),
        "slowest": [call._asdict() for call in reversed(every[-SLOWEST:])],
        "bars": bars,
        "failed": failed,
        "last": max(call.time for call in every),
    }


def _share(every: list[TimedCall], share: float) -> float:
    """The time within which a share of the calls ended."""
    return every[min(len(every) - 1, int(share * len(every)))].ms
