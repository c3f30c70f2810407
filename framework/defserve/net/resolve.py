"""Resolves a name to addresses that may be connected to. It asks once, and every address must be public."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from defserve.guard.network.urls import authority_of, judge_address
from defserve.guard.verdict import Verdict, Violation
from defserve.net.egress import Egress, refusal

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port → every IP address the host has. Raises OSError when it has none."""

RESOLVE_SECONDS = 5.0


async def check(url: str, egress: Egress | None = None, *, resolver: Resolver | None = None) -> Verdict:
    """Judge a URL by its text and by every address its host has now.

    The addresses may change before they are used, so this only refuses early. The guarded client is what keeps private
    addresses out of reach: it connects to the addresses that it judged.
    """
    egress = egress or Egress()
    verdict = egress.judge(url)
    if not verdict or verdict.url is None or egress.proxy:
        return verdict
    where = authority_of(verdict.url)
    found = await addresses(where.host, where.port, egress, resolver=resolver)
    return found if isinstance(found, Verdict) else verdict


async def judged_addresses(host: str, port: int, egress: Egress, *, resolver: Resolver | None = None) -> Sequence[str]:
    """The addresses to connect to, in order. Raises Refused when there are none, or one of them is not public."""
    found = await addresses(host, port, egress, resolver=resolver)
    if isinstance(found, Verdict):
        raise refusal(found)
    return found


async def addresses(
    host: str, port: int, egress: Egress, *, resolver: Resolver | None = None
) -> tuple[str, ...] | Verdict:
    """Every address of a host, or why it is refused."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = (
                (host,) if _is_address(host) else tuple(dict.fromkeys(await (resolver or system_resolver)(host, port)))
            )
    except TimeoutError:
        return egress.refuse(Violation("resolution", f"Cannot resolve host: '{host}' within {RESOLVE_SECONDS:g} s"))
    except (OSError, UnicodeError):
        found = ()
    if not found:
        return egress.refuse(Violation("resolution", f"Cannot resolve host: '{host}'"))
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if shown in egress.private:
        return found
    violations = [violation for address in found for violation in judge_address(address).violations]
    return egress.refuse(*violations) if violations else found


def _is_address(host: str) -> bool:
    # The host comes from a URL that was allowed. In such a URL no name ends in a number or contains a colon.
    return ":" in host or host.rpartition(".")[2].isdigit()


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """The answer of the system's resolver, asked in a thread."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in answers]
