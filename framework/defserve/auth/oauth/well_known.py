"""Where servers and issuers publish what one must know to sign in, and which servers a resource stands for."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

RESOURCE: Final = "/.well-known/oauth-protected-resource"
ISSUER: Final = "/.well-known/oauth-authorization-server"
OPENID: Final = "/.well-known/openid-configuration"


def origin_of(url: str) -> str:
    """Scheme, host and port, as they are written."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def resource_paths(path: str) -> tuple[str, ...]:
    """The paths of the metadata of a server at `path`: that of RFC 9728 §3.1, then the root, as clients look."""
    below = path.rstrip("/")
    return (f"{RESOURCE}{below}", RESOURCE) if below else (RESOURCE,)


def resource_places(server: str) -> tuple[str, ...]:
    """The URLs of the metadata of a server, in the order to look."""
    return tuple(f"{origin_of(server)}{path}" for path in resource_paths(urlsplit(server).path))


def issuer_places(issuer: str) -> tuple[str, ...]:
    """The URLs of the metadata of an issuer (RFC 8414 §3.1, OpenID Connect Discovery §4), in the order of MCP."""
    origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    return tuple(dict.fromkeys((f"{origin}{ISSUER}{path}", f"{origin}{OPENID}{path}", f"{origin}{path}{OPENID}")))


def covers(resource: str, server: str) -> bool:
    """Whether a token for `resource` is one for `server`: the same origin, and the same path or one above it.

    RFC 9728 §3.3 wants the URL itself. MCP's own SDKs take a path above as well, because a host may have many servers.
    """
    try:
        mine, theirs = urlsplit(server), urlsplit(resource)
        same = (mine.scheme, mine.hostname, mine.port) == (theirs.scheme, theirs.hostname, theirs.port)
    except ValueError:
        return False
    if not same or theirs.fragment or theirs.username is not None or (theirs.query and theirs.query != mine.query):
        return False
    below, above = (parts.path.rstrip("/") + "/" for parts in (mine, theirs))
    return below.startswith(above)
