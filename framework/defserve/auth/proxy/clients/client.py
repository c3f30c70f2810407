"""One client, as it has described itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from defserve.auth.proxy.clients.redirects import RedirectRule, matches
from defserve.auth.proxy.errors import OAuthError
from defserve.base.hidden_characters import remove_hidden
from defserve.wire.jsonvalue import is_array

MOST_REDIRECTS: Final = 10
LONGEST_NAME: Final = 80
METHODS: Final = ("none", "client_secret_post", "client_secret_basic")
GRANTS: Final = ("authorization_code", "refresh_token")


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client. `method` is how it authenticates at the token endpoint; `document` is its URL, if it has one."""

    id: str
    name: str
    redirects: tuple[str, ...]
    method: str = "none"
    document: str = ""

    @property
    def key(self) -> str:
        """A short name for the client. Ids may be long."""
        return sha256(self.id.encode()).hexdigest()[:32]

    def redirect(self, asked: str | None) -> str | None:
        """Where to send the browser; None if the request names a place that was not registered."""
        if asked is None:
            return self.redirects[0] if len(self.redirects) == 1 else None
        return asked if any(matches(one, asked) for one in self.redirects) else None


def described(fields: Mapping[str, Any], rule: RedirectRule, id: str = "", document: str = "") -> OAuthClient:
    """The client with this metadata (RFC 7591 §2). Raises OAuthError."""
    redirects = fields.get("redirect_uris")
    if not is_array(redirects) or not 0 < len(redirects) <= MOST_REDIRECTS:
        raise OAuthError("invalid_redirect_uri", f"give 1 to {MOST_REDIRECTS} redirect_uris")
    for uri in redirects:
        if not isinstance(uri, str) or not rule.is_redirect(uri):
            raise OAuthError(
                "invalid_redirect_uri",
                "redirect_uris are https, http on 127.0.0.1, [::1] or localhost, or of an application's own scheme, "
                "which has a dot (com.example.app:/…) or is known to this server; without fragment and user name",
            )
    method = fields.get("token_endpoint_auth_method", "none" if document else "client_secret_basic")
    if method not in (methods := ("none",) if document else METHODS):
        raise OAuthError("invalid_client_metadata", f"token_endpoint_auth_method must be {' or '.join(methods)}")
    grants: Any = fields.get("grant_types", ["authorization_code"])
    if not is_array(grants) or "authorization_code" not in grants:
        raise OAuthError("invalid_client_metadata", "grant_types must hold authorization_code")
    kinds: Any = fields.get("response_types", ["code"])
    if not is_array(kinds) or "code" not in kinds:
        raise OAuthError("invalid_client_metadata", "response_types must hold code")
    return OAuthClient(id, readable(fields.get("client_name")), tuple(redirects), str(method), document)


def readable(name: object) -> str:
    """The name that a client gives itself, as one line that cannot pass for something else. It may be empty."""
    text = " ".join(name.split()) if isinstance(name, str) else ""
    return remove_hidden(text)[:LONGEST_NAME]
