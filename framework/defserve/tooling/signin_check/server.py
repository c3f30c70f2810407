"""All steps of a sign-in: the refusal, the server's metadata, the issuers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from defserve.auth.challenges import oauth_challenge
from defserve.auth.issuers.fetching import HttpAnswer, HttpRequest, Send, send
from defserve.auth.oauth.well_known import covers, origin_of, resource_places
from defserve.auth.urls import checked_url
from defserve.errors import UsageError
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS
from defserve.tooling.signin_check.documents import document_at
from defserve.tooling.signin_check.issuer import issuer_steps
from defserve.tooling.signin_check.steps import Step, texts

SERVER: Final = "Server"
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


async def sign_in_steps(url: str, ask: Send = send) -> AsyncIterator[Step]:
    """Every step of a client that knows only the URL of a server."""
    try:
        checked_url(url, "the URL", query=True)
        answer = await ask(HttpRequest(url, headers=_HEADERS, body=json.dumps(_OPENING).encode()))
    except UsageError as error:
        yield Step(SERVER, "reached", "broken", error.problem, error.fix)
        return
    except (OSError, ValueError) as error:
        yield Step(
            SERVER, "reached", "broken", f"{url}: {error or type(error).__name__}", "start the server, or check the URL"
        )
        return
    step = _refusal(answer)
    yield step
    if answer.status != 401:
        return
    said = oauth_challenge(answer.headers.get("www-authenticate", "")).parameters
    yield _pointer(said)
    yield _scopes(said)
    document: Mapping[str, Any] | None = None
    async for step, document in _metadata(url, said.get("resource_metadata"), ask):  # noqa: B007 (the last one counts)
        yield step
    servers = texts(document.get("authorization_servers")) if document is not None else []
    if document is None:
        # Clients of 2025-03-26 take the server itself for the issuer. Newer ones do so if there is no metadata.
        servers = [origin_of(url)]
    for issuer in servers:
        async for step in issuer_steps(issuer, url, texts((document or {}).get("scopes_supported")), ask):
            yield step


def _refusal(answer: HttpAnswer) -> Step:
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


def _scopes(said: Mapping[str, str]) -> Step:
    if said.get("scope"):
        return Step(SERVER, "says which scopes", "ok", said["scope"])
    return Step(SERVER, "says which scopes", "ok", "none: clients ask for scopes_supported, or for no scope")


async def _metadata(url: str, named: str | None, ask: Send) -> AsyncIterator[tuple[Step, Mapping[str, Any] | None]]:
    """Looks for the metadata as clients do. The document of the last step is what was found."""
    usual = resource_places(url)
    problems: list[str] = []
    for place in dict.fromkeys([named, *usual] if named else usual):
        found, problem = await document_at(place, ask)
        if found is not None:
            yield Step(SERVER, "resource metadata", "ok", place), found
            yield _resource(url, found), found
            servers = texts(found.get("authorization_servers"))
            if not servers:
                about = "authorization_servers is missing or empty: clients do not know where to sign in"
                yield Step(SERVER, "names its issuers", "broken", about, "name at least one issuer"), found
            else:
                yield Step(SERVER, "names its issuers", "ok", ", ".join(servers)), found
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
    if isinstance(resource, str) and covers(resource, url):
        return Step(SERVER, "names itself", "missing", f"{about}, if they compare exactly (RFC 9728 §3.3)", fix)
    return Step(SERVER, "names itself", "broken", about, fix)
