"""Who may say yes: the one place that decides whether a caller's word can grant, approve, confirm or skip something.

| caller | known by | its yes | its no |
|---|---|---|---|
| local | a pipe, memory, the local token, or a unix socket whose operator trusts its own user | counts | counts |
| token | a token that was verified | counts | counts |
| participant | a gateway that says it has authenticated it | counts | counts |
| stranger | nothing: an address of the network, a unix socket, a guest of a topic | does not count | counts |

Only the transport's facts and verified credentials decide. What a peer says of itself does not, and neither does an
address: behind a loopback address there may be a proxy with the whole world behind it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Final

from defserve.auth.principals import (
    LOCAL_PRINCIPAL,
    UNKNOWN_ADDRESS,
    Principal,
    PrincipalKind,
    make_anonymous_principal,
)

_ITS_YES_COUNTS: Final[frozenset[PrincipalKind]] = frozenset({"local", "token", "participant"})

MAX_ADDRESS_LENGTH: Final = 64
"""No IP address is longer. Callers of `make_anonymous_ip_principal` leave longer texts out, because it caches them."""

AUTHENTICATION_HINT: Final = (
    "connect with a token that this server accepts, or over stdio; on this machine, start the server with --local-token"
)
"""What a stranger can do so that its yes counts."""


def is_stranger(caller: Principal) -> bool:
    """Whether nobody vouches for this caller. Then what it says can only take away."""
    return caller.kind not in _ITS_YES_COUNTS


def is_local_user(caller: Principal) -> bool:
    """Whether it is the user who runs this server."""
    return caller.kind == "local"


def identify_socket_user(user: int | None) -> Principal:
    """Who is at the other end of a unix socket whose operator trusts its own user. The system reports the `user`."""
    return LOCAL_PRINCIPAL if user is not None and user == os.getuid() else make_anonymous_ip_principal("")


@lru_cache(maxsize=1024)
def make_anonymous_ip_principal(address: str) -> Principal:
    """The caller at an address of at most `MAX_ADDRESS_LENGTH` characters. A text that is no IP address is ignored."""
    return make_anonymous_principal(normalize_ip_address(address) or UNKNOWN_ADDRESS)


def normalize_ip_address(text: str) -> str | None:
    """An IP address in its usual form, without port, brackets and zone. None if it is not an IP address."""
    from ipaddress import IPv6Address, ip_address

    host = text.strip()
    if host.startswith("["):
        host, bracket, port = host[1:].partition("]")
        if not bracket or not _is_port(port):
            return None
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
        if not _is_port(f":{port}"):
            return None
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return str(found.ipv4_mapped or found) if isinstance(found, IPv6Address) else str(found)


def _is_port(text: str) -> bool:
    digits = text.removeprefix(":")
    return not text or (text != digits and digits.isascii() and digits.isdigit() and len(digits) <= 5)
