"""Bad tokens by address: who is counted, who never is, and what it costs to count."""

from __future__ import annotations

from defserve.auth.rates import FailedTokenCounts
from defserve.serve.sockets import get_client_network
from tests.rows import for_each_row


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ten_at_once_and_then_ten_a_minute():
    clock = Clock()
    failures = FailedTokenCounts(trusted_proxy=False, clock=clock)
    assert [failures.count_failure("203.0.113.9", ()) > 0 for _ in range(12)] == [False] * 10 + [True] * 2
    assert failures.count_failure("203.0.113.10", ()) == 0
    clock.now += 6
    assert [failures.count_failure("203.0.113.9", ()) > 0 for _ in range(2)] == [False, True]


@for_each_row("address", ["", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost"])
def test_addresses_that_many_callers_share_are_never_counted(address: str):
    failures = FailedTokenCounts(trusted_proxy=False)
    assert not any(failures.count_failure(address, ()) for _ in range(100))


@for_each_row(
    ("forwarded_for", "counted"),
    [((), False), ((b"203.0.113.9",), False), ((b"203.0.113.9, 10.0.0.5",), True), ((b"", b"10.0.0.5"), True)],
)
def test_behind_a_proxy_an_address_counts_if_the_proxy_names_it(forwarded_for: tuple[bytes, ...], counted: bool):
    failures = FailedTokenCounts(trusted_proxy=True)
    assert any(failures.count_failure("10.0.0.5", forwarded_for) for _ in range(100)) is counted


@for_each_row("written", [b"2001:DB8::9", b"2001:0db8:0:0::9", b"10.0.0.7, [2001:DB8::9]:4711"])
def test_a_proxy_may_write_an_address_in_any_form(written: bytes):
    for address in ("2001:db8::9", "2001:DB8::9"):
        failures = FailedTokenCounts(trusted_proxy=True, counted_as=get_client_network)
        assert any(failures.count_failure(address, (written,)) for _ in range(100))
