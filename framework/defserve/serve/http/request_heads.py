"""The head of a request, judged before its body is read: its headers, its target, and who may call. No I/O.

The gate decides by Host, Origin and Sec-Fetch-Site, and keeps out other sites' pages (DNS rebinding).
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from defserve.base.peer_bounds import cache_short_texts
from defserve.core.json_values import is_object
from defserve.errors import UsageError
from defserve.serve.sockets import Scope

BLANKS = b" \t"

SESSION_HEADER = "mcp-session-id"
PROTOCOL_VERSION_HEADER = "MCP-Protocol-Version"
METHOD_HEADER = "Mcp-Method"
NAME_HEADER = "Mcp-Name"

# Method → the parameter that Mcp-Name repeats.
NAME_PARAMETERS = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}

SENTINEL, SENTINEL_END = "=?base64?", "?="

# The largest integer that a double holds exactly, so that every proxy reads the same number.
SAFE_INTEGER = 2**53 - 1

_INTEGER = re.compile(r"(-?[0-9]{1,16})(?:\.0+)?")
_ZERO_WEIGHT = re.compile(r"0(?:\.0*)?")
_WEIGHT = re.compile(r"0?\.[0-9]{1,9}")


class RequestHeaders:
    """The headers of an ASGI scope, by name in any case, without the blanks around the values.

    Some ASGI servers leave trailing blanks. RFC 9110 §5.5 says to remove them.
    """

    __slots__ = ("_values", "_repeated")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        pairs = list(raw)
        values = dict(pairs)
        # ASGI servers write names in lower case. Checking all at once is faster than lowering each.
        if not b"".join(values).islower():
            values = {name.lower(): value for name, value in pairs}
        self._values = values
        self._repeated = _collect_repeated(pairs) if len(values) != len(pairs) else None

    def get(self, name: str) -> str | None:
        """The value, or None. A header that came more than once is joined by commas (RFC 9110 §5.3)."""
        key = _key(name)
        value = self._values.get(key)
        if value is None:
            return None
        if self._repeated is not None and key in self._repeated:
            return ", ".join(self._repeated[key])
        return value.strip(BLANKS).decode("latin-1")

    def all(self, name: str) -> list[str]:
        """Every value with this name, in order."""
        key = _key(name)
        if self._repeated is not None and key in self._repeated:
            return list(self._repeated[key])
        value = self._values.get(key)
        return [] if value is None else [value.strip(BLANKS).decode("latin-1")]


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    return name.lower().encode("latin-1")


def _collect_repeated(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, list[str]]:
    values: dict[bytes, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.lower(), []).append(value.strip(BLANKS).decode("latin-1"))
    return {name: several for name, several in values.items() if len(several) > 1}


@cache_short_texts(256)
def prefers_event_stream(accept: str | None) -> bool:
    """Whether an Accept header names both forms, and the stream of events before JSON."""
    names = [entry.partition(";")[0].strip() for entry in (accept or "").lower().split(",")]
    both = "text/event-stream" in names and "application/json" in names
    return both and names.index("text/event-stream") < names.index("application/json")


@cache_short_texts(256)
def is_json_requested(accept: str | None) -> bool:
    """Whether an Accept header asks for JSON by name. Browsers do not: they take anything, and show it to people."""
    return (
        accept is not None and "application/json" in accept.lower() and accepts_media_type(accept, "application/json")
    )


@cache_short_texts(256)
def accepts_media_type(accept: str | None, media: str) -> bool:
    """Whether an Accept header allows `media` (lower case). The most specific range decides. No header allows all."""
    if accept is None:
        return True
    ranges = ("*/*", f"{media.partition('/')[0]}/*", media)
    best, accepted = -1, False
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        if name not in ranges or (rank := ranges.index(name)) < best:
            continue
        accepted = _weighs(parameters) or (rank == best and accepted)
        best = rank
    return accepted


@cache_short_texts(256)
def wants_html_page(accept: str | None) -> bool:
    """Whether an Accept header asks for HTML by name, as browsers do: not for events, and not rather for JSON."""
    if accept is None or "text/html" not in (text := accept.lower()):
        return False
    weights: dict[str, float] = {}
    for entry in text.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))
    html, events, json = (weights.get(f, 0.0) for f in ("text/html", "text/event-stream", "application/json"))
    return html > 0 and not events and html >= json


def _weighs(parameters: list[str]) -> bool:
    return _weight(parameters) > 0


def _weight(parameters: list[str]) -> float:
    """The weight of a media range. One that cannot be read counts as none given."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            value = value.strip()
            if _ZERO_WEIGHT.fullmatch(value) is not None:
                return 0.0
            return float(value) if _WEIGHT.fullmatch(value) is not None else 1.0
    return 1.0


@cache_short_texts(256)
def is_json_content_type(content_type: str | None) -> bool:
    """Whether a Content-Type is exactly application/json, in UTF-8 if it names a charset.

    It is strict because a page of another site may send other types without asking first.
    """
    # A comma means a second Content-Type, which would be read as parameters of the first.
    if content_type is None or "," in content_type:
        return False
    media, *parameters = (part.strip(" \t") for part in content_type.lower().split(";"))
    return media == "application/json" and all(map(_is_harmless, parameters))


def _is_harmless(parameter: str) -> bool:
    name, equals, value = parameter.partition("=")
    if name == "charset":
        return value in ("utf-8", '"utf-8"')
    return not parameter or bool(name and equals)


def decode_value(value: str) -> str:
    """The text that a header value stands for: itself, unless it is wrapped as `=?base64?…?=`.

    Raises ValueError if the wrapped part is not canonical Base64 of UTF-8.
    """
    wrapped = value.startswith(SENTINEL) and value.endswith(SENTINEL_END)
    if not wrapped or len(value) < len(SENTINEL) + len(SENTINEL_END):
        return value
    payload = value[len(SENTINEL) : -len(SENTINEL_END)].encode("ascii")
    decoded = a2b_base64(payload)
    # The decoder is lenient. If a value had several spellings, a proxy could read another value than we do.
    if b2a_base64(decoded, newline=False) != payload:
        raise ValueError("not canonical Base64")
    return decoded.decode()


def read_routing_headers(headers: RequestHeaders) -> tuple[str, str, str | None] | None:
    """Version, method and name, if each header comes once and can be decoded."""
    version, method, name = (headers.all(each) for each in (PROTOCOL_VERSION_HEADER, METHOD_HEADER, NAME_HEADER))
    if len(version) != 1 or len(method) != 1 or len(name) > 1:
        return None
    try:
        return version[0], method[0], decode_value(name[0]) if name else None
    except ValueError:
        return None


def find_routing_mismatch(headers: RequestHeaders, method: str, params: Mapping[str, Any], version: str) -> str | None:
    """Why the headers do not match the body in version, method or name: the text of the refusal (-32020), or None.

    `version` is the body's.
    """
    key = NAME_PARAMETERS.get(method)
    for name, expected, what in (
        (PROTOCOL_VERSION_HEADER, version, "the version in params._meta"),
        (METHOD_HEADER, method, "the method"),
    ):
        found = headers.all(name)
        if found != [expected]:
            return _absent_or_repeated(found, name) or f"{name} header does not match {what}"
    return (
        None
        if key is None
        else _compare_header(headers.all(NAME_HEADER), NAME_HEADER, params.get(key), f"params.{key}")
    )


def find_param_mismatch(
    headers: RequestHeaders, params: Mapping[str, Any], param_headers: Mapping[tuple[str, ...], str]
) -> str | None:
    """Like `find_routing_mismatch`, for arguments with `x-mcp-header`. `param_headers` maps paths to headers."""
    for path, name in param_headers.items():
        value: Any = params.get("arguments")
        for key in path:
            value = value.get(key) if is_object(value) else None
        if text := _compare_header(headers.all(name), name, value, ".".join(("params.arguments", *path))):
            return text
    return None


def _compare_header(found: list[str], name: str, value: Any, what: str) -> str | None:
    if value is None or not isinstance(value, str | int | float):
        # Without a header, the check of the parameters explains a value of the wrong kind.
        return f"{name} header has no counterpart, since {what} has no such value" if found else None
    if isinstance(value, int | float) and abs(value) > SAFE_INTEGER:
        return f"{name} header cannot carry {what}: it is beyond ±(2^53-1)"
    if text := _absent_or_repeated(found, name):
        return text
    try:
        decoded = decode_value(found[0])
    except ValueError:
        return f"{name} header is not valid Base64 of UTF-8"
    return None if _equal(decoded, value) else f"{name} header does not match {what}"


def _absent_or_repeated(found: list[str], name: str) -> str | None:
    if not found:
        return f"{name} header is missing"
    return f"{name} header came more than once" if len(found) > 1 else None


def _equal(header: str, value: str | int | float) -> bool:
    if isinstance(value, str):
        return header == value
    if isinstance(value, bool):
        return header == ("true" if value else "false")
    number = _INTEGER.fullmatch(header)
    return number is not None and int(number[1]) == value


# -- Decides by Host, Origin and Sec-Fetch-Site who may call. It keeps out other sites' pages (DNS rebinding). No I/O.


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
_MAX_HEADER_LENGTH = 300
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


class HostOriginGate:
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
        if refusal is None and len(fetch_site or "") <= _MAX_HEADER_LENGTH:
            if len(self._passed) >= _REMEMBERED:
                self._passed.clear()
            self._passed.add(values)
        return refusal

    def _check_host(self, host: str | None) -> GateRefusal | None:
        if host is None:
            return GateRefusal(400, "the Host header is missing")
        authority = _match_header(_AUTHORITY, host)
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
        parts = _match_header(_ORIGIN, origin)
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
        if self._every_host or default is None or (authority := _match_header(_AUTHORITY, host)) is None:
            return False
        return authority[0] == name and (authority[1] or default) == port


def is_loopback_name(host: str | None) -> bool:
    """Whether the value of a Host header names this machine, with any port."""
    authority = _match_header(_AUTHORITY, host) if host is not None else None
    return authority is not None and _LOOPBACK_BIND.fullmatch(authority[0]) is not None


def _match_header(pattern: re.Pattern[str], text: str) -> tuple[str, ...] | None:
    """The groups of a header's value in lower case, with "" for a missing port; None if it is malformed."""
    found = pattern.fullmatch(text.lower()) if len(text) <= _MAX_HEADER_LENGTH and text.isascii() else None
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
    found = _match_header(_HOST_RULE, text)
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
    found = _match_header(_ORIGIN_RULE, text)
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


# -- The target of a request line: a path, or an absolute URI whose host is judged as the Host header is. No I/O.


# RFC 9112 §3.2.2, without a user.
_ABSOLUTE = re.compile(rb"(https?)://([^/@\\]+)(/.*)", re.IGNORECASE)

# What needs no percent-encoding in a path (RFC 3986 §2.3), and the slash.
_NEEDLESS = re.compile(rb"%(?:2[DEFdef]|3[0-9]|4[1-9A-Fa-f]|5[0-9AFaf]|6[1-9A-Fa-f]|7[0-9AEae])")

ENCODED_PATH_REFUSAL = GateRefusal(400, "the path encodes letters, digits or slashes with %: write them as they are")


def has_needless_encoding(scope: Scope) -> bool:
    """Whether the path of a request is written in a way that our own paths have none: `/%6detrics`, `/tools%2Fadd`.

    A proxy in front that denies a path denies what is written, so nothing may be there under another writing.
    """
    target: bytes = scope.get("raw_path") or b""
    return b"%" in target and _NEEDLESS.search(target.partition(b"?")[0]) is not None


def normalize_request_target(scope: Scope, host: str | None) -> GateRefusal | None:
    """Why a request with this target is refused, or None. An absolute URI is replaced by its path.

    Its host must be that of the Host header: whoever judges one of them has then judged both.
    """
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    if target.startswith(b"/") and not target.startswith(b"//"):
        return None
    if not target and not scope["path"]:
        return None  # an app that is mounted without a path
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return GateRefusal(400, "the target of a request must be a path, or an http URI without a user")
    scheme, authority, path = (part.decode("latin-1") for part in absolute.groups())
    if _strip_default_port(authority, scheme) != _strip_default_port(host or "", scheme):
        return GateRefusal(400, "the target of the request and its Host header name different hosts")
    scope["path"], scope["raw_path"] = unquote(path), path.encode("latin-1")
    return None


def _strip_default_port(authority: str, scheme: str) -> str:
    return authority.lower().removesuffix(f":{DEFAULT_PORTS[scheme.lower()]}")
