"""Rates as token buckets, in a bounded table; bad tokens, counted by the address they come from, and logged.

Each key may burst, then keeps to its rate. Only failures have to wait: a good token is always let in. Wrong secrets of
clients are counted here too.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from time import monotonic

from defserve.auth.oauth import is_loopback
from defserve.base.redaction import get_logger
from defserve.errors import UsageError, explain_arguments

log = get_logger("auth")

MAX_LOGGED_REFUSALS = 20
"""Refused tokens that the log names in a minute. The others are counted."""

MAX_HOPS = 32
"""Addresses of X-Forwarded-For that are looked at, from the end."""

# A caller that waits as long as it was told must then succeed, despite rounding errors.
_SLACK = 1e-6


@explain_arguments
@dataclass(frozen=True, slots=True)
class Rate:
    """How often something may be done: `burst` times at once, and after that `per_second` times a second."""

    per_second: float = 50.0
    burst: int = 100

    def __post_init__(self) -> None:
        if not (0 < self.per_second < math.inf) or not (1 <= self.burst < math.inf):
            raise UsageError(
                f"Rate({self.per_second!r}, burst={self.burst!r}) would allow nothing, or everything",
                fix="give a positive, finite rate and a burst of at least 1; for no limit, leave it out",
            )


FAILED_AUTH = Rate(per_second=10 / 60, burst=10)


class RateBuckets:
    """One bucket per key, such as (principal, tool). A full bucket is the same as none, so full ones are not kept.

    Beyond `capacity` the fullest are dropped first: dropping those changes the least.
    """

    def __init__(
        self, rate: Rate | None = None, *, capacity: int = 16_384, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if capacity < 1:
            raise UsageError(f"RateBuckets(capacity={capacity}) can hold nothing", fix="give a positive number")
        self.rate, self.capacity = rate or Rate(), capacity
        self._clock = clock
        # When each bucket will be full again. That is its whole state, as in the generic cell rate algorithm.
        self._full_at: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def take_token(self, key: Hashable, rate: Rate | None = None, *, amount: int = 1) -> float:
        """Take `amount` tokens and return 0. If there are fewer, take none and return the seconds until there are.

        A key has one rate: if you give `rate`, give it each time. No more than a whole burst is ever waited for.
        """
        rate = rate or self.rate
        now = self._clock()
        full_at = max(self._full_at.get(key, now), now)
        if wait := _wait(rate, full_at - now, amount):
            return wait
        if key not in self._full_at and len(self._full_at) >= self.capacity:
            self._make_room(now)
        self._full_at[key] = full_at + amount / rate.per_second
        return 0.0

    def get_wait_seconds(self, key: Hashable, rate: Rate | None = None, *, amount: int = 1) -> float:
        """What `take_token` would return, without taking."""
        now = self._clock()
        return _wait(rate or self.rate, self._full_at.get(key, now) - now, amount)

    def _make_room(self, now: float) -> None:
        # One sixteenth at a time, so that a table under attack is not searched at every call.
        self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now}
        surplus = len(self._full_at) - self.capacity * 15 // 16
        if surplus > 0:
            for key in heapq.nsmallest(surplus, self._full_at, key=self._full_at.__getitem__):
                del self._full_at[key]


def _wait(rate: Rate, until_full: float, amount: int) -> float:
    """Seconds until a bucket that will be full in `until_full` seconds holds so many tokens."""
    wait = until_full - max(0, rate.burst - amount) / rate.per_second
    return wait if wait > _SLACK else 0.0


# -- Bad tokens, counted by the address they come from. Only failures have to wait: a good token is always let in.


class FailedTokenCounts:
    """How many bad tokens came from each address lately.

    An address that many callers share is not counted: this machine's own, and behind a trusted proxy every address
    that the proxy did not name. `counted_as` gives the network of an address, whose addresses are counted together.
    """

    def __init__(
        self,
        *,
        trusted_proxy: bool,
        counted_as: Callable[[str], str] = str,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._trusted_proxy, self._counted_as = trusted_proxy, counted_as
        self._failures = RateBuckets(FAILED_AUTH, clock=clock)

    def count_failure(self, address: str, forwarded_for: Iterable[bytes]) -> float:
        """A token was bad. Returns how many seconds its sender has to wait, if it had too many of them.

        `forwarded_for` are the X-Forwarded-For headers of the request.
        """
        network = self.find_network(address, forwarded_for)
        return self._failures.take_token(network) if network else 0.0

    def find_network(self, address: str, forwarded_for: Iterable[bytes]) -> str:
        """What an address is counted as; empty if many callers share it."""
        is_shared = (
            not address
            or is_loopback(address)
            or (self._trusted_proxy and not _names(forwarded_for, address, self._counted_as))
        )
        return "" if is_shared else self._counted_as(address)


ALL_FAILED_SECRETS = Rate(per_second=1, burst=100)
MAX_PROVEN_NETWORKS = 1_024


class FailedSecretCounts:
    """How many wrong secrets were tried for each client lately: from one network, and from all.

    People choose secrets that can be guessed, so a try that has to wait is refused even if its secret is right.
    Right ones don't count, and a network from which the client has proved itself before doesn't wait for what strangers
    try from others. An empty `network` is one that many callers share.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._by_network = RateBuckets(FAILED_AUTH, clock=clock)
        self._by_client = RateBuckets(ALL_FAILED_SECRETS, clock=clock)
        self._proven: dict[tuple[str, str], None] = {}

    def check_try(self, client: str, network: str, *, is_right: bool) -> float:
        """A secret of a client was tried. Returns how many seconds the next try has to wait for; 0: it counts."""
        is_proven = (client, network) in self._proven
        wait = max(
            self._by_network.get_wait_seconds((client, network)) if network else 0.0,
            0.0 if is_proven else self._by_client.get_wait_seconds(client),
        )
        if wait:
            return wait
        if not is_right:
            self._by_client.take_token(client)
            if network:
                self._by_network.take_token((client, network))
        elif network and not is_proven:
            if len(self._proven) >= MAX_PROVEN_NETWORKS:
                del self._proven[next(iter(self._proven))]
            self._proven[client, network] = None
        return 0.0


class RefusalLog:
    """Tells the operator why tokens are refused.

    A flood cannot fill the log: in a minute it names `MAX_LOGGED_REFUSALS`, and then says how many more there were.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._minute_ends = clock, -math.inf
        self._logged = self._unlogged = 0

    def log_refusal(self, address: str, reason: object) -> None:
        """A token from this address was refused. The reason holds no secret, and no text as the caller wrote it."""
        now = self._clock()
        if now >= self._minute_ends:
            self._report_unlogged()
            self._logged, self._minute_ends = 0, now + 60
        if self._logged < MAX_LOGGED_REFUSALS:
            self._logged += 1
            log.warning("a token from %s is refused: %s", address or "an unknown address", reason)
            return
        if not self._unlogged:
            from asyncio import get_running_loop

            # The flood may be over by then, and no other refusal would report it.
            get_running_loop().call_later(self._minute_ends - now, self._report_unlogged)
        self._unlogged += 1

    def _report_unlogged(self) -> None:
        if self._unlogged:
            log.warning("… and %d more refused tokens", self._unlogged)
            self._unlogged = 0


def _names(forwarded_for: Iterable[bytes], address: str, counted_as: Callable[[str], str]) -> bool:
    texts = [value.decode("latin-1").lower() for value in forwarded_for]
    if any(address.lower() in text for text in texts):
        return True
    # A proxy may write an address of IPv6 in full. The last ones are those of proxies.
    hops = [hop.strip() for text in texts for hop in text.split(",")]
    return counted_as(address) in map(counted_as, hops[-MAX_HOPS:])
