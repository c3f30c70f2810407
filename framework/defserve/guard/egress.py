"""What the guarded HTTP client may reach, and its limits: one frozen object. Below: how a name is resolved."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from defserve.errors import Rejected, UsageError, explain_arguments
from defserve.guard.network import (
    ALLOWED_PORTS,
    ALLOWED_SCHEMES,
    DEFAULT_PORTS,
    judge,
    judge_address,
    make_url_hints,
    parse_authority,
)
from defserve.guard.verdict import Verdict, Violation, make_refused_verdict, make_rejection
from defserve.limits import Limits

DEADLINE_EXTENSION: Final = "deadline"
"""The extension of a request that holds the loop's time at which the whole exchange is abandoned."""

# Field → the form of its values, and an example.
_WRITTEN: Final = (
    ("schemes", re.compile("|".join(DEFAULT_PORTS)), '"https"'),
    ("ports", re.compile(r"[1-9][0-9]{0,4}"), "443"),
    ("hosts", re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)+|[0-9a-f.]*:[0-9a-f:.]*"), '"api.example.com"'),
    ("private", re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\]):[1-9][0-9]{0,4}"), '"127.0.0.1:8000"'),
)


@explain_arguments
@dataclass(frozen=True, slots=True)
class Egress:
    """What may be fetched. Replace single fields: `Egress(hosts=["api.example.com"], timeout=10)`."""

    schemes: Sequence[str] = ALLOWED_SCHEMES
    ports: Sequence[int] | None = ALLOWED_PORTS
    """The ports a URL may name; None for any."""
    hosts: Sequence[str] | None = None
    """The only hosts: `api.example.com`, or `*.example.com` for the names below one; None for any public host.
    A host on the list must still be public."""
    private: Sequence[str] = ()
    """Hosts that may be reached although they are not public, each as exactly `host:port` (`127.0.0.1:8000`,
    `localhost:8000`, `[::1]:8000`). For tests and development: anyone who can choose a URL can then reach them, also by
    a redirect."""
    max_bytes: int = Limits().response
    """The limit of a response's body, as received and as decompressed."""
    timeout: float = 30.0
    """Seconds for everything: resolution, connection, redirects and the last byte of the body."""
    redirects: int = 3
    """How many redirects are followed. With 0, a redirect is returned as the response."""
    proxy: str | None = None
    """An http(s) proxy for every request. The proxy resolves the names, so it has to keep private addresses out of
    reach; here only the text of a URL is judged. Proxies of the environment are never used."""

    def __post_init__(self) -> None:
        for name, form, example in _WRITTEN:
            values = getattr(self, name)
            if values is None:
                continue
            # A str is a sequence too, of its characters.
            values = tuple(map(_lower, (values,) if isinstance(values, str) else values))
            object.__setattr__(self, name, values)
            for value in values:
                if not form.fullmatch(str(value)):
                    raise UsageError(f"Egress({name}=…): {value!r} is not valid", fix=f"write {name}=[{example}]")
        for name, least in (("max_bytes", 1), ("redirects", 0), ("timeout", 0.001)):
            if getattr(self, name) < least:
                problem = f"Egress({name}={getattr(self, name)!r}) must be at least {least}"
                raise UsageError(problem, fix=f"write {name}={least} or more")

    def judge(self, url: str) -> Verdict:
        """The verdict of these options on the text of a URL."""
        return judge(url, schemes=self.schemes, ports=self.ports, hosts=self.hosts, private=self.private)

    def refuse(self, *violations: Violation) -> Verdict:
        """The verdict on a URL whose text is allowed, but which is refused for another reason."""
        return make_refused_verdict(violations, make_url_hints(self.schemes, self.ports, self.hosts))


def make_refusal(verdict: Verdict, reason: str = "URL refused") -> Rejected:
    """A verdict as an exception for the caller."""
    return make_rejection(verdict, reason, "network_restricted")


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


# -- Resolves a name to addresses that may be connected to. It asks once, and every address must be public.


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port → every IP address the host has. Raises OSError when it has none."""

RESOLVE_TIMEOUT_SECONDS = 5.0


async def judge_url_and_addresses(
    url: str, egress: Egress | None = None, *, resolver: Resolver | None = None
) -> Verdict:
    """Judge a URL by its text and by every address its host has now.

    The addresses may change before they are used, so this only refuses early. The guarded client is what keeps private
    addresses out of reach: it connects to the addresses that it judged.
    """
    egress = egress or Egress()
    verdict = egress.judge(url)
    if not verdict or verdict.url is None or egress.proxy:
        return verdict
    where = parse_authority(verdict.url)
    found = await addresses(where.host, where.port, egress, resolver=resolver)
    return found if isinstance(found, Verdict) else verdict


async def resolve_allowed_addresses(
    host: str, port: int, egress: Egress, *, resolver: Resolver | None = None
) -> Sequence[str]:
    """The addresses to connect to, in order. Raises Refused when there are none, or one of them is not public."""
    found = await addresses(host, port, egress, resolver=resolver)
    if isinstance(found, Verdict):
        raise make_refusal(found)
    return found


async def addresses(
    host: str, port: int, egress: Egress, *, resolver: Resolver | None = None
) -> tuple[str, ...] | Verdict:
    """Every address of a host, or why it is refused."""
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_SECONDS):
            found = (
                (host,)
                if _is_address(host)
                else tuple(dict.fromkeys(await (resolver or resolve_with_system)(host, port)))
            )
    except TimeoutError:
        return egress.refuse(
            Violation("resolution", f"Cannot resolve host: '{host}' within {RESOLVE_TIMEOUT_SECONDS:g} s")
        )
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


async def resolve_with_system(host: str, port: int) -> Sequence[str]:
    """The answer of the system's resolver, asked in a thread."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in answers]
