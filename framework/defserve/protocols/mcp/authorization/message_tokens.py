"""Bearer tokens in the message itself, where there are no headers: `"auth": {"type": "bearer", "token": …}`.

JSON-RPC does not know this member. It is read only where the author asks for it, and removed before anything else sees
the message.
"""

from __future__ import annotations

from typing import Any

from defserve.auth.bearer import is_token
from defserve.auth.challenges import UNAVAILABLE, Denied
from defserve.auth.live.bearers import BearerCredential, LiveBearers
from defserve.auth.options import Auth
from defserve.auth.principals import Principal
from defserve.core.call import Call
from defserve.core.extension import Next
from defserve.core.session import Session
from defserve.errors import Refused
from defserve.protocols.mcp.authorization.authorization import NotPermitted
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

MEMBER = "auth"
CREDENTIALS = 64


class TokenRequired(Refused):
    """The caller has not shown who it is."""

    error_type = "auth_required"


class TokenUnchecked(Refused):
    """The token may be good, but cannot be checked now."""

    error_type = "server_not_ready"


class SessionTokens:
    """The tokens that a conversation was used with. One that is no longer good ends what was done with it.

    Of more than `CREDENTIALS` the oldest counts as ended.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._live: LiveBearers | None = None
        self._shown: dict[str, BearerCredential] = {}

    def note(self, session: Session, credential: BearerCredential, live: LiveBearers) -> None:
        """A request of the session has shown this one."""
        if credential.key in self._shown:
            return
        self._shown[credential.key] = credential
        if self._session is None:
            self._session, self._live = session, live
            live.hold(self)
        if len(self._shown) > CREDENTIALS:
            self.credential_ended(next(iter(self._shown)))

    def shown(self) -> tuple[BearerCredential, ...]:
        if self._session is not None and self._live is not None and self._session.closed:
            self._live.release(self)
            return ()
        return tuple(self._shown.values())

    def credential_ended(self, key: str) -> None:
        self._shown.pop(key, None)
        if self._session is not None:
            self._session.end_credential(key)


class MessageTokens:
    """Wraps every method of a local conversation. Every request needs a token; the first valid one names the owner."""

    def __init__(self, auth: Auth) -> None:
        self._auth, self._live = auth, LiveBearers(auth)

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
            session.local(SessionTokens).note(session, credential, self._live)
        return await next(call, params)

    async def _credential(self, shown: Any) -> BearerCredential:
        if not is_object(shown) or shown.get("type") != "bearer" or not isinstance(shown.get("token"), str):
            raise TokenRequired('a token is needed: "auth": {"type": "bearer", "token": "…"}')
        if not is_token(shown["token"]):
            raise TokenRequired("the token is not valid here")
        authorization = [f"Bearer {shown['token']}".encode("latin-1")]
        found = await self._auth.authenticate(authorization)
        if isinstance(found, Principal):
            return BearerCredential(self._auth, found, authorization)
        if isinstance(found, Denied) and found.status == 403:
            raise NotPermitted("the token lacks a scope", data={"scopes": list(self._auth.scopes)})
        if found is UNAVAILABLE:
            raise TokenUnchecked(UNAVAILABLE.text)
        raise TokenRequired("the token is not valid here")
