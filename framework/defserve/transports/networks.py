"""Which network address stands for one machine, so that a limit for each machine cannot be passed by."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

# Longer than any address, even with a zone.
LONGEST = 64
# A host with IPv6 has at least a whole /64.
_HOST_BITS = 64


def network_of(address: str) -> str:
    """The address itself; of an IPv6 address its /64. What is no address stands for itself, cut short."""
    return _network_of(address[:LONGEST])


@lru_cache(maxsize=1024)
def _network_of(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> _HOST_BITS << _HOST_BITS)}/64"
