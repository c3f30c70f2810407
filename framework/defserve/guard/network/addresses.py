"""Which IP addresses are public. By our own table: `ipaddress.is_global` lets too much pass, and differs by version.

An IPv4 address is public unless a network below holds it. An IPv6 address is public only inside the global unicast
space, outside the networks below. If it carries an IPv4 address, that must be public as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from defserve.guard.verdict import Verdict, Violation, refused

_NOT_PUBLIC_4: Final = tuple(
    (IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local, cloud metadata"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments, cloud metadata"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)

_TEREDO: Final = IPv6Network("2001::/32")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")

# Only networks inside the global unicast space. Teredo is judged by the addresses it carries.
_NOT_PUBLIC_6: Final = tuple(
    (IPv6Network(network), what)
    for network, what in (
        ("2001:1::/32", "protocol assignments"),
        ("2001:2::/31", "benchmarking, protocol assignments"),
        ("2001:4::/30", "protocol assignments"),
        ("2001:8::/29", "protocol assignments"),
        ("2001:10::/28", "overlay identifiers"),
        ("2001:20::/27", "overlay identifiers"),
        ("2001:40::/26", "protocol assignments"),
        ("2001:80::/25", "protocol assignments"),
        ("2001:100::/24", "protocol assignments"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
    )
)


def judge_address(address: str | IPv4Address | IPv6Address) -> Verdict:
    """Whether an address, as a resolver gave it, may be connected to. One with a zone (`fe80::1%eth0`) may not."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return refused([Violation("address", f"Not an IP address: {str(address)[:64]!r}")])
    if (what := not_public(parsed)) is None:
        return Verdict(True)
    return refused([Violation("private-address", f"Blocked address: '{parsed}' ({what})")])


def not_public(address: IPv4Address | IPv6Address) -> str | None:
    """What a non-public address is. None if it is public."""
    if isinstance(address, IPv4Address):
        return next((what for network, what in _NOT_PUBLIC_4 if address in network), None)
    if address.scope_id is not None:
        return "link-local"
    for how, carried in _carried(address):
        if what := not_public(carried):
            return f"{how} {carried}, {what}"
    if address in _MAPPED or address in _NAT64:
        return None
    if address not in _GLOBAL_UNICAST:
        return "loopback" if address.is_loopback else "link-local" if address.is_link_local else "not global"
    return next((what for network, what in _NOT_PUBLIC_6 if address in network), None)


def _carried(address: IPv6Address) -> Iterator[tuple[str, IPv4Address]]:
    """The IPv4 addresses that packets for this IPv6 address may end at, and by which mechanism."""
    number = int(address)
    low = IPv4Address(number & 0xFFFFFFFF)
    if address in _MAPPED:
        yield "mapped", low
    elif address in _NAT64:
        yield "NAT64 of", low
    elif address in _SIX_TO_FOUR:
        yield "6to4 of", IPv4Address(number >> 80 & 0xFFFFFFFF)
    elif address in _TEREDO:
        yield "Teredo server", IPv4Address(number >> 64 & 0xFFFFFFFF)
        yield "Teredo client", IPv4Address(~number & 0xFFFFFFFF)
    # Bit 57 of the interface identifier says only whether the IPv4 address is globally unique.
    if number >> 32 & 0xFDFFFFFF == 0x00005EFE:
        yield "ISATAP of", low
