"""MCP authorization (basic: authorization): what a caller's scopes let it see and use, and how often.

An item that needs scopes is hidden from callers without them, and refused to them. A server without `auth` loads none
of this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from defserve.auth.auth_options import Auth
from defserve.auth.authority import is_local_user, make_anonymous_ip_principal
from defserve.auth.bearer_tokens import is_well_formed_token
from defserve.auth.live_credentials import BearerCredential, LiveBearerCredentials
from defserve.auth.oauth import UNAVAILABLE_DENIAL, AuthDenial
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.auth.rates import Rate, RateBuckets
from defserve.core.call import Call
from defserve.core.extension import Extension, Next, Stages
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.core.session import Session
from defserve.errors import LimitExceeded, Refused, StepUpRequired, UsageError

if TYPE_CHECKING:
    from defserve.stores.shared.shared_tables import SharedRates

DEFAULT = Rate()


async def exchange_caller_token(call: Call, target: str, scopes: Sequence[str] | str = ()) -> str:
    """A token for another API in the name of who makes a call. Raises as `TokenExchanger.obtain_target_token` does.

    If a person has to do something first, a client over HTTP is asked for it, unless the response has begun.
    """
    auth = find_token_exchange_auth(call)
    if auth is None or auth.exchanges is None:
        raise UsageError(
            f"there is no target {target!r}: this server has declared none",
            fix='declare it: Server(auth=Auth(…, targets={"billing": OnBehalfOf(…)}))',
        )
    try:
        return await auth.exchanges.obtain_target_token(identify_caller(call), target, scopes)
    except StepUpRequired as error:
        from defserve.auth.token_exchange import format_step_up_challenge

        if (set_challenge := getattr(call.root.envelope, "set_challenge", None)) is not None:
            set_challenge(format_step_up_challenge(error, auth.metadata_url))
        raise


def find_token_exchange_auth(call: Call) -> Auth | None:
    """How the server of a call checks tokens, if it can get tokens for other APIs."""
    extensions = call.session.composition.extensions
    found = next((each for each in extensions if isinstance(each, Authorization)), None)
    return found.auth if found is not None and found.auth is not None and found.auth.exchanges is not None else None


class NotPermitted(Refused):
    """The caller is known and may not do this."""

    error_type = "permission_denied"


class Authorization(Extension):
    """Items that need scopes are hidden from callers without them; calls are counted by principal and item.

    A caller with an API key sees and calls the tools that the key's permissions name, as often as the key allows.
    """

    name = "authorization"

    def __init__(self, rate: Rate, auth: Auth | None = None) -> None:
        self.auth = auth
        self._by_item = RateBuckets(rate)
        self._by_key = RateBuckets()
        self._rate, self._is_declared = rate, rate != DEFAULT
        self.counter: SharedRates | None = None
        """Counts for all processes what was declared: the rates of keys, and a `rate` that is not the default."""

    def visible(self, call: Call, item: Any) -> bool:
        caller = identify_caller(call)
        readable = item.kind != "tool" or caller.may_read(item.name) or item.protects_itself
        return readable and not caller.missing(item.options.scopes)

    def view(self, call: Call) -> object:
        caller = identify_caller(call)
        return None if is_local_user(caller) else (type(caller), caller.scopes)

    def stages(self) -> Stages:
        return Stages(admit=self._admit)

    def _admit(self, call: Call, item: Any) -> Awaitable[None] | None:
        caller = identify_caller(call)
        if is_local_user(caller):
            return None
        if item.kind == "tool" and not (caller.may_invoke(item.name) or item.protects_itself):
            raise NotPermitted(f"this key may not call {item.name}", data={"permission": f"ToolInvoke({item.name})"})
        rates = caller.rates
        if self.counter is not None and (rates or self._is_declared):
            return self._count_together(self.counter, caller, item, rates)
        if rates:
            self._count_key(rates)
        if wait := self._by_item.take_token((caller.id, item.name)):
            raise _too_often(item, wait)
        return None

    def _count_key(self, rates: Mapping[tuple[str, str], Rate]) -> None:
        """Count a call under all of the rates, or under none of them."""
        wait, limit = max((self._by_key.get_wait_seconds(key, rate), key[1]) for key, rate in rates.items())
        if wait:
            raise _make_key_limit_error(limit, wait)
        for key, rate in rates.items():
            self._by_key.take_token(key, rate)

    async def _count_together(
        self, counter: SharedRates, caller: Principal, item: Any, rates: Mapping[tuple[str, str], Rate]
    ) -> None:
        """Count a call for all processes. While that cannot be done, this one counts by itself."""
        limits, is_counted_here = [*rates.items()], not self._is_declared
        if self._is_declared:
            limits.append(((f"{caller.id}\n{item.name}", ""), self._rate))
        try:
            place, wait = await counter.take_tokens(
                [(f"{key}\n{limit}", rate.per_second, rate.burst) for (key, limit), rate in limits]
            )
        except Refused:
            place, wait, is_counted_here = 0, 0.0, True
            if rates:
                self._count_key(rates)
        if place:
            limit = limits[place - 1][0][1]
            raise _make_key_limit_error(limit, wait) if limit else _too_often(item, wait)
        if is_counted_here and (wait := self._by_item.take_token((caller.id, item.name))):
            raise _too_often(item, wait)


def _too_often(item: Any, wait: float) -> LimitExceeded:
    return LimitExceeded(
        f"too many calls of {item.name}: wait {wait:.1f} s",
        data={"limit": "rate", "retry_after_ms": int(wait * 1000) + 1},
    )


def _make_key_limit_error(limit: str, wait: float) -> LimitExceeded:
    return LimitExceeded(
        f"too many calls with this key: wait {wait:.1f} s",
        data={"limit": limit, "retry_after_ms": int(wait * 1000) + 1, "retry_after": int(wait) + 1},
    )


def identify_caller(call: Call) -> Principal:
    """Who sent a request. Where nothing authenticates, that is a process of the same user, or else a stranger."""
    found = call.identity
    if isinstance(found, Principal):
        return found
    return LOCAL_PRINCIPAL if call.session.is_local else make_anonymous_ip_principal("")


# -- Bearer tokens in the message itself, where there are no headers: `"auth": {"type": "bearer", "token": …}`.
#
# JSON-RPC does not know this member. It is read only where the author asks for it, and removed before anything else
# sees the message.


MEMBER = "auth"
MAX_SESSION_CREDENTIALS = 64


class TokenRequired(Refused):
    """The caller has not shown who it is."""

    error_type = "auth_required"


class TokenUnchecked(Refused):
    """The token may be good, but cannot be checked now."""

    error_type = "server_not_ready"


class SessionTokens:
    """The tokens that a conversation was used with. One that is no longer good ends what was done with it.

    Of more than `MAX_SESSION_CREDENTIALS` the oldest counts as ended.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._live: LiveBearerCredentials | None = None
        self._shown: dict[str, BearerCredential] = {}

    def record_credential(self, session: Session, credential: BearerCredential, live: LiveBearerCredentials) -> None:
        """A request of the session has shown this one."""
        if credential.key in self._shown:
            return
        self._shown[credential.key] = credential
        if self._session is None:
            self._session, self._live = session, live
            live.keep_verifying_holder(self)
        if len(self._shown) > MAX_SESSION_CREDENTIALS:
            self.credential_ended(next(iter(self._shown)))

    def list_credentials(self) -> tuple[BearerCredential, ...]:
        if self._session is not None and self._live is not None and self._session.closed:
            self._live.stop_verifying_holder(self)
            return ()
        return tuple(self._shown.values())

    def credential_ended(self, key: str) -> None:
        self._shown.pop(key, None)
        if self._session is not None:
            self._session.end_credential(key)


class MessageTokenCheck:
    """Wraps every method of a local conversation. Every request needs a token; the first valid one names the owner."""

    def __init__(self, auth: Auth) -> None:
        self._auth, self._live = auth, LiveBearerCredentials(auth)

    async def __call__(self, call: Call, params: Params, next: Next) -> Any:
        if call.outer is not None:
            return await next(call, params)  # the call that makes it has shown its token
        # Removed at once, so that it is never logged.
        shown, session = call.raw.pop(MEMBER, None), call.session
        if session.is_local:
            credential, known = await self._credential(shown), session.identity
            caller = credential.principal
            if not isinstance(known, Principal) or known.kind != "token":
                session.belong_to(caller)
            elif known.id != caller.id:
                raise NotPermitted("this conversation belongs to somebody else")
            call.identity = caller
            session.local(SessionTokens).record_credential(session, credential, self._live)
        return await next(call, params)

    async def _credential(self, shown: Any) -> BearerCredential:
        if not is_object(shown) or shown.get("type") != "bearer" or not isinstance(shown.get("token"), str):
            raise TokenRequired('a token is needed: "auth": {"type": "bearer", "token": "…"}')
        if not is_well_formed_token(shown["token"]):
            raise TokenRequired("the token is not valid here")
        authorization = [f"Bearer {shown['token']}".encode("latin-1")]
        found = await self._auth.authenticate(authorization)
        if isinstance(found, Principal):
            return BearerCredential(self._auth, found, authorization)
        if isinstance(found, AuthDenial) and found.cause is not None:
            self._auth.refusals.log_refusal("the pipe", found.cause)
        if isinstance(found, AuthDenial) and found.status == 403:
            raise NotPermitted("the token lacks a scope", data={"scopes": list(self._auth.scopes)})
        if found is UNAVAILABLE_DENIAL:
            raise TokenUnchecked(UNAVAILABLE_DENIAL.text)
        raise TokenRequired("the token is not valid here")
