"""HTTP requests to addresses that a peer named: metadata, registration, tokens. Judged and bounded, each on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from ipaddress import IPv4Network as Network
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from pydantic_core import to_json

from defserve.auth.oauth import check_oauth_url, is_loopback
from defserve.base.http_connection import BrokenHttpConnection
from defserve.base.redaction import redact_text
from defserve.base.version import VERSION
from defserve.client.links.http_client import OriginHttpClient, ProxiedClient, RequestAddress, uses_http_proxy
from defserve.client.replies import Json, parse_json_object
from defserve.errors import Refused, UsageError
from defserve.guard.network import RESOLVE_TIMEOUT_SECONDS, describe_non_public_address, judge, resolve_with_system
from defserve.serve.address import SignInError, TokenNotRenewed

MAX_DOCUMENT_BYTES: Final = 256 * 1024
MAX_URL_LENGTH: Final = 8_000
FETCH_SECONDS = 30.0
MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset((301, 302, 307, 308))
_HEADERS: Final = {"user-agent": f"defserve/{VERSION}", "accept": "application/json"}


class FetchedDocument(NamedTuple):
    """A response. `document` is the JSON object in its body; empty if there is none."""

    status: int
    headers: Mapping[str, str]
    document: Json

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300 and bool(self.document)


class Fetcher:
    """Fetches for one sign-in. `reach` says where its addresses may lead.

    Every method calls the address `what` in its errors, and raises SignInError for one that may not be used, or where
    nobody answers. An error status is no exception.
    """

    def __init__(self, reach: NetworkReach) -> None:
        self.reach = reach

    async def get(self, url: str, what: str) -> FetchedDocument:
        """The document at a URL. Redirects are followed within its origin."""
        address = self._check_url(url, what)
        origin = address.origin
        for _ in range(MAX_REDIRECTS + 1):
            found = await self._send(address, what, "GET", {}, None)
            if found.status not in _REDIRECTS or "location" not in found.headers:
                return found
            try:
                address = self._check_url(address.join(found.headers["location"]).url, what)
            except ValueError:
                break
            if address.origin != origin:
                break
        raise SignInError(f"{what} {url} redirects to another place, or too often", fix="tell who runs the server")

    async def post(
        self, url: str, what: str, content: Mapping[str, str] | Json, headers: Mapping[str, str] | None = None
    ) -> FetchedDocument:
        """Send a form. No redirect is followed, because it has secrets."""
        form = {"content-type": "application/x-www-form-urlencoded", **(headers or {})}
        return await self._send(self._check_url(url, what), what, "POST", form, urlencode(content).encode())

    async def post_json(self, url: str, what: str, document: Json) -> FetchedDocument:
        """Send a JSON document. No redirect is followed."""
        kind = {"content-type": "application/json"}
        return await self._send(self._check_url(url, what), what, "POST", kind, to_json(document))

    async def check_url(self, url: str, what: str) -> str:
        """A URL that somebody else is going to open, such as a browser; judged as if it were opened here."""
        address = self._check_url(url, what)
        if uses_http_proxy(address):
            self._judge_name(address, what)
        else:
            try:
                await self._resolve(*address.origin[1:])
            except Refused as error:
                raise SignInError(f"{what} {address} is not used: {error.message}") from None
        return url

    def _check_url(self, url: str, what: str) -> RequestAddress:
        try:
            if len(url) > MAX_URL_LENGTH:
                raise UsageError(f"{what} has more than {MAX_URL_LENGTH} characters", fix="use a shorter address")
            parts = check_oauth_url(url, what, query=True)
        except UsageError as error:
            raise SignInError(error.problem, fix="tell who runs the server; this address comes from it") from None
        if is_loopback(parts.hostname or "") and self.reach is not NetworkReach.MACHINE:
            raise SignInError(f"{what} {url} is on this machine, and the server is not")
        return RequestAddress(url)

    def _judge_name(self, address: RequestAddress, what: str) -> None:
        """Judge an address that only a proxy resolves, by its text: IP addresses, and names of a private network."""
        host = address.origin[1]
        if self.reach is NetworkReach.INTERNET:
            verdict = judge(address.url, schemes=("https",), ports=None)
            problem = "" if verdict else verdict.violations[0].message
        else:
            problem = f"{host} is no place of an issuer" if is_ip_address(host) and reach_of(host) > self.reach else ""
        if problem:
            raise SignInError(f"{what} {address} is not used: {problem}, which a server out there must not send us to")

    async def _resolve(self, host: str, port: int) -> Any:
        return await addresses_within(self.reach, host, port)

    async def _send(
        self, address: RequestAddress, what: str, method: str, headers: Mapping[str, str], content: bytes | None
    ) -> FetchedDocument:
        client: ProxiedClient | OriginHttpClient
        if uses_http_proxy(address):
            self._judge_name(address, what)
            client = ProxiedClient(address, _HEADERS)
        else:
            client = OriginHttpClient(address, _HEADERS, self._resolve)
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                response = await client.send(method, address.target, headers, content)
                body = await response.read_body_start(MAX_DOCUMENT_BYTES)
                await response.aclose()
        except TimeoutError:
            raise SignInError(f"{what} {address} did not answer within {FETCH_SECONDS:g} s") from None
        except BrokenHttpConnection as error:
            raise SignInError(f"{what} {address} cannot be reached: {error}") from None
        finally:
            await client.aclose()
        if len(body) > MAX_DOCUMENT_BYTES:
            raise SignInError(f"{what} {address} answered with more than {MAX_DOCUMENT_BYTES} bytes")
        return FetchedDocument(response.status, response.headers, parse_json_object(body))


# -- How far addresses of a server may lead: a server on the internet cannot send us into this machine or its network.


_PRIVATE_4: Final = tuple(map(Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_PRIVATE_6: Final = IPv6Network("fc00::/7")


class NetworkReach(IntEnum):
    """Where an address is. Who is at one place may name addresses at the same place, or at one with a lower number."""

    INTERNET = 0
    NETWORK = 1
    MACHINE = 2
    NOWHERE = 3
    """Link-local, cloud metadata, multicast and other addresses where no issuer is."""


def is_ip_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def reach_of(address: str) -> NetworkReach:
    """Where an IP address is."""
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return NetworkReach.NOWHERE
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if describe_non_public_address(parsed) is None:
        return NetworkReach.INTERNET
    if parsed.is_loopback:
        return NetworkReach.MACHINE
    if isinstance(parsed, IPv4Address):
        return NetworkReach.NETWORK if any(parsed in network for network in _PRIVATE_4) else NetworkReach.NOWHERE
    return NetworkReach.NETWORK if parsed in _PRIVATE_6 else NetworkReach.NOWHERE


def classify_server_reach(addresses: Iterable[str]) -> NetworkReach:
    """The reach of a server whose connections went to these addresses. One public address makes it public."""
    found = [reach_of(address) for address in addresses]
    return min(found) if found and NetworkReach.NOWHERE not in found else NetworkReach.INTERNET


async def addresses_within(reach: NetworkReach, host: str, port: int) -> Sequence[str]:
    """The addresses of a host. Raises Refused if there are none, or one of them lies beyond `reach`."""
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_SECONDS):
            found = list(dict.fromkeys(await resolve_with_system(host, port)))
    except (OSError, UnicodeError, TimeoutError):
        raise Refused(f"the name {host} cannot be resolved") from None
    for address in found:
        if reach_of(address) > reach:
            raise Refused(f"{host} is at {address}, which a server out there must not send us to")
    return found


# -- Why a sign-in failed.


__all__ = ["TokenNotRenewed", "RefusedByIssuer", "SignInError", "quote_peer_text"]

MAX_QUOTE_LENGTH = 300


class RefusedByIssuer(SignInError):
    """The authorization server refused a request. `error` is its code, such as `invalid_grant`."""

    def __init__(self, error: str, problem: str, *, fix: str = "") -> None:
        self.error = error
        super().__init__(problem, fix=fix)


def quote_peer_text(text: object) -> str:
    """Words of a peer, safe for a message: bounded, on one line, without secrets."""
    return " ".join(redact_text(str(text), limit=MAX_QUOTE_LENGTH).split())
