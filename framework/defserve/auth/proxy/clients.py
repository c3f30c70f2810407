"""The clients that sign users in here: registered (RFC 7591), or described by a document at their own URL (CIMD).

They are found by their id, and who a client at the token endpoint is, is checked here. A registration is sealed into
the client's id, so nothing is kept, and nobody can fill a store by registering.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from defserve.auth.bearer_tokens import TokenRefused
from defserve.auth.issuers import read_claimed_subject
from defserve.auth.oauth import check_oauth_url, decode_client_basic_auth, is_loopback
from defserve.auth.proxy.seals import TokenSealer
from defserve.auth.proxy.site_messages import OAuthError, SiteRequest, TooManyTries
from defserve.auth.rates import FailedSecretCounts, Rate, RateBuckets
from defserve.base.hidden_characters import remove_hidden_characters
from defserve.base.peer_bounds import ByteBoundedCache
from defserve.base.redaction import get_logger
from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError, UsageError

if TYPE_CHECKING:
    from defserve.auth.proxy.assertions import ClientKeys, RegisteredClient

MAX_ID_LENGTH: Final = 4096
_UNKNOWN: Final = "this client is not known here, or its secret is wrong; register it again"


class ClientAssertionRule(NamedTuple):
    """For whom a client's signed assertions have to be, and whether one is used for the first time."""

    audiences: Sequence[str]
    claim_first_use: Callable[[str, str, float], Awaitable[bool]]


class ClientDirectory:
    """All clients of one authorization server. `registered` are those that its operator knows."""

    def __init__(
        self,
        seals: TokenSealer,
        documents: ClientDocuments,
        redirects: RedirectRule | None = None,
        registered: Sequence[RegisteredClient] = (),
        rule: ClientAssertionRule | None = None,
    ) -> None:
        self._seals, self._documents, self._redirects = seals, documents, redirects or RedirectRule()
        self._registered, self._rule = {each.id: each for each in registered}, rule
        if len(self._registered) != len(registered):
            raise UsageError("OAuthProxy(clients=…) names a client twice", fix="keep one of them")
        self._registered_keys = {each.to_client().key for each in registered}
        self._failures = FailedSecretCounts()

    def register(self, body: bytes) -> dict[str, Any]:
        """The answer to a registration (RFC 7591 §3.2.1). Raises OAuthError."""
        try:
            fields: Any = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not is_object(fields):
            raise OAuthError("invalid_client_metadata", "send a JSON object")
        client = parse_client(fields, self._redirects)
        id = self._seals.seal("client", [client.name, client.redirects, client.method])
        if len(id) > MAX_ID_LENGTH:
            raise OAuthError("invalid_client_metadata", "the redirect_uris are too long in all")
        secret = {"client_secret": self._seals.compute_mac("client secret", id), "client_secret_expires_at": 0}
        return {
            "client_id": id,
            "client_id_issued_at": int(time.time()),
            **(secret if client.method != "none" else {}),
            **({"client_name": client.name} if client.name else {}),
            "redirect_uris": list(client.redirects),
            "token_endpoint_auth_method": client.method,
            "grant_types": list(GRANT_TYPES),
            "response_types": ["code"],
            **({"application_type": kind} if (kind := fields.get("application_type")) in _APPLICATION_TYPES else {}),
        }

    async def find_client(self, id: str, address: str = "") -> OAuthClient | None:
        """The client with this id, asked for from this address. Raises OAuthError if that cannot be found out."""
        if (known := self._registered.get(id)) is not None:
            return known.to_client()
        if id.startswith("https://"):
            return await self._documents.find_client(id, address)
        found = self._seals.open("client", id) if len(id) <= MAX_ID_LENGTH else None
        if found is None:
            return None
        name, redirects, method = found
        # What may be registered can have become less since this one was.
        good = tuple(uri for uri in redirects if self._redirects.is_allowed_redirect(uri))
        return OAuthClient(id, name, good, method) if good else None

    async def authenticate_client(self, request: SiteRequest, form: Mapping[str, str]) -> OAuthClient:
        """The client that makes a request at the token endpoint. Raises OAuthError (RFC 6749 §2.3, §5.2).

        What it has signed is good once: before anything is done for it, call `spend_assertion`.
        """
        shown = _basic(request.headers.get("authorization"))
        ways = (shown is not None, "client_secret" in form, "client_assertion" in form)
        if sum(ways) > 1 or (shown is not None and form.get("client_id", shown[0]) != shown[0]):
            raise OAuthError("invalid_request", "the client authenticates in two ways")
        if "client_assertion" in form:
            return await self._authenticate_by_signature(request, form)
        id, secret = shown or (form.get("client_id", ""), form.get("client_secret", ""))
        client = await self.find_client(id, request.address)
        if client is None or client.keys is not None or not await self._is_secret(client, secret, request.network):
            raise OAuthError("invalid_client", _UNKNOWN)
        return client

    @property
    def has_unattended_clients(self) -> bool:
        """Whether the operator knows clients that may act for themselves."""
        return any(each.scopes is not None for each in self._registered.values())

    def is_operator_client(self, key: str) -> bool:
        """Whether the client with this short key is one that the operator knows."""
        return key in self._registered_keys

    async def _is_secret(self, client: OAuthClient, secret: str, network: str) -> bool:
        """Raises OAuthError if too many wrong secrets were tried."""
        if (known := self._registered.get(client.id)) is not None:
            is_right = await known.is_secret(secret)
            if wait := self._failures.check_try(client.id, network, is_right=is_right):
                raise TooManyTries("too many wrong secrets were tried for this client", wait)
            if not is_right:
                log.warning("a wrong secret of the client %s came from %s", client.id, network or "a shared address")
            return is_right
        # These secrets are ours: nobody guesses one.
        return client.method == "none" or self._seals.is_valid_mac("client secret", client.id, secret)

    async def _authenticate_by_signature(self, request: SiteRequest, form: Mapping[str, str]) -> OAuthClient:
        """The client that has signed an assertion about itself (RFC 7523 §3). See `spend_assertion`."""
        assertion = form["client_assertion"]
        if form.get("client_assertion_type") != CLIENT_ASSERTION_TYPE:
            raise OAuthError("invalid_client", f"client_assertion_type must be {CLIENT_ASSERTION_TYPE}")
        id = form.get("client_id") or read_claimed_subject(assertion) or ""
        client = await self.find_client(id, request.address)
        if client is None or client.keys is None or self._rule is None:
            raise OAuthError("invalid_client", _UNKNOWN)
        try:
            shown, seconds = await client.keys.check_client(assertion, client.id, self._rule.audiences)
        except TokenRefused as refused:
            raise _refuse_assertion(client, refused.reason) from None
        return replace(client, assertion=(shown, seconds))

    async def spend_assertion(self, client: OAuthClient) -> None:
        """Remember what an authenticated client has signed. Raises OAuthError if it was used before.

        Call it once the rest of the request is good: anybody can be a client that signs, and fill a store.
        """
        if client.assertion is None or self._rule is None:
            return
        if not await self._rule.claim_first_use("client assertion", *client.assertion):
            raise _refuse_assertion(client, "jti: it was used before")


def _refuse_assertion(client: OAuthClient, reason: str) -> OAuthError:
    log.warning("an assertion of the client %s is refused: %s", client.key, reason)
    return OAuthError("invalid_client", f"client_assertion is not good here: {reason.partition(':')[0]}")


def _basic(authorization: str | None) -> tuple[str, str] | None:
    """Id and secret of an Authorization header; None if there is none. Raises OAuthError."""
    if authorization is None:
        return None
    try:
        return decode_client_basic_auth(authorization)
    except ValueError:
        raise OAuthError("invalid_client", "Authorization holds no id and secret of a client") from None


# -- One client, as it has described itself.


MAX_REDIRECT_URIS: Final = 10
MAX_NAME_LENGTH: Final = 80
CLIENT_AUTH_METHODS: Final = ("none", "client_secret_post", "client_secret_basic")
SIGNED_CLIENT_AUTH_METHOD: Final = "private_key_jwt"
CLIENT_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
GRANT_TYPES: Final = ("authorization_code", "refresh_token")
_APPLICATION_TYPES: Final = ("native", "web")


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client. `method` is how it authenticates at the token endpoint; `document` is its URL, if it has one.

    `keys` check its signatures, if it signs. `own_scopes` are what it may have when it acts for itself; None: it may
    not do that. `assertion` is the id of the assertion that it has shown now, and for how long to remember it.
    """

    id: str
    name: str
    redirects: tuple[str, ...]
    method: str = "none"
    document: str = ""
    keys: ClientKeys | None = field(default=None, repr=False, compare=False)
    own_scopes: tuple[str, ...] | None = None
    assertion: tuple[str, float] | None = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> str:
        """A short name for the client. Ids may be long."""
        return sha256(self.id.encode()).hexdigest()[:32]

    def choose_redirect(self, asked: str | None) -> str | None:
        """Where to send the browser; None if the request names a place that was not registered."""
        if asked is None:
            return self.redirects[0] if len(self.redirects) == 1 else None
        return asked if any(matches_redirect(one, asked) for one in self.redirects) else None


def parse_client(fields: Mapping[str, Any], rule: RedirectRule, id: str = "", document: str = "") -> OAuthClient:
    """The client with this metadata (RFC 7591 §2). Raises OAuthError."""
    redirects = fields.get("redirect_uris")
    if not is_array(redirects) or not 0 < len(redirects) <= MAX_REDIRECT_URIS:
        raise OAuthError("invalid_redirect_uri", f"give 1 to {MAX_REDIRECT_URIS} redirect_uris")
    for uri in redirects:
        if not isinstance(uri, str) or not rule.is_allowed_redirect(uri):
            raise OAuthError(
                "invalid_redirect_uri",
                "redirect_uris are https, http on 127.0.0.1, [::1] or localhost, or of an application's own scheme, "
                "which has a dot (com.example.app:/…) or is known to this server; without fragment and user name",
            )
    method = fields.get("token_endpoint_auth_method", "none" if document else "client_secret_basic")
    if method not in (methods := ("none", SIGNED_CLIENT_AUTH_METHOD) if document else CLIENT_AUTH_METHODS):
        raise OAuthError("invalid_client_metadata", f"token_endpoint_auth_method must be {' or '.join(methods)}")
    grants: Any = fields.get("grant_types", ["authorization_code"])
    if not is_array(grants) or "authorization_code" not in grants:
        raise OAuthError("invalid_client_metadata", "grant_types must hold authorization_code")
    kinds: Any = fields.get("response_types", ["code"])
    if not is_array(kinds) or "code" not in kinds:
        raise OAuthError("invalid_client_metadata", "response_types must hold code")
    return OAuthClient(id, clean_client_name(fields.get("client_name")), tuple(redirects), str(method), document)


def clean_client_name(name: object) -> str:
    """The name that a client gives itself, as one line that cannot pass for something else. It may be empty."""
    return remove_hidden_characters(" ".join(name.split()))[:MAX_NAME_LENGTH] if isinstance(name, str) else ""


# -- Clients whose id is the URL of a document about them (CIMD). A stranger chooses the URL, so it is fetched guarded.


log = get_logger("auth")

MAX_DOCUMENT_BYTES: Final = 16 * 1024
SECONDS: Final = 5.0
MAX_URL_LENGTH: Final = 512
KEPT_BYTES: Final = 1024 * 1024

# Of their own, so that strangers who name bad documents drive no good one out.
BAD_BYTES: Final = 256 * 1024
GOOD_SECONDS, BAD_SECONDS = 600.0, 30.0

# Strangers cause these fetches: from one address, and in all. One address alone cannot use up what is for all.
FETCHES: Final = Rate(per_second=1, burst=10)
ALL_FETCHES: Final = Rate(per_second=20, burst=100)

# Of the fetch and of httpx2: whoever has the document did not answer in time, or not yet.
_LATE: Final = ("TimeoutError", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout")

# Made for each refusal: an exception that is raised again keeps the frames of every earlier request.
_refuse_for_now = partial(
    OAuthError, "temporarily_unavailable", "the client's document cannot be read at the moment; try again"
)

FetchDocument = Callable[[str], Awaitable[bytes]]
MakeClientKeys: TypeAlias = "Callable[[Mapping[str, Any], FetchDocument], ClientKeys]"


class _Kept(NamedTuple):
    client: OAuthClient | None
    until: float


class ClientDocuments:
    """Finds clients by URL. `fetch` gives the bytes of a document, or raises; `make_keys` reads the keys of those that
    sign."""

    def __init__(
        self,
        fetch: FetchDocument | None = None,
        redirects: RedirectRule | None = None,
        make_keys: MakeClientKeys | None = None,
    ) -> None:
        self._fetch, self._redirects = fetch or fetch_guarded, redirects or RedirectRule()
        self._make_keys = make_keys
        self._kept: ByteBoundedCache[_Kept] = ByteBoundedCache(KEPT_BYTES)
        self._bad: ByteBoundedCache[_Kept] = ByteBoundedCache(BAD_BYTES)
        self._fetches, self._all_fetches = RateBuckets(FETCHES), RateBuckets(ALL_FETCHES, capacity=1)
        # Keys are fetched again for documents that are kept, whoever named them: that must not use up new documents.
        self._key_fetches = RateBuckets(ALL_FETCHES, capacity=1)

    async def find_client(self, url: str, address: str = "") -> OAuthClient | None:
        """The client with this id; None if there is no such client. Raises OAuthError if that cannot be found out.

        `address` is where the request comes from that names it.
        """
        if not is_document_url(url):
            return None
        for kept in (self._kept.get(url), self._bad.get(url)):
            if kept is not None and time.monotonic() < kept.until:
                return kept.client
        if self._fetches.take_token(address) or self._all_fetches.take_token("all"):
            raise OAuthError("temporarily_unavailable", "too many clients are being looked up; try again")
        client = await self._fetch_client(url)
        if client is not None:
            self._kept.store_value(url, _Kept(client, time.monotonic() + GOOD_SECONDS), _size(client))
        else:
            self._bad.store_value(url, _Kept(None, time.monotonic() + BAD_SECONDS), 1024)
        return client

    async def _fetch_client(self, url: str) -> OAuthClient | None:
        """The client; None if the document is not good. Raises OAuthError if it did not come in time."""
        try:
            async with asyncio.timeout(SECONDS):
                body = await self._fetch(url)
            found: Any = json.loads(body) if len(body) <= MAX_DOCUMENT_BYTES else None
            if not is_object(found) or found.get("client_id") != url or "client_secret" in found:
                raise ValueError("it is not the document of a client with this id")
            client = parse_client(found, self._redirects, url, url)
            return (
                client if client.method != SIGNED_CLIENT_AUTH_METHOD else replace(client, keys=self._read_keys(found))
            )
        except Exception as error:
            # httpx2 has errors of its own, and is not imported here.
            is_away = isinstance(error, OAuthError) and error.error == "temporarily_unavailable"
            if is_away or type(error).__name__ in _LATE:
                log.warning("the client %s cannot be read at the moment: %s", url, type(error).__name__)
                raise _refuse_for_now() from None
            if isinstance(error, (OAuthError, DefserveError, OSError, ValueError, RecursionError)):
                log.warning("the client %s is refused: %s", url, error or type(error).__name__)
            else:
                log.warning("the client %s cannot be read: %s", url, type(error).__name__)
        return None

    def _read_keys(self, fields: Mapping[str, Any]) -> ClientKeys:
        if self._make_keys is None:
            raise ValueError("a client that signs cannot be known here by its document")
        return self._make_keys(fields, self._fetch_keys)

    async def _fetch_keys(self, url: str) -> bytes:
        if self._key_fetches.take_token("all"):
            raise OSError("the keys of too many clients are being fetched")
        return await self._fetch(url)


def _size(client: OAuthClient) -> int:
    """The bytes that a kept client takes, its URL as the key included. Most of its document is not kept."""
    keys = MAX_DOCUMENT_BYTES if client.keys is not None else 0
    return 512 + keys + sum(map(getsizeof, (client.id, client.name, *client.redirects)))


def is_document_url(text: str) -> bool:
    """Whether a client id is the URL of a document: https, with a path, and nothing else."""
    if not text.startswith("https://") or len(text) > MAX_URL_LENGTH:
        return False
    try:
        parts = check_oauth_url(text, "the client id")
    except UsageError:
        return False
    segments = parts.path.split("/")
    return parts.path not in ("", "/") and "." not in segments and ".." not in segments


async def fetch_guarded(url: str) -> bytes:
    """The document at a public address. No redirects. Raises what the guarded client raises."""
    from defserve.guard.http_client import GuardedClient
    from defserve.guard.network import Egress, make_url_refusal

    egress = Egress(schemes=("https",), redirects=0, max_bytes=MAX_DOCUMENT_BYTES, timeout=2 * SECONDS)
    if not (verdict := egress.judge(url)):
        raise make_url_refusal(verdict)  # before a client is made, which loads all certificates
    async with GuardedClient(egress) as http:
        answer = await http.get(url, headers={"accept": "application/json"})
    if answer.status_code >= 500 or answer.status_code == 429:
        raise _refuse_for_now()
    if answer.status_code != 200:
        raise OSError(f"it answered with status {answer.status_code}")
    return answer.content


# -- Where a client may get its codes: exactly where it said, except for the port on this machine (RFC 8252 §7.3).


MAX_REDIRECT_LENGTH: Final = 1024
_TEXT: Final = re.compile(r"[!#-;=?-\[\]_a-z~%]+")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")

# A scheme made of a domain name turned around is its owner's (RFC 8252 §7.1). Any other may be one that opens a
# browser at an address of somebody's choice, such as `microsoft-edge:` or `googlechromes:`.
_DOMAIN_SCHEME: Final = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9-]+)+")

# Schemes without a dot that MCP clients register for themselves.
CLIENT_SCHEMES: Final = frozenset(
    "antigravity antigravity-ide chatgpt cherrystudio claude claude-dev claude-desktop code-oss codex cursor "
    "cursor-nightly goose jetbrains kiro lmstudio opencode raycast trae trae-cn vscode vscode-insiders vscodium warp "
    "windsurf windsurf-next zed".split()
)

# Nobody can declare these to be an application's own: browsers and systems act on them themselves.
_NEVER_OWN: Final = frozenset(
    "about android-app blob brave browser chrome chrome-extension chrome-untrusted data devtools edge facetime feed "
    "file filesystem firefox ftp ftps googlechrome googlechromes http https intent ios-app itms itms-services jar "
    "javascript mailto market microsoft-edge moz-extension ms-appinstaller opera resource safari search-ms sftp shell "
    "skype sms smb ssh steam tel telnet urn vbscript view-source vivaldi webcal ws wss x-safari-http "
    "x-safari-https".split()
)


class RedirectRule:
    """Which redirects may be registered. `schemes` are those of further applications, declared by the operator.

    Raises UsageError for a scheme that is none, or no application's own.
    """

    def __init__(self, schemes: Iterable[str] = ()) -> None:
        given = [schemes] if isinstance(schemes, str) else list(schemes)
        for scheme in given:
            if _SCHEME.fullmatch(scheme) is None or scheme in _NEVER_OWN:
                raise UsageError(
                    f"OAuthProxy(redirect_schemes=…): {scheme!r} is not the scheme of an application",
                    fix='give the part before the colon, in lower case: redirect_schemes=["myapp"]',
                )
        self._schemes = CLIENT_SCHEMES | frozenset(given)

    def is_allowed_redirect(self, uri: str) -> bool:
        """Whether a client may register this: https, http on this machine, or a scheme of an application's own."""
        parts = _parts(uri)
        if parts is None:
            return False
        if parts.scheme == "https":
            return bool(parts.hostname)
        if parts.scheme == "http":
            return is_loopback(parts.hostname or "")
        is_own = parts.scheme in self._schemes or _DOMAIN_SCHEME.fullmatch(parts.scheme) is not None
        # What follows is a path or `//`: after a bare colon could come a whole address for whoever opens addresses.
        return is_own and uri.startswith("/", len(parts.scheme) + 1) and len(uri) > len(parts.scheme) + 2


def matches_redirect(registered: str, asked: str) -> bool:
    """Whether a redirect that a request names is one that was registered."""
    if registered == asked:
        return True
    ours, theirs = _parts(registered), _parts(asked)
    return (
        ours is not None
        and theirs is not None
        and is_native_redirect(registered)
        and ours.scheme == "http"
        and ours._replace(netloc=_without_port(ours)) == theirs._replace(netloc=_without_port(theirs))
    )


def is_native_redirect(uri: str) -> bool:
    """Whether whatever runs on the user's machine may receive what is sent there."""
    parts = _parts(uri)
    return parts is None or parts.scheme != "https" or is_loopback(parts.hostname or "")


def describe_redirect(uri: str) -> str:
    """How a person reads where a redirect leads."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme}: (an application on this computer)"
    return f"{parts.netloc} (a program on this computer)" if is_loopback(parts.hostname or "") else parts.netloc


def _parts(uri: str) -> SplitResult | None:
    if len(uri) > MAX_REDIRECT_LENGTH or _TEXT.fullmatch(uri) is None:
        return None
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    if "@" in parts.netloc or "#" in uri or (host or "").endswith(".") or not parts.scheme:
        return None
    return parts


def _without_port(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host
