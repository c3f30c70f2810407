"""Checks, step by step, what a client needs to sign in at a server, and why a server refuses a token.

It only reads: nothing is registered, nobody signs in. A step that depends on one that failed is left out. A token is
sent to the server alone, and never shown.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from defserve.auth.bearer_tokens import TokenRefused, find_token_fix, format_utc_time, quote_untrusted
from defserve.auth.issuers import (
    FetchUrl,
    HttpRequest,
    HttpResponse,
    Issuers,
    IssuerUnavailable,
    SendHttpRequest,
    read_claimed_issuer,
    send_http_request,
)
from defserve.auth.oauth import (
    check_oauth_url,
    get_origin,
    is_token_resource_for,
    list_issuer_metadata_urls,
    list_resource_metadata_urls,
    parse_oauth_challenge,
)
from defserve.auth.signing_keys import ASYMMETRIC_ALGORITHMS, parse_key_set
from defserve.core.json_values import decode_base64url, is_object
from defserve.errors import UsageError
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS

if TYPE_CHECKING:
    from defserve.auth.signed_tokens import JWT

SERVER: Final = "Server"
TOKEN: Final = "Token"
SHOWN_CLAIMS: Final = ("iss", "aud", "sub", "scope", "iat", "nbf", "exp")
_OPENING: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": HANDSHAKE_VERSIONS[-1],
        "capabilities": {},
        "clientInfo": {"name": "defserve doctor", "version": "1"},
    },
}
_HEADERS: Final = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": HANDSHAKE_VERSIONS[-1],
}


async def check_sign_in(url: str, ask: SendHttpRequest = send_http_request) -> AsyncIterator[Step]:
    """Every step of a client that knows only the URL of a server."""
    try:
        check_oauth_url(url, "the URL", query=True)
        answer = await ask(HttpRequest(url, headers=_HEADERS, body=json.dumps(_OPENING).encode()))
    except UsageError as error:
        yield Step(SERVER, "reached", "broken", error.problem, error.fix)
        return
    except (OSError, ValueError) as error:
        yield Step(
            SERVER, "reached", "broken", f"{url}: {error or type(error).__name__}", "start the server, or check the URL"
        )
        return
    yield _refusal(answer)
    if answer.status != 401:
        return
    said = parse_oauth_challenge(answer.headers.get("www-authenticate", "")).parameters
    looked = [found async for found in _metadata(url, said.get("resource_metadata"), ask)]
    document = looked[-1][1]
    # Clients of 2025-03-26 take the server itself for the issuer. Newer ones do so if there is no metadata.
    servers = keep_texts(document.get("authorization_servers")) if document is not None else [get_origin(url)]
    scopes = keep_texts((document or {}).get("scopes_supported"))
    issuers = [step for issuer in servers async for step in issuer_steps(issuer, url, scopes, ask)]
    if "resource_metadata" not in said and document is None and issuers[0].state == "broken":
        yield NO_SIGN_IN_STEP
        return
    yield _pointer(said)
    asked = said.get("scope") or "none: clients ask for scopes_supported, or for no scope"
    yield Step(SERVER, "says which scopes", "ok", asked)
    for step in (*(step for step, _ in looked), *issuers):
        yield step


def _refusal(answer: HttpResponse) -> Step:
    if answer.status == 401 and answer.headers.get("www-authenticate"):
        return Step(SERVER, "asks for a token", "ok", "401, with WWW-Authenticate")
    if answer.status == 401:
        return Step(
            SERVER,
            "asks for a token",
            "missing",
            "401 without WWW-Authenticate: clients have to guess where to sign in",
            'send WWW-Authenticate: Bearer resource_metadata="…"',
        )
    if answer.status == 200:
        return Step(SERVER, "asks for a token", "ok", "no: it answers without one, so nobody has to sign in")
    fix = "the address of the endpoint usually ends with /mcp" if answer.status in (404, 405) else "look at its log"
    return Step(
        SERVER, "asks for a token", "broken", f"status {answer.status}, and not 401: clients do not sign in", fix
    )


def _pointer(said: Mapping[str, str]) -> Step:
    if said.get("resource_metadata"):
        return Step(SERVER, "says where to look", "ok", said["resource_metadata"])
    return Step(
        SERVER,
        "says where to look",
        "missing",
        "WWW-Authenticate names no resource_metadata: clients try the usual paths",
        "with defserve: give Auth a resource and authorization_servers, or use OIDC(…) or OAuthProxy(…)",
    )


async def _metadata(
    url: str, named: str | None, ask: SendHttpRequest
) -> AsyncIterator[tuple[Step, Mapping[str, Any] | None]]:
    """Looks for the metadata as clients do. The document of the last step is what was found."""
    usual = list_resource_metadata_urls(url)
    problems: list[str] = []
    for place in dict.fromkeys([named, *usual] if named else usual):
        found, problem = await document_at(place, ask)
        if found is not None:
            yield Step(SERVER, "resource metadata", "ok", place), found
            yield _resource(url, found), found
            if servers := keep_texts(found.get("authorization_servers")):
                yield Step(SERVER, "names its issuers", "ok", ", ".join(servers)), found
            else:
                about = "authorization_servers is missing or empty: clients do not know where to sign in"
                yield Step(SERVER, "names its issuers", "broken", about, "name at least one issuer"), found
            return
        problems.append(f"{place}: {problem}")
    fix = "serve the document (RFC 9728) there; behind a proxy, pass /.well-known/ on to the server"
    yield Step(SERVER, "resource metadata", "missing", "; ".join(problems), fix), None


def _resource(url: str, found: Mapping[str, Any]) -> Step:
    resource = found.get("resource")
    if resource == url:
        return Step(SERVER, "names itself", "ok", url)
    about = f"`resource` is {resource!r}, and clients that were given {url} refuse to sign in"
    fix = "publish exactly the URL that clients are given: scheme, host, port, path, no slash at the end"
    if isinstance(resource, str) and is_token_resource_for(resource, url):
        return Step(SERVER, "names itself", "missing", f"{about}, if they compare exactly (RFC 9728 §3.3)", fix)
    return Step(SERVER, "names itself", "broken", about, fix)


# -- What was found at each step.


State = Literal["ok", "missing", "broken"]


class Step(NamedTuple):
    """One thing that a client needs. `missing` stops some clients or some uses, `broken` stops all."""

    part: str
    name: str
    state: State
    about: str = ""
    fix: str = ""


NO_SIGN_IN_STEP: Final = Step(
    SERVER,
    "sign-in",
    "missing",
    "there is none: the operator gives out its tokens, such as API keys, and clients are set up with one",
    "give clients a key (defserve keys create); for sign-in, use OIDC(…) or OAuthProxy(…). --token @FILE tries a key",
)


# -- One token: whether the server takes it, and which check fails.


async def check_token(
    url: str, token: str, scopes: Sequence[str] | None = None, ask: SendHttpRequest = send_http_request
) -> AsyncIterator[Step]:
    """Whether a server accepts a token, its scopes and claims; if not, which check of ours it fails.

    `scopes` are those that it was granted, if it comes from a sign-in.
    """
    try:
        check_oauth_url(url, "the URL", query=True)
        headers = {**_HEADERS, "authorization": f"Bearer {token}"}
        answer = await ask(HttpRequest(url, headers=headers, body=json.dumps(_OPENING).encode()))
    except UsageError as error:
        yield Step(TOKEN, "accepted", "broken", error.problem, error.fix)
        return
    except (OSError, ValueError) as error:
        about = f"{url}: {error or type(error).__name__}"
        yield Step(TOKEN, "accepted", "broken", about, "start the server, or check the URL")
        return
    challenge = parse_oauth_challenge(answer.headers.get("www-authenticate", "")).parameters
    yield _describe_answer(answer.status, challenge)
    if scopes is not None:
        yield Step(TOKEN, "scopes", "ok", f"granted at sign-in: {' '.join(scopes) or 'none'}")
    if (claims := _decode_claims(token)) is None:
        about = "an API key or another opaque token"
        if answer.status == 401:
            about += ": only the server can tell why it refuses it, and its log does"
        elif scopes is None:
            about += ": only the server knows its scopes; defserve why token TOOL shows them, with the server's code"
        yield Step(TOKEN, "kind", "ok", about)
        return
    shown = [f"{name} {_show_claim(name, claims[name])}" for name in SHOWN_CLAIMS if name in claims]
    yield Step(TOKEN, "claims", "ok", ", ".join(shown) or "none of the usual claims")
    if answer.status == 401:
        looked = [found async for found in _metadata(url, challenge.get("resource_metadata"), ask)]
        yield await _verify_token(url, token, looked[-1][1] or {}, ask)


def _describe_answer(status: int, challenge: Mapping[str, str]) -> Step:
    if status == 401:
        return Step(
            TOKEN,
            "accepted",
            "broken",
            "no: 401",
            "the server's log says which check failed, and so may the steps below",
        )
    if status == 403:
        about = f"403: it is good, and lacks one of these scopes: {challenge.get('scope', '')}"
        return Step(TOKEN, "accepted", "broken", about, "ask the issuer for a token with all of them")
    if status == 200:
        return Step(TOKEN, "accepted", "ok", "yes")
    return Step(TOKEN, "accepted", "broken", f"status {status}", "look at the server's log")


async def _verify_token(url: str, token: str, document: Mapping[str, Any], ask: SendHttpRequest) -> Step:
    """What a verifier with the published settings of the server says about a signed token."""
    from defserve.auth.signed_tokens import OIDC

    async def fetch(place: str) -> bytes:
        answer = await ask(HttpRequest(place))
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return answer.body

    resource = str(document.get("resource", url))
    try:
        issuers = [
            OIDC(name, audience=resource, fetch=fetch) for name in keep_texts(document.get("authorization_servers"))
        ]
        if not issuers:
            return Step(TOKEN, "checked here", "missing", "the server names no issuer to check it with", "see its log")
        named = next((issuer for issuer in issuers if issuer.issuer == read_claimed_issuer(token)), None)
        if named is not None and (problem := await _find_key_problem(named.issuer, fetch)):
            return _check_claims(named, token, problem)
        await Issuers(issuers).check_token(token)
    except TokenRefused as refused:
        return Step(TOKEN, "checked here", "broken", str(refused), find_token_fix(refused.reason))
    except (UsageError, IssuerUnavailable) as error:
        return Step(TOKEN, "checked here", "missing", str(error), "see the server's log")
    about = f"it is good for {resource} by the issuer's keys: the server expects another audience, or has revoked it"
    return Step(TOKEN, "checked here", "ok", about)


async def _find_key_problem(issuer: str, fetch: FetchUrl) -> str:
    """Why the keys of an issuer cannot be had; empty if they can."""
    from defserve.auth.signed_tokens import fetch_published_keys

    try:
        parse_key_set(await fetch_published_keys(issuer, fetch), frozenset(ASYMMETRIC_ALGORITHMS))
    except (IssuerUnavailable, OSError, ValueError, RecursionError) as error:
        return str(error) or type(error).__name__
    return ""


def _check_claims(issuer: JWT, token: str, key_problem: str) -> Step:
    """What can be said about a token without the keys of its issuer. The server may have a key of its own."""
    unsigned = "its signature was not checked, because the issuer publishes no keys"
    if problem := issuer.find_claim_problem(token):
        return Step(TOKEN, "checked here", "broken", f"{problem} ({unsigned})", find_token_fix(problem))
    fix = "see the server's log; with JWT(key=…), check that it is the key of this issuer"
    return Step(TOKEN, "checked here", "missing", f"its claims are good; {unsigned}: {key_problem}", fix)


def _decode_claims(token: str) -> dict[str, Any] | None:
    """The claims of a signed token, not verified; None for any other token."""
    parts = token.split(".")
    try:
        found: Any = json.loads(decode_base64url(parts[1])) if len(parts) == 3 else None
    except (ValueError, RecursionError):
        return None
    return found if is_object(found) else None


def _show_claim(name: str, value: object) -> str:
    if name in ("exp", "nbf", "iat") and isinstance(value, int | float):
        return format_utc_time(value)
    return quote_untrusted(value)


# -- The steps at one issuer: its metadata, and what it says about clients like those of MCP.


async def issuer_steps(issuer: str, url: str, scopes: Sequence[str], ask: SendHttpRequest) -> AsyncIterator[Step]:
    """Every step at an issuer, for a server at `url` that names these scopes."""
    part = f"Issuer {issuer}"
    try:
        check_oauth_url(issuer, "the issuer")
    except UsageError as error:
        yield Step(part, "metadata", "broken", error.problem, error.fix)
        return
    found, problems = None, list[str]()
    for place in list_issuer_metadata_urls(issuer):
        found, problem = await document_at(place, ask)
        if found is not None:
            yield Step(part, "metadata", "ok", place)
            break
        problems.append(f"{place}: {problem}")
    if found is None:
        yield Step(part, "metadata", "broken", "; ".join(problems), "serve it (RFC 8414) at one of these addresses")
        return
    yield _issuer(part, issuer, found)
    for check in CHECKS:
        yield check(part, found)
    if scopes:
        yield _check_scopes(part, scopes, found)
    yield _check_resource(part, url, found)
    yield await _keys(part, found, ask)


def _issuer(part: str, issuer: str, found: Mapping[str, Any]) -> Step:
    if found.get("issuer") == issuer:
        return Step(part, "says who it is", "ok")
    about = f"`issuer` is {found.get('issuer')!r}; clients compare the texts, and refuse"
    return Step(part, "says who it is", "broken", about, "write the same text in authorization_servers and in `issuer`")


def _endpoints(part: str, found: Mapping[str, Any]) -> Step:
    wrong: list[str] = []
    for name in ("authorization_endpoint", "token_endpoint"):
        try:
            check_oauth_url(str(found.get(name)), name, query=True)
        except UsageError as error:
            wrong.append(error.problem)
    if wrong:
        return Step(part, "endpoints", "broken", "; ".join(wrong), "publish both, with https")
    return Step(part, "endpoints", "ok", f"{found['authorization_endpoint']}, {found['token_endpoint']}")


def _code_flow(part: str, found: Mapping[str, Any]) -> Step:
    kinds, grants = keep_texts(found.get("response_types_supported")), keep_texts(found.get("grant_types_supported"))
    if "code" not in kinds or (grants and "authorization_code" not in grants):
        about = f"response_types {kinds}, grant_types {grants}: users cannot sign in by code"
        return Step(part, "code flow", "broken", about, "support response_type code and grant authorization_code")
    if grants and "refresh_token" not in grants:
        about = "no refresh tokens: users sign in again whenever a token has expired"
        return Step(part, "code flow", "missing", about, "support the grant refresh_token")
    return Step(part, "code flow", "ok")


def _pkce(part: str, found: Mapping[str, Any]) -> Step:
    if "S256" in (methods := keep_texts(found.get("code_challenge_methods_supported"))):
        return Step(part, "PKCE", "ok", "S256")
    about = f"code_challenge_methods_supported is {methods or 'missing'}: clients must refuse to go on"
    return Step(part, "PKCE", "broken", about, "support S256, and publish it")


def _registration(part: str, found: Mapping[str, Any]) -> Step:
    by_url = found.get("client_id_metadata_document_supported") is True
    by_form = isinstance(found.get("registration_endpoint"), str)
    if by_url and by_form:
        return Step(part, "registration", "ok", "by the URL of a client, and dynamic")
    if by_url:
        about = "by the URL of a client only: older clients need a client id that somebody gives them"
        return Step(part, "registration", "missing", about, "publish a registration_endpoint, too (RFC 7591)")
    if by_form:
        return Step(part, "registration", "ok", "dynamic")
    about = "there is none: each client needs a client id that somebody gives it, and most cannot be given one"
    return Step(part, "registration", "missing", about, "put OAuthProxy(…) in front of this issuer")


def _client_authentication(part: str, found: Mapping[str, Any]) -> Step:
    methods = keep_texts(found.get("token_endpoint_auth_methods_supported")) or ["client_secret_basic"]
    if "none" in methods:
        return Step(part, "clients without a secret", "ok")
    usual = [name for name in ("client_secret_basic", "client_secret_post") if name in methods]
    about = f"not accepted ({', '.join(methods)}): programs on a user's machine can keep no secret"
    state = "missing" if usual else "broken"
    return Step(part, "clients without a secret", state, about, 'accept token_endpoint_auth_method "none", with PKCE')


def _response_issuer(part: str, found: Mapping[str, Any]) -> Step:
    if found.get("authorization_response_iss_parameter_supported") is True:
        return Step(part, "names itself in answers", "ok", "iss")
    about = "no `iss` in its answers: a client that uses several issuers could mix them up"
    return Step(part, "names itself in answers", "missing", about, "send `iss` (RFC 9207), and publish that")


CHECKS: Final[tuple[Callable[[str, Mapping[str, Any]], Step], ...]] = (
    _endpoints,
    _code_flow,
    _pkce,
    _registration,
    _client_authentication,
    _response_issuer,
)


def _check_scopes(part: str, scopes: Sequence[str], found: Mapping[str, Any]) -> Step:
    known = keep_texts(found.get("scopes_supported"))
    lacking = [scope for scope in scopes if known and scope not in known]
    if lacking:
        about = f"it does not know {' '.join(lacking)}, for which the server asks"
        return Step(part, "scopes", "missing", about, "add these scopes to the issuer")
    return Step(part, "scopes", "ok", " ".join(scopes))


def _check_resource(part: str, url: str, found: Mapping[str, Any]) -> Step:
    named = keep_texts(found.get("protected_resources"))
    if named and url not in named:
        about = f"its protected_resources do not name {url}"
        return Step(part, "resource", "missing", about, "add the server there")
    about = (
        "" if named else f"not said. Clients send resource={url}; the issuer must accept it, and write it into `aud`"
    )
    return Step(part, "resource", "ok", about)


async def _keys(part: str, found: Mapping[str, Any], ask: SendHttpRequest) -> Step:
    if "jwks_uri" not in found:
        return Step(part, "keys", "ok", "none published: its tokens are opaque, or its own server reads them")
    url = str(found["jwks_uri"])
    try:
        check_oauth_url(url, "jwks_uri", query=True)
        answer = await ask(HttpRequest(url))
        document: Any = json.loads(answer.body) if answer.status == 200 else None
        if is_object(document) and document.get("keys") == []:
            return Step(part, "keys", "ok", f"{url}: an empty set, so its tokens are not signed")
        keys = parse_key_set(answer.body, frozenset(ASYMMETRIC_ALGORITHMS))
    except UsageError as error:
        return Step(part, "keys", "broken", error.problem, "publish the keys with https")
    except (OSError, ValueError, RecursionError) as error:
        fix = "publish public keys for RS256, ES256 or EdDSA there"
        return Step(part, "keys", "broken", f"{url}: {error or type(error).__name__}", fix)
    return Step(part, "keys", "ok", f"{url}: {len(keys)} usable")


# -- Documents that servers and issuers publish.


async def document_at(url: str, ask: SendHttpRequest) -> tuple[dict[str, Any] | None, str]:
    """The JSON object at a URL; or why there is none."""
    try:
        check_oauth_url(url, "it", query=True)
        answer = await ask(HttpRequest(url))
        if answer.status != 200:
            return None, f"status {answer.status}"
        found: Any = json.loads(answer.body)
    except UsageError as error:
        return None, error.problem
    except (OSError, ValueError, RecursionError) as error:
        return None, str(error) or type(error).__name__
    return (found, "") if is_object(found) else (None, "not a JSON object")


def keep_texts(value: Any) -> list[str]:
    """The texts in a field of a document that should hold a list of texts."""
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
