"""Whether and when a server that ended is started again (MGP §11.5). Pure: a clock goes in, a verdict comes out."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias, get_args

from defserve.errors import UsageError

RestartStrategy: TypeAlias = Literal["never", "on_failure", "always"]
STRATEGIES: Final[tuple[RestartStrategy, ...]] = get_args(RestartStrategy)

JITTER: Final = 0.2
"""A wait is at most this share shorter than the back-off says, so that servers do not all start at the same moment."""


MOST_RESTARTS: Final = 1000
"""The largest limit: the times of so many restarts are kept."""


MOST_KEYS: Final = 1000


class Exit(StrEnum):
    """How a server ended."""

    CLEAN = "clean"
    """By itself, with exit code 0."""
    FAILED = "failed"
    """With another exit code, by a signal, by a lost connection, while it was opened, or by failed health probes."""
    STOPPED = "stopped"
    """Because an operator asked for it."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a server is started again. Times are seconds.

    More than `max_restarts` within any `window` is too many. None means that there is no limit, as for an address
    that may come back at any time. The wait doubles with each restart in the window, from `base` up to `cap`.
    """

    strategy: RestartStrategy = "on_failure"
    max_restarts: int | None = 5
    window: float = 300
    base: float = 1
    cap: float = 30

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UsageError(f"a restart policy cannot be {self.strategy!r}", fix=f"use one of {', '.join(STRATEGIES)}")
        if self.max_restarts is not None and not 0 <= self.max_restarts <= MOST_RESTARTS:
            raise UsageError(
                f"max_restarts cannot be {self.max_restarts}", fix=f"give a number from 0 to {MOST_RESTARTS}"
            )
        if self.window <= 0 or not 0 <= self.base <= self.cap:
            raise UsageError(
                "a restart policy needs a window above 0, and a base from 0 up to its cap",
                fix="RestartPolicy(window=300, base=1, cap=30)",
            )


class RefusalReason(StrEnum):
    """Why a server is not started again."""

    POLICY = "restart_policy"
    STOPPED = "operator_request"
    LIMIT = "restart_limit_exceeded"


@dataclass(frozen=True, slots=True)
class RestartRefusal:
    """The server stays down until an operator starts it. `text` says why."""

    reason: RefusalReason
    text: str


class Restarts:
    """The restarts of one server. `policy` may be replaced at any time.

    A successful start does not clear the count: only time and an operator do. So a server that dies soon after each
    start meets its limit. Nothing here sleeps or starts anything.
    """

    def __init__(
        self,
        policy: RestartPolicy,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._chance = chance
        self._times: deque[float] = deque(maxlen=MOST_RESTARTS)

    @property
    def recent(self) -> int:
        """The restarts within the window that ends at this moment."""
        begin = self._clock() - self.policy.window
        while self._times and self._times[0] <= begin:
            self._times.popleft()
        return len(self._times)

    def after(self, exit: Exit) -> float | RestartRefusal:
        """The seconds to wait before the next start, which is counted; or why there is none."""
        policy = self.policy
        if exit is Exit.STOPPED:
            return RestartRefusal(RefusalReason.STOPPED, "an operator stopped it")
        if policy.strategy == "never" or (policy.strategy == "on_failure" and exit is Exit.CLEAN):
            return RestartRefusal(RefusalReason.POLICY, f"its restart policy is {policy.strategy}")
        count = self.recent
        if policy.max_restarts is not None and count >= policy.max_restarts:
            return RestartRefusal(
                RefusalReason.LIMIT, f"{count} restarts in {policy.window:g} s, and no more than that are allowed"
            )
        self._times.append(self._clock())
        # Beyond 2¹⁰⁰ every cap is reached, and a float would overflow at 2¹⁰²⁴.
        wait = min(policy.cap, policy.base * 2.0 ** min(count, 100))
        return wait * (1 - JITTER * self._chance())

    def clear(self) -> None:
        """Forget the restarts so far, because an operator asked for a start."""
        self._times.clear()


class RestartsByKey:
    """The same for processes of which each belongs to somebody: a client whose process fails harms no other client.

    `policy` gives the policy of the moment. What is known of a key that was not used for long may be forgotten.
    """

    def __init__(self, policy: Callable[[], RestartPolicy], clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._clock = policy, clock
        self._known: dict[Hashable, tuple[Restarts, float | RestartRefusal]] = {}

    def failed(self, key: Hashable) -> None:
        """The process of this key has failed."""
        restarts = self._known.pop(key)[0] if key in self._known else Restarts(self._policy(), self._clock)
        restarts.policy = self._policy()
        verdict = restarts.after(Exit.FAILED)
        while len(self._known) >= MOST_KEYS:
            del self._known[next(iter(self._known))]
        self._known[key] = restarts, verdict if isinstance(verdict, RestartRefusal) else self._clock() + verdict

    def wait(self, key: Hashable) -> float | RestartRefusal:
        """The seconds until the next one may start, 0 for at once; or why there is none."""
        if key not in self._known:
            return 0.0
        restarts, verdict = self._known[key]
        if not isinstance(verdict, RestartRefusal):
            return max(verdict - self._clock(), 0.0)
        if verdict.reason is RefusalReason.LIMIT and restarts.recent < (self._policy().max_restarts or 0):
            return 0.0
        return verdict

    def forget(self, which: Callable[[Hashable], bool] = lambda key: True) -> None:
        """Forget failures: all of them, because an operator asked for a start, or those of who has left."""
        self._known = {key: known for key, known in self._known.items() if not which(key)}
