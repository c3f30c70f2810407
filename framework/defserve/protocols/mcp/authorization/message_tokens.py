"""Bearer tokens in the message itself, where there are no headers: `"auth": {"type": "bearer", "token": …}`.

JSON-RPC does not know this member. It is read only where the author asks for it, and removed before anything else sees
the message.
"""

from __future__ import annotations

from typing import Any

from defserve.auth.bearer import is_token
from defserve.auth.challenges import UNAVAILABLE, Denied
from defserve.auth.options import Auth
from defserve.auth.principals import Principal
from defserve.core.call import Call
from defserve.core.extension import Next
from defserve.errors import Refused
from defserve.protocols.mcp.authorization.authorization import NotPermitted
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

MEMBER = "auth"


class TokenRequired(Refused):
    """The caller has not shown who it is."""

    error_type = "auth_required"


class TokenUnchecked(Refused):
    """The token may be good, but cannot be checked now."""

    error_type = "server_not_ready"


class MessageTokens:
    """Wraps every method of a local conversation. Every request needs a token; the first valid one names the owner."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    async def __call__(self, call: Call, params: Params, next: Next) -> Any:
        if call.outer is not None:
            return await next(call, params)  # the call that makes it has shown its token
        # Removed at once, so that it is never logged.
        shown, session = call.raw.pop(MEMBER, None), call.session
        if session.is_local:
            caller, known = await self._caller(shown), session.identity
            if not isinstance(known, Principal) or known.kind != "token":
                session.belong_to(caller)
            elif known.id != caller.id:
                raise NotPermitted("this conversation belongs to somebody else")
            call.identity = caller
        return await next(call, params)

    async def _caller(self, shown: Any) -> Principal:
        if not is_object(shown) or shown.get("type") != "bearer" or not isinstance(shown.get("token"), str):
            raise TokenRequired('a token is needed: "auth": {"type": "bearer", "token": "…"}')
        if not is_token(shown["token"]):
            raise TokenRequired("the token is not valid here")
        found = await self._auth.authenticate([f"Bearer {shown['token']}".encode("latin-1")])
        if isinstance(found, Principal):
            return found
        if isinstance(found, Denied) and found.status == 403:
            raise NotPermitted("the token lacks a scope", data={"scopes": list(self._auth.scopes)})
        if found is UNAVAILABLE:
            raise TokenUnchecked(UNAVAILABLE.text)
        raise TokenRequired("the token is not valid here")
