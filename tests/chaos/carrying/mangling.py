"""What a bad road does to the bytes that it carries, in one direction of one connection."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple, TypeAlias

FOR_EVER = 3600.0


class End(enum.Enum):
    """How a road ends: both ways at once, at once and without what was sent, or this way only."""

    CLOSE = "close"
    RESET = "reset"
    HALF = "half"


Step: TypeAlias = bytes | float | End
"""Bytes to pass on, seconds to wait first, or the end."""

Mangle: TypeAlias = Callable[[bytes], Iterator[Step]]
"""What becomes of the bytes of one read."""


class Harm(enum.Enum):
    """What the peers can know of it."""

    LATE = "all bytes arrive, in order: every call is answered"
    LOST = "some bytes never arrive: the call gets the right answer, or fails with a reason"
    WRONG = "wrong bytes arrive: the call ends, and the server goes on"


class Road(NamedTuple):
    """One kind of trouble. `make` gives a new connection its own."""

    name: str
    harm: Harm
    make: Callable[[Random], Mangle]


def clear(random: Random) -> Mangle:
    """A good road."""

    def mangle(data: bytes) -> Iterator[Step]:
        yield data

    return mangle


def _late(random: Random) -> Mangle:
    def mangle(data: bytes) -> Iterator[Step]:
        yield random.random() * 0.03
        yield data

    return mangle


def _in_crumbs(random: Random) -> Mangle:
    def mangle(data: bytes) -> Iterator[Step]:
        # A thousand crumbs of a long message are enough to come apart at every place that matters.
        at, most = 0, max(7, len(data) // 500)
        while at < len(data):
            size = random.randint(1, most)
            yield data[at : at + size]
            yield 0.0
            at += size

    return mangle


def _ends(how: Step) -> Callable[[Random], Mangle]:
    def make(random: Random) -> Mangle:
        left = _distance(random)

        def mangle(data: bytes) -> Iterator[Step]:
            nonlocal left
            if len(data) < left:
                left -= len(data)
                yield data
            else:
                yield data[:left]
                yield how

        return mangle

    return make


def _now_and_then(harm: Callable[[Random, bytes], bytes]) -> Callable[[Random], Mangle]:
    """Every so many bytes, one read is harmed."""

    def make(random: Random) -> Mangle:
        left = _distance(random)

        def mangle(data: bytes) -> Iterator[Step]:
            nonlocal left
            left -= len(data)
            if left <= 0:
                left = _distance(random)
                data = harm(random, data)
            yield data

        return mangle

    return make


def _distance(random: Random) -> int:
    """How many bytes pass before: often a few, sometimes several calls."""
    return 1 + int(random.expovariate(1 / 4000))


def _truncated(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data))]


def _dropped(random: Random, data: bytes) -> bytes:
    start = random.randrange(len(data))
    return data[:start] + data[start + random.randint(1, 40) :]


def _doubled(random: Random, data: bytes) -> bytes:
    start = random.choice((0, random.randrange(len(data))))
    return data + data[start:]


def _swapped(random: Random, data: bytes) -> bytes:
    first, second = sorted(random.randrange(len(data)) for _ in range(2))
    return data[first:second] + data[:first] + data[second:]


def _flipped(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


ROADS = (
    Road("delayed", Harm.LATE, _late),
    Road("in crumbs", Harm.LATE, _in_crumbs),
    Road("cut", Harm.LOST, _ends(End.CLOSE)),
    Road("reset", Harm.LOST, _ends(End.RESET)),
    Road("closed one way", Harm.LOST, _ends(End.HALF)),
    Road("stalled", Harm.LOST, _ends(FOR_EVER)),
    Road("truncated", Harm.WRONG, _now_and_then(_truncated)),
    Road("with holes", Harm.WRONG, _now_and_then(_dropped)),
    Road("doubled", Harm.WRONG, _now_and_then(_doubled)),
    Road("reordered", Harm.WRONG, _now_and_then(_swapped)),
    Road("with a bit flipped", Harm.WRONG, _now_and_then(_flipped)),
)
BY_NAME = {road.name: road for road in ROADS}
