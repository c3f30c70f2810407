"""How far addresses of a server may lead: a server on the internet cannot send us into this machine or its network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from ipaddress import IPv4Network as Network
from typing import Final

from defserve.errors import Refused
from defserve.guard.network.addresses import not_public

RESOLVE_SECONDS: Final = 5.0
_PRIVATE_4: Final = tuple(map(Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_PRIVATE_6: Final = IPv6Network("fc00::/7")


class Reach(IntEnum):
    """Where an address is. Who is at one place may name addresses at the same place, or at one with a lower number."""

    INTERNET = 0
    NETWORK = 1
    MACHINE = 2
    NOWHERE = 3
    """Link-local, cloud metadata, multicast and other addresses where no issuer is."""


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def reach_of(address: str) -> Reach:
    """Where an IP address is."""
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return Reach.NOWHERE
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if not_public(parsed) is None:
        return Reach.INTERNET
    if parsed.is_loopback:
        return Reach.MACHINE
    if isinstance(parsed, IPv4Address):
        return Reach.NETWORK if any(parsed in network for network in _PRIVATE_4) else Reach.NOWHERE
    return Reach.NETWORK if parsed in _PRIVATE_6 else Reach.NOWHERE


def least_reach(addresses: Iterable[str]) -> Reach:
    """The reach of a server whose connections went to these addresses. One public address makes it public."""
    found = [reach_of(address) for address in addresses]
    return min(found) if found and Reach.NOWHERE not in found else Reach.INTERNET


async def addresses_within(reach: Reach, host: str, port: int) -> Sequence[str]:
    """The addresses of a host. Raises Refused if there are none, or one of them lies beyond `reach`."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        raise Refused(f"the name {host} cannot be resolved") from None
    found = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    for address in found:
        if reach_of(address) > reach:
            raise Refused(f"{host} is at {address}, which a server out there must not send us to")
    return found
