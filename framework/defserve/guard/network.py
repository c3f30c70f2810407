"""Judges URLs and addresses before anything connects to them: `judge(url, …)` gives a Verdict.

Only the text is looked at: a public http(s) address, written plainly. Nothing is resolved or opened. Which IP addresses
are public is said by a table of our own: `ipaddress.is_global` lets too much pass, and differs by version. Below:
`Egress`, what the guarded HTTP client may reach, and how it resolves a name.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from defserve.base.hidden_characters import is_printable_line
from defserve.errors import MAX_NAMES_IN_REFUSAL, Rejected, UsageError, explain_arguments, find_nearest_names
from defserve.guard.verdict import Verdict, Violation, make_refused_verdict, make_rejection
from defserve.limits import Limits

__all__ = ["judge"]


# -- Whether a URL from a stranger may be fetched, by its text alone: a public http(s) address, written plainly.
#
# The grammar here is stricter than any client's, so that no client can read an allowed URL in another way. `urlsplit`
# must agree as well. An allowed name may still resolve to a private address. Code that resolves it must judge every
# address with `judge_address`, and connect to the address that it judged.


ALLOWED_SCHEMES: Final = ("http", "https")
ALLOWED_PORTS: Final = (80, 443, 8080, 8443)
DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443, "ws": 80, "wss": 443}

# RFC 9110 §4.1 asks every implementation to support this much.
MAX_URL_LENGTH = 8_000
MAX_HOST_LENGTH, MAX_LABEL_LENGTH = 253, 63
MAX_QUOTE_LENGTH = 80

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@%]+)"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?(?:#(?P<fragment>.*))?"
)
_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?P<authority>[^/?#]*)")

# Controls, every kind of space and line break, lone surrogates, the backslash: clients drop, split at or rewrite them.
_BLOCKED: Final = re.compile(
    r"[\x00-\x20\\\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff\ud800-\udfff]"
)
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")

# As inet_aton reads a number: decimal or octal digits, or hexadecimal ones after 0x. RFC 6943 §3.1.1.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOOSE_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_PLAIN: Final = "!$%&'()*+,-./:;=?@_~"

# Including those that RFC 6761 and 7686 keep out of the public DNS, and those of a cluster.
_PRIVATE_SUFFIXES: Final = frozenset(
    "localhost localdomain local internal intranet private corp home lan home.arpa svc test invalid onion".split()
)
_METADATA_NAMES: Final = frozenset(
    (
        "metadata.goog",
        "metadata.tencentyun.com",
        "metadata.platformequinix.com",
        "metadata.packet.net",
        "api.metadata.cloud.ibm.com",
    )
)


class Authority(NamedTuple):
    """Where a URL leads. `host` is an ASCII name in lower case, or an IP address without brackets."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Bad(Exception):
    """A URL whose text is refused with any options."""

    def __init__(self, rule: str, message: str) -> None:
        self.violation = Violation(rule, message)


def judge(
    url: str,
    *,
    schemes: Collection[str] = ALLOWED_SCHEMES,
    ports: Collection[int] | None = ALLOWED_PORTS,
    hosts: Collection[str] | None = None,
    private: Collection[str] = (),
) -> Verdict:
    """Judge one URL. The verdict's `url` has an ASCII host, a path, no default port, and nothing left to interpret.

    ports     the ports that may be named; None for any
    hosts     the only hosts that may be named: `api.example.com`, or `*.example.com` for the names below one;
              None for any public host
    private   hosts that may be reached although they are not public, each as exactly `host:port`, in lower case;
              `ports` and `hosts` do not apply to them
    """
    try:
        where, rest = _parse_url(url, schemes)
    except _Bad as bad:
        nearest = schemes if bad.violation.rule == "scheme" else ()
        return make_refused_verdict([bad.violation], make_url_hints(schemes, ports, hosts, nearest))
    is_private = str(where) in private
    violations = [] if is_private else _against_options(where, ports, hosts) + _against_host(where.host)
    if not violations:
        return Verdict(True, url=_format_url(where, rest))
    nearest = _find_nearest(where, {violation.rule for violation in violations}, ports, hosts)
    return make_refused_verdict(violations, make_url_hints(schemes, ports, hosts, nearest))


def make_url_hints(
    schemes: Collection[str],
    ports: Collection[int] | None,
    hosts: Collection[str] | None,
    nearest: Collection[str] = (),
) -> dict[str, Any]:
    """What would be allowed, for a peer whose URL was not."""
    lists = {"allowed_schemes": schemes, "allowed_ports": ports, "allowed_hosts": hosts, "nearest": nearest or None}
    return {name: list(values) for name, values in lists.items() if values is not None}


def _find_nearest(
    where: Authority, rules: Collection[str], ports: Collection[int] | None, hosts: Collection[str] | None
) -> list[str]:
    if hosts and "host-list" in rules:
        return find_nearest_names(where.host, hosts, min_likeness=0)
    if ports and "port" in rules:
        close = sorted(ports, key=lambda port: abs(port - where.port))
        return [f"port {port}" for port in close[:MAX_NAMES_IN_REFUSAL]]
    return []


def parse_authority(url: str) -> Authority:
    """Where a URL that was allowed leads. Raises ValueError for one that cannot be read."""
    try:
        return _parse_url(url, DEFAULT_PORTS)[0]
    except _Bad as bad:
        raise ValueError(bad.violation.message) from None


def _parse_url(url: str, schemes: Collection[str]) -> tuple[Authority, str]:
    """Scheme, host and port, and all that follows them, encoded."""
    _check_text(url)
    scheme, colon, _ = url.lower().partition(":")
    if colon and (scheme not in schemes or scheme not in DEFAULT_PORTS):
        raise _Bad("scheme", f"Blocked scheme: {_quote_text(scheme)}")
    if (found := _URL.fullmatch(url)) is None:
        raise _why_malformed(url)
    host = _host(found["host"])
    port = int(found["port"] or DEFAULT_PORTS[scheme])
    if port > 65_535:
        raise _Bad("port", f"Blocked port: {port}")
    _check_agreement(url, found)
    rest = _encode_part(found["path"] or "/")
    for mark, part in (("?", found["query"]), ("#", found["fragment"])):
        rest += f"{mark}{_encode_part(part)}" if part is not None else ""
    return Authority(scheme, host, port), rest


def _check_text(url: object) -> None:
    if not isinstance(url, str):
        raise _Bad("syntax", f"Not a URL: {type(url).__name__}")
    if len(url) > MAX_URL_LENGTH:
        raise _Bad("length", f"Too long: {len(url)} characters, at most {MAX_URL_LENGTH}")
    if bad := _BLOCKED.search(url):
        raise _Bad("character", f"Blocked character: U+{ord(bad[0]):04X}; percent-encode it where it is meant")


def _why_malformed(url: str) -> _Bad:
    found = _AUTHORITY.match(url)
    authority = found["authority"] if found else ""
    if "@" in authority:
        # Not quoted: it may be a password.
        return _Bad("userinfo", "Blocked user name or password before the host")
    if "%" in authority:
        return _Bad("host", f"Blocked host: {_quote_text(authority)} holds a percent sign")
    return _Bad("syntax", "Not a URL of the form http(s)://host[:port]/path")


def _check_agreement(url: str, found: re.Match[str]) -> None:
    """A second parser, which many clients use, must find the same host and port."""
    try:
        parts = urlsplit(url)
        same = (parts.hostname or "") == found["host"].strip("[]").lower() and parts.port == (
            int(found["port"]) if found["port"] else None
        )
    except ValueError:
        same = False
    if not same:
        raise _Bad("host", f"Ambiguous host: {_quote_text(found['host'])}")


def _host(raw: str) -> str:
    """The host, as it is given to a resolver."""
    if raw.startswith("["):
        try:
            return str(IPv6Address(raw[1:-1]))
        except ValueError:
            raise _Bad("host", f"Blocked host: {_quote_text(raw)} is not an IPv6 address") from None
    name = _ascii(raw).lower()
    if _NUMBER.fullmatch(name.removesuffix(".").rpartition(".")[2]):
        return _check_dotted_quad(raw)
    labels = name.removesuffix(".").split(".")
    if len(name) > MAX_HOST_LENGTH + 1 or not all(map(_is_label, labels)):
        raise _Bad("host", f"Blocked host: {_quote_text(raw)} is not a host name")
    return ".".join(labels)


def _check_dotted_quad(raw: str) -> str:
    """An IPv4 address of four decimal parts. Clients disagree on the other forms: `127.1`, `0x7f000001`, `①.①.①.①`."""
    try:
        if raw.isascii() and str(IPv4Address(raw)) == raw:
            return raw
    except ValueError:
        pass
    raise _Bad(
        "numeric-host", f"Blocked host: {_quote_text(raw)} is a number, but not an IPv4 address of four decimal parts"
    )


def _ascii(raw: str) -> str:
    """The name in ASCII. UTS-46 maps a name of lookalike letters to the name it looks like, which is then judged."""
    if raw.isascii():
        return raw
    # Invisible marks are not printable. The mapping would silently drop most of them.
    if len(raw) <= MAX_HOST_LENGTH and is_printable_line(raw):
        import idna

        try:
            return idna.encode(raw, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError, ValueError, IndexError):
            pass
    raise _Bad("host", f"Blocked host: {_quote_text(raw)} is not an internationalised host name")


def _is_label(label: str) -> bool:
    if len(label) > MAX_LABEL_LENGTH or not _LABEL.fullmatch(label):
        return False
    return not label.startswith("xn--") or _is_encoded_label(label)


def _is_encoded_label(label: str) -> bool:
    """Whether a punycode label stands for text that has no plainer form."""
    import unicodedata

    try:
        meant = label[4:].encode("ascii").decode("punycode")
        return not unicodedata.normalize("NFKC", meant).isascii()
    except (UnicodeError, ValueError, OverflowError, IndexError):
        return False


def _against_options(where: Authority, ports: Collection[int] | None, hosts: Collection[str] | None) -> list[Violation]:
    violations: list[Violation] = []
    if ports is not None and where.port not in ports:
        violations.append(Violation("port", f"Blocked port: {where.port}"))
    if hosts is not None and not any(_covers(pattern, where.host) for pattern in hosts):
        violations.append(Violation("host-list", f"Blocked host: {_quote_text(where.host)} is not on the list"))
    return violations


def _covers(pattern: str, host: str) -> bool:
    below = pattern.startswith("*.")
    try:
        listed = _ascii(pattern.removeprefix("*.")).lower().removesuffix(".")
    except _Bad:
        return False
    return host.endswith(f".{listed}") if below else host == listed


def _against_host(host: str) -> list[Violation]:
    if (address := _address(host)) is not None:
        what = describe_non_public_address(address)
        return [Violation("private-address", f"Blocked address: '{address}' ({what})")] if what else []
    labels = host.split(".")
    if len(labels) == 1:
        return [Violation("private-name", f"Blocked host: {_quote_text(host)} is a local name")]
    if {labels[-1], ".".join(labels[-2:])} & _PRIVATE_SUFFIXES or host in _METADATA_NAMES:
        return [Violation("private-name", f"Blocked host: {_quote_text(host)} is not a public name")]
    return []


def _address(host: str) -> IPv4Address | IPv6Address | None:
    if ":" in host:
        return IPv6Address(host)
    # `_host` refuses a name that ends in a number.
    return IPv4Address(host) if host.rpartition(".")[2].isdigit() else None


def _format_url(where: Authority, rest: str) -> str:
    host = f"[{where.host}]" if ":" in where.host else where.host
    port = "" if where.port == DEFAULT_PORTS[where.scheme] else f":{where.port}"
    return f"{where.scheme}://{host}{port}{rest}"


def _encode_part(part: str) -> str:
    return quote(_LOOSE_PERCENT.sub("%25", part), safe=_PLAIN)


def _quote_text(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTE_LENGTH else text[:MAX_QUOTE_LENGTH] + "…")


# -- Which IP addresses are public. By our own table: `ipaddress.is_global` lets too much pass, and differs by version.
#
# An IPv4 address is public unless a network below holds it. An IPv6 address is public only inside the global unicast
# space, outside the networks below. If it carries an IPv4 address, that must be public as well.


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
        return make_refused_verdict([Violation("address", f"Not an IP address: {str(address)[:64]!r}")])
    if (what := describe_non_public_address(parsed)) is None:
        return Verdict(True)
    return make_refused_verdict([Violation("private-address", f"Blocked address: '{parsed}' ({what})")])


def describe_non_public_address(address: IPv4Address | IPv6Address) -> str | None:
    """What a non-public address is. None if it is public."""
    if isinstance(address, IPv4Address):
        return next((what for network, what in _NOT_PUBLIC_4 if address in network), None)
    if address.scope_id is not None:
        return "link-local"
    for how, carried in _iter_embedded_ipv4(address):
        if what := describe_non_public_address(carried):
            return f"{how} {carried}, {what}"
    if address in _MAPPED or address in _NAT64:
        return None
    if address not in _GLOBAL_UNICAST:
        return "loopback" if address.is_loopback else "link-local" if address.is_link_local else "not global"
    return next((what for network, what in _NOT_PUBLIC_6 if address in network), None)


def _iter_embedded_ipv4(address: IPv6Address) -> Iterator[tuple[str, IPv4Address]]:
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


# -- What the guarded HTTP client may reach, and its limits: one frozen object. Below: how a name is resolved.


DEADLINE_REQUEST_EXTENSION: Final = "deadline"
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
    proxy: str | None = field(default=None, repr=False)
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


def make_url_refusal(verdict: Verdict, reason: str = "URL refused") -> Rejected:
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
        raise make_url_refusal(found)
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
