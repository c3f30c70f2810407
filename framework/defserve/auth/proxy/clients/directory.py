"""Finds clients by their id, registers them, and checks who a client at the token endpoint is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from defserve.auth.oauth.basic import read_client_basic
from defserve.auth.proxy.clients.client import GRANTS, OAuthClient, described
from defserve.auth.proxy.clients.documents import ClientDocuments
from defserve.auth.proxy.clients.redirects import RedirectRule
from defserve.auth.proxy.errors import OAuthError
from defserve.auth.proxy.seals import Seals
from defserve.auth.site import SiteRequest
from defserve.wire.jsonvalue import is_object

LONGEST_ID: Final = 4096
_UNKNOWN: Final = "this client is not known here, or its secret is wrong; register it again"


class ClientDirectory:
    """All clients of one authorization server."""

    def __init__(self, seals: Seals, documents: ClientDocuments, redirects: RedirectRule | None = None) -> None:
        self._seals, self._documents, self._redirects = seals, documents, redirects or RedirectRule()

    def register(self, body: bytes) -> dict[str, Any]:
        """The answer to a registration (RFC 7591 §3.2.1). Raises OAuthError."""
        try:
            fields: Any = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not is_object(fields):
            raise OAuthError("invalid_client_metadata", "send a JSON object")
        client = described(fields, self._redirects)
        id = self._seals.seal("client", [client.name, client.redirects, client.method])
        if len(id) > LONGEST_ID:
            raise OAuthError("invalid_client_metadata", "the redirect_uris are too long in all")
        secret = {"client_secret": self._seals.mark("client secret", id), "client_secret_expires_at": 0}
        return {
            "client_id": id,
            "client_id_issued_at": int(time.time()),
            **(secret if client.method != "none" else {}),
            **({"client_name": client.name} if client.name else {}),
            "redirect_uris": list(client.redirects),
            "token_endpoint_auth_method": client.method,
            "grant_types": list(GRANTS),
            "response_types": ["code"],
            **({"application_type": fields["application_type"]} if "application_type" in fields else {}),
        }

    async def find(self, id: str, address: str = "") -> OAuthClient | None:
        """The client with this id, asked for from this address. Raises OAuthError if that cannot be found out."""
        if id.startswith("https://"):
            return await self._documents.find(id, address)
        found = self._seals.open("client", id) if len(id) <= LONGEST_ID else None
        if found is None:
            return None
        name, redirects, method = found
        # What may be registered can have become less since this one was.
        good = tuple(uri for uri in redirects if self._redirects.is_redirect(uri))
        return OAuthClient(id, name, good, method) if good else None

    async def authenticated(self, request: SiteRequest, form: Mapping[str, str]) -> OAuthClient:
        """The client that makes a request at the token endpoint. Raises OAuthError (RFC 6749 §2.3, §5.2)."""
        shown = _basic(request.headers.get("authorization"))
        if shown is not None and ("client_secret" in form or form.get("client_id", shown[0]) != shown[0]):
            raise OAuthError("invalid_request", "the client authenticates in two ways")
        id, secret = shown or (form.get("client_id", ""), form.get("client_secret", ""))
        client = await self.find(id, request.address)
        if client is None:
            raise OAuthError("invalid_client", _UNKNOWN)
        if client.method != "none" and not self._seals.has_marked("client secret", id, secret):
            raise OAuthError("invalid_client", _UNKNOWN)
        return client


def _basic(authorization: str | None) -> tuple[str, str] | None:
    """Id and secret of an Authorization header; None if there is none. Raises OAuthError."""
    if authorization is None:
        return None
    try:
        return read_client_basic(authorization)
    except ValueError:
        raise OAuthError("invalid_client", "Authorization holds no id and secret of a client") from None
