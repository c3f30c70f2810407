"""What issuers of tokens publish and answer: bounded requests to them, their metadata, and which one a token names.

A server may have several issuers. The token says whose it is, and only that verifier looks at it. An issuer is trusted
with identities, so its addresses are https, or on this machine. No redirect is followed.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from defserve.auth.bearer_tokens import (
    ExplainingVerifier,
    TokenRefused,
    bind_auth_part_to_server,
    check_verifier_available,
    check_verifier_settings,
    close_auth_part,
    get_token_check_function,
    quote_untrusted,
)
from defserve.auth.oauth import check_oauth_url, list_issuer_metadata_urls
from defserve.auth.principals import Principal, is_token_principal_id
from defserve.core import json_values
from defserve.core.json_values import is_object
from defserve.errors import UsageError, explain_arguments

if TYPE_CHECKING:
    from defserve.auth.bearer_tokens import TokenVerifier
    from defserve.stores.identity import ServerIdentity


@explain_arguments
class Issuers(ExplainingVerifier):
    """Verifiers of different issuers. A token is shown to the one whose issuer it names (`iss`), and to no other.

    A verifier may have `issuers`, whose tokens it verifies, and `audiences`, which it accepts. `reads_opaque` says that
    tokens of its issuer may be such as name none.

    At most one verifier may name no issuer: it gets the tokens that name none, such as API keys and opaque tokens. If
    there is none, the only `Introspection(…, issuer=…)` gets them. The principals of a named issuer are called
    `issuer|subject`, because two issuers may give two people one subject.
    """

    def __init__(self, verifiers: Sequence[TokenVerifier]) -> None:
        self.verifiers = tuple(verifiers)
        self._by_issuer: dict[str, TokenVerifier] = {}
        self._other: TokenVerifier | None = None
        for verifier in verifiers:
            named: tuple[str, ...] = getattr(verifier, "issuers", ())
            for issuer in named:
                if issuer in self._by_issuer:
                    raise UsageError(f"auth: two verifiers are for the issuer {issuer!r}", fix="keep one of them")
                self._by_issuer[issuer] = verifier
            if not named and self._other is not None:
                raise UsageError(
                    "auth: two verifiers name no issuer, so nothing says which of them a token is for",
                    fix="keep one of them beside JWT(…), OIDC(…) and Introspection(…, issuer=…)",
                )
            if not named:
                self._other = verifier
        if not verifiers:
            raise UsageError("auth=[] lets nobody in", fix="give at least one verifier, or leave auth out")
        self.issuers = tuple(self._by_issuer)
        opaque = [name for name, verifier in self._by_issuer.items() if getattr(verifier, "reads_opaque", False)]
        self._opaque = opaque[0] if len(opaque) == 1 and self._other is None else None
        self.audiences = tuple(
            dict.fromkeys(text for verifier in verifiers for text in getattr(verifier, "audiences", ()))
        )

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`."""
        for verifier in self.verifiers:
            bind_auth_part_to_server(verifier, identity)

    async def close(self) -> None:
        """See `Auth.close`."""
        for verifier in self.verifiers:
            await close_auth_part(verifier)

    @property
    def revocations(self) -> Callable[[], AsyncGenerator[str]] | None:
        """See `ApiKeys.revocations`."""
        return getattr(self._other, "revocations", None)

    async def check_ready(self) -> None:
        """See `ApiKeys.check_ready`."""
        await check_verifier_available(self._other)

    def check_settings(self) -> None:
        """See `ApiKeys.check_settings`."""
        check_verifier_settings(self._other)

    async def check_token(self, token: str) -> Principal:
        """What the verifier of the token's issuer says. One that names no issuer cannot speak for users of others."""
        issuer = read_claimed_issuer(token) or self._opaque
        verifier = self._other if issuer is None else self._by_issuer.get(issuer)
        if verifier is None:
            claimed = "it names no issuer" if issuer is None else f"it names the issuer {quote_untrusted(issuer)}"
            raise TokenRefused(f"iss: {claimed}, and this server trusts {', '.join(self.issuers)}")
        principal = await get_token_check_function(verifier)(token)
        if issuer is None:
            if any(principal.id.startswith(f"{name}|") for name in self.issuers):
                raise TokenRefused("sub: it has the name of another issuer's user")
            return principal
        name = f"{issuer}|{principal.id}"
        if not is_token_principal_id(name):
            raise TokenRefused("sub: with its issuer, it cannot be the name of a caller")
        return replace(principal, id=name)


def read_claimed_issuer(token: str) -> str | None:
    """The issuer that a signed token claims, not verified. None if it is not a signed token, or names none."""
    return _read_claim(token, "iss")


def read_claimed_subject(token: str) -> str | None:
    """Who a signed token says that it is about, not verified."""
    return _read_claim(token, "sub")


def read_claimed_tenant(token: str) -> str:
    """Which tenant of its issuer a signed token claims to be of, not verified; empty if it names none."""
    return _read_claim(token, "tenant") or ""


def _read_claim(token: str, name: str) -> str | None:
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims: Any = json.loads(json_values.decode_base64url(parts[1]))
    except (ValueError, RecursionError):
        return None
    value = claims.get(name) if is_object(claims) else None
    return value if isinstance(value, str) else None


# -- The metadata of an authorization server (RFC 8414, OpenID Connect Discovery): where it is, and what makes it good.


def list_metadata_urls_openid_first(issuer: str) -> tuple[str, ...]:
    """Where an issuer's metadata may be: below its path first, because nearly every OpenID provider has it there."""
    check_oauth_url(issuer, "the issuer")
    *others, below = list_issuer_metadata_urls(issuer)
    return (below, *others)


async def fetch_issuer_metadata(issuer: str, fetch: FetchUrl) -> Mapping[str, Any]:
    """The metadata of an issuer. Raises IssuerUnavailable if no address has a document of exactly this issuer."""
    reasons: list[str] = []
    for url in list_metadata_urls_openid_first(issuer):
        try:
            found: Any = json.loads(await fetch(url))
        except (OSError, ValueError, RecursionError) as error:
            reasons.append(f"{url}: {error or type(error).__name__}")
            continue
        if not is_object(found):
            reasons.append(f"{url}: not a JSON object")
        elif found.get("issuer") != issuer:
            # Compared as text: another issuer's document must not lend its endpoints and keys (RFC 8414 §3.3).
            reasons.append(f"{url}: it is the metadata of {str(found.get('issuer'))[:200]!r}")
        else:
            return found
    raise IssuerUnavailable(f"{issuer} has no usable metadata; " + "; ".join(reasons))


def require_endpoint_url(metadata: Mapping[str, Any], name: str) -> str:
    """The URL of an endpoint. Raises IssuerUnavailable if it is missing or not safe."""
    url = metadata.get(name)
    try:
        if isinstance(url, str):
            check_oauth_url(url, name, query=True)
            return url
    except UsageError as error:
        raise IssuerUnavailable(f"{metadata['issuer']}: {error.problem}") from None
    raise IssuerUnavailable(f"{metadata['issuer']} publishes no {name}")


# -- Requests to issuers: no redirects, bounded in bytes and time. Nothing but the standard library is needed.


FetchUrl = Callable[[str], Awaitable[bytes]]
"""Gives the bytes of the document at a URL, or raises."""

MAX_ISSUER_RESPONSE_BYTES: Final = 256 * 1024
ISSUER_TIMEOUT_SECONDS: Final = 5.0


class IssuerUnavailable(Exception):
    """An issuer does not answer, or not as it must. It says nothing about the token that it was asked about."""


class HttpRequest(NamedTuple):
    """A GET, or the POST of a form or of a body."""

    url: str
    form: Mapping[str, str] | None = None
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class HttpResponse(NamedTuple):
    """The status, headers with names in lower case (those of one name joined with commas), and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


SendHttpRequest = Callable[[HttpRequest], Awaitable[HttpResponse]]
"""Sends a request to an issuer. Raises OSError, TimeoutError or ValueError if there is no whole answer."""


async def send_http_request(request: HttpRequest) -> HttpResponse:
    """The answer, whatever its status. Raises OSError (also for a body that is too long or too slow)."""
    import anyio.to_thread

    # The thread bounds each step, and a head that comes byte by byte has any number of them.
    with anyio.fail_after(2 * ISSUER_TIMEOUT_SECONDS):
        # Unlike asyncio's threads, these do not delay the end of the program.
        return await anyio.to_thread.run_sync(_exchange, request, abandon_on_cancel=True)


async def download_document(url: str, send: SendHttpRequest = send_http_request) -> bytes:
    """GET a small document."""
    answer = await send(HttpRequest(url))
    if answer.status != 200:
        raise OSError(f"it answered with status {answer.status}")
    return answer.body


def _exchange(request: HttpRequest) -> HttpResponse:
    from http.client import HTTPException
    from urllib.error import URLError

    try:
        return _answer(request)
    except URLError as error:
        raise OSError(str(error.reason)) from None
    except HTTPException as error:
        raise OSError(f"what it answers is not HTTP: {type(error).__name__}") from None


def _answer(request: HttpRequest) -> HttpResponse:
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """Only the address itself was checked, not where it redirects to."""

        def redirect_request(self, *args: Any, **kwargs: Any) -> None:
            return None

    if not request.url.startswith(("https:", "http:")):
        raise ValueError("only http and https are fetched")
    # http is for this machine only, so no proxy may carry it elsewhere.
    opener = build_opener(NoRedirects, *([ProxyHandler({})] if request.url.startswith("http:") else []))
    data = urlencode(request.form).encode() if request.form is not None else request.body
    deadline = time.monotonic() + ISSUER_TIMEOUT_SECONDS
    headers = {"Accept": "application/json", "User-Agent": "defserve", **request.headers}
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise ValueError("a header cannot be sent as it is")  # http.client would repeat it, and logs with it a token
    try:
        response = opener.open(Request(request.url, data, headers), timeout=ISSUER_TIMEOUT_SECONDS)
    except HTTPError as error:
        response = error
    body = bytearray()
    with response:
        while len(body) <= MAX_ISSUER_RESPONSE_BYTES and (chunk := response.read1(MAX_ISSUER_RESPONSE_BYTES)):
            body += chunk
            if time.monotonic() > deadline:
                raise TimeoutError("the answer came too slowly")
    if len(body) > MAX_ISSUER_RESPONSE_BYTES:
        raise OSError(f"the answer is larger than {MAX_ISSUER_RESPONSE_BYTES} bytes")
    values = {name.lower(): response.headers.get_all(name, ()) for name in response.headers}
    return HttpResponse(response.status or 0, {name: ", ".join(found) for name, found in values.items()}, bytes(body))
