"""Opaque tokens: the issuer is asked whether a token is good (RFC 7662).

Answers are kept for less than two seconds, so a token that is taken back ends what it opened within five seconds. An
issuer that does not answer is no reason to call a token bad: `IssuerUnavailable` is raised.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from defserve.auth.bearer_tokens import ExplainingVerifier, TokenRefused, make_credential_name, quote_untrusted
from defserve.auth.issuers import (
    ISSUER_TIMEOUT_SECONDS,
    HttpRequest,
    IssuerUnavailable,
    SendHttpRequest,
    send_http_request,
)
from defserve.auth.oauth import check_oauth_url, encode_client_basic_auth
from defserve.auth.principals import Principal, is_token_principal_id, parse_scope_claim
from defserve.base.concurrency import wait_for_shared
from defserve.base.peer_bounds import ByteBoundedCache
from defserve.base.redaction import get_logger
from defserve.base.secret_references import SecretSetting
from defserve.core.json_values import as_list, is_object
from defserve.errors import UsageError, explain_arguments

log = get_logger("auth")

GOOD_BYTES, BAD_BYTES = 4 * 1024 * 1024, 512 * 1024

# What an entry costs besides the answer, roughly.
ENTRY_BYTES: Final = 1024

# Credentials in use are verified every two seconds, and one may have been asked about just before it was taken back.
GOOD_SECONDS: Final = 1.5
BAD_SECONDS: Final = 5.0


class Introspected(NamedTuple):
    """What the issuer said about a token, until when that is believed (by the monotonic clock), and what is wrong."""

    claims: dict[str, Any]
    until: float
    problem: str


@explain_arguments
class Introspection(ExplainingVerifier):
    """Tokens that only their issuer can read, by its introspection endpoint at `url`.

    This server shows `client_id` and `client_secret` there, as `Authorization: Basic` or (`method="post"`) in the form.
    A token is good if it is active, its `aud` holds an `audience`, and its `iss`, if there is one, is `issuer`. `sub`
    is the principal's id. `issuer` is also what clients are told, and what chooses among several verifiers.
    """

    reads_opaque: Final = True

    def __init__(
        self,
        url: str,
        *,
        client_id: str,
        client_secret: str,
        audience: str | Iterable[str],
        issuer: str = "",
        method: Literal["basic", "post"] = "basic",
        send: SendHttpRequest = send_http_request,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_oauth_url(url, "the introspection endpoint", query=True)
        self.audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        if not self.audiences or not all(self.audiences) or not client_id or not client_secret:
            raise UsageError(
                "Introspection needs an audience, a client_id and a client_secret",
                fix="audience= is this server's public URL; the issuer gives the other two to this server",
            )
        self.url, self.issuer, self.issuers = url, issuer, (issuer,) if issuer else ()
        self._client_id, self._method = client_id, method
        self._secret = SecretSetting(client_secret, "Introspection(client_secret=…)")
        self._send, self._clock = send, clock
        self._good: ByteBoundedCache[Introspected] = ByteBoundedCache(GOOD_BYTES)
        self._bad: ByteBoundedCache[Introspected] = ByteBoundedCache(BAD_BYTES)
        self._asking: dict[bytes, asyncio.Task[Introspected]] = {}

    async def check_token(self, token: str) -> Principal:
        """The principal that the issuer names. Raises TokenRefused if the token is not good here.

        Raises IssuerUnavailable if the issuer does not say.
        """
        answer = await self._find_answer(token)
        claims, problem = answer.claims, answer.problem
        if not problem and not _is_current(claims.get("exp"), self._clock()):
            problem = "exp: it has expired"
        if problem:
            raise TokenRefused(problem, {name: claims.get(name) for name in ("sub", "jti")})
        return Principal(
            claims["sub"], parse_scope_claim(claims.get("scope")), claims, credential=make_credential_name(token)
        )

    async def _find_answer(self, token: str) -> Introspected:
        digest, now = sha256(token.encode()).digest(), time.monotonic()
        for kept in (self._good.get(digest), self._bad.get(digest)):
            if kept is not None and now < kept.until:
                return kept
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask(token, digest))
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        # A caller that hangs up must not cancel the question for the others.
        return await wait_for_shared(asking)

    async def _ask(self, token: str, digest: bytes) -> Introspected:
        try:
            request = await self._make_request(token)
            async with asyncio.timeout(ISSUER_TIMEOUT_SECONDS):
                answer = await self._send(request)
            if answer.status != 200:
                raise ValueError(f"it answered with status {answer.status}")
            said: Any = json.loads(answer.body)
            if not is_object(said) or not isinstance(said.get("active"), bool):
                raise ValueError("it did not answer with `active`")
        except (OSError, ValueError, RecursionError, UsageError) as error:
            log.error("%s does not say whether a token is good: %s", self.url, error or type(error).__name__)
            raise IssuerUnavailable(f"{self.url} does not answer") from None
        problem = self._find_problem(said)
        kept, seconds = (self._bad, BAD_SECONDS) if problem else (self._good, GOOD_SECONDS)
        introspected = Introspected(said, time.monotonic() + seconds, problem)
        kept.store_value(digest, introspected, ENTRY_BYTES + len(answer.body))
        return introspected

    async def _make_request(self, token: str) -> HttpRequest:
        """The question, with what proves who this server is. Raises UsageError if its secret cannot be read."""
        secret, form = await self._secret.load_secret(), {"token": token, "token_type_hint": "access_token"}
        if self._method == "post":
            return HttpRequest(self.url, {**form, "client_id": self._client_id, "client_secret": secret})
        return HttpRequest(self.url, form, {"authorization": encode_client_basic_auth(self._client_id, secret)})

    def _find_problem(self, said: dict[str, Any]) -> str:
        """Why a token of which its issuer says this is not good here; empty if it is."""
        if said["active"] is not True:
            return "revoked: its issuer says that it is not active: unknown, expired or taken back"
        if not any(text in self.audiences for text in as_list(said.get("aud"))):
            return (
                f"aud: it is for {quote_untrusted(said.get('aud'))}, and this server is {' or '.join(self.audiences)}"
            )
        if self.issuer and said.get("iss", self.issuer) != self.issuer:
            return f"iss: it is from {quote_untrusted(said['iss'])}, and this server trusts {self.issuer}"
        subject = said.get("sub")
        if not isinstance(subject, str) or not is_token_principal_id(subject):
            return "sub: it cannot be the name of a caller"
        return ""


def _is_current(ends: object, now: float) -> bool:
    """Whether a token with this `exp` has not expired. The issuer has checked that too, if the answer is fresh."""
    return ends is None or (isinstance(ends, int | float) and not isinstance(ends, bool) and now < ends)
