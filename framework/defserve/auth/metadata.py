"""Protected resource metadata (RFC 9728): which authorization servers issue tokens for this server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from defserve.auth.oauth.well_known import origin_of, resource_paths
from defserve.auth.principals import checked_scopes
from defserve.auth.urls import checked_url
from defserve.errors import UsageError


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """This server as clients know it: the public `url` of its endpoint, and who issues tokens for it."""

    url: str
    authorization_servers: tuple[str, ...]
    scopes_supported: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the document."""

    def __post_init__(self) -> None:
        checked_url(self.url, "the resource")
        if self.url.endswith("/"):
            raise UsageError(
                f"the resource {self.url!r} ends in a slash",
                fix="leave it out: clients compare the text with the token",
            )
        object.__setattr__(self, "authorization_servers", tuple(self.authorization_servers))
        if not self.authorization_servers:
            raise UsageError("the resource has no authorization servers", fix="give the issuer URL of at least one")
        for server in self.authorization_servers:
            checked_url(server, "an authorization server")
        object.__setattr__(self, "scopes_supported", checked_scopes(self.scopes_supported))
        if "offline_access" in self.scopes_supported:
            raise UsageError(
                "'offline_access' is between a client and its authorization server", fix="take it out of the scopes"
            )

    @property
    def metadata_url(self) -> str:
        """The public address of the document, for challenges."""
        return f"{self.origin}{self.paths[0]}"

    @property
    def origin(self) -> str:
        """Scheme and host of the public address."""
        return origin_of(self.url)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the document on the public host."""
        return resource_paths(urlsplit(self.url).path)

    def document(self) -> dict[str, Any]:
        """The document. Serve it without authentication, to any origin."""
        found: dict[str, Any] = {
            "resource": self.url,
            "authorization_servers": list(self.authorization_servers),
            "bearer_methods_supported": ["header"],
            **self.more,
        }
        if self.scopes_supported:
            found["scopes_supported"] = list(self.scopes_supported)
        return found
