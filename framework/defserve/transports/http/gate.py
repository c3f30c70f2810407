"""Decides by Host, Origin and Sec-Fetch-Site who may call. It keeps out other sites' pages (DNS rebinding). No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from defserve.errors import UsageError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
DEFAULT_PORTS = {"http": "80", "https": "443"}

_NAME = r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\]"
_SCHEME = r"[a-z][a-z0-9+.-]*"
_AUTHORITY = re.compile(rf"({_NAME})(?::([0-9]{{1,5}}))?")
_ORIGIN = re.compile(rf"({_SCHEME})://({_NAME})(?::([0-9]{{1,5}}))?")
_HOST_RULE = re.compile(rf"((?:\*\.)?(?:{_NAME}))(?::([0-9]{{1,5}}|\*))?")
_ORIGIN_RULE = re.compile(rf"({_SCHEME})://((?:\*\.)?(?:{_NAME}))(?::([0-9]{{1,5}}|\*))?")
_LOOPBACK_BIND = re.compile(r"localhost|127\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}|::1|\[::1\]", re.IGNORECASE)

# Longer than any name with its scheme and port.
_LONGEST = 300
_REMEMBERED = 256


class GateRefusal(NamedTuple):
    """The answer to a refused request: an HTTP status and a text."""

    status: int
    text: str


class HostRule(NamedTuple):
    """A name, or a `.suffix` for all names below it, and its ports. None stands for every port."""

    name: str
    ports: frozenset[str] | None

    def matches(self, name: str, port: str) -> bool:
        below = self.name.startswith(".") and name.endswith(self.name)
        return (below or name == self.name) and (self.ports is None or port in self.ports)


class Gate:
    """Checks requests for one endpoint.

    `allowed_hosts`: `example.com` (with no port, 80, 443 or our own), `example.com:8443`, `example.com:*`,
    `*.example.com` (any name below it, not itself). `allowed_origins`: the same with a scheme in front; without a port
    it means the scheme's own port, and `*` is every origin. On a loopback `bind` the loopback names are always allowed,
    with any port. `trusted_proxy`: a proxy in front checks Host, so without `allowed_hosts` every well-formed name
    passes.

    Raises UsageError for a rule that cannot be read. Also for a `bind` that the network can reach, if there is neither
    `allowed_hosts` nor `trusted_proxy`.
    """

    def __init__(
        self,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        trusted_proxy: bool = False,
        bind: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        _check_lists(allowed_hosts=allowed_hosts, allowed_origins=allowed_origins)
        local = _LOOPBACK_BIND.fullmatch(bind) is not None
        if not (local or allowed_hosts or trusted_proxy):
            raise UsageError(
                f"serving on {bind or 'every address'} without knowing by which names it may be reached",
                fix="give --allow-host tools.example.com (in code, or a gateway's file: allowed_hosts=[…]), or"
                " --trusted-proxy (trusted_proxy) if a proxy in front checks Host",
            )
        loopback = [HostRule(name, None) for name in dict.fromkeys((*LOOPBACK, bind.lower()))] if local else []
        self._hosts = loopback + [_host_rule(text, port) for text in allowed_hosts]
        self._origins = [(scheme, rule) for rule in loopback for scheme in DEFAULT_PORTS]
        self._origins += [_origin_rule(text) for text in allowed_origins if text != "*"]
        self._every_host = trusted_proxy and not allowed_hosts
        self._every_origin = "*" in allowed_origins
        self._passed: set[tuple[str | None, str | None, str | None]] = set()

    def check(self, host: str | None, origin: str | None, fetch_site: str | None) -> GateRefusal | None:
        """Why a request with these header values is refused, or None if it may pass. A missing header is None.

        Join the values of a header that came twice: then it is refused.
        """
        values = (host, origin, fetch_site)
        if values in self._passed:
            return None
        refusal = self._check_host(host) or self._check_origin(host or "", origin)
        if refusal is None and origin is None and fetch_site is not None and "cross-site" in fetch_site.lower():
            # If there is an Origin, the list of origins has decided.
            refusal = GateRefusal(403, "a page of another site may not call this server (Sec-Fetch-Site: cross-site)")
        if refusal is None and len(fetch_site or "") <= _LONGEST:
            if len(self._passed) >= _REMEMBERED:
                self._passed.clear()
            self._passed.add(values)
        return refusal

    def _check_host(self, host: str | None) -> GateRefusal | None:
        if host is None:
            return GateRefusal(400, "the Host header is missing")
        authority = _read(_AUTHORITY, host)
        if authority is None:
            return GateRefusal(400, "the Host header is malformed")
        name, port = authority
        if self._every_host or any(rule.matches(name, port) for rule in self._hosts):
            return None
        return GateRefusal(
            421, f"this server does not answer for {host}; its allowed_hosts setting (--allow-host) can add it"
        )

    def _check_origin(self, host: str, origin: str | None) -> GateRefusal | None:
        if origin is None:
            return None
        parts = _read(_ORIGIN, origin)
        if parts is None:
            return GateRefusal(
                403, "this Origin is refused; the allowed_origins setting (--allow-origin) says who may call"
            )
        scheme, name, port = parts
        port = port or DEFAULT_PORTS.get(scheme, "")
        if self._every_origin or self._is_same(scheme, name, port, host):
            return None
        if any(scheme == allowed and rule.matches(name, port) for allowed, rule in self._origins):
            return None
        return GateRefusal(
            403, f"requests from {origin} are refused; the allowed_origins setting (--allow-origin) can add it"
        )

    def _is_same(self, scheme: str, name: str, port: str, host: str) -> bool:
        """Whether the page came from this server. Only for a known Host: with a rebound name both would be equal."""
        default = DEFAULT_PORTS.get(scheme)
        if self._every_host or default is None or (authority := _read(_AUTHORITY, host)) is None:
            return False
        return authority[0] == name and (authority[1] or default) == port


def is_loopback_name(host: str | None) -> bool:
    """Whether the value of a Host header names this machine, with any port."""
    authority = _read(_AUTHORITY, host) if host is not None else None
    return authority is not None and _LOOPBACK_BIND.fullmatch(authority[0]) is not None


def _read(pattern: re.Pattern[str], text: str) -> tuple[str, ...] | None:
    """The groups of a header's value in lower case, with "" for a missing port; None if it is malformed."""
    found = pattern.fullmatch(text.lower()) if len(text) <= _LONGEST and text.isascii() else None
    return None if found is None else tuple(group or "" for group in found.groups())


def _check_lists(**lists: Sequence[str]) -> None:
    for setting, texts in lists.items():
        if isinstance(texts, str):
            raise UsageError(f"{setting}={texts!r} is a string", fix=f"write a list: {setting}=[{texts!r}]")


def _host_rule(text: str, own_port: int | None) -> HostRule:
    if text == "*":
        raise UsageError(
            'allowed_hosts=["*"] would let every name in',
            fix="name the hosts, or set trusted_proxy=True if a proxy in front checks Host",
        )
    found = _read(_HOST_RULE, text)
    if found is None:
        raise UsageError(
            f"allowed_hosts has {text!r}, which is not a host",
            fix="write a name without scheme or path, such as example.com, *.example.com, example.com:8443 "
            "or example.com:* (international names as xn--…)",
        )
    name, port = found
    defaults = set(DEFAULT_PORTS.values())
    if not port:
        return _rule(name, {"", *defaults} | ({str(own_port)} if own_port else set()))
    # Clients leave out the default port of their scheme, and Host does not name the scheme.
    return _rule(name, {port, ""} if port in defaults else {port})


def _origin_rule(text: str) -> tuple[str, HostRule]:
    found = _read(_ORIGIN_RULE, text)
    if found is None:
        raise UsageError(
            f"allowed_origins has {text!r}, which is not an origin",
            fix="write scheme and host without a path, such as https://example.com, https://*.example.com "
            "or http://example.com:*",
        )
    scheme, name, port = found
    return scheme, _rule(name, {port or DEFAULT_PORTS.get(scheme, "")})


def _rule(name: str, ports: set[str]) -> HostRule:
    return HostRule(name.removeprefix("*"), None if "*" in ports else frozenset(ports))
