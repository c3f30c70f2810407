"""Tokens for other APIs in the name of a caller: `ctx.token_for("billing")` (RFC 8693, and Entra's form of it).

How it works: the operator declares each API as a target. The caller's token is shown to the target's issuer, which
gives another one, for that API alone. What a client showed to this server goes nowhere else.

    caller ── token ──► this server ── token ──► issuer of the target
                             │  ◄── another token ──┘
                             └── that token ──► the API

Who came by an identity assertion of a company has no token that an issuer knows. For them, and where a target says so
(`statement_audience`), this server's own authorization server signs a statement about the caller, and an issuer that
trusts it takes that (RFC 7523, or as the subject token of RFC 8693).

A token that was got is kept for its caller, the caller's token, the target and the scopes, until it expires. Before it
is used again, the caller's token is checked again: one that was revoked, or has expired, gets nothing.
"""

from __future__ import annotations

import json
import secrets
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from defserve.auth.bearer_tokens import TokenRefused, digest_token
from defserve.auth.issuers import HttpRequest, HttpResponse, IssuerUnavailable, SendHttpRequest, send_http_request
from defserve.auth.oauth import check_oauth_url, encode_client_basic_auth, quote_header_value
from defserve.auth.principals import Principal, parse_scopes
from defserve.base.peer_bounds import ByteBoundedCache
from defserve.base.redaction import get_logger
from defserve.base.secret_references import SecretSetting
from defserve.core.json_values import is_object
from defserve.errors import StepUpRequired, ToolError, UsageError, did_you_mean, explain_arguments

log = get_logger("auth")

TOKEN_TYPES: Final = "urn:ietf:params:oauth:token-type:"
EXCHANGE_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ENTRA_AUTHORITY: Final = "https://login.microsoftonline.com"

MAX_TOKEN_LENGTH: Final = 16 * 1024
MAX_CLAIMS_LENGTH: Final = 4 * 1024
SLACK_SECONDS: Final = 30.0
"""A token that ends sooner is not given out: it has to last until its request arrives."""
DEFAULT_SECONDS: Final = 60.0
"""How long a token is kept whose issuer does not say how long it lasts."""
MAX_KEPT_SECONDS: Final = 3600.0
KEPT_BYTES: Final = 4 * 1024 * 1024
_SIGNS_FOR_SECONDS: Final = 300

# What an issuer says if a person has to do something first (Entra; OpenID Connect Core §3.1.2.6).
_STEP_UP: Final = frozenset(("interaction_required", "login_required", "consent_required"))


@explain_arguments
@dataclass(frozen=True, slots=True)
class OnBehalfOf:
    """An API that tools call in the name of the caller, and how a token for it is got: one target of `Auth(targets=…)`.

    Replace single fields: `OnBehalfOf("https://login.example.com/token", client_id=…, client_secret=…, audience=…)`.
    """

    token_endpoint: str
    """Where the caller's token is exchanged: https, or on this machine."""
    client_id: str
    """This server, as that issuer knows it."""
    client_secret: str = field(default="", repr=False)
    """Its secret there, or a reference to it: `file:…`, `command:…`."""
    private_key: str | bytes = field(default="", repr=False)
    """Instead of a secret: the key (PEM) that this server signs with (`private_key_jwt`), or a reference to it."""
    algorithm: str = "RS256"
    """What that key signs with."""
    key_header: Mapping[str, str] = field(default_factory=dict[str, str])
    """Which key that is, for the issuer: `{"kid": …}`, or `{"x5t#S256": …}` for a certificate at Entra."""
    audience: str = ""
    """The API, by its logical name (RFC 8693 §2.1)."""
    resource: str = ""
    """The API, by its URL."""
    scopes: Sequence[str] = ()
    """What is asked for, unless the tool says otherwise."""
    urls: Sequence[str] = ()
    """Where `ctx.http` may send the token: base URLs of the API. A URL that a model has chosen gets nothing."""
    subject_token_type: str = ""
    """What is shown there: by default an access token, or a JWT if it is a statement."""
    form: Literal["rfc8693", "rfc7523", "entra"] = "rfc8693"
    """How it is asked for: by a token exchange, by a statement as the grant (`rfc7523`), or as Entra wants it."""
    statement_audience: str = ""
    """The issuer behind the endpoint, if it trusts `OAuthProxy(signing_key=…)`: it is shown a signed statement about
    the caller then, for this audience alone, and no token."""
    send: SendHttpRequest = field(default=send_http_request, repr=False)
    credential: SecretSetting = field(init=False, repr=False, compare=False)
    """The secret or the key, read when it is needed."""

    def __post_init__(self) -> None:
        check_oauth_url(self.token_endpoint, "the token endpoint of OnBehalfOf", query=True)
        given = self.client_secret or self.private_key
        text = given.decode() if isinstance(given, bytes) else given
        object.__setattr__(self, "credential", SecretSetting(text, "OnBehalfOf(client_secret=…, private_key=…)"))
        if bool(self.client_secret) == bool(self.private_key):
            raise UsageError(
                "OnBehalfOf needs a client_secret or a private_key", fix="the issuer gives a secret, or takes a key"
            )
        object.__setattr__(self, "scopes", parse_scopes(self.scopes))
        for url in self.urls:
            check_oauth_url(url, "a URL of OnBehalfOf(urls=…)")
        if self.form not in FORMS:
            raise UsageError(f"OnBehalfOf(form={self.form!r}) is not known", fix=f"use one of {', '.join(FORMS)}")
        if self.form == "rfc7523" and not self.statement_audience:
            raise UsageError(
                "OnBehalfOf(form='rfc7523') shows a statement, and does not say for whom it is",
                fix='name the issuer of the API: statement_audience="https://login.example.com"',
            )
        if self.form == "entra" and self.statement_audience:
            raise UsageError(
                "Entra takes no statement of another server about a person, so statement_audience is of no use",
                fix='leave it out, and let people sign in there: OAuthProxy("entra", …)',
            )

    @classmethod
    def entra(
        cls, tenant: str, *, client_id: str, scopes: Sequence[str], authority: str = ENTRA_AUTHORITY, **options: Any
    ) -> OnBehalfOf:
        """The same at Microsoft Entra, where `scopes` name the API: `["https://graph.microsoft.com/User.Read"]`."""
        return cls(
            f"{authority}/{tenant}/oauth2/v2.0/token", client_id=client_id, scopes=scopes, form="entra", **options
        )

    def may_send_to(self, url: str) -> bool:
        """Whether a token for this API may be sent to this URL."""
        try:
            return any(_is_below(url, base) for base in self.urls)
        except ValueError:
            return False


def _is_below(url: str, base: str) -> bool:
    asked, known = urlsplit(url), urlsplit(base)
    same = (asked.scheme, asked.hostname, asked.port) == (known.scheme, known.hostname, known.port)
    path = known.path.rstrip("/")
    is_plain = asked.username is None and "/../" not in f"{asked.path}/" and "%2e" not in asked.path.lower()
    return same and is_plain and (asked.path == path or asked.path.startswith(f"{path}/"))


# -- What is sent to the issuer of a target.


def _fill_rfc8693(target: OnBehalfOf, token: str, scopes: Sequence[str]) -> dict[str, str]:
    is_statement = bool(target.statement_audience)
    form = {
        "grant_type": EXCHANGE_GRANT,
        "subject_token": token,
        "subject_token_type": target.subject_token_type or TOKEN_TYPES + ("jwt" if is_statement else "access_token"),
        "requested_token_type": f"{TOKEN_TYPES}access_token",
        "audience": target.audience,
        "resource": target.resource,
        "scope": " ".join(scopes),
    }
    return {name: value for name, value in form.items() if value}


def _fill_rfc7523(target: OnBehalfOf, token: str, scopes: Sequence[str]) -> dict[str, str]:
    form = {"grant_type": JWT_GRANT, "assertion": token, "scope": " ".join(scopes)}
    more = {"audience": target.audience, "resource": target.resource}
    return {name: value for name, value in (form | more).items() if value}


def _fill_entra(target: OnBehalfOf, token: str, scopes: Sequence[str]) -> dict[str, str]:
    if not scopes:
        raise UsageError(
            "Entra wants to know the scopes of the API", fix='OnBehalfOf.entra(…, scopes=["https://api/.default"])'
        )
    return {
        "grant_type": JWT_GRANT,
        "assertion": token,
        "requested_token_use": "on_behalf_of",
        "scope": " ".join(scopes),
    }


FORMS: Final[Mapping[str, Callable[[OnBehalfOf, str, Sequence[str]], dict[str, str]]]] = {
    "rfc8693": _fill_rfc8693,
    "rfc7523": _fill_rfc7523,
    "entra": _fill_entra,
}


def _make_request(target: OnBehalfOf, credential: str, token: str, scopes: Sequence[str]) -> HttpRequest:
    """The request, with what proves who this server is."""
    form = FORMS[target.form](target, token, scopes)
    if target.private_key:
        signed = {
            "client_id": target.client_id,
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": _sign_client_assertion(target, credential),
        }
        return HttpRequest(target.token_endpoint, form | signed)
    if target.form == "entra":
        return HttpRequest(target.token_endpoint, form | {"client_id": target.client_id, "client_secret": credential})
    shown = encode_client_basic_auth(target.client_id, credential)
    return HttpRequest(target.token_endpoint, form, {"Authorization": shown})


def _sign_client_assertion(target: OnBehalfOf, key: str) -> str:
    import jwt

    now = int(time.time())
    claims = {
        "iss": target.client_id,
        "sub": target.client_id,
        "aud": target.token_endpoint,
        "jti": secrets.token_urlsafe(24),
        "iat": now,
        "exp": now + _SIGNS_FOR_SECONDS,
    }
    try:
        return jwt.encode(claims, key, target.algorithm, dict(target.key_header))
    except Exception as error:
        # Not the text of the error: it may quote the key.
        raise UsageError(
            f"OnBehalfOf(private_key=…) cannot sign with {target.algorithm} ({type(error).__name__})",
            fix="give the key as PEM, and the algorithm that it is for: algorithm='ES256'",
        ) from None


# -- All targets of a server, the tokens that its callers have shown, and those that were got for them.


class _Kept(NamedTuple):
    token: str
    until: float


CheckToken = Callable[[str], Awaitable[Principal]]
FindSubjectToken = Callable[[Principal, str, OnBehalfOf], Awaitable[str | None]]


class TokenExchanger:
    """Gets tokens for the targets of one server. `check` is how a caller's token is checked, and `find_subject` what is
    shown to an issuer instead of it, if something is."""

    def __init__(
        self,
        targets: Mapping[str, OnBehalfOf],
        check: CheckToken,
        find_subject: FindSubjectToken,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.targets, self._check, self._find_subject, self._clock = dict(targets), check, find_subject, clock
        self._shown: ByteBoundedCache[str] = ByteBoundedCache(KEPT_BYTES)
        self._got: ByteBoundedCache[_Kept] = ByteBoundedCache(KEPT_BYTES)

    def remember_token(self, principal: Principal, token: str) -> None:
        """A caller has shown this token, and it is good."""
        self._shown.store_value(principal.credential, token, len(token) + 256)

    def find_target(self, name: str) -> OnBehalfOf:
        """Raises UsageError if there is no such target."""
        if (target := self.targets.get(name)) is None:
            raise UsageError(
                f"there is no target {name!r} to get a token for",
                fix=did_you_mean(name, self.targets, 'declare it: Auth(…, targets={"billing": OnBehalfOf(…)})'),
            )
        return target

    async def obtain_target_token(self, principal: Principal, name: str, scopes: Sequence[str] | str = ()) -> str:
        """A token of this caller for a target. Raises ToolError if there is none, StepUpRequired if a person has to do
        something first, UsageError for a target that was not declared."""
        target = self.find_target(name)
        asked = tuple(sorted(set(parse_scopes(scopes) or target.scopes)))
        current, shown = await self._find_valid_token(principal)
        key = sha256(repr((principal.id, digest_token(shown), name, asked)).encode()).hexdigest()
        kept = self._got.get(key)
        if kept is not None and self._clock() < kept.until:
            return kept.token
        subject = await self._find_subject(current, shown, target)
        if subject is None:
            raise _make_no_subject_error(name, target)
        got = await self._exchange(name, target, subject, asked)
        if self._clock() < got.until:
            self._got.store_value(key, got, len(got.token) + 256)
        return got.token

    async def _find_valid_token(self, principal: Principal) -> tuple[Principal, str]:
        """Who the token of this caller proves now, and the token, if it is still good."""
        shown = self._shown.get(principal.credential) if principal.kind == "token" else None
        if shown is None:
            raise ToolError("You have to be signed in with a token for this: nothing can be done in your name.")
        try:
            current = await self._check(shown)
        except TokenRefused:
            self._shown.drop(principal.credential)
            raise ToolError("Your token was revoked or has expired: sign in again.") from None
        except IssuerUnavailable:
            raise ToolError("Your token cannot be checked at the moment. Try again.", data={"retry": True}) from None
        if current.id != principal.id:
            raise ToolError("Your token belongs to another caller now: sign in again.")
        return current, shown

    async def _exchange(self, name: str, target: OnBehalfOf, token: str, scopes: Sequence[str]) -> _Kept:
        request = _make_request(target, await target.credential.load_secret(), token, scopes)
        try:
            answer = await target.send(request)
            fields: Any = json.loads(answer.body)
        except (OSError, ValueError, RecursionError) as error:
            log.warning("the issuer of the target %s does not answer: %s", name, type(error).__name__)
            raise ToolError(f"The issuer of {name!r} does not answer. Try again.", data={"retry": True}) from None
        if not is_object(fields):
            fields = {}
        if answer.status != 200:
            raise _make_refusal(name, answer, fields)
        got, kind = fields.get("access_token"), str(fields.get("token_type", "")).lower()
        is_sendable = isinstance(got, str) and 0 < len(got) <= MAX_TOKEN_LENGTH and got.isascii() and got.isprintable()
        if not is_sendable or " " in str(got) or kind not in ("bearer", "n_a", ""):
            log.error("the issuer of the target %s gave no token that can be sent", name)
            raise ToolError(f"The issuer of {name!r} gave no token that can be used.")
        if got == token:
            # Somebody who hands back what was shown would have it forwarded.
            log.error("the issuer of the target %s gave the caller's own token back", name)
            raise ToolError(f"The issuer of {name!r} gave no token of its own.")
        seconds = fields.get("expires_in")
        lasts = DEFAULT_SECONDS
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            # Bounded first: JSON has integers that no float can hold.
            lasts = min(max(seconds, 0), MAX_KEPT_SECONDS) - SLACK_SECONDS
        return _Kept(str(got), self._clock() + lasts)


def _make_no_subject_error(name: str, target: OnBehalfOf) -> ToolError:
    """What a tool is told of a caller for whom there is nothing to show. Its operator can change that."""
    fix = "if the issuer of the target trusts this server: OnBehalfOf(statement_audience=…), OAuthProxy(signing_key=…)"
    if target.form == "entra":
        fix = 'OAuthProxy("entra", …): Entra exchanges no tokens but its own, so people have to sign in there'
    log.warning("there is nothing to show for a caller at the target %s: no token came with the sign-in; %s", name, fix)
    return ToolError(
        f"{name!r} cannot be used in your name: whoever signed you in gave this server no token for other services. "
        "Only the operator of this server can change that.",
        data={"fix": fix},
    )


def check_exchange_targets(targets: Mapping[str, OnBehalfOf], *, can_sign: bool) -> None:
    """Raises UsageError for a target that wants statements where nobody signs them."""
    for name, target in targets.items():
        if target.statement_audience and not can_sign:
            raise UsageError(
                f"the target {name!r} shows statements about callers, and nobody here signs them",
                fix="give OAuthProxy(signing_key=…), or leave out OnBehalfOf(statement_audience=…): "
                "then the caller's own token is exchanged",
            )


def _make_refusal(name: str, answer: HttpResponse, fields: Mapping[str, Any]) -> Exception:
    """What a tool is told if an issuer refuses. What the issuer wrote is for the operator, and never a token."""
    error = fields.get("error")
    known = error if isinstance(error, str) and error.isascii() and error.isidentifier() else ""
    log.warning("the issuer of the target %s refuses: %s (HTTP %d)", name, known or "no error named", answer.status)
    if known in _STEP_UP:
        claims = fields.get("claims")
        said = claims if isinstance(claims, str) and len(claims) <= MAX_CLAIMS_LENGTH else ""
        return StepUpRequired(
            f"{name!r} wants you to sign in again, with more proof of who you are ({known}).",
            error=known,
            claims=said,
        )
    return ToolError(f"{name!r} cannot be used in your name: its issuer refuses{f' ({known})' if known else ''}.")


def format_step_up_challenge(error: StepUpRequired, metadata_url: str) -> str:
    """The value of WWW-Authenticate that asks a client to sign its user in again. Claims are base64, as at Entra."""
    said = {
        "error": error.error,
        "error_description": error.message,
        "claims": b64encode(error.claims.encode("utf-8", "replace")).decode() if error.claims else "",
        "resource_metadata": metadata_url,
    }
    return "Bearer " + ", ".join(f"{name}={quote_header_value(value)}" for name, value in said.items() if value)
