"""The steps at one issuer: its metadata, and what it says about clients like those of MCP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from defserve.auth.issuers.fetching import HttpRequest, Send
from defserve.auth.jwt.jwks import parse_key_set
from defserve.auth.jwt.signing_keys import ASYMMETRIC
from defserve.auth.oauth.well_known import issuer_places
from defserve.auth.urls import checked_url
from defserve.errors import UsageError
from defserve.tooling.signin_check.documents import document_at
from defserve.tooling.signin_check.steps import Step, texts
from defserve.wire.jsonvalue import is_object

Check = Callable[[str, Mapping[str, Any]], Step]


async def issuer_steps(issuer: str, url: str, scopes: Sequence[str], ask: Send) -> AsyncIterator[Step]:
    """Every step at an issuer, for a server at `url` that names these scopes."""
    part = f"Issuer {issuer}"
    try:
        checked_url(issuer, "the issuer")
    except UsageError as error:
        yield Step(part, "metadata", "broken", error.problem, error.fix)
        return
    found, problems = None, list[str]()
    for place in issuer_places(issuer):
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
        yield _scopes(part, scopes, found)
    yield _resource(part, url, found)
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
            checked_url(str(found.get(name)), name, query=True)
        except UsageError as error:
            wrong.append(error.problem)
    if wrong:
        return Step(part, "endpoints", "broken", "; ".join(wrong), "publish both, with https")
    return Step(part, "endpoints", "ok", f"{found['authorization_endpoint']}, {found['token_endpoint']}")


def _code_flow(part: str, found: Mapping[str, Any]) -> Step:
    kinds, grants = texts(found.get("response_types_supported")), texts(found.get("grant_types_supported"))
    if "code" not in kinds or (grants and "authorization_code" not in grants):
        about = f"response_types {kinds}, grant_types {grants}: users cannot sign in by code"
        return Step(part, "code flow", "broken", about, "support response_type code and grant authorization_code")
    if grants and "refresh_token" not in grants:
        about = "no refresh tokens: users sign in again whenever a token has expired"
        return Step(part, "code flow", "missing", about, "support the grant refresh_token")
    return Step(part, "code flow", "ok")


def _pkce(part: str, found: Mapping[str, Any]) -> Step:
    if "S256" in (methods := texts(found.get("code_challenge_methods_supported"))):
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
    methods = texts(found.get("token_endpoint_auth_methods_supported")) or ["client_secret_basic"]
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


CHECKS: Final[tuple[Check, ...]] = (
    _endpoints,
    _code_flow,
    _pkce,
    _registration,
    _client_authentication,
    _response_issuer,
)


def _scopes(part: str, scopes: Sequence[str], found: Mapping[str, Any]) -> Step:
    known = texts(found.get("scopes_supported"))
    lacking = [scope for scope in scopes if known and scope not in known]
    if lacking:
        about = f"it does not know {' '.join(lacking)}, for which the server asks"
        return Step(part, "scopes", "missing", about, "add these scopes to the issuer")
    return Step(part, "scopes", "ok", " ".join(scopes))


def _resource(part: str, url: str, found: Mapping[str, Any]) -> Step:
    named = texts(found.get("protected_resources"))
    if named and url not in named:
        about = f"its protected_resources do not name {url}"
        return Step(part, "resource", "missing", about, "add the server there")
    about = (
        "" if named else f"not said. Clients send resource={url}; the issuer must accept it, and write it into `aud`"
    )
    return Step(part, "resource", "ok", about)


async def _keys(part: str, found: Mapping[str, Any], ask: Send) -> Step:
    if "jwks_uri" not in found:
        return Step(part, "keys", "ok", "none published: its tokens are opaque, or its own server reads them")
    url = str(found["jwks_uri"])
    try:
        checked_url(url, "jwks_uri", query=True)
        answer = await ask(HttpRequest(url))
        document: Any = json.loads(answer.body) if answer.status == 200 else None
        if is_object(document) and document.get("keys") == []:
            return Step(part, "keys", "ok", f"{url}: an empty set, so its tokens are not signed")
        keys = parse_key_set(answer.body, frozenset(ASYMMETRIC))
    except UsageError as error:
        return Step(part, "keys", "broken", error.problem, "publish the keys with https")
    except (OSError, ValueError, RecursionError) as error:
        fix = "publish public keys for RS256, ES256 or EdDSA there"
        return Step(part, "keys", "broken", f"{url}: {error or type(error).__name__}", fix)
    return Step(part, "keys", "ok", f"{url}: {len(keys)} usable")
