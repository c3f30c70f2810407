"""Those who know the users: signing a user in at a vendor, and the table of vendors.

Here it is decided where to send the browser, and what the code that it brings back is worth.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlencode

from defserve.auth.bearer_tokens import quote_untrusted
from defserve.auth.issuers import (
    HttpRequest,
    IssuerUnavailable,
    SendHttpRequest,
    download_document,
    fetch_issuer_metadata,
    require_endpoint_url,
)
from defserve.auth.oauth import encode_client_basic_auth, make_pkce_challenge
from defserve.auth.principals import is_token_principal_id
from defserve.auth.proxy.site_messages import OAuthError
from defserve.auth.signed_tokens import IdTokenVerifier
from defserve.base.redaction import get_logger
from defserve.base.secret_references import SecretSetting
from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError, did_you_mean, explain_arguments

log = get_logger("auth")

METADATA_SECONDS: Final = 600.0

# Claims of a user that are kept; others may be long, and nobody needs them.
KEPT_CLAIMS: Final = tuple("sub id oid tid hd login name email email_verified preferred_username groups roles".split())
MAX_CLAIMS_BYTES: Final = 64 * 1024
MAX_TOKEN_SECONDS: Final = 10 * 365 * 86400
_ENDS: Final = "access_token_ends"
"""Beside the vendor's tokens: when the access token ends, as whole seconds, if the vendor has said so."""

# What a token endpoint says of a code or refresh token that is of no use any more. The last two are GitHub's, which
# says them with status 200. Other errors are about us, or about too many requests: they end nobody's access.
_ENDED: Final = frozenset(("invalid_grant", "bad_verification_code", "bad_refresh_token"))


@dataclass(frozen=True, slots=True)
class SignedInUser:
    """A user: the claims that the vendor vouches for, and the vendor's own tokens, which stay here.

    `sub` is the id that never changes for a user of this vendor. An e-mail address that is not verified is left out.
    """

    claims: Mapping[str, Any] = field(repr=False)
    tokens: Mapping[str, str] = field(repr=False)


class VendorLogin:
    """Talks to one vendor as one of its registered applications."""

    def __init__(
        self,
        vendor: Vendor,
        client_id: str,
        client_secret: str,
        callback: str,
        *,
        send: SendHttpRequest,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.vendor, self._id, self._callback = vendor, client_id, callback
        self._secret = SecretSetting(client_secret, "OAuthProxy(client_secret=…)")
        self._send, self._fetch, self._clock = send, partial(download_document, send=send), clock
        self._metadata: Mapping[str, Any] = {}
        self._read_at = float("-inf")
        self._id_tokens = (
            IdTokenVerifier(vendor.issuer, client_id, fetch=self._fetch, clock=clock) if vendor.issuer else None
        )

    async def make_sign_in_url(self, state: str, verifier: str) -> str:
        """Where to send the browser. Raises OAuthError."""
        url = await self._endpoint("authorization_endpoint", self.vendor.authorize)
        asked = {
            "response_type": "code",
            "client_id": self._id,
            "redirect_uri": self._callback,
            "scope": " ".join([*self.vendor.scopes, *await self._list_optional_scopes()]),
            "state": state,
            "code_challenge": make_pkce_challenge(verifier),
            "code_challenge_method": "S256",
            **({"nonce": make_pkce_challenge(state)} if self._id_tokens is not None else {}),
            **self.vendor.more,
        }
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"

    async def check_issuer(self, issuer: str | None) -> None:
        """Refuse a code that another vendor has sent here (RFC 9207). Raises OAuthError."""
        says_so = (await self._load_metadata()).get("authorization_response_iss_parameter_supported") is True
        ours = self.vendor.issuer or self.vendor.response_issuer
        if (issuer is None and says_so) or (issuer is not None and issuer != ours):
            log.warning("an answer of a sign-in names the issuer %s, expected is %r", quote_untrusted(issuer), ours)
            raise OAuthError("access_denied", "the answer came from another authorization server")

    async def finish_sign_in(self, code: str, state: str, verifier: str) -> SignedInUser:
        """Who has signed in. Raises OAuthError."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self._callback}
        tokens, nonce = await self._tokens({**form, "code_verifier": verifier}), make_pkce_challenge(state)
        if self._id_tokens is None:
            claims = self._select_claims(await self._user(self.vendor.user, tokens))
            return SignedInUser(claims, self._select_tokens(tokens))
        claims = self._select_claims(await self._verify_id_token(tokens, nonce))
        return SignedInUser(claims, {**self._select_tokens(tokens), "nonce": nonce})

    async def can_reconfirm_users(self, tokens: Mapping[str, str]) -> bool:
        """Whether the vendor can be asked about a user later. Raises OAuthError."""
        return "refresh_token" in tokens or bool(await self._user_endpoint())

    async def renew_tokens(self, tokens: Mapping[str, str]) -> Mapping[str, str]:
        """The vendor's tokens, renewed if they can be, with the ID token that came with them.

        Raises OAuthError: `invalid_grant` if the vendor has ended the access.
        """
        if "refresh_token" not in tokens:
            return tokens
        found = await self._tokens({"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]})
        id_token = found.get("id_token")
        known = {name: text for name, text in tokens.items() if name != _ENDS}
        more = {"id_token": id_token} if isinstance(id_token, str) else {}
        return {**known, **self._select_tokens(found), **more}

    def count_seconds_left(self, tokens: Mapping[str, str]) -> float:
        """For how long the vendor's access token is good; infinite if the vendor has not said so."""
        return int(tokens[_ENDS]) - self._clock() if _ENDS in tokens else float("inf")

    def _select_tokens(self, tokens: Mapping[str, Any]) -> dict[str, str]:
        """What is kept of the answer of a token endpoint."""
        found = {name: tokens[name] for name in ("access_token", "refresh_token") if isinstance(tokens.get(name), str)}
        seconds = tokens.get("expires_in")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0:
            # Bounded first: JSON has integers that no float can hold.
            found[_ENDS] = str(int(self._clock() + min(seconds, MAX_TOKEN_SECONDS)))
        return found

    async def reconfirm_user(self, tokens: Mapping[str, str]) -> Mapping[str, Any] | None:
        """What the vendor says of the user now, with tokens that were just renewed; None if it cannot be asked.

        Raises OAuthError: `invalid_grant` if it does not vouch for the user any more.
        """
        try:
            if self._id_tokens is not None and "id_token" in tokens:
                return self._select_claims(
                    await self._verify_id_token(tokens, tokens.get("nonce", ""), is_renewal=True)
                )
            if url := await self._user_endpoint():
                return self._select_claims(await self._user(url, tokens))
        except OAuthError as error:
            # What a client may be told at the token endpoint (RFC 6749 §5.2) has no `access_denied`.
            raise OAuthError("invalid_grant", error.description) if error.error == "access_denied" else error from None
        return None

    async def _verify_id_token(
        self, tokens: Mapping[str, Any], nonce: str, *, is_renewal: bool = False
    ) -> Mapping[str, Any]:
        """The claims of the ID token. Raises OAuthError."""
        assert self._id_tokens is not None
        try:
            claims = await self._id_tokens.verify(str(tokens.get("id_token", "")), nonce, is_renewal=is_renewal)
        except IssuerUnavailable as error:
            log.error("%s", error)
            raise OAuthError("temporarily_unavailable", "the sign-in is not available at the moment") from None
        if claims is None:
            raise OAuthError("access_denied", "the ID token of the sign-in is not good")
        return claims

    def _select_claims(self, claims: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is kept of a user's claims. Raises OAuthError: no claim is left out silently that a rule may ask for."""
        found = {name: claims[name] for name in KEPT_CLAIMS if name in claims}
        if claims.get("email_verified") is not True or not isinstance(claims.get("email"), str):
            found.pop("email", None)
        id = claims.get(self.vendor.subject)
        # Only texts and whole numbers: as a text, what is no id would be one that all such accounts have ("None").
        subject = str(id) if isinstance(id, str | int) and not isinstance(id, bool) else ""
        if not is_token_principal_id(subject):
            raise OAuthError("access_denied", "the account has no usable id")
        elsewhere: Any = claims.get("_claim_names")
        if is_object(elsewhere) and (missing := sorted(elsewhere.keys() & set(KEPT_CLAIMS) - found.keys())):
            log.error("%s has too many %s: the vendor leaves them out of its ID token", subject, ", ".join(missing))
            raise OAuthError("access_denied", f"the vendor does not say all {missing[0]} of this account")
        if (size := len(json.dumps(found))) > MAX_CLAIMS_BYTES:
            longest = max(found, key=lambda name: len(json.dumps(found[name])))
            log.error(
                "the claims of %s have %d bytes, most of them %s: %d may be", subject, size, longest, MAX_CLAIMS_BYTES
            )
            raise OAuthError("access_denied", f"{longest} of this account is too long: see the server's log")
        return {**found, "sub": subject}

    async def _user_endpoint(self) -> str:
        """Where the vendor answers who a user is; empty if nowhere. Raises OAuthError."""
        if not self.vendor.issuer:
            return self.vendor.user
        described = await self._load_metadata()
        return await self._endpoint("userinfo_endpoint", "") if "userinfo_endpoint" in described else ""

    async def _list_optional_scopes(self) -> list[str]:
        listed: Any = (await self._load_metadata()).get("scopes_supported") if self.vendor.optional_scopes else None
        return [scope for scope in self.vendor.optional_scopes if is_array(listed) and scope in listed]

    async def _user(self, url: str, tokens: Mapping[str, Any]) -> dict[str, Any]:
        """What the vendor's user endpoint says. Raises OAuthError."""
        request = HttpRequest(url, headers={"authorization": f"Bearer {tokens.get('access_token', '')}"})
        status, found = await self._send_request(request)
        if status == 401:
            raise _not_accepted(request, status, found)
        if status != 200 or not found:
            raise _not_available(request, f"status {status}")
        return found

    async def _tokens(self, form: Mapping[str, str]) -> dict[str, Any]:
        url = await self._endpoint("token_endpoint", self.vendor.token)
        secret, method = await self._secret.load_secret(), self.vendor.method
        shown = {"client_id": self._id, "client_secret": secret} if method == "post" else {}
        headers = {"authorization": encode_client_basic_auth(self._id, secret)} if method == "basic" else {}
        request = HttpRequest(url, {**form, **shown}, headers)
        status, found = await self._send_request(request)
        if status < 500 and str(found.get("error")) in _ENDED:
            raise _not_accepted(request, status, found)
        if status != 200 or not isinstance(found.get("access_token"), str):
            raise _not_available(request, f"status {status}, {str(found.get('error'))[:100]!r}")
        return found

    async def _send_request(self, request: HttpRequest) -> tuple[int, dict[str, Any]]:
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
            return require_endpoint_url(await self._load_metadata(), name)
        except IssuerUnavailable as error:
            log.error("%s", error)
            raise OAuthError("temporarily_unavailable", "the sign-in is not available at the moment") from None

    async def _load_metadata(self) -> Mapping[str, Any]:
        """The vendor's metadata. Raises OAuthError."""
        if not self.vendor.issuer or time.monotonic() - self._read_at < METADATA_SECONDS:
            return self._metadata
        try:
            self._metadata = await fetch_issuer_metadata(self.vendor.issuer, self._fetch)
        except IssuerUnavailable as error:
            log.error("%s", error)
            raise OAuthError("temporarily_unavailable", "the sign-in is not available at the moment") from None
        self._read_at = time.monotonic()
        return self._metadata


def _not_accepted(request: HttpRequest, status: int, found: Mapping[str, Any]) -> OAuthError:
    log.warning("%s answers with status %d: %s", request.url, status, str(found.get("error"))[:100])
    return OAuthError("invalid_grant", "the sign-in was not accepted")


def _not_available(request: HttpRequest, why: str) -> OAuthError:
    log.error("%s does not answer as it must: %s", request.url, why)
    return OAuthError("temporarily_unavailable", "the sign-in is not available at the moment")


# -- The vendors, as data. A vendor with an `issuer` says the rest in its metadata.


@explain_arguments
@dataclass(frozen=True, slots=True)
class Vendor:
    """Where users sign in. `{tenant}`, `{domain}` and `{issuer}` are filled in by the author.

    `issuer` is an OpenID provider. Without one, `authorize`, `token` and `user` are its addresses, and `user` answers
    with a JSON object about the user. `subject` names the claim that never changes for a user, and `names` those by
    which people know one: only claims that users cannot choose freely. `scopes` are asked for at the vendor, and of
    the `optional_scopes` those that its metadata lists. `more` are further parameters for it. `response_issuer` is what
    a vendor without an `issuer` calls itself where it sends users back (`iss`, RFC 9207).
    """

    title: str
    issuer: str = ""
    authorize: str = ""
    token: str = ""
    user: str = ""
    subject: str = "sub"
    names: tuple[str, ...] = ("sub", "email")
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    method: Literal["basic", "post"] = "post"
    more: Mapping[str, str] = field(default_factory=dict[str, str])
    optional_scopes: tuple[str, ...] = ()
    response_issuer: str = ""


VENDORS: Final[Mapping[str, Vendor]] = {
    "google": Vendor("Google", "https://accounts.google.com", more={"access_type": "offline", "prompt": "consent"}),
    "github": Vendor(
        "GitHub",
        authorize="https://github.com/login/oauth/authorize",
        token="https://github.com/login/oauth/access_token",
        user="https://api.github.com/user",
        subject="id",
        names=("id", "login"),
        scopes=("read:user",),
        response_issuer="https://github.com/login/oauth",
    ),
    # An Entra user's e-mail address is not verified, so it names nobody.
    "entra": Vendor(
        "Microsoft Entra",
        "https://login.microsoftonline.com/{tenant}/v2.0",
        subject="oid",
        names=("oid", "preferred_username"),
        scopes=("openid", "profile", "email", "offline_access"),
    ),
    "auth0": Vendor("Auth0", "https://{domain}/", scopes=("openid", "profile", "email", "offline_access")),
    "okta": Vendor("Okta", "https://{domain}", scopes=("openid", "profile", "email", "offline_access"), method="basic"),
    # Keycloak renews without `offline_access`; with it, an access would outlive the user's session there.
    "keycloak": Vendor("Keycloak", "{issuer}", method="basic"),
    "oidc": Vendor("your account", "{issuer}", optional_scopes=("offline_access",), method="basic"),
}


def resolve_vendor(which: str | Vendor, places: Mapping[str, str]) -> Vendor:
    """The vendor with its places filled in. Raises UsageError."""
    vendor = which if isinstance(which, Vendor) else VENDORS.get(which)
    if vendor is None:
        raise UsageError(
            f"OAuthProxy: {which!r} is not a known vendor",
            fix=did_you_mean(str(which), list(VENDORS), f"use one of {', '.join(VENDORS)}, or a Vendor(…)"),
        )
    needs = [name for name in ("tenant", "domain", "issuer") if f"{{{name}}}" in vendor.issuer]
    given = [name for name, value in places.items() if value]
    if needs != given:
        raise UsageError(
            f"OAuthProxy({which!r}): {', '.join(needs) or 'none'} of tenant, domain and issuer belongs to this vendor,"
            f" and {', '.join(given) or 'none'} was given",
            fix=", ".join(f'{name}="…"' for name in needs) or "leave it out",
        )
    return replace(vendor, issuer=vendor.issuer.format(**places))
