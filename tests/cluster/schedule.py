"""Which faults come when: made of a seed, so that a schedule can be had again.

Kinds are dealt from a deck, and so are the pairs of machines they fall on: each kind comes before one comes again.
Where a target is `redis` or `postgres`, it is the machine that is the primary by then; `replica` and `standby` are the
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from tests.cluster.cluster import BALANCER, CLIENTS, NODES
from tests.cluster.stores import POSTGRES_MACHINES, REDIS_MACHINES

T = TypeVar("T")

PAIRS = (
    (CLIENTS, BALANCER),
    *((BALANCER, node) for node in NODES),
    *((node, store) for node in NODES for store in (*POSTGRES_MACHINES, *REDIS_MACHINES)),
    POSTGRES_MACHINES,
    REDIS_MACHINES,
    *((redis, "w") for redis in REDIS_MACHINES),
)
DIRECTIONS = (*PAIRS, *((other, one) for one, other in PAIRS))

# How often a kind is in the deck.
KINDS = Counter(
    {
        "cut": 4,
        "cut one way": 4,
        "isolate": 2,
        "delay": 2,
        "late pieces": 2,
        "stall": 1,
        "clock": 2,
        "full disk": 1,
        "redis dies": 1,
        "redis sleeps": 1,
        "stale redis failover": 1,
        "postgres fails over": 1,
        "postgres restarts": 1,
        "postgres sleeps": 1,
        "standby dies": 1,
        "unsynced failover": 1,
        "worker dies": 3,
        "worker sleeps": 2,
        "node dies": 1,
        "reload": 1,
    }
)
UPGRADE = "upgrade"
FAULT_SECONDS, PAUSE_SECONDS = (3.0, 12.0), (2.0, 6.0)
UPGRADE_AT = 0.4
JUMPS = (-300, -30, -5, 5, 30, 300, 1500)


class Fault(NamedTuple):
    """It begins `pause` seconds after the one before it has ended."""

    pause: float
    kind: str
    targets: tuple[str, ...]
    seconds: float
    amount: float = 0.0


def deal(random: Random, cards: Sequence[T]) -> Iterator[T]:
    """All cards in some order, again and again."""
    while True:
        deck = list(cards)
        random.shuffle(deck)
        yield from deck


def make_faults(seed: int) -> Iterator[Fault]:
    """Faults without end."""
    random = Random(seed)
    kinds = deal(random, sorted(KINDS.elements()))
    pairs, directions, ways = deal(random, PAIRS), deal(random, DIRECTIONS), deal(random, DIRECTIONS)
    nodes = deal(random, NODES)
    alone = deal(random, (*NODES, *POSTGRES_MACHINES, *REDIS_MACHINES, "w"))
    disks = deal(random, ("redis", "replica", "postgres", "standby"))
    for kind in kinds:
        targets: tuple[str, ...] = ()
        amount = 0.0
        if kind == "cut":
            targets = next(pairs)
        elif kind == "cut one way":
            targets = next(directions)
        elif kind in ("delay", "late pieces", "stall"):
            targets = next(ways)
            amount = {"delay": random.uniform(0.02, 0.4), "late pieces": random.uniform(0.05, 0.5)}.get(kind, 0.0)
        elif kind == "isolate":
            targets = (next(alone),)
        elif kind == "full disk":
            targets = (next(disks),)
        elif kind == "clock":
            targets, amount = (next(nodes),), float(random.choice(JUMPS))
        elif kind in ("worker dies", "worker sleeps", "node dies", "reload"):
            targets = (next(nodes),)
        yield Fault(random.uniform(*PAUSE_SECONDS), kind, targets, random.uniform(*FAULT_SECONDS), amount)
