"""Signing a user in at a vendor: where to send the browser, and what the code that it brings back is worth."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from defserve.auth.issuers.discovery import endpoint_of, metadata_of
from defserve.auth.issuers.fetching import HttpRequest, IssuerUnavailable, Send
from defserve.auth.jwt.id_tokens import IdTokens
from defserve.auth.oauth.basic import client_basic
from defserve.auth.oauth.pkce import challenge_of
from defserve.auth.proxy.errors import OAuthError
from defserve.auth.proxy.vendors.table import Vendor
from defserve.wire.jsonvalue import is_object

log = logging.getLogger("defserve.auth")

METADATA_SECONDS: Final = 600.0
# Claims of a user that are kept; others may be long, and nobody needs them.
KEPT_CLAIMS: Final = tuple("sub id oid tid hd login name email email_verified preferred_username groups roles".split())
LONGEST_CLAIM: Final = 2048
# What a token endpoint says of a code or refresh token that is of no use any more. The last two are GitHub's, which
# says them with status 200. Other errors are about us, or about too many requests: they end nobody's access.
_ENDED: Final = frozenset(("invalid_grant", "bad_verification_code", "bad_refresh_token"))


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A user: the claims that the vendor vouches for, and the vendor's own tokens, which stay here."""

    claims: Mapping[str, Any]
    tokens: Mapping[str, str]


class VendorLogin:
    """Talks to one vendor as one of its registered applications."""

    def __init__(
        self,
        vendor: Vendor,
        client_id: str,
        client_secret: str,
        callback: str,
        *,
        send: Send,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.vendor, self._id, self._secret, self._callback = vendor, client_id, client_secret, callback
        self._send = send
        self._metadata: Mapping[str, Any] = {}
        self._read_at = float("-inf")
        self._id_tokens = IdTokens(vendor.issuer, client_id, fetch=self._fetch, clock=clock) if vendor.issuer else None

    async def address(self, state: str, verifier: str) -> str:
        """Where to send the browser. Raises OAuthError."""
        url = await self._endpoint("authorization_endpoint", self.vendor.authorize)
        asked = {
            "response_type": "code",
            "client_id": self._id,
            "redirect_uri": self._callback,
            "scope": " ".join(self.vendor.scopes),
            "state": state,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
            **({"nonce": challenge_of(state)} if self._id_tokens is not None else {}),
            **self.vendor.more,
        }
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"

    async def check_issuer(self, issuer: str | None) -> None:
        """Refuse a code that another vendor has sent here (RFC 9207). Raises OAuthError."""
        says_so = (await self._described()).get("authorization_response_iss_parameter_supported") is True
        if (issuer is None and says_so) or (issuer is not None and issuer != self.vendor.issuer):
            raise OAuthError("access_denied", "the answer came from another authorization server")

    async def signed_in(self, code: str, state: str, verifier: str) -> SignedIn:
        """Who has signed in. Raises OAuthError."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self._callback}
        tokens = await self._tokens({**form, "code_verifier": verifier})
        return SignedIn(await self._claims(tokens, challenge_of(state)), _kept(tokens))

    async def still_signed_in(self, tokens: Mapping[str, str]) -> Mapping[str, str]:
        """The vendor's tokens, renewed. Raises OAuthError: `invalid_grant` if the vendor has ended the access."""
        if "refresh_token" in tokens:
            form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
            return {**tokens, **_kept(await self._tokens(form))}
        if self.vendor.user and "access_token" in tokens:
            await self._user(tokens["access_token"])
        return tokens

    async def _claims(self, tokens: Mapping[str, Any], nonce: str) -> Mapping[str, Any]:
        if self._id_tokens is not None:
            try:
                claims = await self._id_tokens.verify(str(tokens.get("id_token", "")), nonce)
            except IssuerUnavailable as error:
                log.error("%s", error)
                raise OAuthError("temporarily_unavailable", "the sign-in is not available at the moment") from None
            if claims is None:
                raise OAuthError("access_denied", "the ID token of the sign-in is not good")
        else:
            claims = await self._user(str(tokens.get("access_token", "")))
        found = {name: claims[name] for name in KEPT_CLAIMS if name in claims}
        return {name: value for name, value in found.items() if len(json.dumps(value)) <= LONGEST_CLAIM}

    async def _user(self, token: str) -> dict[str, Any]:
        request = HttpRequest(self.vendor.user, headers={"authorization": f"Bearer {token}"})
        status, found = await self._asked(request)
        if status == 401:
            raise _not_accepted(request, status, found)
        if status != 200 or not found:
            raise _not_available(request, f"status {status}")
        return found

    async def _tokens(self, form: Mapping[str, str]) -> dict[str, Any]:
        url = await self._endpoint("token_endpoint", self.vendor.token)
        shown = {"client_id": self._id, "client_secret": self._secret} if self.vendor.method == "post" else {}
        headers = {"authorization": client_basic(self._id, self._secret)} if self.vendor.method == "basic" else {}
        request = HttpRequest(url, {**form, **shown}, headers)
        status, found = await self._asked(request)
        if status < 500 and str(found.get("error")) in _ENDED:
            raise _not_accepted(request, status, found)
        if status != 200 or not isinstance(found.get("access_token"), str):
            raise _not_available(request, f"status {status}, {str(found.get('error'))[:100]!r}")
        return found

    async def _asked(self, request: HttpRequest) -> tuple[int, dict[str, Any]]:
        """The status, and the object in the body; empty if there is none. Raises OAuthError."""
        try:
            answer = await self._send(request)
        except (OSError, ValueError) as error:
            raise _not_available(request, str(error) or type(error).__name__) from None
        try:
            found: Any = json.loads(answer.body)
        except (ValueError, RecursionError):
            found = None
        return answer.status, found if is_object(found) else {}

    async def _endpoint(self, name: str, fixed: str) -> str:
        if not self.vendor.issuer:
            return fixed
        try:
            return endpoint_of(await self._described(), name)
        except IssuerUnavailable as error:
            log.error("%s", error)
            raise OAuthError("temporarily_unavailable", "the sign-in is not available at the moment") from None

    async def _described(self) -> Mapping[str, Any]:
        """The vendor's metadata. Raises OAuthError."""
        if not self.vendor.issuer or time.monotonic() - self._read_at < METADATA_SECONDS:
            return self._metadata
        try:
            self._metadata = await metadata_of(self.vendor.issuer, self._fetch)
        except IssuerUnavailable as error:
            log.error("%s", error)
            raise OAuthError("temporarily_unavailable", "the sign-in is not available at the moment") from None
        self._read_at = time.monotonic()
        return self._metadata

    async def _fetch(self, url: str) -> bytes:
        answer = await self._send(HttpRequest(url))
        if answer.status != 200:
            raise OSError(f"it answered with status {answer.status}")
        return answer.body


def _not_accepted(request: HttpRequest, status: int, found: Mapping[str, Any]) -> OAuthError:
    log.warning("%s answers with status %d: %s", request.url, status, str(found.get("error"))[:100])
    return OAuthError("invalid_grant", "the sign-in was not accepted")


def _not_available(request: HttpRequest, why: str) -> OAuthError:
    log.error("%s does not answer as it must: %s", request.url, why)
    return OAuthError("temporarily_unavailable", "the sign-in is not available at the moment")


def _kept(tokens: Mapping[str, Any]) -> dict[str, str]:
    return {name: tokens[name] for name in ("access_token", "refresh_token") if isinstance(tokens.get(name), str)}
