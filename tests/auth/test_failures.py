"""Bad tokens by address: who is counted, who never is, and what it costs to count."""

from __future__ import annotations

from defserve.auth.rates import MAX_PROVEN_NETWORKS, FailedSecretCounts, FailedTokenCounts
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


def try_secrets(failures: FailedSecretCounts, network: str, count: int, *, is_right: bool = False) -> list[bool]:
    """Which of these tries count."""
    return [failures.check_try("job", network, is_right=is_right) == 0 for _ in range(count)]


def test_ten_wrong_secrets_of_a_client_may_come_from_a_network_and_then_ten_a_minute():
    clock = Clock()
    failures = FailedSecretCounts(clock)
    assert try_secrets(failures, "203.0.113.9", 12) == [True] * 10 + [False] * 2
    assert failures.check_try("job", "203.0.113.9", is_right=True) > 0  # or a guess would be as good as before
    assert failures.check_try("other", "203.0.113.9", is_right=True) == 0
    assert try_secrets(failures, "203.0.113.10", 1, is_right=True) == [True]
    clock.now += 6
    assert try_secrets(failures, "203.0.113.9", 2) == [True, False]
    clock.now += 6
    assert try_secrets(failures, "203.0.113.9", 100, is_right=True) == [True] * 100


def test_wrong_secrets_from_many_networks_are_bounded_and_do_not_lock_a_known_network_out():
    clock = Clock()
    failures = FailedSecretCounts(clock)
    assert try_secrets(failures, "198.51.100.7", 1, is_right=True) == [True]
    tried = [one for n in range(1_000) for one in try_secrets(failures, f"203.0.{n}", 10)]
    assert tried == [True] * 100 + [False] * 9_900
    assert try_secrets(failures, "198.51.100.7", 100, is_right=True) == [True] * 100
    assert try_secrets(failures, "198.51.100.7", 11) == [True] * 10 + [False]
    wait = failures.check_try("job", "192.0.2.1", is_right=True)
    assert 0 < wait < 12
    clock.now += wait
    assert failures.check_try("job", "192.0.2.1", is_right=True) == 0


def test_wrong_secrets_from_a_shared_address_are_counted_for_the_client_alone():
    failures = FailedSecretCounts(Clock())
    assert try_secrets(failures, "", 50, is_right=True) == [True] * 50
    assert try_secrets(failures, "", 101) == [True] * 100 + [False]
    assert try_secrets(failures, "", 1, is_right=True) == [False]


def test_networks_of_a_client_are_remembered_within_bounds():
    failures = FailedSecretCounts(Clock())
    for n in range(3 * MAX_PROVEN_NETWORKS):
        failures.check_try("job", str(n), is_right=True)
    assert len(failures._proven) == MAX_PROVEN_NETWORKS
