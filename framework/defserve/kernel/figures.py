"""What is known of the calls of a server: how many a second, how long they take, how many fail."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

from defserve.proxying.slots import CallSlots, CallTime

RATE_SECONDS: Final = 10.0
STEP_SECONDS: Final = 15
STEPS: Final = 40


def figures(room: CallSlots) -> dict[str, Any]:
    """Calls a second are those of the last ten seconds; times are those of the last calls that the room remembers."""
    now, times = perf_counter(), tuple(room.times)
    lasted = sorted(ended - began for began, ended, _ in times)
    return {
        "errors_total": room.errors,
        "calls_per_second": _rate(times, now, room.times.maxlen),
        "median_ms": _milliseconds(lasted, 0.5),
        "p95_ms": _milliseconds(lasted, 0.95),
    }


def history(room: CallSlots) -> dict[str, Any]:
    """`steps` of the last ten minutes, the newest last: calls, errors, median in ms. None: not remembered."""
    now, times = perf_counter(), tuple(room.times)
    found: list[list[CallTime]] = [[] for _ in range(STEPS)]
    for time in times:
        if 0 <= (age := int((now - time[1]) // STEP_SECONDS)) < STEPS:
            found[STEPS - 1 - age].append(time)
    forgotten = STEPS - 1 - int((now - times[0][1]) // STEP_SECONDS) if len(times) == room.times.maxlen else 0
    steps = [None if at < forgotten else _step(each) for at, each in enumerate(found)]
    return {"step_secs": STEP_SECONDS, "steps": steps}


def _step(times: Sequence[CallTime]) -> list[Any]:
    lasted = sorted(ended - began for began, ended, _ in times)
    return [len(times), sum(failed for _, _, failed in times), _milliseconds(lasted, 0.5)]


def _rate(times: Sequence[CallTime], now: float, most: int | None) -> float:
    recent = [ended for _, ended, _ in times if now - ended <= RATE_SECONDS]
    # With more calls than are remembered, these are of a shorter time.
    span = now - recent[0] if len(recent) == most else RATE_SECONDS
    return round(len(recent) / max(span, 0.001), 1)


def _milliseconds(lasted: Sequence[float], share: float) -> float | None:
    """The time that this share of the calls took at most."""
    if not lasted:
        return None
    return round(lasted[min(len(lasted) - 1, int(len(lasted) * share))] * 1000, 2)
