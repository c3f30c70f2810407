"""Bad tokens, counted by the address they come from. Only failures have to wait: a good token is always let in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from defserve.auth.buckets import FAILED_AUTH, Buckets
from defserve.auth.urls import is_loopback


class FailedTokens:
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
        self._failures = Buckets(FAILED_AUTH, clock=clock)

    def count(self, address: str, forwarded_for: Iterable[bytes]) -> float:
        """A token was bad. Returns how many seconds its sender has to wait, if it had too many of them.

        `forwarded_for` are the X-Forwarded-For headers of the request.
        """
        if not address or is_loopback(address) or (self._trusted_proxy and not _names(forwarded_for, address)):
            return 0.0
        return self._failures.take(self._counted_as(address))


def _names(forwarded_for: Iterable[bytes], address: str) -> bool:
    return any(address in value.decode("latin-1") for value in forwarded_for)
